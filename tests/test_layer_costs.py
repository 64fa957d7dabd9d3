"""Table 1 of the paper, by the operations that XLA counts."""

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


def test_restricted_attention_is_dense_attention_with_a_window():
    x = np.random.default_rng(0).normal(size=(3, 24, 8)).astype("float32")
    attention = layers.Attention("scaled_dot")
    chunked = layer_costs.restricted_attention(attention, x, 8)
    dense = attention(x, attention_mask=layer_costs.window_mask(24, 8))
    np.testing.assert_allclose(*map(ops.convert_to_numpy, (chunked, dense)), atol=1e-6)
    assert np.abs(ops.convert_to_numpy(attention(x) - dense)).max() > 0.1
    with pytest.raises(ValueError, match="the length a multiple of its half; got"):
        layer_costs.restricted_attention(attention, x[:, :23], 8)
