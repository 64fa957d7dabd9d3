"""Metrics over the tokens of an epoch, padding excluded."""

import keras
from keras import ops

from keras_tfm.training.keras_internals import get_keras_mask
from keras_tfm.training.losses import (
    check_shapes,
    smoothed_crossentropy,
    token_weights,
)
from keras_tfm.types import Tensor


class TokenMean(keras.metrics.Metric):
    """Averages a value over all tokens since the last reset; base class.

    Exact over an epoch, not a mean of batch means. Sum and count are each kept
    in two float32 numbers, the second with the rounding error of the first: one
    float32 stops counting single tokens at 16,777,216.

    Args:
        pad_id: int. Label of the tokens that do not count.
        name: string. Name of the metric.

    Call arguments:
        y_true: int `(B, T)`, the labels.
        y_pred: float `(B, T, V)`, the logits.
        sample_weight: float `(B,)` or `(B, T)`, or `None`.

    Raises:
        ValueError: labels, logits and weights do not fit each other.
    """

    def __init__(self, pad_id: int = 0, name: str | None = None):
        super().__init__(name=name, dtype="float32")
        self.pad_id = pad_id
        self.total, self.total_rest, self.count, self.count_rest = (
            self.add_variable(shape=(), initializer="zeros", name=variable)
            for variable in ("total", "total_rest", "count", "count_rest")
        )

    def token_values(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Computes a value for each token: `(B, T)` from logits `(B, T, V)`."""
        raise NotImplementedError  # each metric has its own

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None
    ) -> None:
        mask = get_keras_mask(y_pred)
        y_true = ops.convert_to_tensor(y_true)
        y_pred = ops.stop_gradient(ops.convert_to_tensor(y_pred))
        check_shapes(y_true, y_pred)
        labels = ops.cast(y_true, "int32")
        weights = token_weights(labels, self.pad_id, sample_weight, mask)
        values = ops.cast(self.token_values(labels, y_pred), "float32")
        values = ops.where(ops.equal(weights, 0.0), 0.0, values * weights)
        _add_exactly(self.total, self.total_rest, ops.sum(values))
        _add_exactly(self.count, self.count_rest, ops.sum(weights))

    def result(self) -> Tensor:
        count = self.count + self.count_rest
        return ops.divide_no_nan(self.total + self.total_rest, count)

    def get_config(self) -> dict:
        return {"pad_id": self.pad_id, "name": self.name}


@keras.saving.register_keras_serializable(package="keras_tfm")
class TokenAccuracy(TokenMean):
    """Computes the fraction of tokens whose most probable id is the label.

    Args:
        pad_id: int. Label of the tokens that do not count.
        name: string. Name of the metric.

    Call arguments:
        y_true: int `(B, T)`, the labels.
        y_pred: float `(B, T, V)`, the logits.
        sample_weight: float `(B,)` or `(B, T)`, or `None`.

    Returns:
        float32 in `[0, 1]`; 0 before the first token.

    Raises:
        ValueError: labels, logits and weights do not fit each other.

    Example:
        ```python
        import numpy as np
        from keras_tfm import training

        metric = training.TokenAccuracy()
        metric.update_state(np.array([[2, 1, 0]]), np.eye(4)[[[2, 3, 3]]])
        print(float(metric.result()))  # 0.5; the third token is padding
        ```
    """

    def __init__(self, *, pad_id: int = 0, name: str = "token_accuracy"):
        super().__init__(pad_id=pad_id, name=name)
        self._direction = "up"  # which EarlyStopping's mode="auto" reads

    def token_values(self, labels: Tensor, logits: Tensor) -> Tensor:
        return ops.equal(ops.cast(ops.argmax(logits, axis=-1), "int32"), labels)


@keras.saving.register_keras_serializable(package="keras_tfm")
class Perplexity(TokenMean):
    """Computes `exp` of the mean cross-entropy of the tokens, unsmoothed.

    It is the perplexity of the model's own tokens: it does not compare models
    with different vocabularies.

    Args:
        pad_id: int. Label of the tokens that do not count.
        name: string. Name of the metric.

    Call arguments:
        y_true: int `(B, T)`, the labels.
        y_pred: float `(B, T, V)`, the logits.
        sample_weight: float `(B,)` or `(B, T)`, or `None`.

    Returns:
        float32, 1 or more; 1 before the first token.

    Raises:
        ValueError: labels, logits and weights do not fit each other.

    Example:
        ```python
        import numpy as np
        from keras_tfm import training

        metric = training.Perplexity()
        metric.update_state(np.array([[2, 0]]), np.zeros((1, 2, 4)))
        print(float(metric.result()))  # 4.0: all 4 ids are as probable
        ```
    """

    def __init__(self, *, pad_id: int = 0, name: str = "perplexity"):
        super().__init__(pad_id=pad_id, name=name)
        self._direction = "down"  # which EarlyStopping's mode="auto" reads

    def token_values(self, labels: Tensor, logits: Tensor) -> Tensor:
        return smoothed_crossentropy(labels, logits)

    def result(self) -> Tensor:
        return ops.exp(super().result())


def _add_exactly(total: keras.Variable, rest: keras.Variable, value: Tensor) -> None:
    """Adds to the sum `total + rest`, and keeps the rounding error in `rest`.

    Source: Neumaier 1974, improved Kahan-Babuska summation.
    """
    previous = ops.convert_to_tensor(total)
    new = previous + value
    large, small = ops.maximum(previous, value), ops.minimum(previous, value)
    rest.assign_add((large - new) + small)
    total.assign(new)
