"""Patterns of what a translation must keep unchanged."""

import re
import unicodedata
from collections.abc import Sequence

FIRST_MARKER, LAST_MARKER = 0xF0000, 0xFFFFD  # private use; protected themselves
MARKER = f"[{chr(FIRST_MARKER)}-{chr(LAST_MARKER)}]"
ALL, NOTHING = "all", "none"
UNKNOWN = "unknown"  # a kind, of what the vocabulary of a model cannot spell
MARKUP = ("markup", "block")  # inside a text, or between two
LEFT_OUT = ("emoji", *MARKUP)  # of what the model reads
_BLOCKS = (
    "article blockquote body br button center dd div dl dt figcaption figure footer "
    "form h[1-6] head header hr html label li main nav ol option p pre section table "
    "tbody td tfoot th thead title tr ul"
)
_INLINES = (
    "a abbr b big cite code del em font g i img input ins kbd mark ph q s small span "
    "strike strong sub sup u var x"
)
_ATTRIBUTE = (
    r"\s+(?:[\w:.@-]+\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s\"'<>]+)"
    r"|(?:checked|disabled|hidden|open|readonly|required|selected)(?![\w-]))"
)
_TAG = rf"</?(?i:NAMES)(?:{_ATTRIBUTE})*\s*/?>"
_BLOCK = _TAG.replace("NAMES", "|".join(_BLOCKS.split()))
_INLINE = _TAG.replace("NAMES", "|".join(_INLINES.split()))
_LINE = r"^[ \t]*[-*_=|:+][-*_=|:+ \t]{2,}$|^--$"  # a rule, or one of a table
_CELL = r"(?:^|(?<=\s))\|(?=\s|$)"
_PICTURE = (
    r"(?:[\U0001F000-\U0001FAFF\u2600-\u27BF\u231A\u231B\u23E9-\u23FA\u2B50\u2B55]"
    r"|[\u00A9\u00AE\u203C\u2049\u2122\u2139\u2194-\u21AA\u25AA-\u25FE\u2934\u2935"
    r"\u2B05-\u2B1C\u3030\u303D\u3297\u3299](?=\uFE0F))"
    r"[\uFE0F\U0001F3FB-\U0001F3FF\U000E0020-\U000E007F]*"
)
# In the order in which they claim text.
_PATTERNS = (
    ("code", r"```.+?```|``[^\n]+?``|`[^`\n]+`"),
    (
        "html",
        # Without another beginning: else many of them take quadratic time.
        r"<!--(?:(?!<!--).)*?-->|<script\b(?:(?!<script\b).)*?</script\s*>|"
        r"<style\b(?:(?!<style\b).)*?</style\s*>|"
        rf"{_BLOCK}|{_INLINE}|&(?:[A-Za-z]+|#\d+);",
    ),
    # Bounded: else many brackets take quadratic time.
    (
        "markdown",
        r"!?\[(?=[^\]\n]{0,500}\]\([^)\s]{0,2000}\))|(?<!\s)\]\([^)\s]{0,2000}\)",
    ),
    (
        "url",
        r"\b(?:(?:https?|ftp|file)://|www\.)[^\s<>\"`]*[\w/#=&%~+$-]"
        r"|\b[A-Za-z]:\\[^\s<>:\"|?*]*[\w\\]"
        r"|(?<![\w/.~])(?:~|\.{1,2})?/(?:[\w.-]+/)+[\w.-]*\w",
    ),
    # From the beginning of a run alone: else long runs take quadratic time.
    ("email", r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"),
    (
        "placeholder",
        r"\{\{[^{}\n]*\}\}|[$%#]\{[^{}\n]*\}|\{[\w.:!%<>\[\]-]*\}"
        r"|(?<![\d%])%(?:\(\w+\)|\d+\$)?[-+#0]*\d*(?:\.\d+)?[hlLz]*"
        r"[diouxXeEfFgGcrs@](?![A-Za-z])",
    ),
    (
        "emoji",
        rf"[\U0001F1E6-\U0001F1FF]{{2}}|{_PICTURE}(?:\u200D{_PICTURE})*"
        r"|[0-9#*]\uFE0F?\u20E3|(?<!\S)(?:[:;]-?[()DP]|<3)(?!\S)",
    ),
    ("tag", r"(?<![\w&/])[@#][A-Za-z_]\w+"),
    (
        "markdown",
        rf"{_LINE}|{_CELL}"
        r"|(?<![\w*])[\w*]*[^\W_]\*{2,3}[^\W_][\w*]*"  # inside a word, which stays
        # At the beginning of a line: headings, quotations and items of lists.
        r"|^[ \t]*(?:#{1,6}|>+|[-*+\u2022\u2013\u2014]|\d{1,3}[.)])(?=[ \t]+\S)"
        r"|(?<![\w*])\*{1,3}(?=[^\s*])|(?<=[^\s*])\*{1,3}(?![\w*])|~~",
    ),
)
KINDS = tuple(dict.fromkeys(name for name, _ in _PATTERNS))
# Where a number stands in a sentence, so does its stand-in.
_NUMBER = re.compile(
    r"%(?:\(\w+\))?[-+#0\d.hlLz]*[diouxXeEfFgG]$"
    r"|\W(?:\w*_)?(?:n|num|number|count|total|amount|price|quantity|size|year|age"
    r"|percent|days|hours|minutes|seconds)\W",
    re.IGNORECASE,
)
_IS_WORD = re.compile(r"[\w*]*[^\W_]\*+[^\W_][\w*]*")
_IS_BLOCK = re.compile(f"(?:{_BLOCK}|{_LINE}|{_CELL})", re.MULTILINE)


def patterns_of(protect: Sequence[str]) -> list[tuple[str, re.Pattern]]:
    """Returns the kind and the pattern of each entry of `TextConfig.protect`.

    Args:
        protect: names of `KINDS`, `"all"`, `"unknown"`, and regular
            expressions, which come first.

    Raises:
        ValueError: a regular expression is wrong.
    """
    names = KINDS if ALL in protect else protect
    patterns = []
    for entry in protect:
        if entry in (ALL, UNKNOWN, *KINDS):
            continue
        try:
            pattern = re.compile(unicodedata.normalize("NFC", entry))
            patterns.append(("name", pattern))
        except re.error as error:
            raise ValueError(
                f"`protect` must hold kinds, of {[ALL, UNKNOWN, *KINDS]}, or regular "
                f"expressions; got {entry!r}: {error}."
            ) from error
    patterns += [
        (name, re.compile(pattern, re.DOTALL | re.MULTILINE))
        for name, pattern in _PATTERNS
        if name in names
    ]
    return [*patterns, ("name", re.compile(MARKER))]


def kind_of_span(kind: str, text: str) -> str:
    """Returns the kind of a `protection.Span`.

    Args:
        kind: str, of the pattern that found it.
        text: str.
    """
    if kind == "placeholder" and _NUMBER.search(text):
        return "number"
    if kind in ("html", "markdown") and not _IS_WORD.fullmatch(text):
        return "block" if _IS_BLOCK.fullmatch(text) else "markup"
    return kind if kind in (*LEFT_OUT, "number") else "name"
