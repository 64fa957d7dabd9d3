"""How well predicted probabilities match how often they are right."""

from typing import Any

import numpy as np


def expected_calibration_error(
    probabilities: Any, labels: Any, num_bins: int = 15
) -> float:
    """Computes the expected calibration error (ECE).

    The most probable class of each text is sorted by its probability into bins
    of equal width; the error is the mean distance between the probabilities in
    a bin and the fraction of its classes that are right. Where a text may have
    several labels, each class of each text counts separately, with its own
    probability.

    Args:
        probabilities: float `(N, C)`.
        labels: int `(N,)`; or `(N, C)` of 0 and 1, several for a text.
        num_bins: int, 1 or more.

    Returns:
        float in [0, 1].

    Raises:
        ValueError: shapes that do not fit each other, no text, values outside
            [0, 1], labels that are no class, or no bin.

    Example:
        ```python
        from keras_tfm import training

        probabilities = [[0.5, 0.5], [0.25, 0.75]]
        error = training.expected_calibration_error(probabilities, [0, 1])
        print(error)  # 0.375
        ```

    Source: Guo et al. 2017, equation 3. https://arxiv.org/abs/1706.04599
    """
    probabilities, labels = np.asarray(probabilities, "float64"), np.asarray(labels)
    multi_label = labels.ndim == 2
    shape = probabilities.shape if multi_label else probabilities.shape[:1]
    fits = probabilities.ndim == 2 and labels.shape == shape
    if not fits or not labels.size or num_bins < 1:
        raise ValueError(
            "`probabilities` must have shape (N, C), `labels` (N,) or (N, C), N and "
            f"`num_bins` at least 1; got probabilities of shape {probabilities.shape}, "
            f"labels of shape {labels.shape}, num_bins={num_bins}."
        )
    num_classes = 2 if multi_label else probabilities.shape[1]
    if not ((labels >= 0) & (labels < num_classes)).all():
        raise ValueError(
            f"`labels` must be from 0 to {num_classes - 1}; got labels from "
            f"{labels.min()} to {labels.max()}. Number the classes as the columns of "
            "`probabilities`."
        )
    if not ((probabilities >= 0) & (probabilities <= 1 + 1e-6)).all():
        raise ValueError(
            "`probabilities` must be from 0 to 1; got values from "
            f"{probabilities.min()} to {probabilities.max()}. Convert logits with "
            "`SequenceClassifier.probabilities`."
        )
    if multi_label:
        confidence, correct = probabilities.ravel(), labels.ravel().astype("float64")
    else:
        confidence = probabilities.max(-1)
        correct = (probabilities.argmax(-1) == labels).astype("float64")
    # Bin b has confidences above b / num_bins and at most (b + 1) / num_bins.
    bins = np.clip(np.ceil(confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
    gaps = np.bincount(bins, confidence - correct, num_bins)
    return float(np.abs(gaps).sum() / len(confidence))
