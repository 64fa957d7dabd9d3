"""Batch normalization in the blocks: its statistics exclude padding."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm.layers import TransformerDecoder, TransformerEncoder
from keras_tfm.layers.normalization import NORMALIZATIONS, normalization_layer
from tests.layers import formulas
from tests.layers.contract import check_half_precision, check_model
from tests.layers.formulas import below, causal, draw, draw_weights, numpy, weights_of

B, T, S, D, H, F = 2, 4, 5, 6, 3, 10
X, MEMORY = draw(B, T, D), draw(B, S, 7, seed=2)
PADDING = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], bool)
MEMORY_PADDING = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], bool)
ALL = np.ones((B, T), bool)
EPSILON = 1e-2


def make_layer(kind, *inputs, normalization="batch_norm", **settings):
    # Zeros, then drawn values: JAX compiles a random generator for each shape.
    settings = {"kernel_initializer": "zeros", "epsilon": EPSILON, **settings}
    layer = kind(F, H, normalization=normalization, **settings)
    layer.build(*(x.shape for x in inputs))
    return draw_weights(layer)


def run(layer, *inputs, **call):
    return keras.tree.map_structure(numpy, layer(*inputs, **call))


def formula_of(layer, *inputs, **masks):
    inputs = [x.astype("float64") for x in inputs]
    weights, first = weights_of(layer), layer.normalize_first
    return formulas.block(weights, *inputs, first=first, epsilon=EPSILON, **masks)


@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_normalizations_follow_their_formulas(kind):
    layer = normalization_layer(kind, EPSILON, name="norm")
    layer.build(X.shape)
    weights = weights_of(draw_weights(layer))
    expected = formulas.normalize(weights, X.astype("float64"), EPSILON)
    np.testing.assert_allclose(run(layer, X), expected, atol=1e-5)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_outside_training_a_block_uses_moving_averages(normalize_first):
    layer = make_layer(TransformerEncoder, X, normalize_first=normalize_first)
    expected = formula_of(layer, X, mask=PADDING[:, None])
    np.testing.assert_allclose(run(layer, X, padding_mask=PADDING), expected, atol=2e-5)
    alone = run(layer, X[:1], padding_mask=PADDING[:1])
    np.testing.assert_allclose(alone, expected[:1], atol=2e-5)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_an_encoder_block_trains_with_statistics_of_real_positions(normalize_first):
    def train(x=X, **call):
        # A new layer for each call, since its moving averages change.
        layer = make_layer(TransformerEncoder, X, normalize_first=normalize_first)
        return run(layer, x, training=True, **call)

    layer = make_layer(TransformerEncoder, X, normalize_first=normalize_first)
    expected = formula_of(layer, X, mask=PADDING[:, None], real=PADDING)
    output = train(padding_mask=PADDING)
    np.testing.assert_allclose(output[PADDING], expected[PADDING], atol=2e-5)
    np.testing.assert_allclose(train(), formula_of(layer, X, real=ALL), atol=2e-5)
    assert abs(train() - output)[PADDING].max() > 0.1  # it can fail
    # An implicit mask has the same effect, also with an attention mask.
    carrying, x = masked(X, PADDING)
    output = train(x, padding_mask=PADDING)
    np.testing.assert_allclose(train(carrying), output, atol=1e-5)
    rows = np.tril(np.ones((1, T, T), bool))
    output = train(carrying, attention_mask=rows)
    expected = formula_of(layer, x, mask=rows, real=PADDING)
    np.testing.assert_allclose(output, expected, atol=2e-5)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_a_decoder_block_trains_with_statistics_of_real_positions(normalize_first):
    layer = make_layer(TransformerDecoder, X, MEMORY, normalize_first=normalize_first)
    masks = {"mask": causal(T) & PADDING[:, None], "real": PADDING}
    expected = formula_of(
        layer, X, MEMORY, memory_mask=MEMORY_PADDING[:, None], **masks
    )
    call = {"padding_mask": PADDING, "encoder_padding_mask": MEMORY_PADDING}
    actual = run(layer, X, MEMORY, training=True, **call)
    np.testing.assert_allclose(actual[PADDING], expected[PADDING], atol=2e-5)


def masked(x, mask):
    x = np.where(mask[..., None], x, 0).astype("float32")
    return keras.layers.Masking()(ops.convert_to_tensor(x)), x


@pytest.mark.parametrize("kind", [TransformerEncoder, TransformerDecoder])
def test_padding_does_not_change_the_statistics(kind):
    noisy_x = np.where(PADDING[..., None], X, 1000).astype("float32")
    results = []
    for x in (X, noisy_x):
        layer = make_layer(kind, X)
        output = run(layer, x, padding_mask=PADDING, training=True)
        weights = weights_of(layer)
        averages = [w for name, w in weights.items() if "moving" in name]
        assert len(averages) == 2 * 2
        results.append([output[PADDING], *averages])
    for quiet, noisy in zip(*results, strict=True):
        np.testing.assert_allclose(quiet, noisy, atol=1e-5)


def test_moving_averages_move_by_a_hundredth():
    layer = make_layer(TransformerEncoder, X, normalize_first=True)
    initial = below(weights_of(layer), "self_attention_norm")
    layer(X, padding_mask=PADDING)
    after_inference = below(weights_of(layer), "self_attention_norm")
    np.testing.assert_array_equal(
        after_inference["moving_mean"], initial["moving_mean"]
    )
    layer(X, padding_mask=PADDING, training=True)
    trained = below(weights_of(layer), "self_attention_norm")
    batch = {"moving_mean": X[PADDING].mean(0), "moving_variance": X[PADDING].var(0)}
    for name, value in batch.items():
        expected = 0.99 * initial[name] + 0.01 * value
        np.testing.assert_allclose(trained[name], expected, atol=1e-6)
        assert abs(trained[name] - initial[name]).max() > 1e-4  # it can fail


@pytest.mark.parametrize("normalize_first", [False, True])
def test_cached_decoding_matches_the_full_sequence(normalize_first):
    layer = make_layer(TransformerDecoder, X, MEMORY, normalize_first=normalize_first)
    layer(X, MEMORY, training=True)  # so that averages have moved
    call = {"encoder_padding_mask": MEMORY_PADDING}
    expected = run(layer, X, MEMORY, **call)
    past = layer.empty_cache(B, T + 2)
    memory = layer.cross_attention.keys_and_values(ops.convert_to_tensor(MEMORY))
    call["padding_mask"] = np.ones((B, T + 2), bool)  # of the cache
    for start, end in [(0, 2), (2, 3), (3, 4)]:
        output, (past, _) = layer(
            X[:, start:end], cache=(past, memory), cache_index=start, **call
        )
        np.testing.assert_allclose(numpy(output), expected[:, start:end], atol=1e-5)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_an_explicit_mask_does_not_become_implicit(normalization):
    layer = make_layer(TransformerEncoder, X, normalization=normalization)
    x = ops.convert_to_tensor(X)
    output = layer(x, padding_mask=PADDING, training=True)
    pooling = keras.layers.GlobalAveragePooling1D()
    np.testing.assert_allclose(numpy(pooling(output)), numpy(output).mean(1), atol=1e-6)


@pytest.mark.parametrize("kind", [TransformerEncoder, TransformerDecoder])
def test_batch_norm_blocks_meet_the_contract(kind, tmp_path):
    layer = make_layer(kind, X, normalize_first=True)
    expected = run(layer, X, padding_mask=PADDING)
    check_half_precision(layer, expected, X, padding_mask=PADDING)
    check_model(layer, expected, X, folder=tmp_path, padding_mask=PADDING)
