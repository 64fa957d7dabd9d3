"""Table 1 of the paper, by the operations that XLA counts."""

import re

import keras
import numpy as np
import pytest
from keras import ops

from benchmarks import layer_costs
from keras_tfm import layers

pytestmark = pytest.mark.backend("jax")  # whose compiler counts operations
# What n² d, n d², k n d² and r n d grow by when n doubles, and when d does.
GROWTH = {
    "self-attention": (4, 2),
    "recurrent": (2, 4),
    "convolutional": (2, 4),
    "self-attention, restricted": (2, 2),
    "the same by a mask": (4, 2),
}


@pytest.mark.parametrize("name", GROWTH)
def test_operations_grow_as_in_table_1(name):
    """Vaswani et al. 2017, table 1."""
    flags = layer_costs.Flags(length=8, dim=64, neighborhood=8, repeats=0)
    row = layer_costs.measure(name, flags)
    actual = row["growth_with_length"], row["growth_with_dim"]
    assert actual == pytest.approx(GROWTH[name], rel=0.06)


def test_projections_add_a_cost_that_is_linear_in_length():
    """n² d + n d²: between both, for as many channels as tokens."""
    flags = layer_costs.Flags(length=32, dim=32, repeats=0)
    row = layer_costs.measure("self-attention, heads", flags)
    assert 2.3 < row["growth_with_length"] < 3.2
    assert 2.8 < row["growth_with_dim"] < 3.7


def test_counts_are_those_of_the_formulas():
    n, d, k, r = 8, 64, layer_costs.KERNEL, 8
    products = {
        "self-attention": 2 * n * n * d,  # scores, and the weighted values
        "recurrent": 6 * n * d * d,  # three gates, of the input and of the state
        "convolutional": (k * n - 2) * d * d,  # not of the padding
        "self-attention, restricted": 2 * 1.5 * r * n * d,  # three half chunks
    }
    for name, count in products.items():
        counted = layer_costs.operations(name, n, d, r)
        # Softmax, gates and masks are the rest.
        assert 0.95 < counted / (2 * count) < 1.12, name


def is_connected(layer, length):
    """Returns bool `(n, n)`, whether output t depends on input s."""
    import jax

    x = np.random.default_rng(0).normal(size=(1, length, 4)).astype("float32")
    layer(x)
    gradients = jax.jacobian(lambda x: layer(x))(x)[0, :, :, 0]  # (n, d, n, d)
    return np.asarray(gradients).any(axis=(1, 3))


def count_layers(layers_from_below, length):
    """Counts the layers until the last output depends on the first input."""
    reached, count = np.eye(length)[0], 0
    for layer in layers_from_below:
        if reached[-1]:
            break
        reached, count = is_connected(layer, length) @ reached, count + 1
    return count


@pytest.mark.parametrize("length", [8, 16])
@pytest.mark.parametrize("name", layer_costs.COSTS)
def test_only_a_recurrence_has_a_step_for_each_token(name, length):
    """The column "sequential operations" of table 1, as JAX traces a loop."""
    import jax

    layer = layer_costs.make_layer(name, 4, neighborhood=4, unroll=False)
    x = np.zeros((1, length, 4), "float32")
    layer(x)
    trace = str(jax.make_jaxpr(lambda x: layer(x))(x))
    steps = [int(count) for count in re.findall(r"\blength=(\d+)", trace)]
    assert steps == ([length] if name == "recurrent" else [])
    assert ("scan[" in trace) == (name == "recurrent") and "while[" not in trace


# Dilated kernels of 3 reach 1 + 3 + 9 + ... tokens to one side.
@pytest.mark.parametrize(("length", "num_convolutions"), [(5, 2), (14, 3)])
def test_paths_are_as_long_as_in_table_1(length, num_convolutions):
    """The column "maximum path length": layers between both ends."""
    attention = layer_costs.make_layer("self-attention", 4, 4, unroll=False)
    masked = layer_costs.make_layer("the same by a mask", 4, 4, unroll=False)
    dilated = [
        keras.layers.Conv1D(4, 3, padding="same", dilation_rate=3**i) for i in range(4)
    ]
    assert count_layers([attention], length) == 1
    # Half of the neighborhood of 4 lies on one side.
    assert count_layers([masked] * length, length) == -(-(length - 1) // 2)
    assert count_layers(dilated, length) == num_convolutions
    # One layer, but n steps in it: each output depends on all inputs before.
    recurrent = layer_costs.make_layer("recurrent", 4, 4, unroll=False)
    np.testing.assert_array_equal(
        is_connected(recurrent, length), np.tri(length, dtype="bool")
    )


def test_restricted_attention_is_dense_attention_with_a_window():
    x = np.random.default_rng(0).normal(size=(3, 24, 8)).astype("float32")
    attention = layers.Attention("scaled_dot")
    chunked = layer_costs.restricted_attention(attention, x, 8)
    dense = attention(x, attention_mask=layer_costs.window_mask(24, 8))
    np.testing.assert_allclose(*map(ops.convert_to_numpy, (chunked, dense)), atol=1e-6)
    assert np.abs(ops.convert_to_numpy(attention(x) - dense)).max() > 0.1
    with pytest.raises(ValueError, match="the length a multiple of its half; got"):
        layer_costs.restricted_attention(attention, x[:, :23], 8)
