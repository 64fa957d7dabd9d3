"""What a run adds to its training pairs: the flags, and the pairs.

Each flag is a fraction of the corpus. Pairs that share a side with a validation
or test pair are dropped, and the run prints how many pairs of each kind it has.
"""

import dataclasses
import random
from collections.abc import Iterable
from typing import NamedTuple

from keras_tfm.recipes import augmentation, corpora, word_pairs

SHORT = 3  # words of a source
CLDR_LICENSE = "Unicode License v3 (phrases and names of CLDR)"


class Addition(NamedTuple):
    """Pairs of one kind.

    Attributes:
        rows: list of pairs of str.
        notes: list of str, sentences to print.
    """

    rows: list[tuple[str, str]]
    notes: list[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixture:
    """What to add to the training pairs. Rates are fractions of the corpus,
    such as 0.1."""

    concatenation_rate: float = 0.0
    """Concatenations of two to four training pairs to add. They teach a model
    of short sentences to translate long texts. Kondo et al. 2021."""
    unpunctuated_rate: float = 0.0
    """Copies of training pairs without final punctuation to add; some of them
    in lower case or in capitals."""
    short_rate: float = 0.0
    """Copies of training pairs of at most three words to add: they are typed
    more often than they occur in a corpus."""
    word_rate: float = 0.0
    """Single words of the corpus to add, with the translations that its word
    alignment finds, in any languages with spaces. Brown et al. 1993."""
    phrase_rate: float = 0.0
    """Phrases of CLDR to add: dates, times, money, units, countries and
    languages. One language must be English, the other any locale of CLDR."""
    everyday_rate: float = 0.0
    """Single words and fixed expressions to add, English, German, French,
    Spanish and Italian; names of months, countries and emoji in any locale."""
    copy_rate: float = 0.0
    """Pairs to add whose names, numbers, prices, URLs, emoji and placeholders
    are drawn and must be copied; inside sentences in English, German, French,
    Spanish and Italian. Currey et al. 2017."""


RATES = tuple(field.name for field in dataclasses.fields(Mixture))


def make(
    flags: Mixture, corpus: corpora.Corpus, held_out: Iterable[str]
) -> dict[str, Addition]:
    """Makes the pairs to add to one corpus.

    Args:
        flags: `Mixture`, such as the flags of a run, with its `seed`.
        corpus: `corpora.Corpus`.
        held_out: sentences of either side; a pair with one of them is dropped.

    Returns:
        dict from names of flags to `Addition`, for each rate above 0.

    Raises:
        ValueError: a rate above 0 does not fit the languages of the corpus.
    """
    held_out, additions = frozenset(held_out), {}
    for name, (function, description) in KINDS.items():
        rate = getattr(flags, name)
        if not rate:
            continue
        count = max(1, round(rate * len(corpus.train)))
        candidates, notes = function(corpus, count, flags.seed)
        rows = [pair for pair in candidates if held_out.isdisjoint(pair)]
        notes = [f"{len(rows):,} pairs {description}.", *notes]
        if len(rows) < len(candidates):
            notes.append(
                f"{len(candidates) - len(rows):,} more that share a side with a "
                "validation or test pair were dropped."
            )
        additions[name] = Addition(rows, notes)
    return additions


def combine_licenses(flags: Mixture, license: str) -> str:
    """Returns the license of a corpus with that of what is added to it.

    Args:
        flags: `Mixture`.
        license: str, of the corpus.
    """
    has_cldr = flags.phrase_rate or flags.everyday_rate or flags.copy_rate
    return f"{license}; {CLDR_LICENSE}" if has_cldr else license


def _concatenated(corpus, count, seed):
    separators = tuple(
        "" if augmentation.is_spaceless(language) else " "
        for language in (corpus.source, corpus.target)
    )
    return list(augmentation.concatenate(corpus.train, count, seed, separators)), []


def _unpunctuated(corpus, count, seed):
    return augmentation.unpunctuate(corpus.train, count, seed), []


def _short(corpus, count, seed):
    rows = [pair for pair in corpus.train if len(pair[0].split()) <= SHORT]
    if not rows:
        return [], [f"No source of {corpus.name} has at most {SHORT} words."]
    return draw(rows, count, seed), []


def _words(corpus, count, seed):
    if any(map(augmentation.is_spaceless, (corpus.source, corpus.target))):
        raise ValueError(
            "`word_rate` needs languages with spaces between words; got "
            f"source={corpus.source!r}, target={corpus.target!r}. Leave it out."
        )
    rows = word_pairs.find(corpus.train, seed)
    if not rows:
        return [], [f"No words of {corpus.name} have a likely translation."]
    notes = [f"{len(rows):,} words of {corpus.name} have a likely translation."]
    return draw(rows, count, seed), notes


def _phrases(corpus, count, seed):
    from keras_tfm.recipes.phrases import phrases

    codes = {corpus.source: corpus.target, corpus.target: corpus.source}
    if "en" not in codes:
        raise ValueError(
            "`phrase_rate` needs English as one language; got "
            f"source={corpus.source!r}, target={corpus.target!r}. Leave it out."
        )
    corpus_of_phrases = phrases(codes["en"], seed, count + 4, validation=1, test=1)
    rows = list(corpus_of_phrases.train)[:count]
    if corpus.source != "en":
        rows = [(target, source) for source, target in rows]
    return rows, list(corpus_of_phrases.notes)


def _everyday(corpus, count, seed):
    from keras_tfm.recipes.everyday import words

    pairs, notes = words.list_pairs(corpus.source, corpus.target)
    return draw(list(pairs), count, seed), notes


def _copied(corpus, count, seed):
    from keras_tfm.recipes.everyday import copies

    return copies.draw(corpus.source, corpus.target, count, seed), []


def draw(rows: list[tuple[str, str]], count: int, seed: int) -> list[tuple[str, str]]:
    """Draws pairs, each one as often as any other or once more.

    Args:
        rows: list of pairs, at least one.
        count: int >= 0.
        seed: int.

    Returns:
        list of `count` pairs.

    Example:
        ```python
        from keras_tfm.recipes import mixture

        rows = [("one", "eins"), ("two", "zwei")]
        assert sorted(mixture.draw(rows, 4, seed=0)) == sorted(2 * rows)
        ```
    """
    rng, drawn = random.Random(seed), []
    while len(drawn) < count:
        drawn += rng.sample(rows, min(len(rows), count - len(drawn)))
    return drawn


# Of each flag: `(corpus, count, seed) -> rows, notes`, and what a run prints.
KINDS = {
    "concatenation_rate": (_concatenated, "concatenate two to four pairs"),
    "unpunctuated_rate": (_unpunctuated, "have no final punctuation"),
    "short_rate": (_short, f"of at most {SHORT} words are repeated"),
    "word_rate": (_words, "are single words and their translations"),
    "phrase_rate": (_phrases, "are phrases of CLDR"),
    "everyday_rate": (_everyday, "are words and expressions"),
    "copy_rate": (_copied, "copy names, numbers and other spans"),
}
