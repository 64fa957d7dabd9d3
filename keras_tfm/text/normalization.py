"""What SentencePiece's normalization changes in text."""

import collections
import unicodedata
from collections.abc import Callable, Iterable
from typing import Literal, get_args

import sentencepiece

from keras_tfm.text.checks import check

Normalization = Literal["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"]
SPACE = "\u2581"  # in place of a space in normalized text
NORMALIZATIONS = get_args(Normalization)


def normalizer(normalization: str) -> Callable[[str], str]:
    """Returns the function that normalizes a text as SentencePiece does.

    Spaces become `SPACE` in its results, and one begins it.

    Args:
        normalization: one of `NORMALIZATIONS`.

    Raises:
        ValueError: it is another.
    """
    check(
        normalization in NORMALIZATIONS,
        f"`normalization` must be one of {NORMALIZATIONS}",
        normalization=normalization,
    )
    return sentencepiece.SentencePieceNormalizer(rule_name=normalization).normalize


def changed_characters(
    texts: Iterable[str], normalization: str
) -> list[tuple[str, str, int]]:
    """Counts the characters that a normalization changes.

    Sequences that it composes, such as a letter and an accent, are not counted.

    Args:
        texts: iterable of str.
        normalization: one of `NORMALIZATIONS`.

    Returns:
        list of `(character, replacement, count)`, the most frequent first.
    """
    counts: collections.Counter = collections.Counter()
    for text in texts:
        counts.update(text)
    normalize = normalizer(normalization)
    changes = []
    for character, count in counts.most_common():
        # Between full stops, since spaces at the ends are removed.
        replacement = normalize(f".{character}.")[2:-1].replace(SPACE, " ")
        if replacement != character and character not in " \t\n\r":
            changes.append((character, replacement, count))
    return changes


def describe_change(change: tuple[str, str, int]) -> str:
    """Describes a changed character.

    Args:
        change: one of `changed_characters`.

    Returns:
        str, such as "U+2026 HORIZONTAL ELLIPSIS becomes '...': 12".
    """
    character, replacement, count = change
    name = unicodedata.name(character, "")
    code = f"U+{ord(character):04X} {name}".strip()
    return f"{code} becomes {replacement!r}: {count:,}"
