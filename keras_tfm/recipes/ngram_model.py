"""Logistic regression on n-grams of tokens beside a trained encoder.

After the encoder is trained, scikit-learn fits the matrix of the model's
`NGramBag` on the same tokens. `temperature` then weighs both.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from keras import ops
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from keras_tfm import models, text
from keras_tfm.layers.masks import padding_mask

# Weights of n-grams before the regression: inverse document frequency, the
# largest log-count ratio of a class (Wang and Manning 2012), or their product.
WEIGHTINGS = ("idf", "ratio", "idf * ratio")
STRENGTHS = (4.0, 16.0, 64.0, 256.0)  # inverse, of regularization
FEATURE_SCALE = 0.3  # makes the features about as long as those of TF-IDF
MANY_TEXTS = 1_000  # from which on an n-gram must occur in two texts


@dataclasses.dataclass(frozen=True)
class Counts:
    """N-grams of the texts of a split.

    Attributes:
        counts: sparse float32 `(N, R)`, how often a text has an n-gram.
        lengths: float `(N,)`, n-grams of a text.
        labels: int `(N,)` or float `(N, C)`, see `LabelBatches`.
    """

    counts: sparse.csr_matrix
    lengths: np.ndarray
    labels: np.ndarray


class Regression(NamedTuple):
    """A fitted model of the n-grams.

    Attributes:
        weighting: str, one of `WEIGHTINGS`.
        strength: float, one of `STRENGTHS`.
        score: float, of the validation set.
        kernel: float `(M, C)`, the weights of the n-grams.
        bias: float `(C,)`.
    """

    weighting: str
    strength: float
    score: float
    kernel: np.ndarray
    bias: np.ndarray


def fit(
    model: models.SequenceClassifier,
    train: text.LabelBatches,
    validation: text.LabelBatches,
) -> dict:
    """Fits the bag of n-grams of a model; the encoder does not change.

    Args:
        model: with an `ngram_bag` of zeros.
        train, validation: batches of the splits.

    Returns:
        dict of the chosen `"weighting"` and `"c"`, and `"validation"`, the
        score of the bag alone; empty if no n-gram occurs often enough.
    """
    bag = model.ngram_bag
    counts = [count_ngrams(model, batches) for batches in (train, validation)]
    document_counts = np.asarray((counts[0].counts > 0).sum(axis=0)).ravel()
    min_count = 2 if len(counts[0].labels) >= MANY_TEXTS else 1
    rows = np.flatnonzero(document_counts >= min_count)
    if not len(rows):
        return {}
    best = max(regressions(counts, rows), key=lambda regression: regression.score)
    kernel = np.zeros(bag.kernel.shape, "float32")
    kernel[rows] = best.kernel
    bag.kernel.assign(kernel)
    bag.bias.assign(best.bias.astype("float32"))
    return {"weighting": best.weighting, "c": best.strength, "validation": best.score}


def regressions(counts: Sequence[Counts], rows: np.ndarray) -> Iterator[Regression]:
    """Fits a regression for each weighting and strength of regularization.

    Args:
        counts: of the training and the validation split.
        rows: int `(M,)`, the rows of the n-grams to use.
    """
    labels, validation_labels = (split.labels for split in counts)
    for weighting in WEIGHTINGS:
        scales = FEATURE_SCALE * ngram_weights(counts[0], rows, weighting)
        features, validation_features = (
            sparse.diags(1 / np.sqrt(np.maximum(split.lengths, 1)))
            @ split.counts[:, rows]
            @ sparse.diags(scales)
            for split in counts
        )
        for strength in STRENGTHS:
            kernel, bias = fit_regression(features, labels, strength)
            logits = validation_features @ kernel + bias
            score = fraction_right(logits, validation_labels)
            kernel = scales[:, None] * kernel
            yield Regression(weighting, strength, score, kernel, bias)


def count_ngrams(
    model: models.SequenceClassifier, batches: text.LabelBatches
) -> Counts:
    """Counts the n-grams of each text, in the order of `batches.ordered()`."""
    bag, matrices, labels = model.ngram_bag, [], []
    for step in range(batches.steps_per_epoch):
        inputs, batch_labels = batches.ordered_batch(step)
        token_ids = ops.convert_to_tensor(inputs["token_ids"])
        mask = padding_mask(token_ids, model.encoder.pad_id)
        texts, columns = [], []
        for rows, is_real in bag.rows(token_ids, mask):
            rows, is_real = map(ops.convert_to_numpy, (rows, is_real))
            texts.append(np.nonzero(is_real)[0])
            columns.append(rows[is_real])
        texts, columns = np.concatenate(texts), np.concatenate(columns)
        ones, shape = np.ones(len(texts), "float32"), (len(token_ids), bag.num_rows)
        matrices.append(sparse.csr_matrix((ones, (texts, columns)), shape=shape))
        labels.append(batch_labels)
    counts = sparse.vstack(matrices, format="csr")
    return Counts(
        counts, np.asarray(counts.sum(axis=1)).ravel(), np.concatenate(labels)
    )


def ngram_weights(train: Counts, rows: np.ndarray, weighting: str) -> np.ndarray:
    """Computes a weight for each n-gram.

    Args:
        train: of the training split.
        rows: int `(M,)`, the rows of the n-grams.
        weighting: str, one of `WEIGHTINGS`.

    Returns:
        float `(M,)`.
    """
    contains = (train.counts[:, rows] > 0).astype("float32")
    document_counts = np.asarray(contains.sum(axis=0)).ravel()
    idf = np.log((1 + len(train.labels)) / (1 + document_counts)) + 1
    labels = train.labels
    members = np.eye(labels.max() + 1)[labels] if labels.ndim == 1 else labels
    with_label = 1 + (contains.T @ members)  # (M, C)
    without = 1 + document_counts[:, None] - (with_label - 1)
    ratios = np.log(with_label / with_label.sum(axis=0))
    ratios -= np.log(without / without.sum(axis=0))
    ratio = np.abs(ratios).max(axis=1)
    return {"idf": idf, "ratio": ratio, "idf * ratio": idf * ratio}[weighting]


def fit_regression(
    features: sparse.csr_matrix, labels: np.ndarray, strength: float
) -> tuple[np.ndarray, np.ndarray]:
    """Fits logistic regression.

    Returns:
        The matrix `(M, C)` and the bias `(C,)` of its logits.
    """
    if labels.ndim == 2:
        fitted = [fit_label(features, column > 0, strength) for column in labels.T]
        return np.stack([w for w, _ in fitted], axis=1), np.array(
            [b for _, b in fitted]
        )
    binary = labels.max() < 2
    regression = LogisticRegression(
        C=strength, max_iter=200, solver="liblinear" if binary else "lbfgs"
    ).fit(features, labels)
    kernel, bias = regression.coef_.T, regression.intercept_
    if binary:  # the logit of class 1, split between both
        kernel = np.concatenate([-kernel / 2, kernel / 2], axis=1)
        bias = np.concatenate([-bias / 2, bias / 2])
    return kernel, bias


def fit_label(
    features: sparse.csr_matrix, has_label: np.ndarray, strength: float
) -> tuple[np.ndarray, float]:
    """Fits the logit of one label; a constant if all texts agree on it."""
    count = has_label.sum()
    if 0 < count < len(has_label):
        regression = LogisticRegression(C=strength, solver="liblinear")
        regression.fit(features, has_label)
        return regression.coef_[0], float(regression.intercept_[0])
    odds = (count + 1) / (len(has_label) - count + 1)
    return np.zeros(features.shape[1]), float(np.log(odds))


def fraction_right(logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the accuracy; with several labels that of each label alone."""
    if labels.ndim == 1:
        return float((logits.argmax(axis=-1) == labels).mean())
    return float(((logits > 0) == (labels > 0)).mean())
