"""SmoothedCrossentropy: its formula, masks and errors."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm.training import SmoothedCrossentropy

B, T, V = 3, 5, 11


def batch(seed=0, scale=3.0):
    """Draws labels with padding in every row, and logits."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(1, V, size=(B, T)).astype("int32")
    labels[0, 3:] = labels[1, 4:] = labels[2, 1:] = 0
    logits = scale * rng.normal(size=(B, T, V)).astype("float32")
    return labels, logits


def formula(labels, logits, smoothing, weights=None):
    """The mean cross-entropy of real tokens and its gradient, in float64."""
    z = np.asarray(logits, "float64")
    log_p = z - z.max(-1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
    target = (1 - smoothing) * np.eye(V)[labels] + smoothing / V
    losses = -(target * log_p).sum(-1)
    weights = (labels != 0) * (1.0 if weights is None else weights)
    gradient = (np.exp(log_p) - target) * (weights / weights.sum())[..., None]
    return (losses * weights).sum() / weights.sum(), gradient


def loss_of(labels, logits, sample_weight=None, **options):
    loss = SmoothedCrossentropy(**options)(labels, logits, sample_weight)
    return float(ops.convert_to_numpy(loss))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_value_and_gradient_are_the_formula(smoothing, value_and_gradients):
    labels, logits = batch()
    loss = SmoothedCrossentropy(smoothing)
    value, (gradient,) = value_and_gradients(lambda z: loss(labels, z), logits)
    expected, expected_gradient = formula(labels, logits, smoothing)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-7)


def test_lists_are_labels_and_logits_as_in_keras():
    labels, logits = batch()
    actual = loss_of(labels.tolist(), logits.tolist(), label_smoothing=0.1)
    np.testing.assert_allclose(actual, formula(labels, logits, 0.1)[0], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_logits_are_computed_in_float32(dtype):
    labels, logits = batch(scale=20.0)
    half = ops.cast(logits, dtype)
    rounded = ops.convert_to_numpy(ops.cast(half, "float32"))
    expected, _ = formula(labels, rounded, 0.1)
    loss = SmoothedCrossentropy(0.1)(labels, half)
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    np.testing.assert_allclose(ops.convert_to_numpy(loss), expected, rtol=1e-6)


def test_a_half_precision_default_dtype_changes_nothing():
    # Keras casts labels to the dtype of the loss: float16 rounds 4097 to 4096.
    labels = np.array([[4097]], "int32")
    logits = np.zeros((1, 1, 5000), "float32")
    logits[0, 0, 4097] = 20.0
    keras.config.set_floatx("float16")
    try:
        assert loss_of(labels, logits) < 1e-4
    finally:
        keras.config.set_floatx("float32")


def test_huge_logits_stay_finite(value_and_gradients):
    labels, logits = batch(scale=1e4)
    loss = SmoothedCrossentropy(0.1)
    value, (gradient,) = value_and_gradients(lambda z: loss(labels, z), logits)
    np.testing.assert_allclose(value, formula(labels, logits, 0.1)[0], rtol=1e-6)
    assert np.isfinite(gradient).all()


def test_padding_does_not_change_the_loss():
    labels, logits = batch()
    expected = loss_of(labels, logits, label_smoothing=0.1)
    padded_labels = np.pad(labels, [(0, 2), (0, 4)])
    padded_logits = np.pad(logits, [(0, 2), (0, 4), (0, 0)], constant_values=7.0)
    np.testing.assert_allclose(
        loss_of(padded_labels, padded_logits, label_smoothing=0.1), expected
    )
    logits[labels == 0] += np.arange(V)
    np.testing.assert_allclose(loss_of(labels, logits, label_smoothing=0.1), expected)
    logits[0, 0] += np.arange(V)
    assert abs(loss_of(labels, logits, label_smoothing=0.1) - expected) > 0.1


def test_a_batch_of_padding_has_no_loss_and_no_gradient(value_and_gradients):
    _, logits = batch()
    loss = SmoothedCrossentropy(0.1)
    labels = np.zeros((B, T), "int32")
    value, (gradient,) = value_and_gradients(lambda z: loss(labels, z), logits)
    assert value == 0.0
    assert (gradient == 0.0).all()


@pytest.mark.parametrize("pad_id", [-100, 4])
def test_padding_may_have_another_id(pad_id):
    labels, logits = batch()
    labels = np.where(labels == 4, 5, labels)
    expected = loss_of(labels, logits)
    relabeled = np.where(labels == 0, pad_id, labels)
    np.testing.assert_allclose(loss_of(relabeled, logits, pad_id=pad_id), expected)


@pytest.mark.parametrize("shape", [(B, 1), (B, T)])
def test_sample_weights_may_be_per_sequence_or_per_token(shape):
    labels, logits = batch()
    weights = np.random.default_rng(2).uniform(size=shape).astype("float32")
    expected, _ = formula(labels, logits, 0.1, weights)
    sample_weight = weights[:, 0] if shape[1] == 1 else weights
    actual = loss_of(labels, logits, sample_weight, label_smoothing=0.1)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_sequence_weights_of_a_square_batch_are_not_position_weights():
    rng = np.random.default_rng(0)
    labels = rng.integers(1, V, size=(T, T)).astype("int32")
    logits = rng.normal(size=(T, T, V)).astype("float32")
    weights = np.arange(T, dtype="float32")
    expected, _ = formula(labels, logits, 0.0, weights[:, None])
    np.testing.assert_allclose(loss_of(labels, logits, weights), expected, rtol=1e-6)


def test_an_implicit_mask_excludes_further_tokens():
    labels, _ = batch()
    ids = np.where(np.arange(T) < 3, 1, 0) * np.ones((B, 1), "int32")
    logits = keras.layers.Embedding(2, V, mask_zero=True)(ids)
    assert logits._keras_mask is not None
    plain = ops.convert_to_numpy(logits)
    expected, _ = formula(np.where(ids == 0, 0, labels), plain, 0.1)
    actual = loss_of(labels, logits, label_smoothing=0.1)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize("label", [V, -1])
def test_a_label_outside_the_vocabulary_makes_the_loss_nan(label):
    labels, logits = batch()
    labels[1, 1] = label
    assert np.isnan(loss_of(labels, logits))
    # With weight 0 the label may be anything, such as -100 in other libraries.
    weights = np.ones((B, T), "float32")
    weights[1, 1] = 0
    expected = loss_of(np.where(labels == label, 0, labels), logits)
    np.testing.assert_allclose(loss_of(labels, logits, weights), expected)


def test_the_config_round_trips():
    loss = SmoothedCrossentropy(0.1, pad_id=4, name="mine")
    rebuilt = keras.losses.deserialize(keras.losses.serialize(loss))
    assert isinstance(rebuilt, SmoothedCrossentropy)
    assert rebuilt.get_config() == loss.get_config()
    expected = {"label_smoothing": 0.1, "pad_id": 4, "tokens_per_batch": None}
    assert rebuilt.get_config() == expected | {"name": "mine"}


def test_the_minimum_is_the_entropy_of_the_smoothed_labels(value_and_gradients):
    labels, _ = batch()
    target = 0.9 * np.eye(V)[labels] + 0.1 / V
    loss = SmoothedCrossentropy(0.1)
    logits = np.log(target).astype("float32")
    value, (gradient,) = value_and_gradients(lambda z: loss(labels, z), logits)
    distribution = target[0, 0]
    np.testing.assert_allclose(
        value, -(distribution * np.log(distribution)).sum(), rtol=1e-6
    )
    np.testing.assert_allclose(gradient, 0.0, atol=1e-7)


def test_wrong_arguments_are_rejected():
    labels, logits = batch()
    for smoothing in (-0.1, 1.0):
        with pytest.raises(ValueError, match="at least 0.*below 1; got label"):
            SmoothedCrossentropy(smoothing)
    with pytest.raises(ValueError, match=r"labels \(3, 5, 11\), logits \(3, 5, 11\)"):
        loss_of(np.eye(V)[labels], logits)
    with pytest.raises(ValueError, match=r"got labels \(3, 4\)"):
        loss_of(labels[:, 1:], logits)
    with pytest.raises(ValueError, match=r"sample_weight \(3, 5, 1\)"):
        loss_of(labels, logits, np.ones((B, T, 1)))
