"""Metrics over the real tokens of an epoch."""

import keras
from keras import ops
from keras.src.backend import get_keras_mask  # JAX hides the attribute

from keras_tfm.training.losses import (
    check_shapes,
    smoothed_crossentropy,
    token_weights,
)


class TokenMean(keras.metrics.Metric):
    """Mean of a value over all real tokens since the last reset.

    Sum and count are each kept in two float32 numbers, the second holding what
    the first has rounded off: one float32 stops counting single tokens at
    16,777,216.

    Args:
        pad_id: int. Label of the positions that do not count.
        name: string. Name of the metric.

    Call arguments:
        y_true: int `(B, T)`, the labels.
        y_pred: float `(B, T, V)`, the logits.
        sample_weight: float `(B,)` or `(B, T)`, or `None`.
    """

    def __init__(self, pad_id=0, name=None):
        super().__init__(name=name, dtype="float32")
        self.pad_id = pad_id
        self.total, self.total_rest = self._make("total"), self._make("total_rest")
        self.count, self.count_rest = self._make("count"), self._make("count_rest")

    def _make(self, name):
        return self.add_variable(shape=(), initializer="zeros", name=name)

    def token_values(self, labels, logits):
        """Gives the value of each token: `(B, T)`, `(B, T, V)` to `(B, T)`."""
        raise NotImplementedError  # each metric has its own

    def update_state(self, y_true, y_pred, sample_weight=None):
        mask = get_keras_mask(y_pred)
        y_true = ops.convert_to_tensor(y_true)
        y_pred = ops.stop_gradient(ops.convert_to_tensor(y_pred))
        check_shapes(y_true, y_pred)
        labels = ops.cast(y_true, "int32")
        weights = token_weights(labels, self.pad_id, sample_weight, mask)
        values = ops.cast(self.token_values(labels, y_pred), "float32")
        values = ops.where(ops.equal(weights, 0.0), 0.0, values * weights)
        add_exactly(self.total, self.total_rest, ops.sum(values))
        add_exactly(self.count, self.count_rest, ops.sum(weights))

    def result(self):
        count = self.count + self.count_rest
        return ops.divide_no_nan(self.total + self.total_rest, count)

    def get_config(self):
        return {"pad_id": self.pad_id, "name": self.name}


def add_exactly(total, rest, value):
    """Adds to a sum and keeps what was rounded off.

    Args:
        total: float32 scalar variable.
        rest: float32 scalar variable. `total + rest` is the sum.
        value: float32 scalar.

    Source: Neumaier 1974, improved Kahan-Babuska summation.
    """
    old = ops.convert_to_tensor(total)
    new = old + value
    large, small = ops.maximum(old, value), ops.minimum(old, value)
    rest.assign_add((large - new) + small)
    total.assign(new)


@keras.saving.register_keras_serializable(package="keras_tfm")
class TokenAccuracy(TokenMean):
    """Share of the real tokens whose likeliest id is the label.

    Exact over all real tokens of an epoch, not a mean of batch means.

    Args:
        pad_id: int. Label of the positions that do not count.
        name: string. Name of the metric.

    Call arguments:
        y_true: int `(B, T)`, the labels.
        y_pred: float `(B, T, V)`, the logits.
        sample_weight: float `(B,)` or `(B, T)`, or `None`.

    Returns:
        float32 in `[0, 1]`; 0 before the first real token.

    Raises:
        ValueError: labels, logits and weights do not fit each other.
    """

    def __init__(self, pad_id=0, name="token_accuracy"):
        super().__init__(pad_id=pad_id, name=name)
        self._direction = "up"  # what EarlyStopping's mode="auto" reads

    def token_values(self, labels, logits):
        return ops.equal(ops.cast(ops.argmax(logits, axis=-1), "int32"), labels)


@keras.saving.register_keras_serializable(package="keras_tfm")
class Perplexity(TokenMean):
    """`exp` of the mean cross-entropy of the real tokens, without smoothing.

    Exact over all real tokens of an epoch, not a mean of batch means. It is
    the perplexity of the model's own tokens: vocabularies of different size
    cannot be compared by it.

    Args:
        pad_id: int. Label of the positions that do not count.
        name: string. Name of the metric.

    Call arguments:
        y_true: int `(B, T)`, the labels.
        y_pred: float `(B, T, V)`, the logits.
        sample_weight: float `(B,)` or `(B, T)`, or `None`.

    Returns:
        float32, 1 or more; 1 before the first real token.

    Raises:
        ValueError: labels, logits and weights do not fit each other.
    """

    def __init__(self, pad_id=0, name="perplexity"):
        super().__init__(pad_id=pad_id, name=name)
        self._direction = "down"  # what EarlyStopping's mode="auto" reads

    def token_values(self, labels, logits):
        return smoothed_crossentropy(labels, logits)

    def result(self):
        return ops.exp(super().result())
