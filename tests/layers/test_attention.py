"""Attention without heads: every score, masks, cache, parity with Keras."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm.layers import Attention
from keras_tfm.layers.attention_score import SCORES
from tests.layers import formulas
from tests.layers.contract import WEIGHT_OPTIONS, check_layer
from tests.layers.formulas import causal, draw, draw_weights, numpy, weights_of
from tests.layers.gradients import gradient
from tests.layers.quantized import QUANTIZED, quantize

B, T, S, D = 2, 4, 5, 6
QUERY, VALUE, KEY = draw(B, T, D), draw(B, S, 3, seed=2), draw(B, S, D, seed=3)
WIDE = draw(B, S, 7, seed=4)  # a dimension of keys that only some scores accept
PADDING = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
ROWS = np.random.default_rng(5).random((B, T, S)) < 0.6
ROWS[0, 1] = False  # a query that may attend to nothing
CAUSAL = np.arange(T)[:, None] >= np.arange(S)

KEYS = {  # the keys that each score is tested with
    "dot": [KEY],
    "scaled_dot": [KEY],
    "multiplicative": [KEY, WIDE],
    "additive": [KEY, WIDE],
}
MASKS = {
    "none": ({}, None),
    "padding": ({"padding_mask": PADDING}, PADDING[:, None] & np.ones((T, 1), bool)),
    "rows": ({"attention_mask": ROWS}, ROWS),
    "broadcast": ({"attention_mask": ROWS[:1, 2:3]}, ROWS[:1, 2:3]),
    "causal": ({"use_causal_mask": True}, CAUSAL[None]),
    "all": (
        {"attention_mask": ROWS, "padding_mask": PADDING, "use_causal_mask": True},
        ROWS & PADDING[:, None] & CAUSAL,
    ),
}


def make_layer(score, *inputs, **settings):
    # Zeros, then drawn values: JAX compiles a random generator for each shape.
    layer = Attention(score, kernel_initializer="zeros", **settings)
    layer.build(*(x.shape for x in inputs))
    return draw_weights(layer)


def attend(layer, *inputs, **call):
    return keras.tree.map_structure(numpy, layer(*inputs, **call))


def formula_of(layer, query, value, key, mask=None):
    query, value, key = (x.astype("float64") for x in (query, value, key))
    scores = formulas.score(weights_of(layer), layer.score, query, key)
    mask = None if mask is None else np.broadcast_to(mask, scores.shape)
    return formulas.weighted(scores, value, mask)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_output_and_weights_follow_the_formula(score, mask):
    call, mask = MASKS[mask]
    for key in KEYS[score]:
        layer = make_layer(score, QUERY, VALUE, key)
        expected = formula_of(layer, QUERY, VALUE, key, mask)
        actual = attend(layer, QUERY, VALUE, key, return_attention_scores=True, **call)
        np.testing.assert_allclose(actual[1], expected[1], atol=1e-5)
        np.testing.assert_allclose(actual[0], expected[0], atol=1e-5)
        alone = attend(layer, QUERY, VALUE, key, **call)
        np.testing.assert_allclose(alone, actual[0], atol=1e-6)


@pytest.mark.parametrize("score", SCORES)
def test_weights_sum_to_one_over_the_allowed_keys(score):
    layer = make_layer(score, QUERY, VALUE, KEY)
    call = {"attention_mask": ROWS, "return_attention_scores": True}
    attended, weights = attend(layer, QUERY, VALUE, KEY, **call)
    assert (weights[~ROWS] == 0).all()
    assert (weights[ROWS] > 0).all()
    full = np.ones((B, T))
    full[0, 1] = 0
    np.testing.assert_allclose(weights.sum(-1), full, atol=1e-6)
    assert (attended[0, 1] == 0).all()


@pytest.mark.parametrize("score", SCORES)
def test_keys_default_to_values_and_values_to_queries(score):
    layer = make_layer(score, QUERY, KEY)
    expected, _ = formula_of(layer, QUERY, KEY, KEY)
    np.testing.assert_allclose(attend(layer, QUERY, KEY), expected, atol=1e-5)
    expected, _ = formula_of(layer, QUERY, QUERY, QUERY)
    np.testing.assert_allclose(attend(layer, QUERY), expected, atol=1e-5)


def test_units_default_to_the_dimension_of_the_query():
    shapes = {"query/kernel": (D, 4), "key/kernel": (7, 4), "score/vector": (1, 4, 1)}
    layer = make_layer("additive", QUERY, VALUE, WIDE, units=4)
    assert {k: v.shape for k, v in weights_of(layer).items()} == shapes
    expected, _ = formula_of(layer, QUERY, VALUE, WIDE)
    np.testing.assert_allclose(attend(layer, QUERY, VALUE, WIDE), expected, atol=1e-5)
    layer = make_layer("additive", QUERY, VALUE, WIDE)
    shapes = {"query/kernel": (D, D), "key/kernel": (7, D), "score/vector": (1, D, 1)}
    assert {k: v.shape for k, v in weights_of(layer).items()} == shapes


def test_only_the_multiplicative_score_has_a_matrix():
    assert make_layer("dot", QUERY, VALUE, KEY).weights == []
    assert make_layer("scaled_dot", QUERY, VALUE, KEY).weights == []
    weights = weights_of(make_layer("multiplicative", QUERY, VALUE, WIDE))
    assert {k: v.shape for k, v in weights.items()} == {"score/kernel": (1, D, 7)}


def test_matrices_start_with_different_values():
    layer = Attention("additive", kernel_initializer="random_normal")
    layer(QUERY)
    weights = weights_of(layer)
    assert abs(weights["query/kernel"] - weights["key/kernel"]).max() > 1e-3


@pytest.mark.parametrize("score", SCORES)
def test_a_query_without_keys_returns_zeros_not_nan(score):
    layer = make_layer(score, QUERY, VALUE, KEY)
    padding = PADDING.copy()
    padding[1] = False

    def attended(query):
        return layer(query, VALUE, KEY, padding_mask=padding)

    output = numpy(attended(QUERY))
    assert (output[1] == 0).all()
    assert abs(output[0]).max() > 0.1
    slope = gradient(lambda query: ops.sum(attended(query) ** 2), QUERY)
    assert np.isfinite(slope).all()
    assert (slope[1] == 0).all()
    assert abs(slope[0]).max() > 1e-3


@pytest.mark.parametrize("score", SCORES)
def test_padding_and_batch_order_do_not_change_the_output(score):
    layer = make_layer(score, QUERY, VALUE, KEY)
    whole = attend(layer, QUERY, VALUE, KEY, padding_mask=PADDING)
    noisy = [np.where(PADDING[..., None], x, 9).astype("float32") for x in (VALUE, KEY)]
    actual = attend(layer, QUERY, *noisy, padding_mask=PADDING)
    np.testing.assert_allclose(actual, whole, atol=1e-5)
    short = attend(layer, QUERY[:1], VALUE[:1, :3], KEY[:1, :3])
    np.testing.assert_allclose(short, whole[:1], atol=1e-5)
    inputs = [x[::-1].copy() for x in (QUERY, VALUE, KEY)]
    reversed_batch = attend(layer, *inputs, padding_mask=PADDING[::-1].copy())
    np.testing.assert_allclose(reversed_batch[::-1], whole, atol=1e-5)
    assert abs(attend(layer, QUERY, VALUE, KEY) - whole).max() > 0.01  # it can fail


def masked(x, mask):
    """Returns a tensor with an implicit Keras mask, and the same without."""
    x = np.where(mask[..., None], x, 0).astype("float32")
    return keras.layers.Masking()(ops.convert_to_tensor(x)), x


@pytest.mark.parametrize("with_key", [False, True])
def test_an_explicit_mask_replaces_the_implicit_one(with_key):
    carrying, plain = ([VALUE, x] if with_key else [x] for x in masked(KEY, PADDING))
    layer = make_layer("dot", QUERY, *plain)
    actual = attend(layer, QUERY, *carrying)
    expected = attend(layer, QUERY, *plain, padding_mask=PADDING)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    assert abs(actual - attend(layer, QUERY, *plain)).max() > 0.01  # it can fail
    for explicit in (
        {"padding_mask": ~PADDING | (np.arange(S) == 0)},
        {"attention_mask": ROWS},
    ):
        actual = attend(layer, QUERY, *carrying, **explicit)
        expected = attend(layer, QUERY, *plain, **explicit)
        np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_the_implicit_mask_of_values_applies_to_keys_without_one():
    layer = make_layer("dot", QUERY, VALUE, KEY)
    carrying, value = masked(VALUE, PADDING)
    actual = attend(layer, QUERY, carrying, KEY)
    expected = attend(layer, QUERY, value, KEY, padding_mask=PADDING)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    assert abs(actual - attend(layer, QUERY, value, KEY)).max() > 0.01  # it can fail


def test_the_output_carries_the_implicit_mask_of_the_query():
    mask = PADDING[:, :T]
    carrying, _ = masked(QUERY, mask)
    layer = make_layer("dot", QUERY)
    whole = attend(layer, carrying)
    actual = numpy(keras.layers.GlobalAveragePooling1D()(layer(carrying)))
    expected = np.stack([whole[i, mask[i]].mean(0) for i in range(B)])
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize("score", SCORES)
def test_the_future_cannot_change_the_past(score):
    layer = make_layer(score, QUERY)
    later = QUERY.copy()
    later[:, 2:] += np.random.default_rng(0).normal(size=(B, 2, D))
    original, changed = (attend(layer, x, use_causal_mask=True) for x in (QUERY, later))
    np.testing.assert_allclose(original[:, :2], changed[:, :2], atol=1e-6)
    assert np.abs(original[:, 2:] - changed[:, 2:]).max() > 0.1  # it can fail
    expected, _ = formula_of(layer, QUERY, QUERY, QUERY, causal(T))
    np.testing.assert_allclose(original, expected, atol=1e-5)


@pytest.mark.parametrize("score", SCORES)
def test_projecting_keys_and_values_once_does_not_change_the_output(score):
    key = KEYS[score][-1]
    settings = {"units": 4} if score == "additive" else {}
    layer = make_layer(score, QUERY, VALUE, key, **settings)
    cache = layer.keys_and_values(*map(ops.convert_to_tensor, (VALUE, key)))
    key_dim = 4 if score == "additive" else key.shape[-1]
    assert [tuple(item.shape) for item in cache] == [(B, key_dim, S), (B, S, 3)]
    for call in (
        {},
        {"padding_mask": PADDING, "return_attention_scores": True},
        {"attention_mask": ROWS, "use_causal_mask": True},
    ):
        actual = attend(layer, QUERY, cache=cache, **call)
        expected = attend(layer, QUERY, VALUE, key, **call)
        keras.tree.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), actual, expected
        )
    for t in range(T):  # one query at a time, as in a decoder
        actual = attend(layer, QUERY[:, t : t + 1], cache=cache)
        expected = attend(layer, QUERY, VALUE, key)[:, t : t + 1]
        np.testing.assert_allclose(actual, expected, atol=1e-6)
    cache = layer.keys_and_values(ops.convert_to_tensor(key))
    expected = attend(layer, QUERY, key)
    np.testing.assert_allclose(attend(layer, QUERY, cache=cache), expected, atol=1e-6)


def test_dropout_acts_in_training_only():
    layer = make_layer("dot", QUERY, dropout=0.5)
    still = attend(layer, QUERY)
    np.testing.assert_array_equal(still, attend(make_layer("dot", QUERY), QUERY))
    call = {"training": True, "return_attention_scores": True}
    attended, weights = attend(layer, QUERY, **call)
    assert abs(attended - still).max() > 0.1
    # The returned weights are those before dropout.
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    assert abs(attended - attend(layer, QUERY, training=True)).max() > 0.1


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("score", SCORES)
def test_half_precision_matches_float32(score, policy):
    layer = make_layer(score, QUERY, VALUE, KEY, dtype=policy)
    call = {"attention_mask": ROWS, "return_attention_scores": True}
    attended, weights = layer(QUERY, VALUE, KEY, **call)
    dtype = policy.removeprefix("mixed_")
    assert ops.dtype(attended) == ops.dtype(weights) == dtype
    expected = attend(make_layer(score, QUERY, VALUE, KEY), QUERY, VALUE, KEY, **call)
    np.testing.assert_allclose(numpy(attended), expected[0], atol=0.1)
    np.testing.assert_allclose(numpy(weights), expected[1], atol=0.05)
    assert (numpy(attended)[0, 1] == 0).all()


def test_a_single_key_gets_all_the_weight():
    layer = make_layer("dot", QUERY, VALUE, KEY)
    call = {"return_attention_scores": True}
    attended, weights = attend(layer, QUERY, VALUE[:, :1], KEY[:, :1], **call)
    assert (weights == 1).all()
    np.testing.assert_allclose(attended, np.repeat(VALUE[:, :1], T, axis=1), atol=1e-6)


def test_symbolic_shapes_match_the_output():
    layer = Attention("multiplicative")
    query, value, key = (keras.Input((None, n)) for n in (D, 3, 7))
    attended, weights = layer(query, value, key, return_attention_scores=True)
    assert attended.shape == (None, None, 3)
    assert weights.shape == (None, None, None)
    model = keras.Model([query, value, key], [attended, weights])
    shapes = [x.shape for x in model.predict([QUERY, VALUE, WIDE], verbose=0)]
    assert shapes == [(B, T, 3), (B, T, S)]
    keys, values = keras.Input((7, S)), keras.Input((S, 3))
    attended, weights = layer(query, cache=(keys, values), return_attention_scores=True)
    assert (attended.shape, weights.shape) == ((None, None, 3), (None, None, S))
    assert layer.compute_output_shape(QUERY.shape) == QUERY.shape


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("score", ["dot", "scaled_dot", "additive"])
def test_parity_with_keras(score, causal):
    """Keras adds query and key without matrices: ours are identities."""
    layer = make_layer(score, QUERY, VALUE, KEY)
    if score == "additive":
        keras_layer = keras.layers.AdditiveAttention()
    else:
        keras_layer = keras.layers.Attention(use_scale=score == "scaled_dot")
    keras_layer.build([QUERY.shape, VALUE.shape, KEY.shape])
    if score == "scaled_dot":
        keras_layer.scale.assign(D**-0.5)
    if score == "additive":
        vector = draw(D, seed=6)
        keras_layer.scale.assign(vector)
        layer.query_dense.kernel.assign(np.eye(D))
        layer.key_dense.kernel.assign(np.eye(D))
        layer.score_layer.vector.assign(vector[None, :, None])
    for mask in (None, PADDING):
        call = {"return_attention_scores": True, "use_causal_mask": causal}
        actual = attend(layer, QUERY, VALUE, KEY, padding_mask=mask, **call)
        masks = None if mask is None else [None, ops.convert_to_tensor(mask)]
        expected = attend(keras_layer, [QUERY, VALUE, KEY], mask=masks, **call)
        np.testing.assert_allclose(actual[0], expected[0], atol=1e-5)
        np.testing.assert_allclose(actual[1], expected[1], atol=1e-5)


@QUANTIZED
def test_a_quantized_layer_is_saved(tmp_path):
    query, value = keras.Input((None, D)), keras.Input((None, 7))
    model = keras.Model([query, value], Attention("additive")(query, value))
    draw_weights(model)
    expected = numpy(model([QUERY, WIDE]))
    quantize(model)
    actual = numpy(model([QUERY, WIDE]))
    np.testing.assert_allclose(actual, expected, atol=0.1)
    assert [weight.dtype for weight in model.weights].count("int8") == 2
    for _ in range(2):  # a loaded model can be saved as well
        model.save(tmp_path / "model.keras")
        model = keras.models.load_model(tmp_path / "model.keras")
        np.testing.assert_allclose(numpy(model([QUERY, WIDE])), actual, atol=1e-6)


@pytest.mark.parametrize("masks", [{}, {"attention_mask": ROWS}], ids=["", "mask"])
def test_layer_meets_the_contract(masks, tmp_path):
    layer = Attention("additive", 4, 0.1, 5, **WEIGHT_OPTIONS)
    check_layer(layer, QUERY, VALUE, WIDE, folder=tmp_path, **masks)


@pytest.mark.backend("tensorflow")
@pytest.mark.parametrize("score", SCORES)
def test_a_graph_matches_eager_execution(score):
    """Without XLA, where TensorFlow's product of one head may crash."""
    import tensorflow as tf

    layer = make_layer(score, QUERY, VALUE, KEY)
    actual = tf.function(lambda: layer(QUERY, VALUE, KEY))()
    expected = attend(layer, QUERY, VALUE, KEY)
    np.testing.assert_allclose(numpy(actual), expected, atol=1e-5)


@pytest.mark.parametrize("score", ["dot", "multiplicative"])
def test_large_products_do_not_overflow_float16(score):
    x = 10 * draw(2, 4, 768)
    layer = Attention(score, dtype="mixed_float16")
    weights = layer(x, return_attention_scores=True)[1]
    assert np.isfinite(numpy(weights)).all()
