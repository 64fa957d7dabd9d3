"""Options of the vocabulary of a run, and what they change in the text."""

from collections.abc import Iterable
from typing import Any

from keras_tfm.text.normalization import changed_characters, describe_change

MAX_CHANGES = 5  # characters


def options(flags: Any, texts: Iterable[str], default: str = "nmt_nfkc") -> dict:
    """Returns options of `Vocabulary.train`, and prints what is normalized.

    Args:
        flags: flags with `normalization` and `character_coverage`.
        texts: iterable of str, the texts that a model is to write.
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
