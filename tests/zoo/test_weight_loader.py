"""Variables are created with the values of a file."""

import keras
import numpy as np
import pytest

from keras_tfm.zoo import weight_loader
from keras_tfm.zoo.weight_loader import WeightLoader
from keras_tfm.zoo.weight_mapping import Weight


def dense(units):
    layer = keras.layers.Dense(units)
    layer.build((None, 3))
    return layer


def mapping_of(layer):
    return [
        Weight(layer.kernel, ["w"]),
        Weight(layer.bias, ["a", "b"], lambda first, second: first + second),
    ]


TENSORS = {"w": np.arange(6.0).reshape(3, 2), "a": np.ones(2), "b": np.ones(2)}


def test_keras_has_the_private_apis_that_deferred_creation_needs():
    assert weight_loader.can_defer()


def test_each_variable_starts_with_its_value_and_is_read_at_the_end():
    names = []

    def read(name):
        names.append(name)
        return TENSORS[name]

    with WeightLoader("a file") as loader:
        layer, unmapped = dense(2), dense(2)
        loader.load(mapping_of(layer), read)
        assert not names
    assert names == ["w", "a", "b"]
    np.testing.assert_array_equal(layer.kernel, TENSORS["w"])
    np.testing.assert_array_equal(layer.bias, [2, 2])
    assert keras.ops.convert_to_numpy(unmapped.kernel).any()  # random, as usual
    layer.bias.assign([3, 4])
    np.testing.assert_array_equal(layer.bias, [3, 4])
    assert keras.ops.shape(layer(np.ones((1, 3)))) == (1, 2)


@pytest.mark.backend("torch")
def test_without_the_private_apis_variables_are_assigned(monkeypatch):
    monkeypatch.setattr(weight_loader, "global_state", None)
    with WeightLoader("a file") as loader:
        layer = dense(2)
        loader.load(mapping_of(layer), TENSORS.get)
    np.testing.assert_array_equal(layer.kernel, TENSORS["w"])
    np.testing.assert_array_equal(layer.bias, [2, 2])
    with pytest.raises(ValueError, match="it: 'w' does"), WeightLoader("it") as loader:
        loader.load([Weight(dense(2).kernel, ["w"])], lambda name: np.ones(2))


@pytest.mark.parametrize("fault", [ValueError("torn"), KeyError("w")])
def test_an_error_is_raised_and_leaves_no_deferred_variables(fault):
    def read(name):
        raise fault

    with pytest.raises(type(fault), match="torn|w"), WeightLoader("it") as loader:
        layer = dense(2)
        loader.load(mapping_of(layer), read)
    message = "it: 'w' does not fit.*got \\(2,\\)"
    with pytest.raises(ValueError, match=message), WeightLoader("it") as loader:
        layer = dense(2)
        loader.load([Weight(layer.kernel, ["w"])], lambda name: np.ones(2))
    with pytest.raises(RuntimeError, match="inside"), WeightLoader("it"):
        dense(2)
        raise RuntimeError("inside")
    with keras.StatelessScope():  # it creates all deferred variables
        pass
    with WeightLoader("a file") as loader:
        layer = dense(2)
        loader.load(mapping_of(layer), TENSORS.get)
    np.testing.assert_array_equal(layer.kernel, TENSORS["w"])
