"""Variables that begin with the values of a file."""

import keras
import numpy as np
import pytest

from keras_tfm.zoo import plans


def dense(width):
    layer = keras.layers.Dense(width)
    layer.build((None, 3))
    return layer


def plan_of(layer):
    return [
        (layer.kernel, ["w"], plans.same),
        (layer.bias, ["a", "b"], lambda one, other: one + other),
    ]


TENSORS = {"w": np.arange(6.0).reshape(3, 2), "a": np.ones(2), "b": np.ones(2)}


def test_each_variable_begins_with_its_value():
    reads = []

    def read(name):
        reads.append(name)
        return TENSORS[name]

    with plans.Filling("a file") as filling:
        layer, other = dense(2), dense(2)
        filling.fill(plan_of(layer), read)
        assert not reads  # nothing is read before the end
    assert reads == ["w", "a", "b"]
    np.testing.assert_array_equal(layer.kernel, TENSORS["w"])
    np.testing.assert_array_equal(layer.bias, [2, 2])
    assert keras.ops.convert_to_numpy(other.kernel).any()  # as it is drawn
    layer.bias.assign([3, 4])
    np.testing.assert_array_equal(layer.bias, [3, 4])
    assert keras.ops.shape(layer(np.ones((1, 3)))) == (1, 2)


@pytest.mark.parametrize("fault", [ValueError("torn"), KeyError("w")])
def test_what_fails_is_raised_and_leaves_nothing_behind(fault):
    def read(name):
        raise fault

    with pytest.raises(type(fault), match="torn|w"), plans.Filling("it") as filling:
        layer = dense(2)
        filling.fill(plan_of(layer), read)
    wanted = "it: 'w' does not fit.*shape \\(2,\\)"
    with pytest.raises(ValueError, match=wanted), plans.Filling("it") as filling:
        layer = dense(2)
        filling.fill([(layer.kernel, ["w"], plans.same)], lambda name: np.ones(2))
    with pytest.raises(RuntimeError, match="inside"), plans.Filling("it"):
        dense(2)
        raise RuntimeError("inside")
    with keras.StatelessScope():  # which makes all variables that wait
        pass
    with plans.Filling("a file") as filling:
        layer = dense(2)
        filling.fill(plan_of(layer), TENSORS.get)
    np.testing.assert_array_equal(layer.kernel, TENSORS["w"])
