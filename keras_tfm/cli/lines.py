"""Reads lines, pairs and JSON objects, in order, for the commands."""

import itertools
import json
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple, TextIO

from keras_tfm.recipes.user_files import parse_column
from keras_tfm.text.csv_jsonl import extension
from keras_tfm.text.files import is_unicode, name_of, numbered_lines
from keras_tfm.text.pair_files import iterate_rows, report_name
from keras_tfm.text.reading import Fault, ReadingReport
from keras_tfm.text.sides import Sides, language_of

SIDES = ("source", "target")
TYPE_NAMES = {str: "a string", list: "a list of strings"}


class Item(NamedTuple):
    """A line, pair or JSON object of a file, or why it cannot be read.

    Attributes:
        file: str, the name of the file.
        line: int, from 1.
        content: str, pair of str, or dict; or a `Fault`.
        id: dict of the `"id"` of a JSON object; empty without one.
    """

    file: str
    line: int
    content: Any
    id: dict = {}  # noqa: RUF012 (never changed)


def read(files: Iterable[str]) -> Iterator[Item]:
    """Iterates over the lines of files, or of standard input.

    Args:
        files: paths; none, or "-", for standard input.

    Raises:
        FileNotFoundError: a file is missing; raised before any is read.
        PermissionError: a file may not be read; raised before any is read.
        ValueError: a file is damaged, raised where it is.
    """
    sources = map(source, check_files(files))
    return itertools.chain.from_iterable(
        items(name_of(file), numbered_lines(file, allow_empty=True)) for file in sources
    )


def pairs(
    files: Iterable[str],
    flags: Any,
    languages: Sides | None = None,
    format: str | None = None,
    header: bool = True,
    max_bad_rate: float | None = None,
) -> tuple[ReadingReport, Iterator[tuple[int, Any]]]:
    """Reads the pairs of two parallel files, or of one with both sides.

    Args:
        files: paths: two, one, or none for standard input.
        flags: optionally with `source_column` and `target_column`.
        languages: as in `pair_files.iterate_rows`.
        format: as in `pair_files.iterate_rows`.
        header: as in `pair_files.iterate_rows`.
        max_bad_rate: as in `ReadingReport`.

    Returns:
        `ReadingReport`, which notes the header while rows are read; and an
        iterator over rows, see `pair_files.iterate_rows`.

    Raises:
        FileNotFoundError, PermissionError: as in `check_files`.
        ValueError: there are more than two files, or the endings of their names
            are the languages in the wrong order. Later, where it is reached: a
            file is damaged, or its columns cannot be told.
    """
    names = check_files(files)
    if len(names) > 2:
        raise ValueError(
            f"FILE must be one file or two parallel files; got {len(names)} files."
        )
    expected = [language_of(language) for language in languages or ()]
    endings = [language_of(extension(name)) for name in names]
    if endings == expected[::-1] != expected:  # as of train.de train.en
        raise ValueError(
            f"FILE must be the sources ({expected[0]}), then the translations "
            f"({expected[1]}); got {names}. Swap them."
        )
    sides = [*map(source, names), None][:2]
    columns = [getattr(flags, f"{side}_column", None) for side in SIDES]
    columns = tuple(map(parse_column, columns))
    report = ReadingReport(report_name(*sides), max_bad_rate)
    rows = iterate_rows(*sides, report, columns, languages, format, header)
    return report, rows


def items(name: str, rows: Iterable[tuple[int, Any]]) -> Iterator[Item]:
    """Yields rows of a file as items.

    Args:
        name: str, the file.
        rows: iterable of lines with their content or fault.

    Raises:
        ValueError: a fault ends the file.
    """
    for line, content in rows:
        if isinstance(content, Fault) and content.ends_file:
            raise content.error(name, line)
        yield Item(name, line, content)


def check_files(files: Iterable[str], title: str = "FILE") -> tuple[str, ...]:
    """Returns the names of the files to read, if all can be opened.

    Args:
        files: paths; none, or "-", for standard input.
        title: str, the name of the argument in errors.

    Raises:
        FileNotFoundError: a file is missing.
        PermissionError: a file may not be read.
        ValueError: standard input is closed.
    """
    names = tuple(files) or ("-",)
    for name in names:
        if name == "-":
            standard_stream(sys.stdin, "input")
        elif not pathlib.Path(name).is_file():
            raise FileNotFoundError(
                f"{title} must be a text file; got {name!r}, which is not a file. "
                "Check the name and the folder, or pass text by standard input."
            )
        elif not os.access(name, os.R_OK):
            raise PermissionError(
                f"{title} must be readable; got {name!r}, which this user may not "
                "read. Change its permissions with chmod."
            )
    return names


def source(name: str) -> str | BinaryIO:
    """Returns the name of a file, or standard input for "-"."""
    return standard_stream(sys.stdin, "input") if name == "-" else name


def standard_stream(stream: TextIO | None, title: str) -> BinaryIO:
    """Returns the bytes of standard input or output.

    Raises:
        ValueError: it is closed.
    """
    if stream is None:
        raise ValueError(f"Standard {title} is closed. Open it, or name a file.")
    return stream.buffer


def objects(
    items: Iterable[Item], required: list[str], optional: dict[str, type]
) -> Iterator[Item]:
    """Yields the JSON objects of lines, or a fault where a line has none.

    Args:
        items: iterable of `Item`, of `read`.
        required: names of the strings that each object must have.
        optional: dict from names to types of what it may have: `str`, or `list`
            of strings. `"id"`, of any type, is always allowed.
    """
    names = [*map(repr, required), "'id' (any)"]
    names += [f"{name!r} ({TYPE_NAMES[kind]})" for name, kind in optional.items()]
    expected = f"expected a JSON object with {', '.join(names)}"
    for item in items:
        if isinstance(item.content, Fault):
            yield item
            continue
        try:
            content = json.loads(item.content, parse_constant=_reject_constant)
        except (ValueError, RecursionError) as error:
            yield item._replace(content=Fault("not JSON", f"{expected}; got {error}"))
            continue
        problem = _object_problem(content, required, optional, item.content)
        id = {}
        if isinstance(content, dict) and _can_be_written(content.get("id")):
            id = {name: content[name] for name in ("id",) if name in content}
        if problem:
            content = Fault("another object", f"{expected}; got {problem}")
        yield item._replace(content=content, id=id)


def _object_problem(item, required, optional, line):
    """Returns what is wrong with an object, or None."""
    if not isinstance(item, dict) or not all(_is_text(item.get(n)) for n in required):
        return repr(line[:80])
    for name, kind in optional.items():
        if item.get(name) is not None and not _has_type(item[name], kind):
            return f"{name}={item[name]!r}"
    if unknown := sorted({*item} - {*required, "id", *optional}):
        return f"the unknown name {unknown[0]!r}"
    if not _can_be_written(item.get("id")):
        return "an 'id' that JSON cannot hold, such as infinity"
    return None


def texts_of(items: list[dict], names: list[str]) -> list:
    """Returns the strings under one name of objects, or tuples of two names."""
    if len(names) > 1:
        return [tuple(item[name] for name in names) for item in items]
    return [item[names[0]] for item in items]


def _reject_constant(name):
    raise ValueError(f"JSON has no {name}")


def _can_be_written(value):
    """Whether JSON can hold a value: no infinity and no lone surrogate."""
    try:
        return is_unicode(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except ValueError:
        return False


def _has_type(value, kind):
    if kind is str:
        return _is_text(value)
    return isinstance(value, list) and all(map(_is_text, value))


def _is_text(value):
    return isinstance(value, str) and is_unicode(value)
