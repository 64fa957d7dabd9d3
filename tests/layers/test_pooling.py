"""Pooling: one or a few vectors for each sequence, for any padding."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm.layers import AttentionPooling, Pooling
from keras_tfm.layers.attention_score import SCORES
from keras_tfm.layers.keras_internals import implicit_mask
from keras_tfm.layers.pooling import POOLINGS
from tests.layers import formulas
from tests.layers.contract import check_half_precision, check_layer, check_model
from tests.layers.formulas import draw, draw_weights, numpy, softmax, weights_of
from tests.layers.gradients import gradient
from tests.layers.quantized import QUANTIZED, quantize

B, S, D = 3, 5, 6
X, KEY = draw(B, S, D), draw(B, S, 7, seed=2)
PADDING = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 0], [1, 1, 1, 1, 1]], bool)
EMPTY = PADDING & (np.arange(B) != 1)[:, None]  # a sequence without real positions
OF_REAL = {  # of the real positions of one sequence, (n, D)
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.max(0),
    "first": lambda x: x[0],
}
# Each kind of pooling, for properties that all of them have.
ALL = {kind: lambda kind=kind: Pooling(kind) for kind in POOLINGS}
ALL |= {
    "attention": lambda: make_layer(),
    "attentions": lambda: make_layer(3, "additive"),
}


def make_layer(num_queries=None, score="scaled_dot", shapes=(X.shape,), **settings):
    # Zeros, then drawn values: JAX compiles a random generator for each shape.
    zeros = {"queries_initializer": "zeros", "kernel_initializer": "zeros"}
    layer = AttentionPooling(num_queries, score, **zeros, **settings)
    layer.build(*shapes)
    return draw_weights(layer)


def pool(layer, *inputs, **call):
    return keras.tree.map_structure(numpy, layer(*inputs, **call))


def attention_pooled(layer, value, key, mask=None):
    """The formula: learned queries, not projected, attend to the sequence."""
    w = weights_of(layer)
    value, key = value.astype("float64"), key.astype("float64")
    queries = np.stack([w["queries"]] * len(value))
    scores = formulas.score(formulas.below(w, "attention"), layer.score, queries, key)
    mask = None if mask is None else mask[:, None] & np.ones(scores.shape, bool)
    return formulas.weighted(scores, value, mask)


def masked(x, mask):
    """Returns a tensor with an implicit Keras mask, and the same without."""
    x = np.where(mask[..., None], x, 0).astype("float32")
    return keras.layers.Masking()(ops.convert_to_tensor(x)), x


@pytest.mark.parametrize("kind", POOLINGS)
def test_output_and_weights_follow_the_formula(kind):
    x = X - 5  # negative, so that no maximum is a zero of the padding
    actual = pool(Pooling(kind), x, padding_mask=PADDING)
    expected = [OF_REAL[kind](x[i, PADDING[i]].astype("float64")) for i in range(B)]
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    expected = [OF_REAL[kind](row.astype("float64")) for row in x]
    np.testing.assert_allclose(pool(Pooling(kind), x), expected, atol=1e-5)


@pytest.mark.parametrize("num_queries", [None, 1, 3])
@pytest.mark.parametrize("score", SCORES)
def test_attention_pooling_follows_the_formula(score, num_queries):
    for value, key in [(X, None), (X, KEY)]:
        inputs = [value] if key is None else [value, key]
        layer = make_layer(num_queries, score, [x.shape for x in inputs])
        for mask in (None, EMPTY):
            actual = pool(
                layer, *inputs, padding_mask=mask, return_attention_scores=True
            )
            expected = attention_pooled(layer, value, inputs[-1], mask)
            for result, target in zip(actual, expected, strict=True):
                target = target[:, 0] if num_queries is None else target
                assert result.shape == target.shape
                np.testing.assert_allclose(result, target, atol=1e-5)


def test_additive_pooling_is_the_word_attention_of_yang_et_al():
    """u = tanh(W h + b), a = softmax(u . u_w), s = sum a h: equations 5-7."""
    layer = make_layer(None, "additive", units=4)
    w = weights_of(layer)
    bias = w["queries"] @ w["attention/query/kernel"]
    u = np.tanh(X @ w["attention/key/kernel"] + bias)
    a = softmax(u @ w["attention/score/vector"][0, :, 0])
    expected = np.einsum("bs,bsd->bd", a, X)
    np.testing.assert_allclose(pool(layer, X), expected, atol=1e-5)


def test_several_queries_over_tanh_are_the_embedding_of_lin_et_al():
    """A = softmax(W_2 tanh(W_1 H')), M = A H: equations 6 and 7."""
    dense = keras.layers.Dense(4, "tanh", use_bias=False)
    dense.build(X.shape)
    draw_weights(dense)
    layer = make_layer(3, "dot", [X.shape, (B, S, 4)])
    actual = pool(layer, X, dense(X), return_attention_scores=True)
    first, second = numpy(dense.kernel).T, weights_of(layer)["queries"]
    for i, h in enumerate(X):
        a = softmax(second @ np.tanh(first @ h.T))
        np.testing.assert_allclose(actual[1][i], a, atol=1e-5)
        np.testing.assert_allclose(actual[0][i], a @ h, atol=1e-5)


@pytest.mark.parametrize("score", SCORES)
def test_weights_sum_to_one_over_real_positions(score):
    layer = make_layer(3, score)
    call = {"padding_mask": EMPTY, "return_attention_scores": True}
    _, weights = pool(layer, X, **call)
    real = np.repeat(EMPTY[:, None], 3, axis=1)
    assert (weights[~real] == 0).all()
    assert (weights[real] > 0).all()
    np.testing.assert_allclose(weights.sum(-1), real.any(-1), atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_an_empty_sequence_returns_zeros_not_nan(name):
    layer = ALL[name]()
    actual = pool(layer, X, padding_mask=EMPTY)
    assert (actual[1] == 0).all()
    assert (actual[[0, 2]] != 0).all()
    slope = gradient(lambda x: ops.sum(layer(x, padding_mask=EMPTY) ** 2), X)
    assert np.isfinite(slope).all()
    assert (slope[~EMPTY] == 0).all()
    assert abs(slope[EMPTY]).max() > 0.1


@pytest.mark.parametrize("name", ALL)
def test_padding_and_batch_order_do_not_change_the_output(name):
    layer = ALL[name]()
    whole = pool(layer, X, padding_mask=PADDING)
    noisy = np.where(PADDING[..., None], X, 99).astype("float32")
    actual = pool(layer, noisy, padding_mask=PADDING)
    np.testing.assert_allclose(actual, whole, atol=1e-5)
    short = pool(layer, X[1:2, 2:4])
    np.testing.assert_allclose(short, whole[1:2], atol=1e-5)
    reversed_batch = pool(layer, X[::-1].copy(), padding_mask=PADDING[::-1].copy())
    np.testing.assert_allclose(reversed_batch[::-1], whole, atol=1e-5)
    assert abs(pool(layer, noisy) - whole).max() > 0.1  # it can fail


@pytest.mark.parametrize("name", ALL)
def test_padding_may_be_nan(name):
    layer = ALL[name]()
    expected = pool(layer, X, padding_mask=PADDING)
    x = np.where(PADDING[..., None], X, np.nan)
    np.testing.assert_allclose(pool(layer, x, padding_mask=PADDING), expected)


@pytest.mark.parametrize("name", [name for name in ALL if name != "first"])
def test_the_order_of_positions_does_not_change_the_output(name):
    layer = ALL[name]()
    order = np.random.default_rng(0).permutation(S)
    whole = pool(layer, X, padding_mask=PADDING)
    actual = pool(layer, X[:, order], padding_mask=PADDING[:, order])
    np.testing.assert_allclose(actual, whole, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_an_explicit_mask_replaces_the_implicit_one(name):
    layer = ALL[name]()
    carrying, x = masked(X, PADDING)
    actual = pool(layer, carrying)
    expected = pool(layer, x, padding_mask=PADDING)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    assert abs(actual - pool(layer, x)).max() > 0.01  # it can fail
    mask = ~PADDING | (np.arange(S) == 2)
    actual = pool(layer, carrying, padding_mask=mask)
    expected = pool(layer, x, padding_mask=mask)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_the_pooled_vector_carries_no_mask(name):
    assert implicit_mask(ALL[name]()(masked(X, PADDING)[0])) is None


def test_pooling_uses_the_implicit_mask_of_the_ids():
    ids = np.array([[3, 1, 0, 0], [2, 5, 4, 0]], "int32")
    symbol = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(7, D, mask_zero=True)(symbol)
    pooled = [Pooling(kind)(x) for kind in POOLINGS] + [AttentionPooling(2)(x)]
    model = keras.Model(symbol, pooled)
    assert [item.shape for item in pooled] == [(None, D)] * 3 + [(None, 2, D)]
    for short, long in zip(model(ids[:1, :2]), model(ids), strict=True):
        np.testing.assert_allclose(numpy(long)[:1], numpy(short), atol=1e-6)


def test_a_key_may_carry_the_implicit_mask():
    layer = make_layer(shapes=[X.shape, KEY.shape])
    carrying, key = masked(KEY, PADDING)
    expected = pool(layer, X, key, padding_mask=PADDING)
    np.testing.assert_allclose(pool(layer, X, carrying), expected, atol=1e-6)


def test_a_mean_in_float16_is_not_infinite():
    x = np.full((1, 700, 1), 110, "float32")
    layer = Pooling("mean", dtype="float16")
    actual = layer(x, padding_mask=np.arange(700)[None] < 650)
    assert ops.dtype(actual) == "float16"
    assert numpy(actual) == 110


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("name", ALL)
def test_half_precision_keeps_its_dtype_and_zeros(name, policy):
    kind = ALL[name]()
    layer = type(kind).from_config({**kind.get_config(), "dtype": policy})
    actual = layer(X, padding_mask=EMPTY)
    assert ops.dtype(actual) == policy.removeprefix("mixed_")
    assert (numpy(actual)[1] == 0).all()


def test_queries_and_matrices_have_separate_initializers():
    layer = AttentionPooling(
        2, "additive", queries_initializer="ones", kernel_initializer="zeros"
    )
    layer(X)
    weights = weights_of(layer)
    assert (weights.pop("queries") == 1).all()
    assert not any(value.any() for value in weights.values())
    layer = AttentionPooling(2)
    layer(X)
    queries = weights_of(layer)["queries"]
    assert queries.shape == (2, D)
    assert abs(queries[0] - queries[1]).max() > 1e-3


def test_units_set_the_dimension_of_the_additive_score():
    weights = weights_of(make_layer(2, "additive", [X.shape, KEY.shape], units=4))
    assert {k: v.shape for k, v in weights.items()} == {
        "queries": (2, 7),
        "attention/query/kernel": (7, 4),
        "attention/key/kernel": (7, 4),
        "attention/score/vector": (1, 4, 1),
    }


def test_dropout_acts_in_training_only():
    layer = make_layer(dropout=0.5)
    still = pool(layer, X)
    np.testing.assert_array_equal(still, pool(make_layer(), X))
    assert abs(pool(layer, X, training=True) - still).max() > 0.1


@pytest.mark.parametrize("num_queries", [None, 3])
def test_symbolic_shapes_match_the_output(num_queries):
    x = keras.Input((None, D))
    results = AttentionPooling(num_queries)(x, return_attention_scores=True)
    queries = () if num_queries is None else (num_queries,)
    assert [y.shape for y in results] == [(None, *queries, D), (None, *queries, None)]
    actual = keras.Model(x, results)(X)
    assert [y.shape for y in actual] == [(B, *queries, D), (B, *queries, S)]


@QUANTIZED
def test_a_quantized_layer_is_saved(tmp_path):
    x = keras.Input((None, D))
    model = draw_weights(keras.Model(x, AttentionPooling(2, "additive")(x)))
    expected = numpy(model(X))
    quantize(model)
    actual = numpy(model(X))
    np.testing.assert_allclose(actual, expected, atol=0.1)
    assert [weight.dtype for weight in model.weights].count("int8") == 2
    for _ in range(2):  # a loaded model can be saved as well
        model.save(tmp_path / "model.keras")
        model = keras.models.load_model(tmp_path / "model.keras")
        np.testing.assert_allclose(numpy(model(X)), actual, atol=1e-6)


@pytest.mark.parametrize("kind", ["max", "first"])
@pytest.mark.parametrize("masks", [{}, {"padding_mask": EMPTY}], ids=["", "mask"])
def test_layer_meets_the_contract(kind, masks, tmp_path):
    check_layer(Pooling(kind), X, folder=tmp_path, **masks)


def test_mean_pooling_meets_the_contract(tmp_path):
    layer, masks = Pooling("mean"), {"padding_mask": EMPTY}
    expected = pool(layer, X, **masks)
    check_half_precision(layer, expected, X, **masks)
    check_model(layer, expected, X, folder=tmp_path, **masks)


@pytest.mark.parametrize("masks", [{}, {"padding_mask": EMPTY}], ids=["", "mask"])
def test_attention_pooling_meets_the_contract(masks, tmp_path):
    layer = AttentionPooling(3, "additive", 4, 0.1, "zeros", "ones", 5)
    check_layer(layer, X, KEY, folder=tmp_path, **masks)


def test_pooling_with_one_query_meets_the_contract(tmp_path):
    layer = make_layer(shapes=[X.shape])
    expected = pool(layer, X)
    check_half_precision(layer, expected, X)
    check_model(layer, expected, X, folder=tmp_path)
