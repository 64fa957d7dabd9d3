"""What is wrong with the pairs of a parallel corpus."""

import collections
import math
import re
import unicodedata
from collections.abc import Mapping, Set

import numpy as np

from keras_tfm.cli import lines

# Factor by which a pair's length ratio differs from the median of the corpus.
UNUSUAL_RATIO = 3.0
# Log-likelihood ratio, in nats, from which two sides count as swapped.
SWAPPED = 8.0
# Control characters, private use, and replacements of undecodable bytes.
NOT_TEXT = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\ue000-\uf8ff\ufffd]")
MIN_CHARACTERS = 20  # of a copy, or of a pair that is judged by its lengths
AMBIGUOUS = "the source has another target in an earlier pair"

HeldOut = Mapping[str, tuple[Set[str], Set[str]]]


def find_faults(pairs: list, held_out: HeldOut) -> dict[str, list[int]]:
    """Returns the indices of the pairs with each kind of fault.

    Args:
        pairs: list of pairs of str.
        held_out: dict from the name of a set, such as `"the test set"`, to its
            normalized sources and targets, which must not be in the corpus.
    """
    faults = {
        "a side is empty": empty(pairs),
        "both sides are equal": copies(pairs),
        "the pair is a repetition": repeated(pairs),
        AMBIGUOUS: ambiguous(pairs),
        "the lengths differ unusually": uneven(pairs),
        "the sides look swapped": swapped(pairs),
        "characters that are not text": not_text(pairs),
    }
    for name, sides in held_out.items():
        for side, texts in enumerate(sides):
            if texts:
                faults[f"the {lines.SIDES[side]} is in {name}"] = [
                    n for n, pair in enumerate(pairs) if normalize(pair[side]) in texts
                ]
    return faults


def empty(pairs: list) -> list[int]:
    """Returns the indices of pairs with a blank side."""
    return [n for n, pair in enumerate(pairs) if not all(s.strip() for s in pair)]


def copies(pairs: list) -> list[int]:
    """Returns the indices of pairs that are not translated."""
    return [
        n
        for n, (source, target) in enumerate(pairs)
        if len(source) >= MIN_CHARACTERS and normalize(source) == normalize(target)
    ]


def repeated(pairs: list) -> list[int]:
    """Returns the indices of repetitions of an earlier pair."""
    unique: set = set()
    indices = []
    for index, pair in enumerate(pairs):
        if pair in unique:
            indices.append(index)
        unique.add(pair)
    return indices


def ambiguous(pairs: list) -> list[int]:
    """Returns the indices of pairs whose source had another target before."""
    targets: dict = {}
    indices = []
    for index, (source, target) in enumerate(pairs):
        if source.strip() and targets.setdefault(source, target) != target:
            indices.append(index)
    return indices


def uneven(pairs: list) -> list[int]:
    """Returns the indices of pairs with an unusual ratio of lengths."""
    lengths = np.array([[len(side.strip()) for side in pair] for pair in pairs])
    lengths = lengths.reshape(-1, 2)
    judged = (lengths > 0).all(axis=1) & (lengths.max(axis=1) >= MIN_CHARACTERS)
    if not judged.any():
        return []
    ratios = np.log(np.maximum(lengths[:, 0], 1) / np.maximum(lengths[:, 1], 1))
    distance = np.abs(ratios - np.median(ratios[judged]))
    return np.flatnonzero(judged & (distance > math.log(UNUSUAL_RATIO))).tolist()


def swapped(pairs: list) -> list[int]:
    """Returns the indices of pairs whose words are those of the other sides."""
    counts = [collections.Counter(), collections.Counter()]
    for pair in pairs:
        for counter, side in zip(counts, pair, strict=True):
            counter.update(normalize(side).split())
    words = set(counts[0]) | set(counts[1])
    totals = [counter.total() + len(words) for counter in counts]

    def log_ratio(word):
        """How much likelier a word is in sources than in targets, in nats."""
        source, target = (
            math.log((counter[word] + 1) / total)
            for counter, total in zip(counts, totals, strict=True)
        )
        return source - target

    ratios = {word: log_ratio(word) for word in words}
    indices = []
    for index, pair in enumerate(pairs):
        source, target = (normalize(side) for side in pair)
        evidence = sum(ratios[word] for word in target.split())
        evidence -= sum(ratios[word] for word in source.split())
        if source != target and evidence > SWAPPED:
            indices.append(index)
    return indices


def not_text(pairs: list) -> list[int]:
    """Returns the indices of pairs with control or undecodable characters."""
    return [n for n, pair in enumerate(pairs) if any(map(NOT_TEXT.search, pair))]


def normalize(text: str) -> str:
    """Removes differences of case, width and whitespace."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
