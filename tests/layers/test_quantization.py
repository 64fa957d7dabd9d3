"""Layers with quantized sublayers are saved and loaded."""

import keras
import numpy as np
import pytest

from keras_tfm.layers import (
    FeedForward,
    LearnedPositions,
    MultiHeadAttention,
    TokenAndPositionEmbedding,
    TransformerDecoder,
    TransformerEncoder,
)
from keras_tfm.layers.quantization import dtype_config
from tests.layers.formulas import draw_weights, numpy
from tests.layers.quantized import QUANTIZED, quantize

IDS = np.array([[3, 1, 3, 0], [2, 5, 4, 1]], "int32")


def model_of_every_layer(**settings):
    ids = keras.Input((None,), dtype="int32")
    positions = LearnedPositions(6, combine="concat", **settings)
    x = TokenAndPositionEmbedding(7, embedding_dim=8, positions=positions, **settings)(
        ids
    )
    x = TransformerEncoder(12, 2, **settings)(x)
    x = MultiHeadAttention(2, **settings)(x)
    x = FeedForward(12, gated=True, **settings)(x)
    x = TransformerDecoder(12, 2, **settings)(x, x)
    return draw_weights(keras.Model(ids, x))


@QUANTIZED
def test_a_quantized_model_of_layers_is_saved(tmp_path):
    model = model_of_every_layer()
    expected = numpy(model(IDS))
    quantize(model)
    actual = numpy(model(IDS))
    np.testing.assert_allclose(actual, expected, atol=0.15)
    matrices = [weight for weight in model.weights if weight.path.endswith("kernel")]
    assert len(matrices) == 1 + 6 + 4 + 3 + 10
    assert {weight.dtype for weight in matrices} == {"int8"}
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    np.testing.assert_allclose(numpy(loaded(IDS)), actual, atol=1e-6)
    dtypes = [weight.dtype for weight in model.weights]
    assert [weight.dtype for weight in loaded.weights] == dtypes
    # A loaded model can be saved, or built from its config.
    loaded.save(path)
    reloaded = keras.models.load_model(path)
    np.testing.assert_allclose(numpy(reloaded(IDS)), actual, atol=1e-6)
    path = str(tmp_path / "model.weights.h5")
    reloaded.save_weights(path)
    fresh = keras.models.clone_model(loaded)
    fresh.load_weights(path)
    np.testing.assert_allclose(numpy(fresh(IDS)), actual, atol=1e-6)


@QUANTIZED
@pytest.mark.parametrize(
    "config",
    [
        keras.quantizers.Int8QuantizationConfig(activation_quantizer=None),
        keras.quantizers.Int4QuantizationConfig(),
        keras.quantizers.Int4QuantizationConfig(block_size=None),
    ],
    ids=["int8", "int4", "int4 of columns"],
)
def test_a_model_with_float_activations_is_saved(config, tmp_path):
    ids = keras.Input((None,), dtype="int32")
    embedding = TokenAndPositionEmbedding(7, embedding_dim=8)
    x = TransformerEncoder(12, 2)(embedding(ids))
    model = draw_weights(keras.Model(ids, embedding(x, reverse=True)))
    quantize(model, config=config)
    actual, path = numpy(model(IDS)), str(tmp_path / "model.keras")
    for _ in range(2):  # a loaded model can be saved
        model.save(path)
        model = keras.models.load_model(path)
        np.testing.assert_allclose(numpy(model(IDS)), actual, atol=1e-6)


def test_a_layer_that_is_not_quantized_has_a_plain_policy():
    layer = FeedForward(12, dtype="mixed_bfloat16")
    layer.build((None, 8))
    policy = keras.dtype_policies.deserialize(dtype_config(layer))
    assert policy.name == "mixed_bfloat16"
    assert not isinstance(policy, keras.dtype_policies.DTypePolicyMap)
