"""Places protected spans in a translation without a copy of their stand-in."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_tfm.pipelines.protection import Edit, Span
from keras_tfm.pipelines.span_patterns import MARKER, MARKUP
from keras_tfm.pipelines.texts import AnyVocabulary

# Between words, or before punctuation.
_MARKS = ".,!?:;\u2026\u3002"
_GAP = re.compile(rf"(?<!\s)(?=\s|[{_MARKS}]|\Z)|\A")
# Where markup may stand, too: inside brackets and quotes
_INNER_GAP = re.compile(
    rf"{_GAP.pattern}|(?<=[(\[\"\u201c\u201e\u00ab])(?=\w)"
    rf"|(?<=\w)(?=[)\]\"\u201d\u201c\u00bb])"
)
OPENING, CLOSING, BETWEEN = "opening", "closing", "between"


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


def role_of(marker: str, text: str, span: str) -> str:
    """Returns which of its neighbors markup belongs to.

    Args:
        marker: str.
        text: str that has it.
        span: str, what it stands for.

    Returns:
        `OPENING` for the word after it, `CLOSING` for the word before it, or
        `BETWEEN` for none.
    """
    left, _, right = text.partition(marker)
    # From the marker on: a search for the end takes quadratic time.
    left, right = (
        side[re.match(f"{MARKER}*", side).end() :][:1] or " "
        for side in (left[::-1], right)
    )
    for is_beside in (str.isalnum, lambda char: not char.isspace()):
        if is_beside(left) != is_beside(right):
            return CLOSING if is_beside(left) else OPENING
    if left.isspace():
        return BETWEEN
    return CLOSING if span.startswith("</") else OPENING


def join_elements(
    text: str,
    spans: Mapping[str, Span],
    edits: Sequence[Edit],
    offsets: Mapping[str, int],
) -> tuple[list[Edit], dict[str, int]]:
    """Joins a span with the tags around it: `<b>{name}</b>` stays together.

    Args:
        text: str, with markers.
        spans: dict from its markers to `Span`.
        edits: list of `Edit`, of `replace_copies`.
        offsets: dict from the markers that have no copy to their index.

    Returns:
        `edits`, where a marker that has a copy became all markers of its
        element; and `offsets` without these, and with one key for an element
        without a copy.
    """
    edits, offsets = list(edits), dict(offsets)
    for run in re.findall(f"{MARKER}{{2,}}", text):
        for n, content in enumerate(run):
            begin, end = n, n + 1
            while begin > 0 and end < len(run):
                if not _are_partners(spans[run[begin - 1]], spans[run[end]]):
                    break
                begin, end = begin - 1, end + 1
            element = run[begin:end]
            if element == content or spans[content].kind in MARKUP:
                continue
            indices = [offsets.pop(marker, None) for marker in element]
            if indices[n - begin] is not None:
                offsets[element] = indices[n - begin]
            edits = [
                edit._replace(text=element) if edit.text == content else edit
                for edit in edits
            ]
    return edits, offsets


def _are_partners(left, right):
    """Whether two spans are tags, or marks of Markdown, of one element."""
    if left.kind not in MARKUP or right.kind not in MARKUP:
        return False
    if name := re.match(r"<([\w:]+)", left.text):
        return re.match(rf"</{name[1]}\b", right.text, re.IGNORECASE) is not None
    is_link = left.text.endswith("[") and right.text.startswith("](")
    return is_link or left.text == right.text


def place(
    markers: Mapping[str, int],
    source: str,
    target: str,
    alignment: Alignment | None = None,
    roles: Mapping[str, str] | None = None,
) -> list[Edit]:
    """Chooses where spans stand in a translation.

    A span stands in the gap that separates the words that attend to what is
    before it in the source from those that attend to what is after it. Without
    attention it is as far from the beginning as in the source.

    Args:
        markers: dict from markers to their index in the source.
        source, target: str, without the spans.
        alignment: `Alignment`, or None.
        roles: dict from the markers of markup to their role. These keep their
            order, and stand without a space beside the word that they belong
            to. Or None.

    Returns:
        list of `Edit`, insertions.
    """
    roles, edits, last = roles or {}, [], -1
    for marker, index in markers.items():
        pattern = _INNER_GAP if roles.get(marker, BETWEEN) != BETWEEN else _GAP
        gaps = np.array([match.start() for match in pattern.finditer(target)])
        before_mark = np.array([target[gap:].startswith(tuple(_MARKS)) for gap in gaps])
        is_before_mark = source[index:].lstrip().startswith(tuple(_MARKS))
        if alignment is None or not len(alignment.target_ends):
            distances = np.abs(gaps / max(len(target), 1) - index / max(len(source), 1))
            distances = distances * len(gaps)
        else:
            distances = -_agreements(gaps, index, alignment)
        # As much as one token that attends to the other side.
        distances = distances + (before_mark != is_before_mark)
        role = roles.get(marker)
        if role is not None:
            last = min(last, int(gaps[-1]))
            distances = np.where(gaps < last, np.inf, distances)
        gap = int(gaps[np.argmin(distances)])
        if role is not None:
            last = gap + (role == OPENING)  # an element has at least a word
        edits.append(_insertion(marker, gap, target, role))
    return edits


def _insertion(marker, gap, target, role):
    """A marker in a gap, with its spaces."""
    if role == OPENING:
        gap += target[gap : gap + 1].isspace()
    if role in (OPENING, CLOSING):
        return Edit(gap, gap, marker)
    return Edit(gap, gap, f" {marker}" if gap else f"{marker} ")


def _agreements(gaps, index, alignment):
    """For each gap how much attention stays on the side of its token."""
    ends = np.array(alignment.target_ends)
    is_before = np.array(alignment.source_ends) <= index  # (S,)
    weights = alignment.attention + 1e-9
    weights = weights / weights.sum(axis=1, keepdims=True)
    source_side = weights[:, is_before].sum(axis=1)  # (T,)
    is_left = ends[None] <= gaps[:, None]  # (gaps, T)
    return np.where(is_left, source_side, 1.0 - source_side).sum(axis=1)
