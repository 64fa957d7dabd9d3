"""Flags of the vocabulary of a run, and what they change in the text."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterable
from typing import TypeVar

from keras_tfm.recipes import runs
from keras_tfm.text.normalization import (
    Normalization,
    changed_characters,
    describe_change,
)
from keras_tfm.training import processes

V = TypeVar("V")
MAX_CHANGES = 5  # characters


@dataclasses.dataclass(frozen=True, kw_only=True)
class Characters:
    """What a vocabulary does to characters."""

    normalization: Normalization | None = None
    """Normalization of text by SentencePiece. nmt_nfkc changes characters, such
    as the zero width non-joiner of Persian, fractions and subscripts; with _cf
    it changes to lower case too; identity changes none. Default: nmt_nfkc;
    nmt_nfkc_cf to classify; identity for text that is tokenized already."""
    character_coverage: float | None = None
    """Fraction of the characters of the text that have a token of their own;
    the others are spelled in bytes. Default: 0.9995."""


def train_once(
    out: pathlib.Path, train: Callable[[], V], load: Callable[[pathlib.Path], V]
) -> V:
    """Trains and saves the vocabulary of a new run, or loads that of another.

    Of several processes the first one trains, and the others wait.

    Args:
        out: run folder, which exists.
        train: function that returns a vocabulary.
        load: function that reads one from a file.
    """
    file = out / runs.VOCABULARY
    if processes.is_first_process() and not runs.is_resumable(out):
        vocabulary = train()
        vocabulary.save(file)
        processes.wait_for_all("vocabulary")
        return vocabulary
    processes.wait_for_all("vocabulary")
    return load(file)


def options(flags: Characters, texts: Iterable[str], default: str = "nmt_nfkc") -> dict:
    """Returns options of `Vocabulary.train`, and prints what is normalized.

    Args:
        flags: `Characters`.
        texts: iterable of str, the texts that a model is to write, if any.
        default: str, the normalization where the flags leave it open.

    Returns:
        dict: `normalization`, and `character_coverage` if it is set.
    """
    normalization = flags.normalization or default
    changes = changed_characters(texts, normalization)
    if changes:
        examples = ", ".join(map(describe_change, changes[:MAX_CHANGES]))
        ending = ", ..." if len(changes) > MAX_CHANGES else ""
        count = sum(change[2] for change in changes)
        print(
            f"Normalization {normalization} changes {count:,} characters of the texts "
            f"to write ({examples}{ending}). --normalization identity keeps them."
        )
    coverage = flags.character_coverage
    return {"normalization": normalization} | (
        {} if coverage is None else {"character_coverage": coverage}
    )
