"""Finds what a translation must keep unchanged, and puts it back.

A protected span, such as a URL, is one character of private use in the text
until the end: its marker. Before the model reads the text, a marker becomes a
stand-in that models copy, a name or a number, or is left out.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from keras_tfm.pipelines.digits import THOUSANDS
from keras_tfm.pipelines.span_patterns import (
    FIRST_MARKER,
    LAST_MARKER,
    LEFT_OUT,
    MARKER,
    MARKUP,
    kind_of_span,
)
from keras_tfm.pipelines.texts import compose

_ITEM = re.compile(r"\s*\d+\.")
MAX_SPANS = LAST_MARKER - FIRST_MARKER - 10_000  # of a text; others stay in it
NUMBERS = ("500", "90", "60", "200", "80", "25")


class Span(NamedTuple):
    """Text that stays unchanged.

    Attributes:
        text: str.
        kind: `"name"` or `"number"`, by the stand-in that suits a sentence; or
            one of `LEFT_OUT`.
    """

    text: str
    kind: str


class Edit(NamedTuple):
    """A replacement of the characters from `begin` to `end` of a text."""

    begin: int
    end: int
    text: str


def find_spans(
    text: str, patterns: Sequence[tuple[str, re.Pattern]]
) -> list[tuple[int, int, str]]:
    """Lists where each protected span begins and ends, and its kind.

    Args:
        text: str.
        patterns: of `patterns_of`.

    Returns:
        list in their order. Neighbors of one kind with nothing but a space
        between are one span.
    """
    spans: list[tuple[int, int, str]] = []
    is_free = bytearray(b"\1" * len(text))
    for kind, pattern in patterns:
        for match in pattern.finditer(text):
            begin, end = match.span()
            if begin < end and all(is_free[begin:end]):
                is_free[begin:end] = bytes(end - begin)
                spans.append((begin, end, kind_of_span(kind, match[0])))
    items = [span for span in spans if _ITEM.fullmatch(text[span[0] : span[1]])]
    if len(items) == 1:  # no list: a date, perhaps
        spans.remove(items[0])
    merged: list[tuple[int, int, str]] = []
    for begin, end, kind in sorted(spans):
        if merged and merged[-1][2] == kind and kind not in ("number", *MARKUP):
            space = text[merged[-1][1] : begin]
            if not space.strip(" ") and len(space) <= 1:
                begin = merged.pop()[0]
        merged.append((begin, end, kind))
    return merged[:MAX_SPANS]


def hide(
    text: str, patterns: Sequence[tuple[str, re.Pattern]]
) -> tuple[str, dict[str, Span]]:
    """Replaces protected spans by markers.

    Args:
        text: str. Patterns see its composed form, see `compose`.
        patterns: of `patterns_of`.

    Returns:
        str, composed, and a dict from each marker in it, in their order, to its
        `Span`, whose text is as it was.
    """
    original, (text, places) = text, compose(text)
    hidden, protected, last = [], {}, 0
    for number, (begin, end, kind) in enumerate(find_spans(text, patterns)):
        marker = chr(FIRST_MARKER + number)
        protected[marker] = Span(original[places[begin] : places[end]], kind)
        hidden += [text[last:begin], marker]
        last = end
    return "".join([*hidden, text[last:]]), protected


def hide_numbers(text: str, spans: Mapping[str, Span]) -> tuple[str, dict[str, Span]]:
    """Replaces the numbers of a text by markers, too.

    Args:
        text: str, with markers.
        spans: of `hide`.
    """
    pattern = rf"(?<![\w.,])(?:{THOUSANDS}|\d+)(?:[.,:/-]\d+)*(?!\w)"
    return _hide_more(text, spans, pattern, "number")


def hide_names(
    text: str, spans: Mapping[str, Span], names: Sequence[str]
) -> tuple[str, dict[str, Span]]:
    """Replaces names of a text by markers, too.

    Args:
        text: str, with markers.
        spans: of `hide`.
        names: list of str, at least one.
    """
    longest_first = sorted(map(re.escape, names), key=len, reverse=True)
    pattern = rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)"
    return _hide_more(text, spans, pattern, "name")


def _hide_more(text, spans, pattern, kind):
    """Replaces what a pattern matches by markers that follow those of spans."""
    first = 1 + max(map(ord, spans), default=FIRST_MARKER - 1)
    hidden: dict[str, Span] = {}

    def marker(match):
        if first + len(hidden) > LAST_MARKER:
            return match[0]
        mark = chr(first + len(hidden))
        hidden[mark] = Span(match[0], kind)
        return mark

    return re.sub(pattern, marker, text), {**spans, **hidden}


def expand(text: str, spans: Mapping[str, Span]) -> str:
    """Replaces markers by their spans.

    Args:
        text: str.
        spans: of `hide`.
    """
    return "".join(spans[char].text if char in spans else char for char in text)


def cut_edges(
    text: str, spans: Mapping[str, Span], cuts_colon: bool = False
) -> list[str]:
    """Cuts off the spans that stand beside a sentence rather than in it.

    Those are emoji and markup at the edges and after a sentence; tags of
    blocks; and spans at the end that follow a sentence or a colon.

    Args:
        text: str, a segment with markers.
        spans: of `hide`.
        cuts_colon: bool. Cut off a colon before them or at the end, too.

    Returns:
        list of str that joins to `text`: those with even indices, which may be
        empty, are translated; the others have only spans, whitespace and
        colons.
    """
    kinds = {marker: spans[marker].kind for marker in re.findall(MARKER, text)}
    loose = "".join(marker for marker, kind in kinds.items() if kind in LEFT_OUT)
    # From the beginning of whitespace: else a long run takes quadratic time.
    beside = rf"(?<!\s)\s*[{loose}][{loose}\s]*" if loose else r"(?!)"
    blocks = "".join(marker for marker, kind in kinds.items() if kind == "block")
    soft = "".join(marker for marker in loose if marker not in blocks)
    block = rf"(?<![{soft}\s])[{soft}\s]*[{blocks}][{loose}\s]*|" if blocks else ""
    colon = rf"(?<=\w):(?:{beside}|\Z)|" if cuts_colon else ""
    return re.split(
        rf"(\A(?:\s|{MARKER})+\Z|{block}{colon}\A[{loose}\s]+|{beside}\Z"
        rf"|(?<!\s)\s+\Z"
        rf"|(?<=[.!?\u2026:])(?:{beside}|\s+{MARKER}\s*\Z))",
        text,
    )


def choose_stand_ins(
    text: str, spans: Mapping[str, Span], names: Sequence[str], attempt: int = 0
) -> dict[str, str]:
    """Returns the stand-in of each marker of a text that has one.

    Args:
        text: str, with markers.
        spans: of `hide`.
        names: str, stand-ins in order of preference. One that the text has is
            not taken.
        attempt: int >= 0. Each attempt begins with another stand-in.

    Returns:
        dict from markers to different strings. Spans of `LEFT_OUT` have
        none, nor have those beside a letter and those for which none is left.
    """
    free = {
        kind: [stand_in for stand_in in pool if not _copies(stand_in).search(text)]
        for kind, pool in (
            ("name", [*names[attempt:], *names[:attempt]]),
            ("number", [*NUMBERS[attempt:], *NUMBERS[:attempt]]),
        )
    }
    stand_ins = {}
    for match in re.finditer(MARKER, text):
        pool = free.get(spans[match[0]].kind)
        previous, following = text[: match.start()][-1:], text[match.end() :][:1]
        if pool and not previous.isalnum() and not following.isalnum():
            stand_ins[match[0]] = pool.pop(0)
    return stand_ins


def _copies(stand_in):
    """The pattern of a stand-in, with a genitive, in a translation."""
    return re.compile(
        rf"(?<![\w.,]){re.escape(stand_in)}(?:s|['\u2019]s?)?(?![\w]|[.,]\d)"
        if stand_in.isdigit()
        else rf"(?<!\w){re.escape(stand_in)}(?:s|['\u2019]s?)?(?!\w)",
        re.IGNORECASE,
    )


def replace_copies(
    text: str, stand_ins: Mapping[str, str]
) -> tuple[list[Edit], set[str]]:
    """Finds the copies of stand-ins in a translation.

    Args:
        text: str, as the model wrote it.
        stand_ins: of `choose_stand_ins`.

    Returns:
        list of `Edit`: the first copy becomes the marker, others go; and the
        markers that have no copy, or several.
    """
    edits, faults = [], set()
    for marker, stand_in in stand_ins.items():
        copies = list(_copies(stand_in).finditer(text))
        for number, match in enumerate(copies):
            begin = match.start()
            if number and text[:begin].endswith(" "):
                begin -= 1
            edits.append(Edit(begin, match.end(), "" if number else marker))
        if len(copies) != 1:
            faults.add(marker)
    return edits, faults


def apply(text: str, edits: Sequence[Edit]) -> str:
    """Applies edits that do not overlap; those at one place in their order.

    Args:
        text: str.
        edits: list of `Edit`.
    """
    result, last = [], 0
    for begin, end, replacement in sorted(edits, key=lambda edit: edit[:2]):
        result += [text[last:begin], replacement]
        last = end
    return "".join([*result, text[last:]])
