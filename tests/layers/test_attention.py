"""Attention without heads: every score, its masks, its cache, its peers."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm.layers import Attention
from keras_tfm.layers.attention_score import SCORES
from tests.layers import formulas
from tests.layers.contract import check_layer
from tests.layers.formulas import causal, draw, draw_weights, numpy, weights_of
from tests.layers.gradients import gradient
from tests.layers.quantized import QUANTIZED, quantize

B, T, S, D = 2, 4, 5, 6
QUERY, VALUE, KEY = draw(B, T, D), draw(B, S, 3, seed=2), draw(B, S, D, seed=3)
WIDE = draw(B, S, 7, seed=4)  # a key that only some scores take
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
    "one for all": ({"attention_mask": ROWS[:1, 2:3]}, ROWS[:1, 2:3]),
    "causal": ({"use_causal_mask": True}, CAUSAL[None]),
    "all": (
        {"attention_mask": ROWS, "padding_mask": PADDING, "use_causal_mask": True},
        ROWS & PADDING[:, None] & CAUSAL,
    ),
}


def made(score, *inputs, **settings):
    # Zeros at first: JAX compiles a random generator for each shape.
    layer = Attention(score, kernel_initializer="zeros", **settings)
    layer.build(*(x.shape for x in inputs))
    return draw_weights(layer)


def attend(layer, *inputs, **call):
    return keras.tree.map_structure(numpy, layer(*inputs, **call))


def expected(layer, query, value, key, mask=None):
    query, value, key = (x.astype("float64") for x in (query, value, key))
    scores = formulas.score(weights_of(layer), layer.score, query, key)
    mask = None if mask is None else np.broadcast_to(mask, scores.shape)
    return formulas.weighted(scores, value, mask)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_the_formula(score, mask):
    call, mask = MASKS[mask]
    for key in KEYS[score]:
        layer = made(score, QUERY, VALUE, key)
        wanted = expected(layer, QUERY, VALUE, key, mask)
        found = attend(layer, QUERY, VALUE, key, return_attention_scores=True, **call)
        np.testing.assert_allclose(found[1], wanted[1], atol=1e-5)
        np.testing.assert_allclose(found[0], wanted[0], atol=1e-5)
        alone = attend(layer, QUERY, VALUE, key, **call)
        np.testing.assert_allclose(alone, found[0], atol=1e-6)


@pytest.mark.parametrize("score", SCORES)
def test_weights_sum_to_one_over_what_may_be_attended_to(score):
    layer = made(score, QUERY, VALUE, KEY)
    call = {"attention_mask": ROWS, "return_attention_scores": True}
    heard, weights = attend(layer, QUERY, VALUE, KEY, **call)
    assert (weights[~ROWS] == 0).all()
    assert (weights[ROWS] > 0).all()
    full = np.ones((B, T))
    full[0, 1] = 0
    np.testing.assert_allclose(weights.sum(-1), full, atol=1e-6)
    assert (heard[0, 1] == 0).all()


@pytest.mark.parametrize("score", SCORES)
def test_without_a_key_values_are_their_own_and_without_a_value_queries(score):
    layer = made(score, QUERY, KEY)
    wanted, _ = expected(layer, QUERY, KEY, KEY)
    np.testing.assert_allclose(attend(layer, QUERY, KEY), wanted, atol=1e-5)
    wanted, _ = expected(layer, QUERY, QUERY, QUERY)
    np.testing.assert_allclose(attend(layer, QUERY), wanted, atol=1e-5)


def test_what_is_added_is_as_wide_as_units_or_as_the_query():
    shapes = {"query/kernel": (D, 4), "key/kernel": (7, 4), "score/vector": (1, 4, 1)}
    layer = made("additive", QUERY, VALUE, WIDE, units=4)
    assert {k: v.shape for k, v in weights_of(layer).items()} == shapes
    wanted, _ = expected(layer, QUERY, VALUE, WIDE)
    np.testing.assert_allclose(attend(layer, QUERY, VALUE, WIDE), wanted, atol=1e-5)
    layer = made("additive", QUERY, VALUE, WIDE)
    shapes = {"query/kernel": (D, D), "key/kernel": (7, D), "score/vector": (1, D, 1)}
    assert {k: v.shape for k, v in weights_of(layer).items()} == shapes


def test_dot_products_have_no_weights_and_luongs_general_has_one():
    assert made("dot", QUERY, VALUE, KEY).weights == []
    assert made("scaled_dot", QUERY, VALUE, KEY).weights == []
    weights = weights_of(made("multiplicative", QUERY, VALUE, WIDE))
    assert {k: v.shape for k, v in weights.items()} == {"score/kernel": (1, D, 7)}


def test_each_matrix_is_drawn_by_itself():
    layer = Attention("additive", kernel_initializer="random_normal")
    layer(QUERY)
    weights = weights_of(layer)
    assert abs(weights["query/kernel"] - weights["key/kernel"]).max() > 1e-3


@pytest.mark.parametrize("score", SCORES)
def test_a_query_without_keys_gives_zeros_and_no_nan(score):
    layer = made(score, QUERY, VALUE, KEY)
    padding = PADDING.copy()
    padding[1] = False

    def heard(query):
        return layer(query, VALUE, KEY, padding_mask=padding)

    output = numpy(heard(QUERY))
    assert (output[1] == 0).all()
    assert abs(output[0]).max() > 0.1
    slope = gradient(lambda query: ops.sum(heard(query) ** 2), QUERY)
    assert np.isfinite(slope).all()
    assert (slope[1] == 0).all()
    assert abs(slope[0]).max() > 1e-3


@pytest.mark.parametrize("score", SCORES)
def test_padding_and_batch_order_change_nothing(score):
    layer = made(score, QUERY, VALUE, KEY)
    whole = attend(layer, QUERY, VALUE, KEY, padding_mask=PADDING)
    loud = [np.where(PADDING[..., None], x, 9).astype("float32") for x in (VALUE, KEY)]
    found = attend(layer, QUERY, *loud, padding_mask=PADDING)
    np.testing.assert_allclose(found, whole, atol=1e-5)
    short = attend(layer, QUERY[:1], VALUE[:1, :3], KEY[:1, :3])
    np.testing.assert_allclose(short, whole[:1], atol=1e-5)
    turned = [x[::-1].copy() for x in (QUERY, VALUE, KEY)]
    turned = attend(layer, *turned, padding_mask=PADDING[::-1].copy())
    np.testing.assert_allclose(turned[::-1], whole, atol=1e-5)
    assert abs(attend(layer, QUERY, VALUE, KEY) - whole).max() > 0.01  # it can fail


def masked(x, mask):
    """A tensor with an implicit Keras mask, and the same without."""
    x = np.where(mask[..., None], x, 0).astype("float32")
    return keras.layers.Masking()(ops.convert_to_tensor(x)), x


@pytest.mark.parametrize("with_key", [False, True])
def test_an_implicit_mask_counts_unless_an_explicit_one_is_given(with_key):
    carrying, plain = ([VALUE, x] if with_key else [x] for x in masked(KEY, PADDING))
    layer = made("dot", QUERY, *plain)
    found = attend(layer, QUERY, *carrying)
    wanted = attend(layer, QUERY, *plain, padding_mask=PADDING)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert abs(found - attend(layer, QUERY, *plain)).max() > 0.01  # it can fail
    for explicit in (
        {"padding_mask": ~PADDING | (np.arange(S) == 0)},
        {"attention_mask": ROWS},
    ):
        found = attend(layer, QUERY, *carrying, **explicit)
        wanted = attend(layer, QUERY, *plain, **explicit)
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_the_mask_of_values_counts_though_keys_carry_none():
    layer = made("dot", QUERY, VALUE, KEY)
    carrying, value = masked(VALUE, PADDING)
    found = attend(layer, QUERY, carrying, KEY)
    wanted = attend(layer, QUERY, value, KEY, padding_mask=PADDING)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert abs(found - attend(layer, QUERY, value, KEY)).max() > 0.01  # it can fail


def test_the_mask_of_the_query_goes_on_to_what_follows():
    mask = PADDING[:, :T]
    carrying, _ = masked(QUERY, mask)
    layer = made("dot", QUERY)
    whole = attend(layer, carrying)
    found = numpy(keras.layers.GlobalAveragePooling1D()(layer(carrying)))
    wanted = np.stack([whole[i, mask[i]].mean(0) for i in range(B)])
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("score", SCORES)
def test_the_future_cannot_change_the_past(score):
    layer = made(score, QUERY)
    later = QUERY.copy()
    later[:, 2:] += np.random.default_rng(0).normal(size=(B, 2, D))
    before, after = (attend(layer, x, use_causal_mask=True) for x in (QUERY, later))
    np.testing.assert_allclose(before[:, :2], after[:, :2], atol=1e-6)
    assert np.abs(before[:, 2:] - after[:, 2:]).max() > 0.1  # it can fail
    wanted, _ = expected(layer, QUERY, QUERY, QUERY, causal(T))
    np.testing.assert_allclose(before, wanted, atol=1e-5)


@pytest.mark.parametrize("score", SCORES)
def test_keys_and_values_may_be_projected_once(score):
    key = KEYS[score][-1]
    settings = {"units": 4} if score == "additive" else {}
    layer = made(score, QUERY, VALUE, key, **settings)
    cache = layer.keys_and_values(*map(ops.convert_to_tensor, (VALUE, key)))
    width = 4 if score == "additive" else key.shape[-1]
    assert [tuple(each.shape) for each in cache] == [(B, width, S), (B, S, 3)]
    for call in (
        {},
        {"padding_mask": PADDING, "return_attention_scores": True},
        {"attention_mask": ROWS, "use_causal_mask": True},
    ):
        found = attend(layer, QUERY, cache=cache, **call)
        wanted = attend(layer, QUERY, VALUE, key, **call)
        keras.tree.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, wanted
        )
    for t in range(T):  # a query a step, as in a decoder
        found = attend(layer, QUERY[:, t : t + 1], cache=cache)
        wanted = attend(layer, QUERY, VALUE, key)[:, t : t + 1]
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    own = layer.keys_and_values(ops.convert_to_tensor(key))
    wanted = attend(layer, QUERY, key)
    np.testing.assert_allclose(attend(layer, QUERY, cache=own), wanted, atol=1e-6)


def test_dropout_drops_weights_in_training_only():
    layer = made("dot", QUERY, dropout=0.5)
    still = attend(layer, QUERY)
    np.testing.assert_array_equal(still, attend(made("dot", QUERY), QUERY))
    call = {"training": True, "return_attention_scores": True}
    heard, weights = attend(layer, QUERY, **call)
    assert abs(heard - still).max() > 0.1
    # What is shown is what was there before some of it was dropped.
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    assert abs(heard - attend(layer, QUERY, training=True)).max() > 0.1


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("score", SCORES)
def test_half_precision_gives_what_float32_gives(score, policy):
    layer = made(score, QUERY, VALUE, KEY, dtype=policy)
    call = {"attention_mask": ROWS, "return_attention_scores": True}
    heard, weights = layer(QUERY, VALUE, KEY, **call)
    dtype = policy.removeprefix("mixed_")
    assert ops.dtype(heard) == ops.dtype(weights) == dtype
    wanted = attend(made(score, QUERY, VALUE, KEY), QUERY, VALUE, KEY, **call)
    np.testing.assert_allclose(numpy(heard), wanted[0], atol=0.1)
    np.testing.assert_allclose(numpy(weights), wanted[1], atol=0.05)
    assert (numpy(heard)[0, 1] == 0).all()


def test_a_single_key_gets_all_the_weight_without_a_warning():
    layer = made("dot", QUERY, VALUE, KEY)
    call = {"return_attention_scores": True}
    heard, weights = attend(layer, QUERY, VALUE[:, :1], KEY[:, :1], **call)
    assert (weights == 1).all()
    np.testing.assert_allclose(heard, np.repeat(VALUE[:, :1], T, axis=1), atol=1e-6)


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match=r"a list of 2 for the query. Write"):
        Attention()([QUERY, VALUE])  # as `keras.layers.Attention` takes them
    with pytest.raises(ValueError, match=r"`score` is one of .*'additive'.*'concat'"):
        Attention("concat")
    with pytest.raises(ValueError, match="width, 1 or more, .*units=0, score='addi"):
        Attention("additive", units=0)
    with pytest.raises(ValueError, match="units=3, score='dot'. Leave it out"):
        Attention("dot", units=3)


@pytest.mark.parametrize("score", ["dot", "scaled_dot"])
def test_widths_that_a_product_cannot_take_are_refused(score):
    message = f"'{score}' wants .* one width. Received: widths 6 and 7.*'multiplicat"
    with pytest.raises(ValueError, match=message):
        Attention(score)(QUERY, VALUE, WIDE)


def test_a_mask_that_could_be_another_is_refused():
    query, layer = keras.Input(QUERY.shape[1:]), made("dot", QUERY, KEY)
    additive = np.where(ROWS, 0.0, -1e9).astype("float32")
    for call, message in [
        ({"attention_mask": PADDING}, r"`attention mask` must be .*shape=\(2, 5\)"),
        (
            {"attention_mask": ROWS[:, None]},
            r"boolean \(B, T, S\).*shape=\(2, 1, 4, 5\)",
        ),
        ({"attention_mask": additive}, "dtype=float32.*`mask == 0` first"),
        ({"padding_mask": PADDING[:, None]}, r"`padding_mask` must be boolean \(B, S"),
    ]:
        with pytest.raises(ValueError, match=message):
            layer(QUERY, KEY, **call)
        for name, mask in call.items():  # in a functional model too
            symbol = keras.Input(mask.shape[1:], dtype=str(mask.dtype))
            with pytest.raises(ValueError, match="must be boolean"):
                layer(query, query, **{name: symbol})


@pytest.mark.parametrize("mask", [ROWS[:, :, :4], ROWS[:, :3], ROWS[[0, 1, 1]]])
def test_a_mask_of_another_size_is_refused(mask):
    layer = made("dot", QUERY, KEY)
    with pytest.raises(ValueError, match=r"wanted: \(2, 1, 4, 5\)"):
        layer(QUERY, KEY, attention_mask=mask)


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 6)],
        [(2, 3, 4, 6)],
        [(2, 3, 5)],
        [(2, 3, 6), (2, 4, 5)],
        [(2, 3, 6), (3, 4, 6)],
        [(2, 3, 6), (2, 4, 3), (2, 5, 6)],
    ],
)
def test_sequences_that_do_not_fit_are_refused(shapes):
    layer = made("dot", QUERY)
    message = r"value and key of one length. Received: \{'query': \(2, .*'key': 6\}"
    with pytest.raises(ValueError, match=message):
        layer(*[np.ones(shape, "float32") for shape in shapes])
    with pytest.raises(ValueError, match="value and key of one length"):
        layer(*[keras.Input(batch_shape=shape) for shape in shapes])


def test_a_layer_without_widths_says_so():
    layer = Attention("additive", name="mine")
    with pytest.raises(ValueError, match="'mine', not built. Call it, or build it"):
        layer.keys_and_values(VALUE)


def test_symbols_have_the_shapes_of_what_comes_back():
    layer = Attention("multiplicative")
    query, value, key = (keras.Input((None, n)) for n in (D, 3, 7))
    heard, weights = layer(query, value, key, return_attention_scores=True)
    assert heard.shape == (None, None, 3)
    assert weights.shape == (None, None, None)
    model = keras.Model([query, value, key], [heard, weights])
    shapes = [x.shape for x in model.predict([QUERY, VALUE, WIDE], verbose=0)]
    assert shapes == [(B, T, 3), (B, T, S)]
    keys, values = keras.Input((7, S)), keras.Input((S, 3))
    heard, weights = layer(query, cache=(keys, values), return_attention_scores=True)
    assert (heard.shape, weights.shape) == ((None, None, 3), (None, None, S))
    assert layer.compute_output_shape(QUERY.shape) == QUERY.shape


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("score", ["dot", "scaled_dot", "additive"])
def test_parity_with_keras(score, causal):
    """Keras adds query and key as they are: with identities for matrices."""
    ours = made(score, QUERY, VALUE, KEY)
    if score == "additive":
        theirs = keras.layers.AdditiveAttention()
    else:
        theirs = keras.layers.Attention(use_scale=score == "scaled_dot")
    theirs.build([QUERY.shape, VALUE.shape, KEY.shape])
    if score == "scaled_dot":
        theirs.scale.assign(D**-0.5)
    if score == "additive":
        vector = draw(D, seed=6)
        theirs.scale.assign(vector)
        ours.query_dense.kernel.assign(np.eye(D))
        ours.key_dense.kernel.assign(np.eye(D))
        ours.score_layer.vector.assign(vector[None, :, None])
    for mask in (None, PADDING):
        call = {"return_attention_scores": True, "use_causal_mask": causal}
        found = attend(ours, QUERY, VALUE, KEY, padding_mask=mask, **call)
        given = None if mask is None else [None, ops.convert_to_tensor(mask)]
        wanted = attend(theirs, [QUERY, VALUE, KEY], mask=given, **call)
        np.testing.assert_allclose(found[0], wanted[0], atol=1e-5)
        np.testing.assert_allclose(found[1], wanted[1], atol=1e-5)


@QUANTIZED
def test_a_quantized_layer_is_saved(tmp_path):
    query, value = keras.Input((None, D)), keras.Input((None, 7))
    model = keras.Model([query, value], Attention("additive")(query, value))
    draw_weights(model)
    wanted = numpy(model([QUERY, WIDE]))
    quantize(model)
    found = numpy(model([QUERY, WIDE]))
    np.testing.assert_allclose(found, wanted, atol=0.1)
    assert [weight.dtype for weight in model.weights].count("int8") == 2
    for _ in range(2):  # and what was read is saved again
        model.save(tmp_path / "model.keras")
        model = keras.models.load_model(tmp_path / "model.keras")
        np.testing.assert_allclose(numpy(model([QUERY, WIDE])), found, atol=1e-6)


@pytest.mark.parametrize("masks", [{}, {"attention_mask": ROWS}], ids=["", "mask"])
def test_contract(masks, tmp_path):
    layer = Attention("additive", 4, 0.1, "zeros")
    check_layer(layer, QUERY, VALUE, WIDE, folder=tmp_path, **masks)


@pytest.mark.backend("tensorflow")
@pytest.mark.parametrize("score", SCORES)
def test_a_graph_gives_the_same(score):
    """Without XLA, where TensorFlow's product of one head may crash."""
    import tensorflow as tf

    layer = made(score, QUERY, VALUE, KEY)
    found = tf.function(lambda: layer(QUERY, VALUE, KEY))()
    wanted = attend(layer, QUERY, VALUE, KEY)
    np.testing.assert_allclose(numpy(found), wanted, atol=1e-5)


@pytest.mark.parametrize("score", ["dot", "multiplicative"])
def test_products_of_wide_heads_are_past_float16_and_no_fault(score):
    x = 10 * draw(2, 4, 768)
    layer = Attention(score, dtype="mixed_float16")
    weights = layer(x, return_attention_scores=True)[1]
    assert np.isfinite(numpy(weights)).all()
