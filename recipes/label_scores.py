"""Scores of labels, and the first line of every table: TF-IDF words."""

import numpy as np
from sklearn import metrics
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

# Inverse strengths of the penalty; one is chosen on the validation part.
STRENGTHS = (1.0, 4.0, 16.0, 64.0)


def decided(probabilities, several: bool, threshold: float = 0.5):
    """Gives the labels that probabilities stand for.

    Args:
        probabilities: float `(N, C)`.
        several: bool. A text may have several labels.
        threshold: float, the least probability of one of several.

    Returns:
        int `(N,)`, or int `(N, C)` of 0 and 1.
    """
    if several:
        return (probabilities >= threshold).astype("int32")
    return probabilities.argmax(-1)


def held(wanted) -> list[int]:
    """Lists the classes that some text has: of others there is no F1.

    Args:
        wanted: as `Labelled.encoded_labels` gives it.
    """
    wanted = np.asarray(wanted)
    found = np.unique(wanted) if wanted.ndim == 1 else np.flatnonzero(wanted.any(0))
    return found.tolist() or list(range(wanted.shape[-1]))


def scores(wanted, probabilities, several: bool, threshold: float = 0.5) -> dict:
    """Scores probabilities against labels.

    Args:
        wanted: as `Labelled.encoded_labels` gives it.
        probabilities: float `(N, C)`.
        several: bool. A text may have several labels; then accuracy is of all
            labels of a text at once.
        threshold: float, the least probability of one of several.

    Returns:
        dict of floats in [0, 1]: `"accuracy"`, `"macro_f1"`.
    """
    found = decided(probabilities, several, threshold)
    return {
        "accuracy": float(metrics.accuracy_score(wanted, found)),
        "macro_f1": float(
            metrics.f1_score(
                wanted, found, labels=held(wanted), average="macro", zero_division=0
            )
        ),
    }


def tf_idf_scores(corpus) -> dict:
    """Fits logistic regression to words and pairs of words; scores the test.

    Args:
        corpus: `LabelledCorpus`.

    Returns:
        dict as of `scores`, with `"c"`, the strength that was chosen.
    """
    several = corpus.train.multi_label
    words = TfidfVectorizer(
        token_pattern=r"\w+",
        ngram_range=(1, 2),
        min_df=2 if len(corpus.train) >= 1_000 else 1,
        sublinear_tf=True,
    )
    train = words.fit_transform(map(_whole, corpus.train.texts))
    others = [
        words.transform(map(_whole, part.texts))
        for part in (corpus.validation, corpus.test)
    ]
    parts = (corpus.train, corpus.validation, corpus.test)
    wanted = [part.encoded_labels() for part in parts]
    best = None
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=1000)
        model = OneVsRestClassifier(model) if several else model
        model.fit(train, wanted[0])
        score = scores(wanted[1], model.predict_proba(others[0]), several)
        if best is None or score["accuracy"] > best[0]:
            best = (score["accuracy"], strength, model)
    _, strength, model = best
    return {**scores(wanted[2], model.predict_proba(others[1]), several), "c": strength}


def _whole(text) -> str:
    return text if isinstance(text, str) else " | ".join(text)
