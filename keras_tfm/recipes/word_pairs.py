"""Single words and their translations, by word alignment of a corpus."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from keras_tfm.text import Pairs

WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
MAX_PAIRS, MAX_WORDS = 200_000, 15  # the cost grows with pairs times words squared
ITERATIONS = 5
MIN_COUNT = 2  # sentences with a word
MIN_PROBABILITY = 0.05  # of both directions, multiplied
MIN_OF_CANDIDATES = 0.01  # of each direction


class AlignedWord(NamedTuple):
    """A word of a corpus and its translations by word alignment.

    Attributes:
        word: str, in the form that is most frequent inside sentences.
        count: int, number of sentences that have it in any case.
        translations: list of pairs, the likeliest first: a word of the other
            language, and the probability that each is the translation of the
            other, multiplied.
    """

    word: str
    count: int
    translations: list[tuple[str, float]]


def find(pairs: Pairs, seed: int) -> list[tuple[str, str]]:
    """Finds the words of a corpus that have a likely translation.

    A pair of words is returned if each is likely as a translation of the other.
    Of 240 pairs of words of Tatoeba (English with German, French and Italian),
    223 were right.

    Args:
        pairs, seed: see `align`.

    Returns:
        list of pairs of str, at most one for each source word.

    Example:
        ```python
        from keras_tfm import text
        from keras_tfm.recipes import word_pairs

        sources = ["a red house", "a red boat", "my house", "my boat"]
        targets = ["ein rotes Haus", "ein rotes Boot", "mein Haus", "mein Boot"]
        words = word_pairs.find(text.Pairs(sources, targets), seed=0)
        assert ("house", "Haus") in words and ("boat", "Boot") in words
        ```
    """
    aligned = [item for item in align(pairs, seed) if item.count >= MIN_COUNT]
    best = [(x.word, *x.translations[0]) for x in aligned if x.translations]
    return [
        (word, translation)
        for word, translation, probability in best
        if probability >= MIN_PROBABILITY and min(len(word), len(translation)) > 1
    ]


def align(pairs: Pairs, seed: int) -> list[AlignedWord]:
    """Aligns the words of a corpus by IBM Model 1, in both directions.

    Args:
        pairs: `Pairs` of sentences with spaces between words. Of more than
            `MAX_PAIRS` a part is drawn; those with more than `MAX_WORDS` words
            are left out.
        seed: int.

    Returns:
        list of `AlignedWord`, one for each source word, in the order in which
        they occur.

    Source: Brown et al. 1993, section 4.2, https://aclanthology.org/J93-2003
    """
    rows = list(pairs)
    if len(rows) > MAX_PAIRS:
        rows = random.Random(seed).sample(rows, MAX_PAIRS)
    sides = [tuple(map(WORD.findall, row)) for row in rows]
    sides = [side for side in sides if all(0 < len(s) <= MAX_WORDS for s in side)]
    if not sides:
        return []
    (source_ids, source_words), (target_ids, target_words) = map(
        _index, zip(*sides, strict=True)
    )
    forward = _probabilities(source_ids, target_ids)
    backward = _probabilities(target_ids, source_ids)
    counts = Counter(word for ids in source_ids for word in ids)
    candidates: defaultdict[int, list] = defaultdict(list)
    for (source, target), probability in forward.items():
        product = probability * backward.get((target, source), 0.0)
        if product:
            candidates[source].append((product, target))
    return [
        AlignedWord(
            word,
            counts[number],
            [
                (target_words[target], product)
                for product, target in sorted(candidates[number], reverse=True)
            ],
        )
        for number, word in enumerate(source_words)
    ]


def _index(sentences: Iterable[Sequence[str]]) -> tuple[list[list[int]], list[str]]:
    """Numbers words regardless of case. Returns the ids of each sentence
    without repetitions, and the most frequent form of each id."""
    numbers: dict[str, int] = {}
    inside: defaultdict[int, Counter] = defaultdict(Counter)
    rows = []
    for words in sentences:
        ids = [numbers.setdefault(word.lower(), len(numbers)) for word in words]
        rows.append(list(dict.fromkeys(ids)))
        for word, number in zip(words[1:], ids[1:], strict=True):
            inside[number][word] += 1
    return rows, [
        inside[number].most_common(1)[0][0] if number in inside else word
        for word, number in numbers.items()
    ]


def _probabilities(
    sources: Sequence[list[int]], targets: Sequence[list[int]]
) -> dict[tuple[int, int], float]:
    """Trains IBM Model 1; returns the probability of a target word, given a
    source word, for pairs of words with at least `MIN_OF_CANDIDATES`."""
    no_word = 1 + max(map(max, sources))  # for targets without a source word
    first, second, tokens = [], [], []  # tokens: words of target sentences
    for source, target in zip(sources, targets, strict=True):
        first.append(np.tile([*source, no_word], len(target)))
        second.append(np.repeat(target, len(source) + 1))
        tokens += [len(source) + 1] * len(target)
    token = np.repeat(np.arange(len(tokens)), tokens)
    width = 1 + max(map(max, targets))
    codes = np.concatenate(first) * width + np.concatenate(second)
    codes, entry = np.unique(codes, return_inverse=True)
    word = codes // width
    probability = np.ones(len(codes))
    for _ in range(ITERATIONS):
        share = probability[entry]
        share /= np.bincount(token, share)[token]
        count = np.bincount(entry, share)
        probability = count / np.bincount(word, count)[word]
    chosen = (probability >= MIN_OF_CANDIDATES) & (word != no_word)
    return {
        (int(code // width), int(code % width)): float(p)
        for code, p in zip(codes[chosen], probability[chosen], strict=True)
    }
