"""MultiHeadAttention: formula, masks, cache, parity with other libraries."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_tfm.layers import (
    MultiHeadAttention,
    RotaryPositions,
)
from tests.layers import formulas
from tests.layers.contract import WEIGHT_OPTIONS, check_layer
from tests.layers.formulas import causal, draw, draw_weights, numpy, weights_of
from tests.layers.gradients import gradient

B, T, S, D, H = 2, 4, 5, 6, 3
QUERY, VALUE, KEY = draw(B, T, D), draw(B, S, 5, seed=2), draw(B, S, 7, seed=3)
RNG = np.random.default_rng(4)
PADDING = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
ROWS = RNG.random((B, T, S)) < 0.6
HEADS = RNG.random((B, H, T, S)) < 0.6
ROWS[0, 1] = HEADS[1, 2, 3] = False  # queries that may attend to nothing

SETTINGS = {
    "plain": {},
    "no bias": {"use_bias": False},
    "H d_k is not D": {"key_dim": 5},
    "d_v is not d_k": {"value_dim": 4},
    "multiplicative": {"score": "multiplicative"},
    "additive": {"score": "additive"},
    "one head of keys": {"num_key_value_heads": 1},
    "all": {"key_dim": 5, "value_dim": 4, "output_dim": 8, "use_bias": False},
}
MASKS = {
    "none": ({}, None),
    "padding": ({"padding_mask": PADDING}, PADDING[:, None]),
    "rows": ({"attention_mask": ROWS}, ROWS),
    "heads": ({"attention_mask": HEADS}, HEADS),
    "broadcast": ({"attention_mask": ROWS[:1, None]}, ROWS[:1, None]),
    "heads and padding": (
        {"attention_mask": HEADS, "padding_mask": PADDING},
        HEADS & PADDING[:, None, None],
    ),
}


def make_layer(*inputs, **settings):
    # Zeros, then drawn values: JAX compiles a random generator for each shape.
    layer = MultiHeadAttention(H, kernel_initializer="zeros", **settings)
    layer.build(*(x.shape for x in inputs))
    return draw_weights(layer)


def attend(layer, *inputs, **call):
    return keras.tree.map_structure(numpy, layer(*inputs, **call))


@pytest.mark.parametrize(
    ("settings", "mask"),
    [("plain", mask) for mask in MASKS]
    + [
        (name, mask)
        for name in SETTINGS
        for mask in ("none", "heads")
        if name != "plain"
    ],
)
def test_output_and_weights_follow_the_formula(settings, mask):
    """On both paths: fused, and with attention weights returned."""
    layer = make_layer(QUERY, VALUE, KEY, **SETTINGS[settings])
    call, mask = MASKS[mask]
    expected, scores = formulas.attention(weights_of(layer), QUERY, VALUE, KEY, mask)
    output, actual = attend(
        layer, QUERY, VALUE, KEY, return_attention_scores=True, **call
    )
    np.testing.assert_allclose(actual, scores, atol=1e-5)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    fused = attend(layer, QUERY, VALUE, KEY, **call)
    np.testing.assert_allclose(fused, expected, atol=1e-5)


@pytest.mark.parametrize("score", ["scaled_dot", "dot", "multiplicative", "additive"])
def test_grouped_heads_follow_the_formula(score):
    """Neighboring heads share keys: fused, cached, and returning weights."""
    x = draw(B, T, 8)
    settings = {"num_key_value_heads": 2, "score": score}
    layer = MultiHeadAttention(4, kernel_initializer="zeros", **settings)
    layer.build(x.shape)
    w = weights_of(draw_weights(layer))
    if score == "dot":  # d_k is 2
        w["query/kernel"], w["query/bias"] = (
            w[f"query/{kind}"] * 2**0.5 for kind in ("kernel", "bias")
        )
    expected, scores = formulas.attention(w, x, mask=causal(T))
    call = {"use_causal_mask": True}
    actual, weights = attend(layer, x, return_attention_scores=True, **call)
    np.testing.assert_allclose(weights, scores, atol=1e-5)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    np.testing.assert_allclose(attend(layer, x, **call), expected, atol=1e-5)
    cache = layer.empty_cache(B, T)
    assert [tuple(item.shape) for item in cache] == [(B, 2, 2, T), (B, 2, T, 2)]
    for t in range(T):
        actual, cache = layer(x[:, t : t + 1], cache=cache, cache_index=t, **call)
        np.testing.assert_allclose(numpy(actual)[:, 0], expected[:, t], atol=1e-5)


def test_score_matrices_start_within_glorots_bound_of_a_head():
    layer = MultiHeadAttention(2, key_dim=40, score="multiplicative")
    layer(draw(1, 2, 8))
    first, second = weights_of(layer)["score/kernel"]
    bound = (6 / 80) ** 0.5
    assert abs(first - second).max() > 0.1 * bound
    assert 0.97 * bound < abs(first).max() <= bound


def test_self_attention_follows_the_formula():
    layer = make_layer(QUERY)
    expected, _ = formulas.attention(weights_of(layer), QUERY, mask=causal(T))
    np.testing.assert_allclose(
        attend(layer, QUERY, use_causal_mask=True), expected, atol=1e-5
    )
    expected, _ = formulas.attention(weights_of(layer), QUERY)
    np.testing.assert_allclose(attend(layer, QUERY), expected, atol=1e-5)


@pytest.fixture
def fused_calls(monkeypatch):
    """Records the calls of the fused path."""
    calls, original = [], ops.dot_product_attention

    def counted(*args, **kwargs):
        calls.append(kwargs)
        return original(*args, **kwargs)

    monkeypatch.setattr(ops, "dot_product_attention", counted)
    return calls


@pytest.mark.parametrize(
    ("dropout", "call", "fused"),
    [
        (0.0, {}, True),
        (0.0, {"training": True}, True),
        (0.5, {}, True),
        (0.5, {"training": False, "padding_mask": PADDING}, True),
        (0.5, {"training": True}, False),
        (0.0, {"return_attention_scores": True}, False),
    ],
)
def test_the_fused_path_needs_no_dropout_and_no_weights(
    fused_calls, dropout, call, fused
):
    layer = make_layer(QUERY, VALUE, dropout=dropout)
    layer(QUERY, VALUE, **call)
    assert len(fused_calls) == int(fused)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_matches_float32(policy):
    """Keys and values have one dimension, so that the call may be fused."""
    layer, reference = make_layer(QUERY, dtype=policy), make_layer(QUERY)
    output = layer(QUERY, padding_mask=PADDING[:, :T])
    assert ops.dtype(output) == policy.removeprefix("mixed_")
    expected = attend(reference, QUERY, padding_mask=PADDING[:, :T])
    np.testing.assert_allclose(numpy(output), expected, atol=0.1)


def test_a_single_key_gets_all_the_weight():
    layer = make_layer(QUERY, VALUE)
    call = {"return_attention_scores": True}
    output, scores = attend(layer, QUERY, VALUE[:, :1], **call)
    assert (scores == 1).all()
    expected, _ = formulas.attention(weights_of(layer), QUERY, VALUE[:, :1])
    np.testing.assert_allclose(output, expected, atol=1e-5)
    mask = np.array([[[True]] * T, [[False]] * T])
    _, scores = attend(layer, QUERY, VALUE[:, :1], attention_mask=mask, **call)
    assert (scores[0] == 1).all() and (scores[1] == 0).all()


def test_flash_attention_reaches_the_backend(fused_calls):
    layer = make_layer(QUERY, VALUE, flash_attention=False)
    layer(QUERY, VALUE)
    assert fused_calls[-1]["flash_attention"] is False
    assert layer.get_config()["flash_attention"] is False


@pytest.mark.parametrize("call", [{}, {"training": True, "dropout": 0.01}])
def test_a_query_without_keys_returns_zeros_not_nan(call):
    call = dict(call)
    layer = make_layer(QUERY, VALUE, dropout=call.pop("dropout", 0.0))
    mask = np.ones((B, T, S), bool)
    mask[0, 2] = mask[1] = False

    def attended(query, mask):
        return layer(query, VALUE, attention_mask=mask, **call)

    output = numpy(attended(QUERY, mask))
    # The projection of zeros is its bias.
    bias = weights_of(layer)["attention_output/bias"]
    projected_zeros = np.broadcast_to(bias, (T, D))
    np.testing.assert_allclose(output[1], projected_zeros, atol=1e-6)
    np.testing.assert_allclose(output[0, 2], bias, atol=1e-6)
    assert abs(output[0, 1] - bias).max() > 0.1
    slope = gradient(lambda query: ops.sum(attended(query, mask) ** 2), QUERY)
    assert np.isfinite(slope).all()
    assert (slope[1] == 0).all()
    assert abs(slope[0, 1]).max() > 1e-3


@pytest.mark.parametrize("scores", [False, True], ids=["fused", "plain"])
def test_the_future_cannot_change_the_past(scores):
    layer = make_layer(QUERY)
    later = QUERY.copy()
    later[:, 2:] += 1.0
    call = {"use_causal_mask": True, "return_attention_scores": scores}
    original, changed = (attend(layer, x, **call) for x in (QUERY, later))
    if scores:
        original, changed = original[0], changed[0]
    np.testing.assert_allclose(original[:, :2], changed[:, :2], atol=1e-6)
    assert np.abs(original[:, 2:] - changed[:, 2:]).max() > 0.1  # it can fail


def test_the_future_cannot_change_the_past_with_dropout():
    layer = make_layer(QUERY, dropout=0.5)
    call = {"use_causal_mask": True, "training": True}
    slope = gradient(lambda x: ops.sum(layer(x, **call)[:, :2]), QUERY)
    assert (slope[:, 2:] == 0).all()
    assert abs(slope[:, :2]).max() > 1e-3


def test_dropout_acts_in_training_only():
    layer = make_layer(QUERY, dropout=0.5)
    still = attend(layer, QUERY)
    np.testing.assert_array_equal(still, attend(layer, QUERY, training=False))
    assert abs(still - attend(layer, QUERY, training=True)).max() > 0.1
    first, second = (attend(layer, QUERY, training=True) for _ in range(2))
    assert abs(first - second).max() > 0.1


def masked(x, mask):
    """Returns a tensor with an implicit Keras mask, and the same without."""
    layer = keras.layers.Masking()
    x = np.where(mask[..., None], x, 0).astype("float32")
    return layer(ops.convert_to_tensor(x)), x


def test_an_explicit_mask_replaces_the_implicit_one():
    layer = make_layer(QUERY, VALUE)
    carrying, value = masked(VALUE, PADDING)
    actual = attend(layer, QUERY, carrying)
    expected = attend(layer, QUERY, value, padding_mask=PADDING)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    assert abs(actual - attend(layer, QUERY, value)).max() > 0.01  # it can fail

    second = ~PADDING | (np.arange(S) == 0)
    actual = attend(layer, QUERY, carrying, padding_mask=second)
    expected = attend(layer, QUERY, value, padding_mask=second)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    rows = {"attention_mask": ROWS}
    actual, expected = (
        attend(layer, QUERY, carrying, **rows),
        attend(layer, QUERY, value, **rows),
    )
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_the_implicit_mask_of_a_query_applies_to_explicit_keys():
    """With a key and no value, as in `Attention`."""
    layer = MultiHeadAttention(1)
    layer(VALUE, key=VALUE)
    carrying, value = masked(VALUE, PADDING)
    actual = attend(layer, carrying, key=draw(*VALUE.shape))
    expected = attend(layer, value, key=draw(*VALUE.shape), padding_mask=PADDING)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize("score", ["dot", "multiplicative"])
def test_large_products_do_not_overflow_float16(score):
    x = 10 * draw(2, 4, 768)
    layer = MultiHeadAttention(1, score=score, dtype="mixed_float16")
    layer(x)
    for kernel in (layer.query_dense.kernel, layer.key_dense.kernel):
        kernel.assign(np.eye(768, dtype="float32")[:, None])
    if score == "multiplicative":
        layer.score_layer.kernel.assign(np.eye(768, dtype="float32")[None])
    attended, weights = layer(x, return_attention_scores=True)
    assert np.isfinite(numpy(weights)).all()
    np.testing.assert_allclose(numpy(layer(x)), numpy(attended), atol=0.1)
    cached = layer(x, cache=layer.keys_and_values(x))
    np.testing.assert_allclose(numpy(cached), numpy(attended), atol=0.1)


def test_an_implicit_mask_does_not_apply_to_a_cache():
    layer = make_layer(QUERY, VALUE)
    cache = layer.keys_and_values(VALUE)
    # The query's mask describes its own positions, not those of the cache.
    mask = np.ones(QUERY.shape[:2], bool)
    mask[:, -1] = False
    carrying, query = masked(QUERY, mask)
    actual, expected = (attend(layer, x, cache=cache) for x in (carrying, query))
    np.testing.assert_array_equal(actual, expected)


def test_the_implicit_mask_of_values_applies_to_keys_without_one():
    key = draw(B, S, 6, seed=9)
    layer = make_layer(QUERY, VALUE, key)
    carrying, value = masked(VALUE, PADDING)
    actual = attend(layer, QUERY, carrying, key)
    expected = attend(layer, QUERY, value, key, padding_mask=PADDING)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    keys, plain = masked(key, np.arange(S)[None] != np.array([[1], [4]]))
    combined_mask = PADDING & (np.arange(S)[None] != np.array([[1], [4]]))
    actual = attend(layer, QUERY, carrying, keys)
    expected = attend(layer, QUERY, value, plain, padding_mask=combined_mask)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_the_output_carries_the_implicit_mask_of_the_query():
    layer = make_layer(QUERY)
    mask = PADDING[:, :T]
    carrying, _ = masked(QUERY, mask)
    pooling = keras.layers.GlobalAveragePooling1D()
    actual = numpy(pooling(layer(carrying)))
    whole = attend(layer, carrying)
    expected = np.stack(
        [whole[i, mask[i]].mean(0) for i in range(B)],
    )
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.backend("tensorflow")
def test_dimensions_may_be_unknown_while_tracing():
    import tensorflow as tf

    layer = MultiHeadAttention(2)
    x = np.ones((2, 3, 8), "float32")
    expected = layer(x)
    unknown = tf.TensorSpec([None, None, None])
    traced = tf.function(layer.call, input_signature=[unknown])
    np.testing.assert_allclose(traced(x), expected, atol=1e-6)


@pytest.mark.backend("torch")
def test_sizes_may_be_symbols_of_an_export():
    import torch

    layer = MultiHeadAttention(2)
    layer(np.ones((2, 3, 8), "float32"))
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    exported = torch.export.export(
        layer, (torch.ones(2, 3, 8),), dynamic_shapes=((sizes,),), strict=False
    )
    x = torch.tensor(draw(4, 5, 8))
    np.testing.assert_allclose(numpy(exported.module()(x)), numpy(layer(x)), atol=1e-6)


def test_matrices_start_within_glorots_bound():
    layer = MultiHeadAttention(8, key_dim=16, value_dim=4)
    layer(draw(1, 2, 96))
    for name, rows, columns in [
        ("query", 96, 128),
        ("key", 96, 128),
        ("value", 96, 32),
        ("attention_output", 32, 96),
    ]:
        bound = (6 / (rows + columns)) ** 0.5
        largest = abs(weights_of(layer)[f"{name}/kernel"]).max()
        assert 0.97 * bound < largest <= bound


def test_projections_start_with_different_values():
    layer = MultiHeadAttention(H, bias_initializer="random_normal")
    layer(QUERY)
    weights = weights_of(layer)
    for kind in ("kernel", "bias"):
        for first, second in [("query", "key"), ("query", "value"), ("key", "value")]:
            difference = weights[f"{first}/{kind}"] - weights[f"{second}/{kind}"]
            assert abs(difference).max() > 1e-3


# Few sizes in many orders: JAX compiles each operation for each size.
@settings(max_examples=5)
@given(
    sizes=st.sampled_from([(1, 3, 2), (3, 2, 2)]),
    chunks=st.sampled_from([[1, 1, 1, 1], [2, 2], [1, 2, 1], [2, 1, 1], [1, 1, 2]]),
    spare=st.sampled_from([0, 2]),
    tensor=st.booleans(),
)
def test_cached_decoding_matches_the_full_sequence(sizes, chunks, spare, tensor):
    """For any split of the sequence and any spare capacity of the cache."""
    length = sum(chunks)
    x = draw(2, length, 4, seed=length)
    layer = MultiHeadAttention(*sizes, kernel_initializer="zeros")
    layer.build(x.shape)
    draw_weights(layer)
    expected = attend(layer, x, use_causal_mask=True)
    cache, start, actual = layer.empty_cache(2, length + spare), 0, []
    for chunk in chunks:
        index = ops.convert_to_tensor(start, "int32") if tensor else start
        output, cache = layer(
            x[:, start : start + chunk],
            use_causal_mask=True,
            cache=cache,
            cache_index=index,
        )
        actual.append(numpy(output))
        start += chunk
    np.testing.assert_allclose(np.concatenate(actual, axis=1), expected, atol=1e-5)


@pytest.mark.backend("tensorflow", "jax")
def test_a_compiled_step_takes_the_cache_index_as_a_tensor():
    layer = make_layer(QUERY)
    expected = attend(layer, QUERY, use_causal_mask=True)

    def step(x, index, keys, values):
        call = {"cache": (keys, values), "cache_index": index}
        return layer(x, use_causal_mask=True, **call)

    if keras.backend.backend() == "jax":
        import jax

        step = jax.jit(step)
    else:
        import tensorflow as tf

        step = tf.function(step, jit_compile=True)
    cache = layer.empty_cache(B, T)
    for t in range(T):
        index = ops.convert_to_tensor(t, "int32")
        x = ops.convert_to_tensor(QUERY[:, t : t + 1])
        output, cache = step(x, index, *cache)
        np.testing.assert_allclose(numpy(output)[:, 0], expected[:, t], atol=1e-5)


def test_projecting_keys_and_values_once_does_not_change_the_output():
    layer = make_layer(QUERY, VALUE, KEY, value_dim=4)
    cache = layer.keys_and_values(ops.convert_to_tensor(VALUE), KEY)
    assert [tuple(item.shape) for item in cache] == [(B, H, 2, S), (B, H, S, 4)]
    for call in ({}, {"padding_mask": PADDING}, {"return_attention_scores": True}):
        actual = attend(layer, QUERY, cache=cache, **call)
        expected = attend(layer, QUERY, VALUE, KEY, **call)
        keras.tree.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), actual, expected
        )


def test_an_empty_cache_has_the_compute_dtype():
    layer = MultiHeadAttention(H, value_dim=4, dtype="mixed_bfloat16")
    layer.build(QUERY.shape)
    keys, values = layer.empty_cache(B, 9)
    assert (keys.shape, values.shape) == ((B, H, 2, 9), (B, H, 9, 4))
    assert ops.dtype(keys) == ops.dtype(values) == "bfloat16"
    assert not numpy(keys).any()


def test_symbolic_shapes_match_the_output():
    layer = MultiHeadAttention(H, value_dim=4, output_dim=9)
    query, value = keras.Input((None, D)), keras.Input((S, 5))
    output, scores = layer(query, value, return_attention_scores=True)
    assert output.shape == (None, None, 9)
    assert scores.shape == (None, H, None, S)
    model = keras.Model([query, value], [output, scores])
    shapes = [x.shape for x in model.predict([QUERY, VALUE], verbose=0)]
    assert shapes == [(B, T, 9), (B, H, T, S)]

    layer = MultiHeadAttention(H)
    layer(QUERY)
    step = keras.Input((1, D))
    keys, values = keras.Input((H, 2, 8)), keras.Input((H, 8, 2))
    index = keras.Input(batch_shape=(), dtype="int32")
    output, cache = layer(step, cache=(keys, values), cache_index=index)
    assert output.shape == (None, 1, D)
    assert [item.shape for item in cache] == [(None, H, 2, 8), (None, H, 8, 2)]


@pytest.mark.parametrize(
    "settings", [{}, {"key_dim": 5, "value_dim": 4, "output_dim": 8}]
)
def test_parity_with_keras(settings):
    layer = make_layer(QUERY, VALUE, KEY, **settings)
    keras_layer = keras.layers.MultiHeadAttention(
        H,
        settings.get("key_dim", D // H),
        settings.get("value_dim"),
        kernel_initializer="zeros",
        output_shape=settings.get("output_dim"),
    )
    # Its fused path fails on JAX where d_v is not d_k, so it returns weights.
    keras_layer(QUERY, VALUE, KEY, return_attention_scores=True)
    keras_layer.set_weights(layer.get_weights())
    for mask in (None, HEADS | (np.arange(S) == 0), ROWS | (np.arange(S) == 0)):
        call = {"attention_mask": mask, "return_attention_scores": True}
        actual = attend(layer, QUERY, VALUE, KEY, **call)
        expected = attend(keras_layer, QUERY, VALUE, KEY, **call)
        np.testing.assert_allclose(actual[0], expected[0], atol=1e-5)
        np.testing.assert_allclose(actual[1], expected[1], atol=1e-5)


@pytest.mark.backend("torch")
def test_parity_with_pytorch():
    import torch

    layer = make_layer(QUERY, VALUE, KEY)
    module = torch.nn.MultiheadAttention(D, H, batch_first=True, kdim=7, vdim=5)
    w = weights_of(layer)

    def matrix(name):
        return torch.tensor(w[f"{name}/kernel"].reshape(-1, D).T)

    with torch.no_grad():
        module.double()
        module.q_proj_weight.copy_(matrix("query"))
        module.k_proj_weight.copy_(matrix("key"))
        module.v_proj_weight.copy_(matrix("value"))
        biases = [w[f"{name}/bias"].ravel() for name in ("query", "key", "value")]
        module.in_proj_bias.copy_(torch.tensor(np.concatenate(biases)))
        module.out_proj.weight.copy_(
            torch.tensor(w["attention_output/kernel"].reshape(D, D).T)
        )
        module.out_proj.bias.copy_(torch.tensor(w["attention_output/bias"]))
        expected, scores = module(
            *(torch.tensor(x).double() for x in (QUERY, KEY, VALUE)),
            key_padding_mask=torch.tensor(~PADDING),
            average_attn_weights=False,
        )
    call = {"padding_mask": PADDING, "return_attention_scores": True}
    actual = attend(layer, QUERY, VALUE, KEY, **call)
    np.testing.assert_allclose(actual[0], expected.numpy(), atol=1e-5)
    np.testing.assert_allclose(actual[1], scores.numpy(), atol=1e-5)


@pytest.mark.parametrize("masks", [{}, {"attention_mask": HEADS}], ids=["", "mask"])
def test_layer_meets_the_contract(masks, tmp_path):
    layer = MultiHeadAttention(
        H,
        key_dim=6,
        value_dim=4,
        output_dim=8,
        dropout=0.1,
        use_bias=False,
        score="multiplicative",
        num_key_value_heads=1,
        positions=RotaryPositions("halves"),
        flash_attention=False,
        seed=5,
        **WEIGHT_OPTIONS,
    )
    check_layer(layer, QUERY, VALUE, KEY, folder=tmp_path, **masks)
