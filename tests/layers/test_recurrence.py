"""SSRU and its decoder block: the formula, masks, cache."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm.layers import SSRU, SSRUDecoder
from tests.layers import contract, formulas
from tests.layers.formulas import below, draw, draw_weights, numpy, relu, weights_of

B, T, S, D, H, F = 2, 4, 5, 6, 3, 10
X, MEMORY = draw(B, T, D), draw(B, S, 7, seed=2)
PADDING = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], bool)
GAP = np.array([[1, 0, 1, 1], [0, 1, 1, 1]], bool)
MEMORY_PADDING = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], bool)


def ssru(w, x, real=None):
    """Kim et al. 2019: f the forget gate, c the state, h the output."""
    c, outputs = np.zeros((len(x), x.shape[-1])), []
    for t in range(x.shape[1]):
        f = 1 / (1 + np.exp(-(x[:, t] @ w["gate/kernel"] + w.get("gate/bias", 0))))
        new = f * c + (1 - f) * (x[:, t] @ w["value/kernel"])
        c = new if real is None else np.where(real[:, t, None], new, c)
        outputs.append(relu(c))
    return np.stack(outputs, axis=1)


def make_layer(layer, *inputs):
    layer.build(*(x.shape for x in inputs))
    return draw_weights(layer)


@pytest.mark.parametrize("use_bias", [True, False])
def test_the_recurrence_follows_the_formula(use_bias):
    layer = make_layer(SSRU(use_bias=use_bias), X)
    expected = ssru(weights_of(layer), X.astype("float64"))
    np.testing.assert_allclose(numpy(layer(X)), expected, atol=1e-5)
    assert (expected[:, 1:] > 0.01).any()  # it can fail


def test_padding_does_not_change_the_state():
    layer = make_layer(SSRU(), X)
    actual = numpy(layer(X, padding_mask=GAP))
    expected = ssru(weights_of(layer), X.astype("float64"), GAP)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    alone = numpy(layer(X[1:, 1:]))  # without the masked position before them
    np.testing.assert_allclose(actual[1:, 1:], alone, atol=1e-5)


def test_implicitly_masked_positions_do_not_change_the_state():
    layer = make_layer(SSRU(), X)
    masked = np.where(GAP[:, :, None], X, 0.0).astype("float32")
    actual = numpy(layer(keras.layers.Masking()(masked)))
    np.testing.assert_array_equal(actual, numpy(layer(masked, padding_mask=GAP)))
    assert np.abs(actual - numpy(layer(masked))).max() > 0.01


def test_matrices_start_with_different_values():
    layer = SSRU()
    layer(X)
    weights = weights_of(layer)
    assert abs(weights["value/kernel"] - weights["gate/kernel"]).max() > 1e-3


def test_steps_match_the_call():
    layer = make_layer(SSRU(), X)
    expected, state = numpy(layer(X)), ops.zeros((B, D))
    for t in range(T):
        output, state = layer.step(ops.convert_to_tensor(X[:, t]), state)
        np.testing.assert_allclose(numpy(output), expected[:, t], atol=1e-5)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("memory", [None, MEMORY], ids=["LM", "cross"])
def test_a_block_follows_the_formula(first, memory):
    inputs = [X] if memory is None else [X, memory]
    layer = make_layer(SSRUDecoder(F, H, normalize_first=first), *inputs)
    masks = {"padding_mask": PADDING}
    if memory is not None:
        masks["encoder_padding_mask"] = MEMORY_PADDING
    w, x = weights_of(layer), X.astype("float64")

    def residual(name, x, sublayer):
        norm = below(w, f"{name}_norm")
        if first:
            return x + sublayer(formulas.normalize(norm, x, 1e-5))
        return formulas.normalize(norm, x + sublayer(x), 1e-5)

    x = residual("recurrence", x, lambda x: ssru(below(w, "recurrence"), x, PADDING))
    if memory is not None:
        cross, mask = below(w, "cross_attention"), MEMORY_PADDING[:, None]
        x = residual(
            "cross_attention",
            x,
            lambda x: formulas.attention(cross, x, memory, mask=mask)[0],
        )
    feed = below(w, "feed_forward")
    expected = residual("feed_forward", x, lambda x: formulas.feed_forward(feed, x))
    np.testing.assert_allclose(numpy(layer(*inputs, **masks)), expected, atol=2e-5)


def test_a_cached_block_matches_the_call():
    layer = make_layer(SSRUDecoder(F, H), X, MEMORY)
    masks = {"encoder_padding_mask": MEMORY_PADDING}
    scores = {"return_attention_scores": True}
    expected, weights = map(numpy, layer(X, MEMORY, **masks, **scores))
    memory = layer.cross_attention.keys_and_values(ops.convert_to_tensor(MEMORY))
    state = layer.empty_cache(B, 1)
    assert tuple(state.shape) == (B, 1, D) and layer.extend_cache(state, 9) is state
    for t in range(T):
        output, cross, (state, _) = layer(
            X[:, t : t + 1], cache=(state, memory), **masks, **scores
        )
        np.testing.assert_allclose(numpy(output)[:, 0], expected[:, t], atol=1e-5)
        np.testing.assert_allclose(numpy(cross)[:, :, 0], weights[:, :, t], atol=1e-5)


def test_an_explicit_mask_replaces_the_implicit_one():
    layer = make_layer(SSRUDecoder(F, H), X)
    x = np.where(GAP[..., None], X, 0).astype("float32")
    carrying = keras.layers.Masking()(ops.convert_to_tensor(x))
    expected = numpy(layer(x, padding_mask=GAP))
    np.testing.assert_allclose(numpy(layer(carrying)), expected, atol=1e-6)
    plain = numpy(layer(x))
    actual = numpy(layer(carrying, padding_mask=np.ones_like(GAP)))
    np.testing.assert_allclose(actual, plain, atol=1e-6)
    assert abs(plain - expected).max() > 0.01  # it can fail


def test_symbolic_shapes_match_the_output():
    x, memory = keras.Input((None, D)), keras.Input((S, 7))
    call = {"return_attention_scores": True}
    results = SSRUDecoder(F, H)(x, memory, **call)
    assert [item.shape for item in results] == [(None, None, D), (None, H, None, S)]
    layer = SSRUDecoder(F, H)
    layer.build(X.shape, MEMORY.shape)
    state, cross = keras.Input((3, D)), [keras.Input((H, S, 2)), keras.Input((H, S, 2))]
    _, (new_state, _) = layer(keras.Input((3, D)), cache=(state, tuple(cross)))
    assert new_state.shape == (None, 3, D)


def test_layer_meets_the_contract(tmp_path):
    layer = SSRU(use_bias=False, **contract.WEIGHT_OPTIONS)
    contract.check_layer(layer, X, folder=tmp_path, padding_mask=PADDING)


def test_the_block_meets_the_contract(tmp_path):
    settings = {
        "key_dim": 5,
        "value_dim": 4,
        "activation": "silu",
        "gated": True,
        "normalize_first": True,
        "normalization": "rms_norm",
        "epsilon": 1e-3,
        "use_bias": False,
    }
    layer = draw_weights(make_layer(SSRUDecoder(F, H, **settings), X, MEMORY))
    masks = {"padding_mask": PADDING, "encoder_padding_mask": MEMORY_PADDING}
    expected = numpy(layer(X, MEMORY, **masks))
    contract.check_shapes(layer, expected, X, MEMORY, **masks)
    contract.check_half_precision(layer, expected, X, MEMORY, **masks)
    contract.check_model(layer, expected, X, MEMORY, folder=tmp_path, **masks)
    rebuilt = SSRUDecoder.from_config(layer.get_config())
    assert rebuilt.get_config() == layer.get_config()
    assert {name: getattr(rebuilt, name) for name in settings} | {"activation": 0} == {
        **settings,
        "activation": 0,
    }
