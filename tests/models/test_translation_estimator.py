"""TranslationEstimator: three texts, one encoder, one number."""

import json

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm import runtime
from keras_tfm.models import Encoder, TranslationEstimator
from tests.layers.formulas import draw_weights, numpy

SIZES = {"embedding_dim": 8, "intermediate_dim": 12, "num_heads": 2, "num_layers": 2}
INPUTS = {
    "source_ids": np.array([[2, 8, 6, 3], [2, 9, 3, 0]], "int32"),
    "translation_ids": np.array([[2, 5, 3, 0], [2, 7, 3, 0]], "int32"),
    "reference_ids": np.array([[2, 5, 11, 3], [2, 3, 0, 0]], "int32"),
}
KINDS = {
    "of COMET": {"transformation": "sparsemax"},
    "other": {
        "normalize_layers": True,
        "pooling": "max",
        "final_activation": "sigmoid",
    },
}


def make_model(encoder=None, **settings):
    encoder = encoder or Encoder(13, dropout=0.0, **SIZES)
    model = TranslationEstimator(encoder, [6, 4], dropout=0.0, **settings)
    return draw_weights(model, 3)


@pytest.mark.parametrize(
    "kind", ["of COMET", pytest.param("other", marks=pytest.mark.backend("torch"))]
)
def test_padding_and_the_vectors_of_texts_do_not_change_the_estimate(kind):
    model = make_model(**KINDS[kind])
    estimates = model.predict(INPUTS, verbose=0)
    assert estimates.shape == (2,) and abs(estimates[0] - estimates[1]) > 1e-4
    alone = model.predict({k: ids[1:, :3] for k, ids in INPUTS.items()}, verbose=0)
    np.testing.assert_allclose(alone, estimates[1:], atol=1e-5)
    encode = runtime.compiled(model.sentence_encoder, model, jit_compile=False)
    vectors = [encode({"token_ids": ops.convert_to_tensor(x)}) for x in INPUTS.values()]
    np.testing.assert_allclose(numpy(model.estimate(*vectors)), estimates, atol=1e-5)


@pytest.mark.backend("torch")
def test_the_last_layer_is_normalized_in_a_pre_norm_encoder():
    model = make_model(Encoder(13, dropout=0.0, normalize_first=True, **SIZES))
    weights = np.array([-99, -99, 99], "float32")
    model.mixture.layer_weights.assign(weights)  # the last alone
    model.mixture.scale.assign(1.0)
    ids = {"token_ids": INPUTS["source_ids"][:1]}
    expected = numpy(model.encoder(ids)).mean(1)
    np.testing.assert_allclose(numpy(model.sentence_encoder(ids)), expected, atol=1e-5)


def test_it_is_saved(tmp_path):
    model = make_model(**KINDS["other"])
    config = json.loads(json.dumps(model.get_config()))
    assert TranslationEstimator.from_config(config).config["hidden_dims"] == [6, 4]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for name in ("mixture/layer_weights", "estimate/kernel", "feed_forward/inner"):
        pairs = zip(model.weights, loaded.weights, strict=True)
        values = [(numpy(a), numpy(b)) for a, b in pairs if name in a.path]
        assert values and all(np.array_equal(*pair) for pair in values)


@pytest.mark.slow("tensorflow", "jax")  # which compile the training step
def test_it_trains():
    model = make_model(**KINDS["other"])
    # Keras does not compile for PyTorch by itself either.
    is_compiled = keras.backend.backend() != "torch"
    model.compile(keras.optimizers.Adam(0.03), "mse", jit_compile=is_compiled)
    judgments = np.array([0.9, 0.1])
    losses = model.fit(INPUTS, judgments, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="`encoder` must have no segments"):
        make_model(Encoder(13, num_segments=2, **SIZES))
    with pytest.raises(ValueError, match="hidden_dims"):
        TranslationEstimator(Encoder(13, **SIZES), [6, 0])
    with pytest.raises(ValueError, match="`transformation` must be"):
        make_model(transformation="mean")
