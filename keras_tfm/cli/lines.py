"""Reads lines, pairs and JSON objects, in order, for the commands."""

import itertools
import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, TextIO

from keras_tfm.text.files import is_unicode, iterate_lines
from keras_tfm.text.pair_files import iterate_pairs

TYPE_NAMES = {str: "a string", list: "a list of strings"}


def read(files: Iterable[str]) -> Iterator[str]:
    """Iterates over the lines of files, or of standard input.

    Args:
        files: paths; none, or "-", for standard input.

    Raises:
        FileNotFoundError: a file is missing; raised before any is read.
        ValueError: a line is not UTF-8; the message has its number.
    """
    sources = map(source, check_files(files))
    lines = (iterate_lines(file, allow_empty=True) for file in sources)
    return itertools.chain.from_iterable(lines)


def check_files(files: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of the files to read, if all exist.

    Args:
        files: paths; none, or "-", for standard input.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: standard input is closed.
    """
    names = tuple(files) or ("-",)
    for name in names:
        if name == "-":
            standard_stream(sys.stdin, "input")
        elif not pathlib.Path(name).is_file():
            raise FileNotFoundError(
                f"FILE must be a text file; got {name!r}, which is not a file. Check "
                "the name and the folder, or pass text by standard input."
            )
    return names


def location(files: Iterable[str], number: int) -> str:
    """Returns the file and the line of a line of `read`.

    Args:
        files: as of `read`.
        number: int, of the line, from 1 on across all files.
    """
    names = tuple(files) or ("-",)
    for name in names[:-1]:
        if name == "-":
            break
        count = sum(1 for _ in iterate_lines(name, allow_empty=True))
        if number <= count:
            return f"{name}, line {number:,}"
        number -= count
    else:
        name = names[-1]
    return f"{'standard input' if name == '-' else name}, line {number:,}"


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


def pairs(files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields pairs of lines of two files, or of the first two columns of one.

    Args:
        files: paths: two, one, or none for standard input.

    Raises:
        ValueError: files of different lengths, more than two files, or a line
            without a tab.
    """
    files = tuple(files) or ("-",)
    if len(files) > 2:
        raise ValueError(
            f"FILE must be one file or two parallel files; got {len(files)} files."
        )
    sources = [source(name) for name in files]
    if len(sources) == 2:
        yield from iterate_pairs(*sources)
        return
    try:
        yield from iterate_pairs(*sources, format="tsv", header=False)
    except ValueError as error:
        raise ValueError(f"{error} Or give two parallel files.") from error


def objects(
    lines: Iterable[str],
    required: list[str],
    optional: dict[str, type],
    first: int = 1,
) -> Iterator[dict]:
    """Yields the JSON objects of lines.

    Args:
        lines: iterable of str.
        required: names of the strings that each object must have.
        optional: dict from names to types of what it may have: `str`, or `list`
            of strings. `"id"`, of any type, is always allowed.
        first: int, the number of the first line.

    Raises:
        ValueError: a line is not such an object; the message has its number.
    """
    names = [*map(repr, required), "'id' (any)"]
    names += [f"{name!r} ({TYPE_NAMES[kind]})" for name, kind in optional.items()]
    expected = f"must be a JSON object with {', '.join(names)}"
    for number, line in enumerate(lines, start=first):
        try:
            item = json.loads(line, parse_constant=_reject_constant)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"Line {number} is not valid JSON ({error}).") from error
        if problem := _object_problem(item, required, optional, line):
            raise ValueError(f"Line {number} {expected}; got {problem}.")
        yield item


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


def id_of(item: dict) -> dict:
    """Returns the `"id"` of an object as a dict, which is empty without one."""
    return {"id": item["id"]} if "id" in item else {}


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


def answers_or_none(
    function: Callable, items: list, first: int, report: Callable[[int, Exception], Any]
) -> list:
    """Returns the answers of a function to items; None where it rejects one.

    Args:
        function: from a list of items to a list of answers.
        items: list.
        first: int, the number of the first item.
        report: function of the number of a rejected item and the error.
    """
    try:
        return list(function(items))
    except ValueError as error:
        if len(items) == 1:
            report(first, error)
            return [None]
    half = len(items) // 2
    parts = (items[:half], first), (items[half:], first + half)
    return [a for part in parts for a in answers_or_none(function, *part, report)]


def answers(function: Callable, items: list, first: int) -> Iterator:
    """Yields the answers of a function to items, in order.

    If the function rejects an item, the answers before it still come.

    Args:
        function: from a list of items to a list of answers. It must reject bad
            items before it starts to work.
        items: list.
        first: int, the number of the first line.

    Raises:
        ValueError, TypeError: raised by the function; the message has the line.
    """
    try:
        results = function(items)
    except (ValueError, TypeError) as error:
        if len(items) == 1:
            raise type(error)(f"Line {first}: {error}") from error
        half = len(items) // 2
        yield from answers(function, items[:half], first)
        yield from answers(function, items[half:], first + half)
    else:
        yield from results
