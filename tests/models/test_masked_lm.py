"""MaskedLM: the head that predicts masked tokens."""

import keras
import numpy as np
import pytest

from keras_tfm.models import MaskedLM
from tests.layers.formulas import draw_weights, numpy
from tests.models.test_sequence_classifier import BERT, IDS, PAIR, D, V, encoder, gelu

POSITIONS = np.array([[1, 3, 0], [2, 1, 0]], "int32")


@pytest.fixture(scope="module")
def model():
    return draw_weights(MaskedLM(encoder(**BERT)), 3)


def run(model, positions=POSITIONS):
    inputs = {**PAIR, "mask_positions": positions}
    return numpy(model({name: np.asarray(x) for name, x in inputs.items()}))


def test_logits_are_the_formula_at_the_masked_positions(model):
    """Devlin et al. 2019, section 3.1: a layer, then the tied embeddings."""
    w = {w.path: numpy(w).astype("float64") for w in model.weights}
    hidden = numpy(model.encoder(PAIR)).astype("float64")
    hidden = np.take_along_axis(hidden, POSITIONS[:, :, None], axis=1)
    x = gelu(hidden @ w["dense/kernel"] + w["dense/bias"])
    centered = x - x.mean(-1, keepdims=True)
    x = centered / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    x = x * w["norm/gamma"] + w["norm/beta"]
    embeddings = numpy(model.encoder.embedding.token_embedding.embeddings)
    expected = x @ embeddings.T + w["bias/bias"]
    np.testing.assert_allclose(run(model), expected, rtol=1e-4, atol=1e-5)
    assert expected.shape == (2, 3, V) and embeddings.shape == (V, D)


@pytest.mark.backend("torch")
def test_training_updates_the_encoder(model):
    model = MaskedLM(encoder(**BERT))
    initial = [numpy(w) for w in model.encoder.weights]
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    inputs = {**PAIR, "mask_positions": POSITIONS}
    labels = np.take_along_axis(IDS, POSITIONS, axis=1)
    losses = [model.train_on_batch(inputs, labels) for _ in range(5)]
    assert losses[-1] < losses[0]
    changed = [
        not np.array_equal(a, numpy(b))
        for a, b in zip(initial, model.encoder.weights, strict=True)
    ]
    assert all(changed)


def test_a_saved_model_computes_the_same_logits(model, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(run(loaded), run(model), atol=1e-6)
