"""Rows of TSV, CSV and JSON Lines files, with a fault in place of a bad one."""

import collections
import csv
import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

from keras_tfm.text.checks import check
from keras_tfm.text.files import MAX_LINE, numbered_lines
from keras_tfm.text.reading import Fault, ReadingReport

FORMATS = ("tsv", "csv", "jsonl", "label_first")
_MAX_FIELD = 2**31 - 1  # characters; Python's own limit is 131,072
_SAMPLE = 100  # lines from which the separator of a CSV is recognized
_ONE_PER_LINE = (
    "Write each object on a line of its own; `jq -c '.[]'` does so with an array."
)
_SEPARATORS = ",;\t"
_OPEN = "unexpected end of data"  # Python's error of a quote that is not closed
_HEADER_NAMES = {"text", "label", "labels", "sentence"}


def iterate_columns(
    path: Any, format: str, columns: list[str | int], report: ReadingReport
) -> Iterator[tuple[int, list | Fault]]:
    """Yields the line of each row, and its values in some columns.

    Blank lines are skipped where a row has several columns.

    Args:
        path: string or path of a file, plain or `.gz`; or an open file.
        format: `"tsv"`, `"csv"`, `"jsonl"` or `"label_first"`, where a line is
            a label, a space and a text, in this order.
        columns: names, which make the first line of a table a header, or
            numbers from 0. JSON objects have names only.
        report: `ReadingReport`, which notes a header that no name asks for.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: the file is empty, or its first line lacks a column.
    """
    if format == "jsonl":
        for line, item in iterate_objects(path):
            if isinstance(item, Fault):
                yield line, item
            elif missing := [column for column in columns if column not in item]:
                detail = f"expected one column {missing[0]!r}, got {list(item)}"
                yield line, Fault("missing keys", detail)
            else:
                yield line, [item[column] for column in columns]
    elif format == "label_first":
        for number, line in numbered_lines(path):
            if isinstance(line, str):
                label, _, text = line.partition(" ")
                line = [text, label]
            yield number, line
    else:
        yield from _table(iterate_table(path, format), columns, report)


def iterate_table(path: Any, format: str) -> Iterator[tuple[int, list[str] | Fault]]:
    """Yields the line of each row of a table, and its fields.

    Args:
        path: string or path of a file, plain or `.gz`; or an open file.
        format: `"tsv"`, where quotes have no meaning, or `"csv"` with commas,
            semicolons or tabs, whichever the file has.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: the file is empty.
    """
    lines = numbered_lines(path)
    if format == "csv":
        yield from _csv_rows(lines)
        return
    for number, line in lines:
        yield number, line if isinstance(line, Fault) else line.split("\t")


def iterate_objects(path: Any) -> Iterator[tuple[int, dict | Fault]]:
    """Yields the JSON object of each line that is not blank.

    Args:
        path: string or path of a file, plain or `.gz`; or an open file.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: the file is empty.
    """
    for number, line in numbered_lines(path):
        if isinstance(line, Fault):
            yield number, line
        elif line.strip():
            yield number, _parse_object(line)


def format_of(path: str | os.PathLike, format: str | None = None) -> str:
    """Returns the format of a file, from its name where `format` is None.

    Args:
        path: string or path.
        format: string or None.

    Raises:
        ValueError: the format is unknown.
    """
    if format is None:
        format = extension(path)
    check(
        format in FORMATS,
        f"{path}: `format` must be one of {FORMATS}, or the file's name end in .tsv, "
        ".csv or .jsonl",
        format=format,
    )
    return format


def extension(path: str | os.PathLike) -> str:
    """Returns the extension of a file in lower case, that before `.gz`.

    Args:
        path: string or path.
    """
    name = os.fspath(path).lower().removesuffix(".gz")
    return os.path.splitext(name)[1].removeprefix(".")


def label_text(value: Any) -> str | list[str]:
    """Returns a label of a JSON object as a string, or a list of labels as one.

    Args:
        value: string, integer, boolean or list of these.

    Raises:
        ValueError: `value` is something else.
    """
    if isinstance(value, list):
        return [str(label_text(item)) for item in value]
    if isinstance(value, str):
        return value
    check(
        isinstance(value, int),
        "a label must be a string, an integer, a boolean or a list of these",
        label=value,
    )
    return json.dumps(value)  # 3, true, false


def _parse_object(line):
    try:
        item = json.loads(line, object_pairs_hook=_unique_names)
    except (ValueError, RecursionError) as error:
        detail = f"expected one JSON object per line, got no JSON ({error})"
        return Fault("not JSON", detail, _ONE_PER_LINE)
    if not isinstance(item, dict):
        detail = f"expected a JSON object, got {line[:80]}"
        return Fault("no JSON object", detail, _ONE_PER_LINE)
    return item


def _unique_names(pairs):
    item = dict(pairs)
    if len(item) < len(pairs):
        [(name, _)] = collections.Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"a name occurs twice: {name!r:.80}")
    return item


def _csv_rows(lines):
    """Yields rows, which may have several lines, from lines.

    A row whose quotes are wrong may swallow all that follow. It is a fault, and
    the line after its first is read next. If a quote is open at the end of that
    line too, it meets the same fault, and the lines are not read again.
    """
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_FIELD))
    lines = iter(lines)
    waiting = collections.deque(itertools.islice(lines, _SAMPLE))
    separator = _separator([line for _, line in waiting if isinstance(line, str)])

    def next_line():
        return waiting.popleft() if waiting else next(lines, None)

    fault, end = None, 0  # the last fault, and the line where it was found
    while (first := next_line()) is not None:
        if fault and first[0] < end and _is_open(first[1], separator):
            yield first[0], fault
            continue
        row, swallowed = _csv_row(first, next_line, separator)
        if swallowed:
            fault, end = row, swallowed[-1][0]
        waiting.extendleft(reversed(swallowed))
        yield first[0], row


def _is_open(line, separator):
    """Whether the row that a line begins has more lines."""
    if isinstance(line, Fault) or '"' not in line:
        return False
    try:
        next(csv.reader([line + "\n"], delimiter=separator, strict=True))
    except csv.Error as error:
        return str(error) == _OPEN
    return False


def _csv_row(first, next_line, separator):
    """Returns the row that begins with a line, and lines to read again."""
    line = first[1]
    if isinstance(line, Fault) or '"' not in line:
        return (line if isinstance(line, Fault) else line.split(separator)), []
    lines_of_row = [first]

    def texts():
        yield line + "\n"
        size = len(line)
        while size <= MAX_LINE and (following := next_line()) is not None:
            lines_of_row.append(following)
            if isinstance(following[1], Fault):
                return
            size += len(following[1]) + 1
            yield following[1] + "\n"

    try:
        return next(csv.reader(texts(), delimiter=separator, strict=True)), []
    except csv.Error as error:
        fault = Fault(
            "wrong quotes",
            f"the row cannot be parsed up to line {lines_of_row[-1][0]} ({error})",
            "Put a field with a comma, quote or line ending into double quotes, and "
            'double a quote inside it: "".',
        )
        return fault, lines_of_row[1:]


def _separator(lines):
    """Recognizes the separator of a CSV, of which some rows have more lines."""

    def width(line, separator):
        try:
            return len(next(csv.reader([line], delimiter=separator, strict=True), []))
        except csv.Error:
            return 0

    def rate(separator):
        """How many lines have the columns of the first, if it has several."""
        widths = [width(line, separator) for line in lines]
        return widths.count(widths[0]) if widths and widths[0] > 1 else 0

    return max(_SEPARATORS, key=rate)


def _table(rows, columns, report):
    width, columns = None, list(columns)
    for line, fields in rows:
        if isinstance(fields, Fault):
            yield line, fields
            continue
        if width is None:
            width = len(fields)
            names = [column for column in columns if isinstance(column, str)]
            place = f"{report.name}, line {line}"
            check_columns(columns, fields if names else None, width, place)
            columns = [c if isinstance(c, int) else fields.index(c) for c in columns]
            cells = {fields[column].strip().lower() for column in columns}
            if names:
                continue
            if cells & _HEADER_NAMES:
                report.notes.append(f"line {line} is a header, {fields}, and skipped.")
                continue
        if fields == [""] and width > 1:
            continue
        if len(fields) != width:
            detail = f"expected {width} columns, got {len(fields)}: {fields[:8]}"
            fix = "Fix the line, or quote separators in a .csv file."
            yield line, Fault("another number of columns", detail, fix)
        else:
            yield line, [fields[column] for column in columns]


def check_columns(
    columns: list[str | int], header: list[str] | None, width: int, place: str
) -> None:
    """Rejects columns that a table does not have.

    Args:
        columns: names, or numbers from 0.
        header: list of str, the names of the columns; None without a header.
        width: int, columns.
        place: str, file and line, for the error.

    Raises:
        ValueError: a column is missing, or two have its name.
    """
    for column in columns:
        is_number = header is None or isinstance(column, int)
        check(
            0 <= column < width if is_number else header.count(column) == 1,
            f"{place}: expected one column {column!r}",
            "The line is one column. Separate columns by tabs in a .tsv file, by "
            "commas in a .csv file."
            if width == 1
            else "Choose another by its name, or by number in a file without a header.",
            columns=header or width,
        )
