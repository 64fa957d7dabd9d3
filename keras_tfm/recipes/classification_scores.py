"""Scores and figures of a classifier, and the TF-IDF baseline beside them."""

import pathlib
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from sklearn import metrics
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from keras_tfm import pipelines, plot, training
from keras_tfm.recipes import labeled_corpora
from keras_tfm.text import LabeledDataset

if TYPE_CHECKING:  # which imports this module
    from keras_tfm.recipes import classification

# Inverse strengths of regularization, of which the validation set chooses one.
STRENGTHS = (1.0, 4.0, 16.0, 64.0)
NUM_TEXTS = 6  # texts whose most attended words a run prints
Z95 = 1.96  # standard deviations to either side that hold 95%


def main_score(multi_label: bool) -> str:
    """Returns the name of the score that is reported first.

    With several labels for a text it is `"exact_match"`: all of them are right.
    `"label_accuracy"` counts each label by itself.
    """
    return "exact_match" if multi_label else "accuracy"


def wilson_interval(rate: float, count: int) -> tuple[float, float]:
    """Computes the 95% interval of a rate.

    Args:
        rate: float in [0, 1].
        count: int >= 1, the number of examples.

    Returns:
        pair of floats in [0, 1].

    Source: Wilson 1927. Unlike a symmetric interval it has a width at 0 and 1.
    """
    scale = 1 + Z95**2 / count
    center = (rate + Z95**2 / (2 * count)) / scale
    variance = rate * (1 - rate) / count + (Z95 / (2 * count)) ** 2
    half_width = Z95 * variance**0.5 / scale
    return max(center - half_width, 0.0), min(center + half_width, 1.0)


def predict(
    probabilities: np.ndarray, multi_label: bool, threshold: float = 0.5
) -> np.ndarray:
    """Turns probabilities into labels.

    Args:
        probabilities: float `(N, C)`.
        multi_label: bool. A text may have several labels.
        threshold: float, the least probability of one of several labels.

    Returns:
        int `(N,)`, or int `(N, C)` of 0 and 1.
    """
    if multi_label:
        return (probabilities >= threshold).astype("int32")
    return probabilities.argmax(-1)


def present_classes(labels: np.ndarray) -> list[int]:
    """Returns the classes that some text has: others have no F1 score.

    Args:
        labels: see `LabeledDataset.encoded_labels`.
    """
    labels = np.asarray(labels)
    one_each = labels.ndim == 1
    classes = np.unique(labels) if one_each else np.flatnonzero(labels.any(0))
    return classes.tolist() or list(range(labels.shape[-1]))


def scores(
    labels: np.ndarray,
    probabilities: np.ndarray,
    multi_label: bool,
    threshold: float = 0.5,
) -> dict[str, float]:
    """Scores probabilities against labels.

    Args:
        labels: see `LabeledDataset.encoded_labels`.
        probabilities: float `(N, C)`.
        multi_label: bool. A text may have several labels.
        threshold: float, the least probability of one of several labels.

    Returns:
        dict of floats in [0, 1]: `"accuracy"` and `"macro_f1"`; with several
        labels `"exact_match"`, `"label_accuracy"` and `"macro_f1"`.
    """
    predicted = predict(probabilities, multi_label, threshold)
    result = {main_score(multi_label): float(metrics.accuracy_score(labels, predicted))}
    if multi_label:
        result["label_accuracy"] = float(np.mean(labels == predicted))
    macro_f1 = metrics.f1_score(
        labels,
        predicted,
        labels=present_classes(labels),
        average="macro",
        zero_division=0,
    )
    return {**result, "macro_f1": float(macro_f1)}


def tf_idf_scores(corpus: labeled_corpora.LabeledCorpus) -> dict[str, float] | None:
    """Scores logistic regression on TF-IDF of words and pairs of words.

    Strength of regularization is chosen on the validation set. Then the model
    is fitted to the validation texts too, if they were drawn from those of
    training.

    Args:
        corpus: `labeled_corpora.LabeledCorpus`.

    Returns:
        dict as of `scores`, with `"c"`, the chosen inverse strength of
        regularization; None if the training texts have no word.
    """
    multi_label = corpus.train.multi_label
    vectorizer, train = _fit_vectorizer(corpus.train)
    if vectorizer is None:
        return None

    def fit(features, labels, strength):
        model = LogisticRegression(C=strength, max_iter=1000)
        model = OneVsRestClassifier(model) if multi_label else model
        return model.fit(features, labels)

    def evaluate(vectorizer, model, dataset):
        features = vectorizer.transform(map(_joined_pair, dataset.texts))
        probabilities = model.predict_proba(features)
        return scores(dataset.encoded_labels(), probabilities, multi_label)

    best_score, best_model, best_strength = -1.0, None, STRENGTHS[0]
    for strength in STRENGTHS:
        model = fit(train, corpus.train.encoded_labels(), strength)
        result = evaluate(vectorizer, model, corpus.validation)
        if result[main_score(multi_label)] > best_score:
            best_score = result[main_score(multi_label)]
            best_model, best_strength = model, strength
    if corpus.whole is not None:
        vectorizer, whole = _fit_vectorizer(corpus.whole)
        best_model = fit(whole, corpus.whole.encoded_labels(), best_strength)
    return {**evaluate(vectorizer, best_model, corpus.test), "c": best_strength}


def _fit_vectorizer(train):
    """Fits TF-IDF; from 1,000 texts on a word must occur in two of them."""
    for min_df in (2, 1) if len(train) >= 1_000 else (1,):
        vectorizer = TfidfVectorizer(
            token_pattern=r"\w+", ngram_range=(1, 2), min_df=min_df, sublinear_tf=True
        )
        try:
            return vectorizer, vectorizer.fit_transform(map(_joined_pair, train.texts))
        except ValueError:  # no word is left
            continue
    return None, None


def percentages(baseline: dict[str, float]) -> dict[str, float]:
    """Returns the scores of `tf_idf_scores` in percent; `"c"` stays."""
    return {
        name: round(100 * value, 2) if name != "c" else value
        for name, value in baseline.items()
    }


def baseline_report(baseline: dict | None, multi_label: bool) -> str:
    """Formats the scores of the TF-IDF baseline."""
    if baseline is None:
        return "TF-IDF baseline: none, since the training texts have no word."
    name = main_score(multi_label)
    return (
        f"TF-IDF baseline, logistic regression: {name.replace('_', ' ')} "
        f"{baseline[name]:.2%}, macro F1 {baseline['macro_f1']:.2%}"
    )


def evaluate(
    flags: "classification.Flags",
    classifier: pipelines.Classifier,
    corpus: labeled_corpora.LabeledCorpus,
    out: pathlib.Path,
) -> tuple[dict, np.ndarray]:
    """Classifies the test set, scores and prints it, and writes predictions.

    Args:
        flags: `classification.Flags`.
        classifier: `pipelines.Classifier`.
        corpus: `labeled_corpora.LabeledCorpus`.
        out: run folder; `predictions.tsv` is written there.

    Returns:
        dict of JSON values, and the predicted labels as of `predict`.
    """
    start = time.perf_counter()
    texts, multi_label = corpus.test.texts, corpus.train.multi_label
    predictions = classifier(texts)
    seconds = time.perf_counter() - start
    probabilities = np.array(
        [[p.probabilities[name] for name in classifier.classes] for p in predictions]
    )
    truncated = sum(prediction.truncated for prediction in predictions)
    labels = corpus.test.encoded_labels()
    threshold = classifier.threshold
    predicted = predict(probabilities, multi_label, threshold)
    result = scores(labels, probabilities, multi_label, threshold)
    print(f"\nTest set, {len(texts):,} texts:")
    classes = present_classes(labels)
    print(
        metrics.classification_report(
            labels,
            predicted,
            labels=classes,
            target_names=[classifier.classes[i] for i in classes],
            digits=3,
            zero_division=0,
        )
    )
    if len(classes) > 1 and len(np.unique(predicted, axis=0)) == 1:
        print(
            "Every text got the same label: nothing was learned. Train longer, or "
            "with another --learning-rate."
        )
    error = training.expected_calibration_error(probabilities, labels)
    name = main_score(multi_label)
    low, high = wilson_interval(result[name], len(labels))
    label_accuracy = (
        f"label accuracy {result['label_accuracy']:.2%}, " if multi_label else ""
    )
    print(
        f"{name.replace('_', ' ').capitalize()} {result[name]:.2%} ({low:.2%} to "
        f"{high:.2%}, 95%), {label_accuracy}macro F1 {result['macro_f1']:.2%}, "
        f"expected calibration error {error:.2%}"
    )
    separator = flags.label_separator or ", "
    names = label_names(predicted, classifier.classes, separator)
    write_predictions(
        out / "predictions.tsv", corpus.test, names, probabilities, separator
    )
    return {
        **{name: round(100 * value, 2) for name, value in result.items()},
        f"{name}_interval_95": [round(100 * low, 2), round(100 * high, 2)],
        "expected_calibration_error": round(100 * error, 2),
        "test_texts": len(texts),
        "test_truncated": truncated,
        "classification_seconds": round(seconds, 1),
    }, predicted


def label_names(
    predicted: np.ndarray, classes: list[str], separator: str = ", "
) -> list[str]:
    """Returns the labels of each text, several of them with a separator."""
    if predicted.ndim == 1:
        return [format_label(classes[index]) for index in predicted]
    return [
        format_label([classes[index] for index in np.flatnonzero(row)], separator)
        for row in predicted
    ]


def format_label(label: str | Iterable[str], separator: str = ", ") -> str:
    """Formats one label or several as a single line."""
    label = label if isinstance(label, str) else separator.join(label)
    return " ".join(label.split())


def write_predictions(
    file: pathlib.Path,
    dataset: LabeledDataset,
    names: list[str],
    probabilities: np.ndarray,
    separator: str,
) -> None:
    """Writes a TSV of label, prediction, probability and text."""
    lines = ["label\tpredicted\tprobability\ttext"]
    rows = zip(dataset, names, probabilities.max(-1), strict=True)
    for (text, label), name, probability in rows:
        fields = (
            format_label(label, separator),
            name,
            f"{probability:.4f}",
            " ".join(_joined_pair(text).split()),
        )
        lines.append("\t".join(fields))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _joined_pair(text) -> str:
    """Returns a text, or both texts of a pair in one string."""
    return text if isinstance(text, str) else " | ".join(text)


def print_attended_words(
    flags: "classification.Flags",
    classifier: pipelines.Classifier,
    test: LabeledDataset,
    predicted: np.ndarray,
) -> None:
    """Prints the words with the largest weights of attention pooling."""
    if flags.pooling != "attention":
        print(f"No words are printed: {flags.pooling} pooling has no weights.")
        return
    names = label_names(predicted, classifier.classes)
    print("\nWords with the largest pooling weights:")
    for index in np.random.default_rng(flags.seed).permutation(len(test))[:NUM_TEXTS]:
        weights: dict[str, float] = {}
        for word, weight in classifier.word_weights(test.texts[index]):
            weights[word] = weights.get(word, 0.0) + weight
        largest = sorted(weights.items(), key=lambda item: -item[1])[:8]
        label = format_label(test.labels[index])
        words = ", ".join(f"{word} {weight:.0%}" for word, weight in largest)
        print(f"  {names[index]} (label: {label}): {words}")


def draw(
    classifier: pipelines.Classifier,
    corpus: labeled_corpora.LabeledCorpus,
    history: dict[str, list],
    predicted: np.ndarray,
    out: pathlib.Path,
) -> None:
    """Draws the curves of the run and the confusion matrix."""
    plot.training_curves(history).savefig(out / "curves.png", dpi=150)
    if not corpus.train.multi_label:
        classes = classifier.classes
        counts = metrics.confusion_matrix(
            corpus.test.encoded_labels(), predicted, labels=range(len(classes))
        )
        figure = plot.confusion_matrix(counts, classes)
        figure.savefig(out / "confusion.png", dpi=150)
