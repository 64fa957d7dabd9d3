"""Scores of labels, and the first line of every table: TF-IDF words."""

import numpy as np
from sklearn import metrics
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

# Inverse strengths of the penalty; one is chosen on the validation part.
STRENGTHS = (1.0, 4.0, 16.0, 64.0)
Z95 = 1.96  # standard deviations to either side that hold 95%


def first_of(several: bool) -> str:
    """Names the score that stands first: of one label a text, or of several.

    Where a text may have several labels, that all are right at once is another
    thing than that one is, which is `"label_accuracy"`.
    """
    return "exact_match" if several else "accuracy"


def interval(share: float, count: int) -> tuple[float, float]:
    """Gives Wilson's interval of 95% of a share.

    At 0 and 1, where a half-width around the share would be 0, it is as wide
    as `count` allows. Source: Wilson 1927.

    Args:
        share: float in [0, 1], of what was right.
        count: int >= 1, out of so many.

    Returns:
        pair of floats in [0, 1].
    """
    whole = 1 + Z95**2 / count
    centre = (share + Z95**2 / (2 * count)) / whole
    spread = share * (1 - share) / count + (Z95 / (2 * count)) ** 2
    half = Z95 * spread**0.5 / whole
    return max(centre - half, 0.0), min(centre + half, 1.0)


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
        wanted: as `LabeledDataset.encoded_labels` gives it.
    """
    wanted = np.asarray(wanted)
    found = np.unique(wanted) if wanted.ndim == 1 else np.flatnonzero(wanted.any(0))
    return found.tolist() or list(range(wanted.shape[-1]))


def scores(wanted, probabilities, several: bool, threshold: float = 0.5) -> dict:
    """Scores probabilities against labels.

    Args:
        wanted: as `LabeledDataset.encoded_labels` gives it.
        probabilities: float `(N, C)`.
        several: bool. A text may have several labels.
        threshold: float, the least probability of one of several.

    Returns:
        dict of floats in [0, 1]: `"accuracy"`, `"macro_f1"`. With `several`
        not accuracy but `"exact_match"`, the texts of which all labels are
        right at once, and `"label_accuracy"`, of each label by itself.
    """
    found = decided(probabilities, several, threshold)
    alone = {"label_accuracy": float(np.mean(wanted == found))} if several else {}
    return {
        first_of(several): float(metrics.accuracy_score(wanted, found)),
        **alone,
        "macro_f1": float(
            metrics.f1_score(
                wanted, found, labels=held(wanted), average="macro", zero_division=0
            )
        ),
    }


def tf_idf_scores(corpus) -> dict | None:
    """Fits logistic regression to words and pairs of words; scores the test.

    Args:
        corpus: `LabelledCorpus`.

    Returns:
        dict as of `scores`, with `"c"`, the strength that was chosen; None
        where the training texts have no word.
    """
    several = corpus.train.multi_label
    words, train = _words(corpus.train)
    if words is None:
        return None
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
        if best is None or score[first_of(several)] > best[0]:
            best = (score[first_of(several)], strength, model)
    _, strength, model = best
    return {**scores(wanted[2], model.predict_proba(others[1]), several), "c": strength}


def _words(train):
    """Counts the words of the training texts: a vectorizer and its matrix.

    From 1,000 texts on a word in one text alone is left out, unless none were
    left; sklearn refuses a vocabulary without a word.
    """
    for least in (2, 1) if len(train) >= 1_000 else (1,):
        words = TfidfVectorizer(
            token_pattern=r"\w+", ngram_range=(1, 2), min_df=least, sublinear_tf=True
        )
        try:
            return words, words.fit_transform(map(_whole, train.texts))
        except ValueError:
            continue
    return None, None


def _whole(text) -> str:
    return text if isinstance(text, str) else " | ".join(text)
