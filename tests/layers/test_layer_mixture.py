"""LayerMixture: a weighted sum of layers, with softmax or sparsemax."""

import json

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm.layers import LayerMixture
from keras_tfm.layers.layer_mixture import TRANSFORMATIONS, sparsemax
from tests.layers.formulas import draw, numpy, softmax
from tests.zoo.comet_checkpoints import project

STATES = [draw(2, 5, 6, seed=i) for i in range(3)]
PADDING = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], bool)
NUMBERS = np.array([0.3, -0.9, 1.1], "float32")


def make_layer(transformation, normalize, **settings):
    layer = LayerMixture(transformation, normalize, **settings)
    layer(STATES)
    layer.set_weights([NUMBERS, np.float32(1.7)])
    return layer


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
def test_the_formula(transformation, normalize):
    """Peters et al. 2018, equation 1; the normalization of section 3.2."""
    layer = make_layer(transformation, normalize)
    output = numpy(layer(STATES, padding_mask=PADDING))
    shares = (softmax if transformation == "softmax" else project)(NUMBERS)
    for row, mask in enumerate(PADDING):
        states = [x[row][mask].astype("float64") for x in STATES]
        if normalize:
            states = [(x - x.mean()) / x.std() for x in states]
        expected = 1.7 * sum(p * x for p, x in zip(shares, states, strict=True))
        np.testing.assert_allclose(output[row][mask], expected, atol=1e-5)


def test_sparsemax_is_the_projection_onto_the_simplex():
    rng = np.random.default_rng(0)
    for size in (1, 25, 25, 25, 25):  # JAX compiles for each size
        x = rng.normal(size=size).astype("float32")
        output = numpy(sparsemax(ops.convert_to_tensor(x)))
        np.testing.assert_allclose(output, project(x.astype("float64")), atol=1e-5)
        assert output.sum() == pytest.approx(1, abs=1e-5)
    assert numpy(sparsemax(ops.convert_to_tensor(NUMBERS)))[1] == 0


@pytest.mark.backend("torch")
def test_our_sparsemax_is_needed_as_long_as_that_of_keras_is_wrong():
    x = ops.convert_to_tensor([0.1, 0.2, 1.5, 0.9])
    assert numpy(ops.sum(ops.sparsemax(x))) != pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose(numpy(sparsemax(x)), [0, 0, 0.8, 0.2], atol=1e-6)


def test_padding_does_not_change_the_output():
    layer = make_layer("softmax", normalize=True)
    expected = numpy(layer(STATES, padding_mask=PADDING))
    changed = [np.where(PADDING[..., None], x, 99).astype("float32") for x in STATES]
    output = numpy(layer(changed, padding_mask=PADDING))
    np.testing.assert_allclose(output[PADDING], expected[PADDING], atol=1e-5)
    unmasked = numpy(layer(changed))
    assert np.abs(unmasked[PADDING] - expected[PADDING]).max() > 0.1
    empty = numpy(layer(STATES, padding_mask=np.zeros_like(PADDING)))
    assert np.isfinite(empty).all()


def test_a_model_of_it_is_saved_trains_and_has_its_config(tmp_path):
    layer = make_layer("sparsemax", normalize=True)
    config = json.loads(json.dumps(layer.get_config()))
    rebuilt = LayerMixture.from_config(config)
    assert (rebuilt.transformation, rebuilt.normalize) == ("sparsemax", True)
    inputs = [keras.Input((None, 6)) for _ in STATES]
    model = keras.Model(inputs, layer(inputs))
    assert model.output.shape == (None, None, 6)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    expected = numpy(layer(STATES))
    np.testing.assert_allclose(numpy(loaded(STATES)), expected, atol=1e-5)
    model.compile("sgd", "mse", jit_compile=False)
    model.train_on_batch(STATES, np.zeros_like(expected))
    assert np.abs(numpy(layer.layer_weights) - NUMBERS).max() > 1e-4


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_is_float32_rounded(policy):
    layer = make_layer("softmax", normalize=True, dtype=policy)
    output = layer(STATES)
    assert ops.dtype(output) == policy.removeprefix("mixed_")
    expected = numpy(make_layer("softmax", normalize=True)(STATES))
    np.testing.assert_allclose(numpy(output), expected, atol=3e-2)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="`transformation` must be"):
        LayerMixture("sparse")
    for states in ([], STATES[0], [STATES[0], STATES[1][:, :, :3]]):
        with pytest.raises(ValueError, match="`states` must be a list"):
            LayerMixture()(states)
