"""TokenAccuracy and Perplexity are exact over all real tokens of an epoch."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm.layers import TokenAndPositionEmbedding
from keras_tfm.training import (
    Perplexity,
    ProjectedCrossentropy,
    SmoothedCrossentropy,
    TokenAccuracy,
)
from keras_tfm.training.metrics import TokenMean

V = 9


def batches():
    """Yields labels and logits of batches of different shape and padding."""
    rng = np.random.default_rng(0)
    for rows, length, real in [(2, 6, 6), (5, 3, 1), (1, 8, 0), (3, 4, 2)]:
        labels = rng.integers(1, V, size=(rows, length)).astype("int32")
        labels[:, real:] = 0
        yield labels, 2 * rng.normal(size=(rows, length, V)).astype("float32")


def over_epoch(values):
    """Concatenates the real tokens of all batches: labels and log p."""
    labels = np.concatenate([a[a != 0] for a, _ in values])
    z = np.concatenate([b[a != 0] for a, b in values]).astype("float64")
    return labels, z - np.log(np.exp(z).sum(-1, keepdims=True))


def run(metric, values, weights=None):
    for labels, logits in values:
        metric.update_state(labels, logits, weights and weights(labels))
    return float(ops.convert_to_numpy(metric.result()))


def test_accuracy_is_exact_over_an_epoch():
    values = list(batches())
    labels, log_p = over_epoch(values)
    is_correct = log_p.argmax(-1) == labels
    assert run(TokenAccuracy(), values) == pytest.approx(is_correct.mean(), abs=1e-7)
    of_batches = [run(TokenAccuracy(), [value]) for value in values]
    assert abs(np.mean(of_batches) - is_correct.mean()) > 0.01  # it can fail


def test_perplexity_is_exact_over_an_epoch():
    values = list(batches())
    labels, log_p = over_epoch(values)
    expected = np.exp(-log_p[np.arange(len(labels)), labels].mean())
    assert run(Perplexity(), values) == pytest.approx(expected, rel=1e-6)
    of_batches = [run(Perplexity(), [value]) for value in values]
    assert abs(np.mean(of_batches) - expected) > 0.1  # it can fail


@pytest.mark.parametrize("metric_class", [TokenAccuracy, Perplexity])
def test_sample_weights_and_padding_ids_exclude_tokens(metric_class):
    values = list(batches())
    expected = run(metric_class(), [(a[:1], b[:1]) for a, b in values])

    def first(labels):
        return np.float32(np.arange(len(labels)) == 0)

    assert run(metric_class(), values, first) == pytest.approx(expected, rel=1e-6)
    relabeled = [(np.where(a == 0, -1, a), b) for a, b in values]
    assert run(metric_class(pad_id=-1), relabeled, first) == pytest.approx(
        expected, rel=1e-6
    )


@pytest.mark.parametrize(
    ("metric_class", "empty"), [(TokenAccuracy, 0.0), (Perplexity, 1.0)]
)
def test_padding_alone_is_not_nan_and_reset_state_clears(metric_class, empty):
    metric = metric_class()
    labels, logits = next(batches())
    assert run(metric, [(np.zeros_like(labels), logits)]) == empty
    assert run(metric, [(labels, logits)]) != empty
    metric.reset_state()
    assert float(ops.convert_to_numpy(metric.result())) == empty


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_logits_are_computed_in_float32(dtype):
    labels, logits = next(batches())
    half = ops.cast(5 * logits, dtype)
    rounded = ops.convert_to_numpy(ops.cast(half, "float32"))
    expected = run(Perplexity(), [(labels, rounded)])
    assert run(Perplexity(), [(labels, half)]) == pytest.approx(expected, rel=1e-6)


def test_an_implicit_mask_excludes_further_tokens():
    ids = np.array([[1, 1, 0, 0], [1, 0, 0, 0]], "int32")
    logits = keras.layers.Embedding(2, V, mask_zero=True)(ids)
    assert logits._keras_mask is not None
    guess = ops.convert_to_numpy(logits).argmax(-1)
    labels = np.where(ids == 1, np.maximum(guess, 1), guess % (V - 1) + 1)
    plain = ops.convert_to_numpy(logits)
    expected = run(TokenAccuracy(), [(labels * ids, plain)])
    assert run(TokenAccuracy(), [(labels, logits)]) == expected
    assert run(TokenAccuracy(), [(labels, plain)]) != expected  # it can fail


def masked_loss(logits, labels, mask):
    """Mean of -log p of the labels where the mask is True, in float64."""
    logits = ops.convert_to_numpy(logits).astype("float64")
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(log_p, labels[..., None], -1)[..., 0][mask].mean()


def test_evaluate_uses_an_implicit_mask():
    """On JAX, traced tensors have no attribute for the mask."""
    ids = np.array([[1, 2, 0, 0], [3, 4, 5, 0]], "int32")
    labels = np.array([[1, 2, 3, 4], [1, 2, 3, 4]], "int32")
    embedding = TokenAndPositionEmbedding(V, embedding_dim=4, mask_zero=True)
    source = keras.Input((None,), dtype="int32")
    hidden = embedding(source)
    model = keras.Model(source, keras.layers.Dense(V)(hidden))
    model.compile(loss=SmoothedCrossentropy(), metrics=[Perplexity()])
    actual = model.evaluate(ids, labels, verbose=0, return_dict=True)
    expected = masked_loss(model(ids), labels, ids != 0)
    assert abs(expected - masked_loss(model(ids), labels, ids >= 0)) > 1e-3
    assert actual["loss"] == pytest.approx(expected, abs=1e-5)
    assert actual["perplexity"] == pytest.approx(np.exp(expected), rel=1e-5)
    model = keras.Model(source, hidden)
    model.compile(loss=ProjectedCrossentropy(embedding))
    expected = masked_loss(embedding.as_logits(model(ids)), labels, ids != 0)
    assert model.evaluate(ids, labels, verbose=0) == pytest.approx(expected, abs=1e-5)


class LabelIsTwo(TokenMean):
    """Computes 1 for each token whose label is 2, else 0."""

    def token_values(self, labels, logits):
        return ops.cast(labels == 2, "float32")


def test_counts_stay_exact_past_two_to_the_24():
    metric = LabelIsTwo()
    metric.total.assign(2.0**24)
    metric.count.assign(2.0**25)
    labels, logits = np.array([[2]], "int32"), np.zeros((1, 1, 3), "float32")
    for _ in range(64):
        metric.update_state(labels, logits)
    assert float(metric.total) == 2.0**24  # a single float32 stays at this value
    assert float(metric.total_rest) == 64.0
    assert float(metric.count) + float(metric.count_rest) == 2.0**25 + 64


def test_fit_logs_metrics_of_a_masked_output():
    values = np.random.default_rng(1).integers(1, V, size=(24, 5)).astype("int32")
    values[:, 3:] = 0
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(V, 16, mask_zero=True),
            keras.layers.Dense(V),
        ]
    )
    metrics = [TokenAccuracy(), Perplexity()]
    model.compile(keras.optimizers.Adam(0.01), SmoothedCrossentropy(), metrics=metrics)
    history = model.fit(
        values, values, epochs=2, verbose=0, batch_size=8, validation_data=(values,) * 2
    ).history
    np.testing.assert_allclose(
        history["val_perplexity"], np.exp(history["val_loss"]), rtol=1e-5
    )
    guess = model.predict(values, verbose=0).argmax(-1)
    expected = (guess == values)[values != 0].mean()
    assert history["val_token_accuracy"][-1] == pytest.approx(expected, abs=1e-6)
    assert 0 < history["token_accuracy"][-1] <= 1


@pytest.mark.parametrize("metric_class", [TokenAccuracy, Perplexity])
def test_early_stopping_infers_the_direction_of_metrics(metric_class):
    name = metric_class().name
    values = np.ones((4, 2), "int32")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Embedding(V, V)])
    model.compile("sgd", SmoothedCrossentropy(), metrics=[metric_class()])
    stopping = keras.callbacks.EarlyStopping(f"val_{name}", patience=3)
    data = (values, values)
    model.fit(*data, validation_data=data, callbacks=[stopping], verbose=0)
    better = ops.less if metric_class is Perplexity else ops.greater
    assert stopping.monitor_op is better


@pytest.mark.parametrize("metric_class", [TokenAccuracy, Perplexity])
def test_the_config_of_metrics_round_trips(metric_class):
    metric = metric_class(pad_id=3, name="mine")
    rebuilt = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert type(rebuilt) is metric_class
    assert rebuilt.get_config() == {"pad_id": 3, "name": "mine"}


def test_labels_that_do_not_fit_the_logits_are_rejected():
    labels, logits = next(batches())
    with pytest.raises(ValueError, match=r"labels \(2, 5\), logits \(2, 6, 9\)"):
        TokenAccuracy().update_state(labels[:, 1:], logits)
