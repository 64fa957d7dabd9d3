"""FeedForward against its equation, plain and gated."""

import numpy as np
import pytest

from keras_tfm.layers import FeedForward
from tests.layers import formulas
from tests.layers.contract import WEIGHT_OPTIONS, check_layer
from tests.layers.formulas import draw, draw_weights, numpy, relu, silu, weights_of


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", [relu, silu])
@pytest.mark.parametrize("settings", [{}, {"use_bias": False}])
def test_output_and_weights_follow_the_formula(gated, activation, settings):
    layer = FeedForward(12, activation.__name__, gated=gated, **settings)
    x = draw(2, 5, 8)
    layer(x)
    weights = weights_of(draw_weights(layer))
    expected = formulas.feed_forward(weights, x.astype("float64"), activation)
    np.testing.assert_allclose(numpy(layer(x)), expected, atol=1e-5)
    assert expected.shape == (2, 5, 8)
    matrices = 3 if gated else 2
    assert len(weights) == matrices * (2 if layer.use_bias else 1)


def test_positions_do_not_influence_each_other():
    layer = FeedForward(12)
    x = draw(2, 5, 8)
    whole = numpy(layer(x))
    np.testing.assert_allclose(numpy(layer(x[:, 3])), whole[:, 3], atol=1e-6)


def test_dropout_acts_on_activations_in_training_only():
    layer = FeedForward(4000, dropout=0.5, use_bias=False)
    x = draw(1, 1, 4)
    still, trained = numpy(layer(x)), numpy(layer(x, training=True))
    np.testing.assert_array_equal(still, numpy(layer(x)))
    assert abs(still - trained).max() > 1e-3
    # Many activations are dropped, and the rest scaled up: the sum stays.
    np.testing.assert_allclose(trained, still, atol=0.2)


def test_matrices_start_with_different_values():
    layer = FeedForward(8, gated=True, bias_initializer="random_normal")
    layer(draw(1, 2, 8))
    weights = weights_of(layer)
    for kind in ("kernel", "bias"):
        assert abs(weights[f"inner/{kind}"] - weights[f"gate/{kind}"]).max() > 1e-3
        assert abs(weights[f"inner/{kind}"] - weights[f"output/{kind}"]).max() > 1e-3


def test_layer_meets_the_contract(tmp_path):
    layer = FeedForward(12, "silu", True, 0.1, False, 5, **WEIGHT_OPTIONS)
    check_layer(layer, draw(2, 5, 8), folder=tmp_path)
