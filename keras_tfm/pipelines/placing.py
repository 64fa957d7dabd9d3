"""Places protected spans in a translation without a copy of their stand-in."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_tfm.pipelines.protection import Edit
from keras_tfm.pipelines.texts import AnyVocabulary

# Between words, or before punctuation.
_MARKS = ".,!?:;\u2026\u3002"
_GAP = re.compile(rf"(?<!\s)(?=\s|[{_MARKS}]|\Z)|\A")


class Alignment(NamedTuple):
    """What is known about which words correspond.

    Attributes:
        source_ends: ints, the index in the source at which each of its S tokens
            ends.
        target_ends: ints, the same of the T tokens of the target.
        attention: float `(T, S)`.
    """

    source_ends: Sequence[int]
    target_ends: Sequence[int]
    attention: np.ndarray


def token_ends(vocabulary: AnyVocabulary, ids: Sequence[int]) -> list[int]:
    """Returns the index in a text at which each of its tokens ends.

    Args:
        vocabulary: `Vocabulary` or `TokenizersVocabulary`.
        ids: ints, of the text.
    """
    texts = vocabulary.decode([list(ids[: n + 1]) for n in range(len(ids))])
    return [len(text.rstrip("\ufffd")) for text in texts]


def place(
    markers: Mapping[str, int],
    source: str,
    target: str,
    alignment: Alignment | None = None,
) -> list[Edit]:
    """Chooses where spans stand in a translation.

    A span stands in the gap that separates the words that attend to what is
    before it in the source from those that attend to what is after it. Without
    attention it is as far from the beginning as in the source.

    Args:
        markers: dict from markers to their index in the source.
        source, target: str, without the spans.
        alignment: `Alignment`, or None.

    Returns:
        list of `Edit`, insertions.
    """
    gaps = np.array([match.start() for match in _GAP.finditer(target)])
    before_mark = np.array([target[gap:].startswith(tuple(_MARKS)) for gap in gaps])
    edits = []
    for marker, index in markers.items():
        is_before_mark = source[index:].lstrip().startswith(tuple(_MARKS))
        if alignment is None or not len(alignment.target_ends):
            distances = np.abs(gaps / max(len(target), 1) - index / max(len(source), 1))
            distances = distances * len(gaps)
        else:
            distances = -_agreements(gaps, index, alignment)
        # As much as one token that attends to the other side.
        distances = distances + (before_mark != is_before_mark)
        gap = int(gaps[np.argmin(distances)])
        edits.append(Edit(gap, gap, f" {marker}" if gap else f"{marker} "))
    return edits


def _agreements(gaps, index, alignment):
    """For each gap how much attention stays on the side of its token."""
    ends = np.array(alignment.target_ends)
    is_before = np.array(alignment.source_ends) <= index  # (S,)
    weights = alignment.attention + 1e-9
    weights = weights / weights.sum(axis=1, keepdims=True)
    source_side = weights[:, is_before].sum(axis=1)  # (T,)
    is_left = ends[None] <= gaps[:, None]  # (gaps, T)
    return np.where(is_left, source_side, 1.0 - source_side).sum(axis=1)
