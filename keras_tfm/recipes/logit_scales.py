"""Scales of logits with the least loss on held-out texts: temperatures."""

from collections.abc import Sequence

import numpy as np
from scipy import optimize, special

# Penalty on log(scale)², so that a validation set without errors does not make
# the scales infinite.
PENALTY = 1.0


def cross_entropy(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> float:
    """Computes the sum of the losses of all texts.

    Args:
        logits: float `(N, C)`.
        labels: int `(N,)`, or 0 and 1 `(N, C)`, several for a text.
        weights: float `(N,)`, of the texts, or None.
    """
    if labels.ndim == 2:
        losses = (np.logaddexp(0, logits) - labels * logits).sum(axis=1)
    else:
        right = np.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
        losses = special.logsumexp(logits, axis=1) - right
    return float(losses.sum() if weights is None else losses @ weights)


def fit_scales(
    logits: Sequence[np.ndarray],
    labels: np.ndarray,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Finds the scales of logits whose weighted sum has the least loss.

    Args:
        logits: M arrays `(N, C)`.
        labels, weights: see `cross_entropy`.

    Returns:
        float `(M,)`, above 0.

    Source: Guo et al. 2017, section 4.2, where the inverse of a single scale is
    the temperature. https://arxiv.org/abs/1706.04599
    """
    stacked = np.stack(logits)  # (M, N, C)

    def loss(log_scales):
        total = np.tensordot(np.exp(log_scales), stacked, 1)  # (N, C)
        penalty = PENALTY * np.sum(log_scales**2)
        return cross_entropy(total, labels, weights) + penalty

    return np.exp(optimize.minimize(loss, np.zeros(len(logits))).x)


def balanced_weights(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Computes weights by which all classes together weigh the same.

    Args:
        labels: int `(N,)`.
        num_classes: int.

    Returns:
        float `(N,)`, 1 on average.
    """
    counts = np.bincount(labels, minlength=num_classes)
    weights = 1.0 / np.maximum(counts, 1)[labels]
    return weights * len(labels) / weights.sum()
