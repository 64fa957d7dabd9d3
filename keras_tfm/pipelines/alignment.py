"""Aligns the words of a text and its translation by cross-attention."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_tfm.pipelines.texts import AnyVocabulary

Alignment = list[tuple[int, int]]
MAX_LINKS = 100  # of two ranges of words that are all linked


def token_words(vocabulary: AnyVocabulary, ids: Sequence[int]) -> list[int]:
    """Returns the index of the word that each token belongs to.

    Args:
        vocabulary: `Vocabulary` or `TokenizersVocabulary`.
        ids: ints.

    Returns:
        list of int; -1 for a token without text, such as a language tag.
    """
    texts = vocabulary.decode([list(ids[:end]) for end in range(len(ids) + 1)])
    return [
        len(text.split()) - 1 if text != shorter else -1
        for shorter, text in zip(texts[:-1], texts[1:], strict=True)
    ]


def align_words(
    attention: np.ndarray, source_words: Sequence[int], target_words: Sequence[int]
) -> Alignment:
    """Links each word to the one that it attends to most, in both directions.

    The attention of the last layer when the first token of a target word is
    generated, averaged over its heads, has an alignment error rate of 9%
    (en-de) and 8% (de-en) on 30 sentences that were aligned by hand. With all
    tokens of a word 13% and 10%: later ones look ahead to the next word.

    Args:
        attention: float `(T, S)`.
        source_words: S ints, of `token_words`.
        target_words: T ints.

    Returns:
        Sorted list of pairs of a source word and a target word.
    """
    weights = _word_weights(attention, source_words, target_words)
    if not weights.size:
        return []
    forward = {(int(row.argmax()), j) for j, row in enumerate(weights)}
    backward = {(i, int(column.argmax())) for i, column in enumerate(weights.T)}
    return sorted(forward | backward)


def attended_words(
    attention: np.ndarray, source_words: Sequence[int], target_words: Sequence[int]
) -> Alignment:
    """Links each target word to the source word that it attends to most.

    Args:
        attention, source_words, target_words: see `align_words`.

    Returns:
        list of pairs of a source word and a target word.
    """
    weights = _word_weights(attention, source_words, target_words)
    if not weights.size:
        return []
    return [(int(row.argmax()), j) for j, row in enumerate(weights)]


def _word_weights(attention, source_words, target_words):
    """How much each target word attends to each source word, when its first
    token is generated; empty without words."""
    source, target = np.asarray(source_words), np.asarray(target_words)
    is_source, is_target = source >= 0, target >= 0
    if not is_source.any() or not is_target.any():
        return np.zeros((0, 0))
    weights = np.zeros((target.max() + 1, source.max() + 1))  # of words
    words, firsts = np.unique(target[is_target], return_index=True)
    rows = attention[: len(target)][is_target][firsts]
    np.add.at(weights, np.ix_(words, source[is_source]), rows[:, is_source])
    return weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-9)


def join_alignments(
    alignments: Sequence[Alignment],
    sides: Sequence[Sequence[str]],
    separators: Sequence[str],
) -> Alignment:
    """Joins the alignments of the segments of a text.

    Args:
        alignments: one for each segment.
        sides: the sources of the segments, and their translations.
        separators: what is before each segment, and after the last: whitespace,
            and words that are in both texts.
    """
    links: set[tuple[int, int]] = set()
    source, target = _WordCounter(), _WordCounter()
    for number, separator in enumerate(separators):
        identity = [(n, n) for n in range(len(separator.split()))]
        pieces = [(identity, (separator, separator))]
        if number < len(alignments):
            pieces.append((alignments[number], [side[number] for side in sides]))
        for pairs, (source_piece, target_piece) in pieces:
            begins = source.add(source_piece), target.add(target_piece)
            links |= {(i + begins[0], j + begins[1]) for i, j in pairs}
    return sorted(links)


class _WordCounter:
    """Counts the words of a text that grows."""

    def __init__(self):
        self.count, self.is_open = 0, False  # open: the last word may go on

    def add(self, text):
        """Adds a text, and returns the index of its first word."""
        begin = self.count - (self.is_open and not text[:1].isspace())
        if text:
            self.count = begin + len(text.split())
            self.is_open = not text[-1].isspace()
        return begin


def word_ranges(text: str, expand: Callable[[str], str]) -> dict[Any, range]:
    """Returns, for the index of each word, the indices of what it becomes.

    Args:
        text: str.
        expand: function from a word to its words.
    """
    ends = [0, *itertools.accumulate(len(expand(w).split()) for w in text.split())]
    return {n: range(*ends[n : n + 2]) for n in range(len(ends) - 1)}


def realign(
    alignment: Sequence[tuple[Any, Any]],
    sources: Mapping[Any, range],
    targets: Mapping[Any, range],
) -> Alignment:
    """Returns an alignment of what became of the words of another.

    Of two ranges all words are linked to all, but of long ones, which would
    have millions of links, those at the same part of their range.

    Args:
        alignment: pairs of keys of `sources` and `targets`; others are left
            out.
        sources, targets: dicts from keys, such as the index of a word, to the
            indices of words.
    """
    pairs = [(sources.get(a, ()), targets.get(b, ())) for a, b in alignment]
    return sorted({link for a, b in pairs for link in _links(a, b)})


def _links(a, b):
    """The links between the words of two ranges."""
    if len(a) * len(b) <= MAX_LINKS:
        return itertools.product(a, b)
    size = max(len(a), len(b))
    return ((a[n * len(a) // size], b[n * len(b) // size]) for n in range(size))


def pharaoh(alignment: Alignment) -> str:
    """Returns an alignment in the format of Pharaoh, such as `"0-0 1-2"`."""
    return " ".join(f"{i}-{j}" for i, j in alignment)
