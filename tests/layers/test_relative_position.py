"""Relative and rotary positions: formulas, caches, parity with libraries."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm.layers import (
    AlibiPositions,
    MultiHeadAttention,
    RotaryPositions,
    ShawPositions,
    T5Positions,
    TransformerDecoder,
    TransformerEncoder,
)
from keras_tfm.layers.position_factory import positions_of_blocks
from keras_tfm.layers.relative_position import RelativePositions
from tests.layers import formulas
from tests.layers.contract import check_config
from tests.layers.formulas import causal, draw, draw_weights, numpy, weights_of

B, T, D, H = 2, 7, 8, 2
X = draw(B, T, D)
PADDING = np.array([[1] * 7, [1] * 4 + [0] * 3], bool)


def rotated(x, position, style="interleaved", period=10_000.0):
    """Su et al. 2021, equation 15: a rotation matrix for one position."""
    dim = x.shape[-1]
    matrix = np.zeros((dim, dim))
    for i in range(dim // 2):
        angle = position * period ** (-2 * i / dim)
        pair = (2 * i, 2 * i + 1) if style == "interleaved" else (i, i + dim // 2)
        matrix[np.ix_(pair, pair)] = [
            [math.cos(angle), -math.sin(angle)],
            [math.sin(angle), math.cos(angle)],
        ]
    return x @ matrix.T


def rotate_all(x, **settings):
    """Rotates `(B, T, H, d)`, each position by its own matrix."""
    return np.stack([rotated(x[:, t], t, **settings) for t in range(x.shape[1])], 1)


def alibi(length):
    """Press et al. 2022, section 3, for two heads: 2^-4 and 2^-8."""
    distance = abs(np.arange(length)[:, None] - np.arange(length)[None])
    return np.stack([-distance / 16, -distance / 256])


def shaw(table, length, max_distance):
    """Shaw et al. 2018, equation 4, as `(T, S, d)`."""
    rows = [
        [
            table[max(-max_distance, min(max_distance, j - i)) + max_distance]
            for j in range(length)
        ]
        for i in range(length)
    ]
    return np.array(rows)


def t5_bucket(distance, bidirectional, buckets, max_distance):
    """Raffel et al. 2020, section 2.1: the bucket of key minus query."""
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    fraction = math.log(distance / exact) / math.log(max_distance / exact)
    return first + min(exact + int(fraction * (buckets - exact) + 1e-9), buckets - 1)


def attention(w, x, kind, mask=None):
    """Multi-head attention with relative or rotary positions, in float64."""
    length = x.shape[1]

    def project(name):
        return np.einsum("btd,dhk->bthk", x, w[f"{name}/kernel"]) + w[f"{name}/bias"]

    queries, keys, values = map(project, ("query", "key", "value"))
    if kind == "rotary":
        queries, keys = rotate_all(queries), rotate_all(keys)
    key_dim = queries.shape[-1]
    scores = np.einsum("bthk,bshk->bhts", queries, keys)
    if kind == "shaw":
        edges = shaw(w["shaw_positions/keys"], length, 16)
        scores = scores + np.einsum("bthk,tsk->bhts", queries, edges)
    scores = scores / key_dim**0.5
    if kind == "alibi":
        scores = scores + alibi(length)
    if kind == "t5":
        bucket = [
            [t5_bucket(j - i, True, 32, 128) for j in range(length)]
            for i in range(length)
        ]
        scores = scores + w["t5_positions/embeddings"][bucket].transpose(2, 0, 1)
    if mask is not None:
        scores = np.where(mask, scores, -1e300)
    weights = formulas.softmax(scores)
    attended = np.einsum("bhts,bshv->bthv", weights, values)
    if kind == "shaw":
        edges = shaw(w["shaw_positions/values"], length, 16)
        attended = attended + np.einsum("bhts,tsv->bthv", weights, edges)
    output = np.einsum("bthv,hve->bte", attended, w["attention_output/kernel"])
    return output + w["attention_output/bias"], weights


KINDS = {
    "rotary": RotaryPositions,
    "alibi": AlibiPositions,
    "t5": T5Positions,
    "shaw": ShawPositions,
}


def make_layer(positions, **settings):
    settings = {"num_heads": H, "kernel_initializer": "zeros", **settings}
    layer = MultiHeadAttention(positions=positions, **settings)
    layer.build(X.shape)
    return draw_weights(layer)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_follows_the_formula_of_the_paper(kind):
    layer = make_layer(KINDS[kind](name=f"{kind}_positions"))
    for masks, mask in (
        ({}, None),
        ({"padding_mask": PADDING}, PADDING[:, None, None]),
    ):
        expected, weights = attention(weights_of(layer), X, kind, mask)
        actual, scores = layer(X, return_attention_scores=True, **masks)
        np.testing.assert_allclose(numpy(scores), weights, atol=1e-5)
        np.testing.assert_allclose(numpy(actual), expected, atol=1e-5)
        np.testing.assert_allclose(numpy(layer(X, **masks)), expected, atol=1e-5)
    expected, _ = attention(weights_of(layer), X, kind, causal(T))
    actual = numpy(layer(X, use_causal_mask=True))
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    name = numpy(make_layer(kind)(X))
    np.testing.assert_allclose(name, numpy(layer(X)), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("groups", [None, 1])
def test_cached_decoding_matches_the_full_sequence(kind, groups):
    layer = make_layer(kind, num_key_value_heads=groups)
    expected = numpy(layer(X, use_causal_mask=True))
    cache, actual = layer.empty_cache(B, T + 1), []
    for start, length in ((0, 3), (3, 1), (4, 1), (5, 2)):
        is_static = start != 4
        output, cache = layer(
            X[:, start : start + length],
            use_causal_mask=True,
            cache=cache,
            cache_index=start if is_static else ops.convert_to_tensor(start, "int32"),
        )
        actual.append(numpy(output))
    np.testing.assert_allclose(np.concatenate(actual, 1), expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_keys_may_be_in_any_order(kind):
    """Explicit positions count, not the index of a key in the cache."""
    layer = make_layer(kind)
    expected = numpy(layer(X))
    order = np.array([3, 0, 6, 2, 5, 1, 4], "int32")
    actual = layer(X[:, order], query_positions=order, key_positions=order)
    np.testing.assert_allclose(numpy(actual), expected[:, order], atol=1e-5)


@pytest.mark.parametrize("kind", ["rotary", "alibi", "t5", "shaw"])
def test_only_distances_matter(kind):
    layer = make_layer(kind)
    later = np.arange(T, dtype="int32") + 50
    actual = layer(X, query_positions=later, key_positions=later)
    np.testing.assert_allclose(numpy(actual), numpy(layer(X)), atol=2e-5)
    shifted = layer(X, query_positions=later)
    assert abs(numpy(shifted) - numpy(layer(X))).max() > 1e-3


def test_rotary_positions_rotate_by_the_angle_of_the_paper():
    x = draw(B, T, H, 6, seed=3)
    for style in ("interleaved", "halves"):
        layer = RotaryPositions(style, max_period=50.0)
        expected = rotate_all(x, style=style, period=50.0)
        np.testing.assert_allclose(numpy(layer(x)), expected, atol=1e-5)
    partial = RotaryPositions(rotary_dim=4)(x)
    np.testing.assert_allclose(numpy(partial)[..., 4:], x[..., 4:])
    np.testing.assert_allclose(
        numpy(partial)[..., :4], rotate_all(x[..., :4].astype("float64")), atol=1e-5
    )
    far = RotaryPositions(dtype="float16")
    positions = np.arange(4090, 4090 + T, dtype="int32")
    actual = numpy(far(x.astype("float16"), positions)).astype("float64")
    expected = np.stack([rotated(x[:, t], 4090 + t) for t in range(T)], 1)
    np.testing.assert_allclose(actual, expected, atol=5e-3)


def test_rotary_parity_with_keras_hub():
    keras_hub = pytest.importorskip("keras_hub")
    x = draw(B, T, H, 6)
    expected = keras_hub.layers.RotaryEmbedding()(x)
    actual = RotaryPositions("halves")(x)
    np.testing.assert_allclose(numpy(actual), numpy(expected), atol=1e-5)


@pytest.mark.parametrize("heads", [1, 2, 8, 12, 16])
def test_alibi_slopes_parity_with_keras_hub(heads):
    keras_hub = pytest.importorskip("keras_hub")
    hub_layer = keras_hub.layers.AlibiBias()
    expected = hub_layer(
        np.zeros((1, heads, 1, T), "float32")
    )  # bias of the last query
    last, positions = np.array([T - 1], "int32"), np.arange(T, dtype="int32")
    actual = AlibiPositions()(np.zeros((1, 1, heads, 4), "float32"), last, positions)
    np.testing.assert_allclose(numpy(actual), numpy(expected), rtol=1e-6)


@pytest.mark.parametrize(
    ("bidirectional", "buckets", "max_distance"),
    [(True, 32, 128), (False, 32, 128), (True, 8, 20), (False, 5, 40)],
)
def test_t5_buckets_follow_the_formula(bidirectional, buckets, max_distance):
    layer = T5Positions(buckets, max_distance, bidirectional)
    query = np.array([150], "int32")
    positions = np.arange(300, dtype="int32")
    layer.build((None, None, 1, 4))
    layer.set_weights([np.arange(buckets, dtype="float32")[:, None]])
    actual = numpy(layer(np.zeros((1, 1, 1, 4), "float32"), query, positions))
    expected = [
        t5_bucket(s - 150, bidirectional, buckets, max_distance) for s in positions
    ]
    np.testing.assert_array_equal(actual[0, 0, 0], expected)
    t5 = pytest.importorskip("keras_hub.src.models.t5.t5_multi_head_attention")
    t5_buckets = t5.T5MultiHeadAttention._relative_position_bucket(
        ops.convert_to_tensor(positions - 150), bidirectional, buckets, max_distance
    )
    np.testing.assert_array_equal(actual[0, 0, 0], numpy(t5_buckets))


def test_a_decoder_block_has_t5_buckets_for_the_past_only():
    assert TransformerEncoder(4, 2, positions="t5").positions.bidirectional
    block = TransformerDecoder(4, 2, positions="t5")
    assert not block.positions.bidirectional
    assert not type(block).from_config(block.get_config()).positions.bidirectional


def test_shaws_distances_are_clipped_on_both_sides():
    """Distances beyond the maximum use the embedding of the maximum."""
    layer = ShawPositions(2)
    queries = draw(1, 6, 1, 4)
    actual = numpy(layer(queries, np.arange(6), np.arange(6)))
    table = next(numpy(w) for w in layer.weights)
    for i in range(6):
        for j in range(6):
            vector = table[min(max(j - i, -2), 2) + 2]
            expected = queries[0, i, 0] @ vector
            assert actual[0, 0, i, j] == pytest.approx(expected, abs=1e-5)


def test_blocks_of_a_stack_share_only_t5_positions():
    for kind, shared in (("t5", True), ("shaw", False), ("rotary", False)):
        first, second = positions_of_blocks(KINDS[kind](), 2, bidirectional=False)
        assert (first is second) is shared
    assert first is not None and positions_of_blocks(None, 2, True) == [None, None]
    decoder = positions_of_blocks(T5Positions(), 1, bidirectional=False)
    assert decoder[0].bidirectional is False


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_with_positions_are_saved(kind, tmp_path):
    ids = keras.Input((None, D))
    x = TransformerEncoder(12, H, positions=KINDS[kind]())(ids)
    x = TransformerDecoder(12, H, positions=kind)(x)
    model = keras.Model(ids, x)
    draw_weights(model)
    model.save(str(tmp_path / "m.keras"))
    loaded = keras.models.load_model(str(tmp_path / "m.keras"))
    np.testing.assert_allclose(numpy(loaded(X)), numpy(model(X)), atol=1e-6)
    # Without positions, reordering the input of a block reorders its output.
    block, plain = model.layers[1], TransformerEncoder(12, H)
    plain(X)
    np.testing.assert_allclose(
        numpy(plain(X[:, ::-1]))[:, ::-1], numpy(plain(X)), atol=1e-5
    )
    swapped = X[:, [1, 0, *range(2, T)]]
    assert abs(numpy(block(swapped))[:, 2:] - numpy(block(X))[:, 2:]).max() > 1e-3


@pytest.mark.parametrize(
    "layer",
    [
        RotaryPositions("halves", 100.0, 4),
        AlibiPositions(),
        T5Positions(8, 30, False, "zeros", shared=False),
        ShawPositions(3, "zeros"),
    ],
    ids=KINDS,
)
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_config_and_half_precision(layer, policy):
    if not isinstance(layer, AlibiPositions):  # which has no arguments
        check_config(layer)
    reference = make_layer(type(layer).from_config(layer.get_config()), key_dim=6)
    half = type(layer).from_config({**layer.get_config(), "dtype": policy})
    half = make_layer(half, key_dim=6, dtype=policy)
    actual = half(X, padding_mask=PADDING, use_causal_mask=True)
    assert ops.dtype(actual) == policy.removeprefix("mixed_")
    expected = numpy(reference(X, padding_mask=PADDING, use_causal_mask=True))
    np.testing.assert_allclose(numpy(actual), expected, atol=0.1)
    assert np.isfinite(numpy(actual)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_score_biases_are_float32_in_half_precision(dtype):
    # Near 4,001, float16 represents multiples of 2, bfloat16 multiples of 16.
    far = np.array([0, 4001])
    queries = ops.cast(draw(1, 2, H, 4), dtype)
    alibi_positions = AlibiPositions(dtype=dtype)
    alibi_positions.build_for((1, 2, H, 4), 4)
    bias = alibi_positions.score_bias(queries, far, far)
    assert ops.dtype(bias) == "float32"
    np.testing.assert_array_equal(numpy(bias)[0, :, 0, 1], [-4001 / 16, -4001 / 256])
    t5_positions = T5Positions(dtype=f"mixed_{dtype}")
    t5_positions.build_for((1, 2, H, 4), 4)
    value = np.full(t5_positions.weights[0].shape, 1 + 2**-12, "float32")
    t5_positions.set_weights([value])
    bias = t5_positions.score_bias(queries, far, far)
    assert ops.dtype(bias) == "float32"
    np.testing.assert_array_equal(numpy(bias), 1 + 2**-12)


def test_t5_embeddings_stay_float32_in_a_half_precision_layer(monkeypatch):
    biases = []
    score_bias = T5Positions.score_bias

    def recorded_score_bias(self, *arguments):
        biases.append(score_bias(self, *arguments))
        return biases[-1]

    monkeypatch.setattr(T5Positions, "score_bias", recorded_score_bias)
    layer = MultiHeadAttention(2, positions=T5Positions(), dtype="mixed_bfloat16")
    layer.build(X.shape)
    layer.positions.embeddings.assign(np.full((32, 2), 1 + 2**-12, "float32"))
    layer(X)
    np.testing.assert_array_equal(numpy(biases[-1]), 1 + 2**-12)


def test_a_value_bias_disables_the_fused_path():
    class ValueBias(RelativePositions):
        def value_bias(self, weights, query_positions, key_positions):
            return ops.ones(ops.shape(weights)[:3] + (1,), weights.dtype)

    plain, layer = MultiHeadAttention(2), MultiHeadAttention(2, positions=ValueBias())
    for attention_layer in (plain, layer):
        attention_layer.build(X.shape)
    layer.set_weights(plain.get_weights())
    expected, _ = layer(X, return_attention_scores=True)
    actual = numpy(layer(X))
    np.testing.assert_allclose(actual, numpy(expected), atol=1e-5)
    assert np.abs(actual - numpy(plain(X))).max() > 0.01


@pytest.mark.parametrize("score", ["dot", "multiplicative", "additive"])
def test_shaws_vectors_are_added_to_any_score(score):
    layer = make_layer(ShawPositions(), score=score, key_dim=4)
    plain = MultiHeadAttention(num_heads=H, score=score, key_dim=4)
    plain.build(X.shape)
    values = {weight.path.split("/", 1)[1]: weight for weight in layer.weights}
    for weight in plain.weights:
        weight.assign(values[weight.path.split("/", 1)[1]])
    with_positions, without = (
        np.log(numpy(attention_layer(X, return_attention_scores=True)[1]))
        for attention_layer in (layer, plain)
    )
    w = weights_of(layer)
    queries = np.einsum("btd,dhk->bthk", X, w["query/kernel"]) + w["query/bias"]
    edges = shaw(numpy(layer.positions.key_embeddings), T, 16)
    bias = np.einsum("bthk,tsk->bhts", queries, edges) * layer.score_layer.scale
    # Zero, up to the normalization of each query.
    difference = with_positions - without - bias
    np.testing.assert_allclose(difference - difference[..., :1], 0, atol=1e-4)


@pytest.mark.parametrize("kind", ["t5", "shaw"])
def test_position_embeddings_are_trained(kind):
    layer = make_layer(kind, dropout=0.1)
    initial = [numpy(weight) for weight in layer.positions.weights]
    model = keras.Sequential([keras.Input((T, D)), layer])
    model.compile("sgd", "mse")
    model.train_on_batch(X, np.ones_like(X))
    for weight, initial_value in zip(layer.positions.weights, initial, strict=True):
        assert abs(numpy(weight) - initial_value).max() > 1e-6


def test_the_base_class_changes_nothing():
    plain, based = make_layer(None), make_layer(RelativePositions())
    np.testing.assert_allclose(numpy(based(X)), numpy(plain(X)), atol=1e-6)


def test_shaw_positions_support_other_value_dimensions():
    layer = make_layer("shaw", key_dim=6, value_dim=3)
    shapes = [tuple(weight.shape) for weight in layer.positions.weights]
    assert shapes == [(33, 6), (33, 3)]
    assert numpy(layer(X)).shape == (B, T, D)


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_of_a_batch_may_have_different_positions(kind):
    layer = make_layer(kind)
    rng = np.random.default_rng(5)
    positions = rng.permuted(np.tile(np.arange(T), (B, 1)), axis=1).astype("int32")
    actual = numpy(layer(X, query_positions=positions, key_positions=positions))
    for i in range(B):
        call = {"query_positions": positions[i], "key_positions": positions[i]}
        expected = numpy(layer(X[i : i + 1], **call))
        np.testing.assert_allclose(actual[i], expected[0], atol=1e-5)
