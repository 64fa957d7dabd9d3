"""Logistic regression on n-grams of tokens beside a trained encoder.

After the encoder is trained, scikit-learn fits the matrix of the model's
`NGramBag` on the same tokens. `calibration` then scales both.
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
from keras_tfm.recipes.logit_scales import balanced_weights, cross_entropy, fit_scales

# Weights of n-grams before the regression: inverse document frequency, the
# largest log-count ratio of a class (Wang and Manning 2012), or their product.
WEIGHTINGS = ("idf", "ratio", "idf * ratio")
STRENGTHS = (0.5, 1.0, 2.0, 4.0, 16.0, 64.0, 256.0)  # C of scikit-learn
FEATURE_SCALE = 0.3  # makes the features about as long as those of TF-IDF
MANY_TEXTS = 1_000  # from which on an n-gram must occur in two texts
MAX_ITERATIONS = 200
# Training texts of the regression at most, which bounds its memory and time.
MAX_TEXTS = 100_000


@dataclasses.dataclass(frozen=True)
class Counts:
    """N-grams of the texts of a split.

    Attributes:
        counts: sparse float32 `(N, R)`, 1 where a text has an n-gram; more if
            n-grams of different lengths share a row.
        lengths: float `(N,)`, the sums of the rows.
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
        score: tuple of floats to choose by, of the validation set; higher is
            better.
        kernel: float `(M, C)`, the weights of the n-grams.
        bias: float `(C,)`.
    """

    weighting: str
    strength: float
    score: tuple[float, ...]
    kernel: np.ndarray
    bias: np.ndarray


def fit(
    model: models.SequenceClassifier,
    train: text.LabelBatches,
    validation: text.LabelBatches,
    balanced: bool = False,
) -> Regression | None:
    """Fits the bag of n-grams of a model; the encoder does not change.

    Args:
        model: its `ngram_bag` is replaced.
        train, validation: batches of the splits. Of more than `MAX_TEXTS`
            texts, about that many are drawn.
        balanced: bool. All classes have the same total weight.

    Returns:
        The regression with the best validation score; None if no n-gram occurs
        often enough, so that the bag is empty.
    """
    counts = [count_ngrams(model, batches) for batches in (train, validation)]
    rows, best = frequent_rows(counts[0]), None
    if len(rows):
        regressions = fit_regressions(counts, rows, model.num_classes, balanced)
        best = max(regressions, key=lambda regression: regression.score)
    _assign(model.ngram_bag, rows, best)
    return best


def refit(
    model: models.SequenceClassifier,
    train: text.LabelBatches,
    chosen: Regression,
    balanced: bool = False,
) -> None:
    """Fits the bag of n-grams of a model again, with what `fit` chose.

    Args:
        model: its `ngram_bag` is replaced.
        train: batches of the texts that the training and the validation set
            were drawn from.
        chosen: a `Regression`, whose weighting and strength are used.
        balanced: bool. All classes have the same total weight.
    """
    counts = count_ngrams(model, train)
    rows = frequent_rows(counts)
    scales = _scales(counts, rows, chosen.weighting, model.num_classes)
    features = _of_unit_length(counts, rows) @ sparse.diags(scales)
    kernel, bias = fit_regression(
        features, counts.labels, model.num_classes, chosen.strength, balanced
    )
    fitted = chosen._replace(kernel=scales[:, None] * kernel, bias=bias)
    _assign(model.ngram_bag, rows, fitted)


def frequent_rows(train: Counts) -> np.ndarray:
    """Returns the rows of the n-grams that enough training texts have."""
    document_counts = np.asarray((train.counts > 0).sum(axis=0)).ravel()
    min_count = 2 if len(train.labels) >= MANY_TEXTS else 1
    return np.flatnonzero(document_counts >= min_count)


def _assign(bag, rows, regression):
    kernel, bias = np.zeros(bag.kernel.shape), np.zeros(bag.bias.shape)
    if regression is not None:
        kernel[rows], bias = regression.kernel, regression.bias
    bag.kernel.assign(kernel.astype("float32"))
    bag.bias.assign(bias.astype("float32"))


def _of_unit_length(split, rows):
    """Divides the counts of a text by the root of their sum."""
    lengths = np.maximum(split.lengths, 1)
    return sparse.diags(1 / np.sqrt(lengths, dtype="float32")) @ split.counts[:, rows]


def _scales(train, rows, weighting, num_classes):
    weights = ngram_weights(train, rows, weighting, num_classes)
    return FEATURE_SCALE * weights.astype("float32")


def fit_regressions(
    counts: Sequence[Counts], rows: np.ndarray, num_classes: int, balanced: bool
) -> Iterator[Regression]:
    """Fits a regression for each weighting and strength of regularization.

    With one label for a text, regressions are compared by accuracy and then by
    loss; with several by loss alone, since the label accuracy is high for a
    model that predicts none.

    Args:
        counts: of the training and the validation split.
        rows: int `(M,)`, the rows of the n-grams to use.
        num_classes: int, C.
        balanced: bool. All classes have the same total weight.
    """
    labels, validation_labels = (split.labels for split in counts)
    selected = [_of_unit_length(split, rows) for split in counts]
    weights = balanced_weights(validation_labels, num_classes) if balanced else None
    for weighting in WEIGHTINGS:
        scales = _scales(counts[0], rows, weighting, num_classes)
        features, validation_features = (
            matrix @ sparse.diags(scales) for matrix in selected
        )
        for strength in STRENGTHS:
            kernel, bias = fit_regression(
                features, labels, num_classes, strength, balanced
            )
            logits = validation_features @ kernel + bias
            [scale] = fit_scales([logits], validation_labels, weights)
            loss = cross_entropy(scale * logits, validation_labels, weights)
            score = (-loss,)
            if labels.ndim == 1:
                right = logits.argmax(axis=-1) == validation_labels
                score = (float(np.average(right, weights=weights)), -loss)
            kernel = scales[:, None] * kernel
            yield Regression(weighting, strength, score, kernel, bias)


def count_ngrams(
    model: models.SequenceClassifier, batches: text.LabelBatches
) -> Counts:
    """Counts the n-grams of each text, in the order of `batches.ordered()`."""
    bag, matrices, labels = model.ngram_bag, [], []
    steps = np.arange(batches.steps_per_epoch)
    if len(batches) > MAX_TEXTS:
        count = len(steps) * MAX_TEXTS // len(batches)
        steps = np.random.default_rng(0).permutation(steps)[: max(count, 1)]
        print(f"The n-grams are counted in {len(steps):,} batches, drawn at random.")
    for step in steps.tolist():
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


def ngram_weights(
    train: Counts, rows: np.ndarray, weighting: str, num_classes: int
) -> np.ndarray:
    """Computes a weight for each n-gram.

    Args:
        train: of the training split.
        rows: int `(M,)`, the rows of the n-grams.
        weighting: str, one of `WEIGHTINGS`.
        num_classes: int.

    Returns:
        float `(M,)`.
    """
    contains = (train.counts[:, rows] > 0).astype("float32")
    document_counts = np.asarray(contains.sum(axis=0)).ravel()
    idf = np.log((1 + len(train.labels)) / (1 + document_counts)) + 1
    labels = train.labels
    members = np.eye(num_classes)[labels] if labels.ndim == 1 else labels
    with_label = 1 + (contains.T @ members)  # (M, C)
    without = 1 + document_counts[:, None] - (with_label - 1)
    ratios = np.log(with_label / with_label.sum(axis=0))
    ratios -= np.log(without / without.sum(axis=0))
    ratio = np.abs(ratios).max(axis=1)
    return {"idf": idf, "ratio": ratio, "idf * ratio": idf * ratio}[weighting]


def fit_regression(
    features: sparse.csr_matrix,
    labels: np.ndarray,
    num_classes: int,
    strength: float,
    balanced: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Fits logistic regression.

    Classes that no text has get a constant logit below those of the others.

    Returns:
        The matrix `(M, C)` and the bias `(C,)` of its logits.
    """
    class_weight = "balanced" if balanced else None
    if labels.ndim == 2 or len(np.unique(labels)) < 3:
        columns = labels if labels.ndim == 2 else np.eye(num_classes)[labels]
        fitted = [fit_label(features, c > 0, strength, class_weight) for c in columns.T]
        kernel = np.stack([weights for weights, _ in fitted], axis=1)
        bias = np.array([constant for _, constant in fitted])
        # The softmax of two classes subtracts their logits.
        return (kernel, bias) if labels.ndim == 2 else (kernel / 2, bias / 2)
    # L-BFGS, the default, takes more than 200 iterations of some weightings.
    regression = LogisticRegression(
        C=strength,
        solver="newton-cg",
        max_iter=MAX_ITERATIONS,
        class_weight=class_weight,
    ).fit(features, labels)
    kernel = np.zeros((features.shape[1], num_classes))
    bias = np.full(num_classes, regression.intercept_.min() - np.log(len(labels)))
    kernel[:, regression.classes_] = regression.coef_.T
    bias[regression.classes_] = regression.intercept_
    return kernel, bias


def fit_label(
    features: sparse.csr_matrix,
    has_label: np.ndarray,
    strength: float,
    class_weight: str | None = None,
) -> tuple[np.ndarray, float]:
    """Fits the logit of one label; a constant if all texts agree on it."""
    count = has_label.sum()
    if 0 < count < len(has_label):
        regression = LogisticRegression(
            C=strength,
            solver="liblinear",
            max_iter=MAX_ITERATIONS,
            class_weight=class_weight,
        ).fit(features, has_label)
        return regression.coef_[0], float(regression.intercept_[0])
    odds = (count + 1) / (len(has_label) - count + 1)
    return np.zeros(features.shape[1]), float(np.log(odds))


def fraction_right(logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the accuracy; with several labels that of each label alone."""
    if labels.ndim == 1:
        return float((logits.argmax(axis=-1) == labels).mean())
    return float(((logits > 0) == (labels > 0)).mean())
