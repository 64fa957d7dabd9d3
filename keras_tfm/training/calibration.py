"""How far probabilities can be taken at their word."""

import numpy as np


def expected_calibration_error(probabilities, labels, bins=15):
    """Gives the expected calibration error.

    The likeliest class of each text is sorted by its probability into bins of
    equal width; the error is the mean distance between how probable the labels
    of a bin are said to be and how many of them are right. Where a text may
    have several labels, each class of each text counts by itself, with its
    own probability.

    Args:
        probabilities: float `(N, C)`.
        labels: int `(N,)`; or `(N, C)` of 0 and 1, several for a text.
        bins: int, 1 or more.

    Returns:
        float in [0, 1].

    Raises:
        ValueError: shapes that do not fit each other, no text, values that are
            no probabilities, or no bin.

    Source: Guo et al. 2017, equation 3. https://arxiv.org/abs/1706.04599
    """
    probabilities, labels = np.asarray(probabilities, "float64"), np.asarray(labels)
    several = labels.ndim == 2
    fits = (
        probabilities.shape == labels.shape
        if several
        else (probabilities.ndim == 2 and labels.shape == probabilities.shape[:1])
    )
    if not fits or not labels.size or bins < 1:
        raise ValueError(
            "Probabilities are (N, C), labels (N,) or (N, C), N and the bins 1 or "
            f"more. Received: probabilities of shape {probabilities.shape}, labels of "
            f"shape {labels.shape}, bins={bins}."
        )
    if not ((probabilities >= 0) & (probabilities <= 1 + 1e-6)).all():
        raise ValueError(
            "Probabilities are from 0 to 1. Received: from "
            f"{probabilities.min()} to {probabilities.max()}. Logits go through "
            "`Classifier.probabilities` first."
        )
    if several:
        said, right = probabilities.ravel(), labels.ravel().astype("float64")
    else:
        said = probabilities.max(-1)
        right = (probabilities.argmax(-1) == labels).astype("float64")
    # Bin b holds what is above b / bins and at most (b + 1) / bins.
    place = np.clip(np.ceil(said * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.bincount(place, said - right, bins)
    return float(np.abs(gaps).sum() / len(said))
