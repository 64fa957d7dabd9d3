"""Batch normalisation in the blocks: its statistics and what they omit."""

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


def made(kind, *inputs, normalization="batch_norm", **settings):
    # Zeros at first: JAX compiles a random generator for each shape.
    settings = {"kernel_initializer": "zeros", "epsilon": EPSILON, **settings}
    layer = kind(F, H, normalization=normalization, **settings)
    layer.build(*(x.shape for x in inputs))
    return draw_weights(layer)


def run(layer, *inputs, **call):
    return keras.tree.map_structure(numpy, layer(*inputs, **call))


def expected(layer, *inputs, **masks):
    inputs = [x.astype("float64") for x in inputs]
    weights, first = weights_of(layer), layer.normalize_first
    return formulas.block(weights, *inputs, first=first, epsilon=EPSILON, **masks)


@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_each_kind_is_its_formula(kind):
    layer = normalization_layer(kind, EPSILON, name="norm")
    layer.build(X.shape)
    weights = weights_of(draw_weights(layer))
    wanted = formulas.normalize(weights, X.astype("float64"), EPSILON)
    np.testing.assert_allclose(run(layer, X), wanted, atol=1e-5)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_outside_training_a_block_uses_moving_averages(normalize_first):
    layer = made(TransformerEncoder, X, normalize_first=normalize_first)
    wanted = expected(layer, X, mask=PADDING[:, None])
    np.testing.assert_allclose(run(layer, X, padding_mask=PADDING), wanted, atol=2e-5)
    alone = run(layer, X[:1], padding_mask=PADDING[:1])
    np.testing.assert_allclose(alone, wanted[:1], atol=2e-5)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_in_training_an_encoder_block_uses_what_is_real_in_the_batch(normalize_first):
    def found(x=X, **call):
        # Made anew, since the averages move.
        layer = made(TransformerEncoder, X, normalize_first=normalize_first)
        return run(layer, x, training=True, **call)

    layer = made(TransformerEncoder, X, normalize_first=normalize_first)
    wanted = expected(layer, X, mask=PADDING[:, None], real=PADDING)
    heard = found(padding_mask=PADDING)
    np.testing.assert_allclose(heard[PADDING], wanted[PADDING], atol=2e-5)
    np.testing.assert_allclose(found(), expected(layer, X, real=ALL), atol=2e-5)
    assert abs(found() - heard)[PADDING].max() > 0.1  # it can fail
    # The same of an implicit mask, though attention may have one of its own.
    carrying, x = masked(X, PADDING)
    heard = found(x, padding_mask=PADDING)
    np.testing.assert_allclose(found(carrying), heard, atol=1e-5)
    rows = np.tril(np.ones((1, T, T), bool))
    heard = found(carrying, attention_mask=rows)
    wanted = expected(layer, x, mask=rows, real=PADDING)
    np.testing.assert_allclose(heard, wanted, atol=2e-5)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_in_training_a_decoder_block_uses_what_is_real_in_the_batch(normalize_first):
    layer = made(TransformerDecoder, X, MEMORY, normalize_first=normalize_first)
    masks = {"mask": causal(T) & PADDING[:, None], "real": PADDING}
    wanted = expected(layer, X, MEMORY, memory_mask=MEMORY_PADDING[:, None], **masks)
    call = {"padding_mask": PADDING, "encoder_padding_mask": MEMORY_PADDING}
    found = run(layer, X, MEMORY, training=True, **call)
    np.testing.assert_allclose(found[PADDING], wanted[PADDING], atol=2e-5)


def masked(x, mask):
    x = np.where(mask[..., None], x, 0).astype("float32")
    return keras.layers.Masking()(ops.convert_to_tensor(x)), x


@pytest.mark.parametrize("kind", [TransformerEncoder, TransformerDecoder])
def test_padding_does_not_change_the_statistics(kind):
    loud = np.where(PADDING[..., None], X, 1000).astype("float32")
    results = []
    for x in (X, loud):
        layer = made(kind, X)
        heard = run(layer, x, padding_mask=PADDING, training=True)
        weights = weights_of(layer)
        averages = [w for name, w in weights.items() if "moving" in name]
        assert len(averages) == 2 * 2
        results.append([heard[PADDING], *averages])
    for quiet, noisy in zip(*results, strict=True):
        np.testing.assert_allclose(quiet, noisy, atol=1e-5)


def test_averages_move_toward_the_batch_by_a_hundredth():
    layer = made(TransformerEncoder, X, normalize_first=True)
    before = below(weights_of(layer), "self_attention_norm")
    layer(X, padding_mask=PADDING)
    still = below(weights_of(layer), "self_attention_norm")
    np.testing.assert_array_equal(still["moving_mean"], before["moving_mean"])
    layer(X, padding_mask=PADDING, training=True)
    after = below(weights_of(layer), "self_attention_norm")
    batch = {"moving_mean": X[PADDING].mean(0), "moving_variance": X[PADDING].var(0)}
    for name, value in batch.items():
        wanted = 0.99 * before[name] + 0.01 * value
        np.testing.assert_allclose(after[name], wanted, atol=1e-6)
        assert abs(after[name] - before[name]).max() > 1e-4  # it can fail


@pytest.mark.parametrize("normalize_first", [False, True])
def test_cached_equals_uncached_at_every_position(normalize_first):
    layer = made(TransformerDecoder, X, MEMORY, normalize_first=normalize_first)
    layer(X, MEMORY, training=True)  # so that averages have moved
    call = {"encoder_padding_mask": MEMORY_PADDING}
    wanted = run(layer, X, MEMORY, **call)
    past = layer.empty_cache(B, T + 2)
    memory = layer.cross_attention.keys_and_values(ops.convert_to_tensor(MEMORY))
    call["padding_mask"] = np.ones((B, T + 2), bool)  # of the slots
    for start, end in [(0, 2), (2, 3), (3, 4)]:
        output, (past, _) = layer(
            X[:, start:end], cache=(past, memory), cache_index=start, **call
        )
        np.testing.assert_allclose(numpy(output), wanted[:, start:end], atol=1e-5)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_an_explicit_mask_is_not_handed_on(normalization):
    layer = made(TransformerEncoder, X, normalization=normalization)
    x = ops.convert_to_tensor(X)
    heard = layer(x, padding_mask=PADDING, training=True)
    after = keras.layers.GlobalAveragePooling1D()
    np.testing.assert_allclose(numpy(after(heard)), numpy(heard).mean(1), atol=1e-6)


@pytest.mark.parametrize("kind", [TransformerEncoder, TransformerDecoder])
def test_it_runs_in_half_precision_trains_and_is_saved(kind, tmp_path):
    layer = made(kind, X, normalize_first=True)
    expected = run(layer, X, padding_mask=PADDING)
    check_half_precision(layer, expected, X, padding_mask=PADDING)
    check_model(layer, expected, X, folder=tmp_path, padding_mask=PADDING)
