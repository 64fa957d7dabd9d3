"""Positions inside attention: each paper's formula, caches, peers."""

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
    width = x.shape[-1]
    matrix = np.zeros((width, width))
    for i in range(width // 2):
        angle = position * period ** (-2 * i / width)
        pair = (2 * i, 2 * i + 1) if style == "interleaved" else (i, i + width // 2)
        matrix[np.ix_(pair, pair)] = [
            [math.cos(angle), -math.sin(angle)],
            [math.sin(angle), math.cos(angle)],
        ]
    return x @ matrix.T


def turned(x, **settings):
    """`(B, T, H, d)`, each position by its own matrix."""
    return np.stack([rotated(x[:, t], t, **settings) for t in range(x.shape[1])], 1)


def alibi(length):
    """Press et al. 2022, section 3, for two heads: 2^-4 and 2^-8."""
    distance = abs(np.arange(length)[:, None] - np.arange(length)[None])
    return np.stack([-distance / 16, -distance / 256])


def shaw(table, length, most):
    """Shaw et al. 2018, equation 4, as `(T, S, d)`."""
    rows = [
        [table[max(-most, min(most, j - i)) + most] for j in range(length)]
        for i in range(length)
    ]
    return np.array(rows)


def t5_bucket(distance, bidirectional, buckets, most):
    """Raffel et al. 2020, section 2.1: a key so far after its query."""
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
    share = math.log(distance / exact) / math.log(most / exact)
    return first + min(exact + int(share * (buckets - exact) + 1e-9), buckets - 1)


def attention(w, x, kind, mask=None):
    """Multi-head attention with positions inside, in float64."""
    length = x.shape[1]

    def project(name):
        return np.einsum("btd,dhk->bthk", x, w[f"{name}/kernel"]) + w[f"{name}/bias"]

    queries, keys, values = map(project, ("query", "key", "value"))
    if kind == "rotary":
        queries, keys = turned(queries), turned(keys)
    width = queries.shape[-1]
    scores = np.einsum("bthk,bshk->bhts", queries, keys)
    if kind == "shaw":
        edges = shaw(w["shaw_positions/keys"], length, 16)
        scores = scores + np.einsum("bthk,tsk->bhts", queries, edges)
    scores = scores / width**0.5
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
        known = start != 4
        output, cache = layer(
            X[:, start : start + length],
            use_causal_mask=True,
            cache=cache,
            cache_index=start if known else ops.convert_to_tensor(start, "int32"),
        )
        actual.append(numpy(output))
    np.testing.assert_allclose(np.concatenate(actual, 1), expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_slots_may_be_in_any_order(kind):
    """Positions are what they are said to be, wherever a key is kept."""
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
    apart = layer(X, query_positions=later)
    assert abs(numpy(apart) - numpy(layer(X))).max() > 1e-3


def test_rotary_positions_rotate_by_the_angle_of_the_paper():
    x = draw(B, T, H, 6, seed=3)
    for style in ("interleaved", "halves"):
        layer = RotaryPositions(style, max_period=50.0)
        expected = turned(x, style=style, period=50.0)
        np.testing.assert_allclose(numpy(layer(x)), expected, atol=1e-5)
    part = RotaryPositions(rotary_dim=4)(x)
    np.testing.assert_allclose(numpy(part)[..., 4:], x[..., 4:])
    np.testing.assert_allclose(
        numpy(part)[..., :4], turned(x[..., :4].astype("float64")), atol=1e-5
    )
    far = RotaryPositions(dtype="float16")
    slots = np.arange(4090, 4090 + T, dtype="int32")
    actual = numpy(far(x.astype("float16"), slots)).astype("float64")
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
    theirs = keras_hub.layers.AlibiBias()
    expected = theirs(np.zeros((1, heads, 1, T), "float32"))  # of the last query
    last, slots = np.array([T - 1], "int32"), np.arange(T, dtype="int32")
    actual = AlibiPositions()(np.zeros((1, 1, heads, 4), "float32"), last, slots)
    np.testing.assert_allclose(numpy(actual), numpy(expected), rtol=1e-6)


@pytest.mark.parametrize(
    ("bidirectional", "buckets", "most"),
    [(True, 32, 128), (False, 32, 128), (True, 8, 20), (False, 5, 40)],
)
def test_t5_buckets_follow_the_formula(bidirectional, buckets, most):
    layer = T5Positions(buckets, most, bidirectional)
    query = np.array([150], "int32")
    slots = np.arange(300, dtype="int32")
    layer.build((None, None, 1, 4))
    layer.set_weights([np.arange(buckets, dtype="float32")[:, None]])
    actual = numpy(layer(np.zeros((1, 1, 1, 4), "float32"), query, slots))
    expected = [t5_bucket(s - 150, bidirectional, buckets, most) for s in slots]
    np.testing.assert_array_equal(actual[0, 0, 0], expected)
    t5 = pytest.importorskip("keras_hub.src.models.t5.t5_multi_head_attention")
    theirs = t5.T5MultiHeadAttention._relative_position_bucket(
        ops.convert_to_tensor(slots - 150), bidirectional, buckets, most
    )
    np.testing.assert_array_equal(actual[0, 0, 0], numpy(theirs))


def test_a_decoder_block_has_t5_buckets_for_the_past_only():
    assert TransformerEncoder(4, 2, positions="t5").positions.bidirectional
    block = TransformerDecoder(4, 2, positions="t5")
    assert not block.positions.bidirectional
    assert not type(block).from_config(block.get_config()).positions.bidirectional


def test_shaws_distances_are_clipped_on_both_sides():
    """Weights of distances past the greatest are those of the greatest."""
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
    # Without positions a block's output goes along with the order of its input.
    block, plain = model.layers[1], TransformerEncoder(12, H)
    plain(X)
    np.testing.assert_allclose(
        numpy(plain(X[:, ::-1]))[:, ::-1], numpy(plain(X)), atol=1e-5
    )
    ahead = X[:, [1, 0, *range(2, T)]]
    assert abs(numpy(block(ahead))[:, 2:] - numpy(block(X))[:, 2:]).max() > 1e-3


@pytest.mark.parametrize(
    "layer",
    [
        RotaryPositions("halves", 100.0, 4),
        AlibiPositions(),
        T5Positions(8, 30, False, "zeros"),
        ShawPositions(3, "zeros"),
    ],
    ids=KINDS,
)
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_config_and_half_precision(layer, policy):
    if not isinstance(layer, AlibiPositions):  # which has no settings
        check_config(layer)
    whole = make_layer(type(layer).from_config(layer.get_config()), key_dim=6)
    half = type(layer).from_config({**layer.get_config(), "dtype": policy})
    half = make_layer(half, key_dim=6, dtype=policy)
    actual = half(X, padding_mask=PADDING, use_causal_mask=True)
    assert ops.dtype(actual) == policy.removeprefix("mixed_")
    expected = numpy(whole(X, padding_mask=PADDING, use_causal_mask=True))
    np.testing.assert_allclose(numpy(actual), expected, atol=0.1)
    assert np.isfinite(numpy(actual)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_score_biases_are_float32_in_half_precision(dtype):
    # Of 4,001 tokens float16 knows the even numbers, bfloat16 those by 16.
    far = np.array([0, 4001])
    queries = ops.cast(draw(1, 2, H, 4), dtype)
    actual = AlibiPositions(dtype=dtype)
    actual.build_for((1, 2, H, 4), 4)
    bias = actual.score_bias(queries, far, far)
    assert ops.dtype(bias) == "float32"
    np.testing.assert_array_equal(numpy(bias)[0, :, 0, 1], [-4001 / 16, -4001 / 256])
    table = T5Positions(dtype=f"mixed_{dtype}")
    table.build_for((1, 2, H, 4), 4)
    value = np.full(table.weights[0].shape, 1 + 2**-12, "float32")
    table.set_weights([value])
    bias = table.score_bias(queries, far, far)
    assert ops.dtype(bias) == "float32"
    np.testing.assert_array_equal(numpy(bias), 1 + 2**-12)


def test_t5_embeddings_stay_float32_in_a_half_precision_layer(monkeypatch):
    seen = []
    score_bias = T5Positions.score_bias

    def recorded(self, *arguments):
        seen.append(score_bias(self, *arguments))
        return seen[-1]

    monkeypatch.setattr(T5Positions, "score_bias", recorded)
    layer = MultiHeadAttention(2, positions=T5Positions(), dtype="mixed_bfloat16")
    layer.build(X.shape)
    layer.positions.embeddings.assign(np.full((32, 2), 1 + 2**-12, "float32"))
    layer(X)
    np.testing.assert_array_equal(numpy(seen[-1]), 1 + 2**-12)


def test_a_value_bias_turns_fusion_off():
    class Louder(RelativePositions):
        def value_bias(self, weights, query_positions, key_positions):
            return ops.ones(ops.shape(weights)[:3] + (1,), weights.dtype)

    plain, layer = MultiHeadAttention(2), MultiHeadAttention(2, positions=Louder())
    for first in (plain, layer):
        first.build(X.shape)
    layer.set_weights(plain.get_weights())
    whole, _ = layer(X, return_attention_scores=True)
    actual = numpy(layer(X))
    np.testing.assert_allclose(actual, numpy(whole), atol=1e-5)
    assert np.abs(actual - numpy(plain(X))).max() > 0.01


@pytest.mark.parametrize("score", ["dot", "multiplicative", "additive"])
def test_shaws_vectors_are_added_to_any_score(score):
    layer = make_layer(ShawPositions(), score=score, key_dim=4)
    plain = MultiHeadAttention(num_heads=H, score=score, key_dim=4)
    plain.build(X.shape)
    values = {weight.path.split("/", 1)[1]: weight for weight in layer.weights}
    for weight in plain.weights:
        weight.assign(values[weight.path.split("/", 1)[1]])
    pair = (
        numpy(first(X, return_attention_scores=True)[1]) for first in (layer, plain)
    )
    added, without = map(np.log, pair)
    w = weights_of(layer)
    queries = np.einsum("btd,dhk->bthk", X, w["query/kernel"]) + w["query/bias"]
    edges = shaw(numpy(layer.positions.key_embeddings), T, 16)
    bias = np.einsum("bthk,tsk->bhts", queries, edges) * layer.score_layer.scale
    gained = added - without - bias  # up to a number for each row
    np.testing.assert_allclose(gained - gained[..., :1], 0, atol=1e-4)


@pytest.mark.parametrize("kind", ["t5", "shaw"])
def test_position_embeddings_are_trained(kind):
    layer = make_layer(kind, dropout=0.1)
    before = [numpy(weight) for weight in layer.positions.weights]
    model = keras.Sequential([keras.Input((T, D)), layer])
    model.compile("sgd", "mse")
    model.train_on_batch(X, np.ones_like(X))
    for weight, old in zip(layer.positions.weights, before, strict=True):
        assert abs(numpy(weight) - old).max() > 1e-6


def test_the_base_class_changes_nothing():
    plain, based = make_layer(None), make_layer(RelativePositions())
    np.testing.assert_allclose(numpy(based(X)), numpy(plain(X)), atol=1e-6)


def test_shaw_positions_support_other_value_dimensions():
    layer = make_layer("shaw", key_dim=6, value_dim=3)
    shapes = [tuple(weight.shape) for weight in layer.positions.weights]
    assert shapes == [(33, 6), (33, 3)]
    assert numpy(layer(X)).shape == (B, T, D)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_may_have_different_positions(kind):
    layer = make_layer(kind)
    rng = np.random.default_rng(5)
    slots = rng.permuted(np.tile(np.arange(T), (B, 1)), axis=1).astype("int32")
    actual = numpy(layer(X, query_positions=slots, key_positions=slots))
    for row in range(B):
        self_weights = {"query_positions": slots[row], "key_positions": slots[row]}
        expected = numpy(layer(X[row : row + 1], **self_weights))
        np.testing.assert_allclose(actual[row], expected[0], atol=1e-5)
