"""Extension of Griffe: sections of docstrings that Google's style lacks.

mkdocstrings reads docstrings with Griffe. Call arguments of a layer become a
list like its arguments, and results are shown as they are written.
"""

import re
from typing import Any

import griffe

ENTRY = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): ?(.*)")
TITLES = ("Call arguments", "Returns", "Yields")
SECTION = re.compile(rf"^({'|'.join(TITLES)}):\n((?:(?:    .*)?\n)*(?:    .*)?)", re.M)


class Sections(griffe.Extension):
    """Rewrites sections before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrites the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = rewrite(obj.docstring.value)


def rewrite(docstring: str) -> str:
    """Returns a docstring whose sections of `TITLES` are Markdown.

    Args:
        docstring: str, without indentation.
    """
    return SECTION.sub(_to_markdown, docstring)


def _to_markdown(match):
    title, body = match[1], re.sub("^    ", "", match[2], flags=re.M).strip()
    if title == "Call arguments":
        entries = re.split(r"\n(?=\S)", body)
        body = "\n".join(
            ENTRY.sub(r"* **`\1`** – \2", entry, count=1) for entry in entries
        )
    return f"**{title}:**\n\n{body}\n\n"
