"""Translation units of TMX files, the XML of translation memories."""

import os
import re
from collections.abc import Iterator
from typing import IO
from xml.parsers import expat

from keras_tfm.text.files import (
    GZIP_ERRORS,
    MAX_LINE,
    damaged_gzip,
    no_text,
    open_binary,
    too_long,
)
from keras_tfm.text.reading import Fault

_CHUNK = 2**16  # bytes
# Inline elements that hold the codes of a document format, not its text.
_CODES = {"bpt", "ept", "it", "ph", "ut"}
_LINE_ENDING = re.compile(r"\s*[\n\t]\s*")


def iterate_units(
    path: str | os.PathLike | IO[bytes],
) -> Iterator[tuple[int, dict[str, str] | Fault]]:
    """Yields the line of each translation unit, and its text by language.

    Inline codes are left out, and a line ending is a space. Entities that the
    file declares are a fault, since they can expand without limit.

    Args:
        path: string or path of a TMX, plain or `.gz`; or an open file.

    Raises:
        FileNotFoundError: the file is missing.

    Source: TMX 1.4b, https://www.gala-global.org/tmx-14b
    """
    units, unfinished = _Units(), 0  # bytes since the last complete unit
    with open_binary(path) as file:
        while not units.failed:
            try:
                chunk = file.read(_CHUNK)
            except GZIP_ERRORS as error:
                yield units.line, damaged_gzip(error)
                return
            if fault := units.root is None and no_text(chunk):
                yield units.line, fault
                return
            units.parse(chunk)
            unfinished = 0 if units.complete else unfinished + len(chunk)
            yield from units.complete
            units.complete = []
            if unfinished > MAX_LINE:
                yield units.line, too_long("unit <tu>")
                return
            if not chunk:
                return


def _local(tag):
    """Returns a tag in lower case without the prefix of its namespace."""
    return tag.rpartition(":")[2].lower()


class _Units:
    """Collects translation units while expat parses."""

    def __init__(self):
        self.complete: list[tuple[int, dict[str, str] | Fault]] = []
        self.failed = False
        self.root: str | None = None  # the first tag
        self._num_units = 0
        self._unit, self._language, self._unit_line = None, None, 1
        self._text, self._depth_of_code = None, 0
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.EntityDeclHandler = self._entity
        self._parser.SkippedEntityHandler = self._unknown_entity

    @property
    def line(self) -> int:
        return self._parser.CurrentLineNumber

    def parse(self, chunk: bytes) -> None:
        """Parses bytes; none end the file."""
        try:
            self._parser.Parse(chunk, not chunk)
            if not chunk and not self._num_units:
                raise ValueError(f"expected units <tu>, got none in <{self.root}>")
        # LookupError: the encoding is unknown.
        except (expat.ExpatError, ValueError, LookupError) as error:
            self.failed = True
            fault = Fault(
                "broken XML",
                f"the TMX cannot be parsed ({error})",
                "Check that it is a TMX, or export it again.",
                ends_file=True,
            )
            self.complete.append((self.line, fault))

    def _start(self, tag, attributes):
        tag = _local(tag)
        self.root = self.root or tag
        if tag == "tu":
            self._unit, self._unit_line = {}, self.line
            self._num_units += 1
        elif tag == "tuv":  # TMX 1.1 has the attribute `lang`
            language = attributes.get("xml:lang") or attributes.get("lang")
            self._language = language or "?"
        elif tag == "seg":
            self._text, self._depth_of_code = [], 0
        elif self._text is not None and (tag in _CODES or self._depth_of_code):
            self._depth_of_code += 1

    def _end(self, tag):
        tag = _local(tag)
        if self._text is not None and self._depth_of_code:
            self._depth_of_code -= 1
        elif tag == "seg":
            text = _LINE_ENDING.sub(" ", "".join(self._text)).strip()
            if isinstance(self._unit, dict):
                self._unit.setdefault(self._language, text)
            self._text = None
        elif tag == "tu":
            self.complete.append((self._unit_line, self._unit))

    def _characters(self, text):
        if self._text is not None and not self._depth_of_code:
            self._text.append(text)

    def _entity(self, name, *_):
        raise ValueError(f"it declares the entity {name!r}")

    def _unknown_entity(self, name, _):
        self._unit = Fault("unknown entity", f"the entity &{name}; has no meaning")
