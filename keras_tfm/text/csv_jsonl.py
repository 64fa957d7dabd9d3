"""Columns of TSV, CSV and JSON Lines files."""

import csv
import json
import os
from collections.abc import Iterator
from typing import Any

from keras_tfm.text.checks import check
from keras_tfm.text.files import iterate_lines, name_of, parse_json

FORMATS = ("tsv", "csv", "jsonl", "label_first")
_MAX_FIELD = 2**31 - 1  # characters; Python's own limit is 131,072
_HEADER_NAMES = {"text", "label", "labels", "sentence"}


def iterate_columns(
    path: Any, format: str, columns: list[str | int], same_width: bool = True
) -> Iterator[tuple[str, list]]:
    """Yields the place of each row, for errors, and its values in some columns.

    Blank lines are skipped where a row has several columns.

    Args:
        path: string or path of a UTF-8 file, plain or `.gz`; or an open file.
        format: `"tsv"`, `"csv"`, `"jsonl"` or `"label_first"`, where a line is
            a label, a space and a text, in this order.
        columns: names, which make the first line of a table a header, or
            numbers from 0. JSON objects have names only.
        same_width: bool. All rows of a table must have as many columns.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: the file is empty or not UTF-8, lacks a column, or a line
            cannot be read.
    """
    if format == "jsonl":
        yield from _objects(path, columns)
    elif format == "label_first":
        for place, line in _lines(path):
            label, _, text = line.partition(" ")
            yield place, [text, label]
    else:
        rows = _csv_rows(path) if format == "csv" else _tsv_rows(path)
        yield from _table(rows, columns, same_width)


def format_of(path: str | os.PathLike, format: str | None = None) -> str:
    """Returns the format of a file, from its name where `format` is None.

    Args:
        path: string or path.
        format: string or None.

    Raises:
        ValueError: the format is unknown.
    """
    if format is None:
        name = os.fspath(path).removesuffix(".gz")
        format = os.path.splitext(name)[1].removeprefix(".")
    check(
        format in FORMATS,
        f"{path}: `format` must be one of {FORMATS}, or the file's name end in .tsv, "
        ".csv or .jsonl",
        format=format,
    )
    return format


def label_text(value: Any, place: str) -> str | list[str]:
    """Returns a label of a JSON object as a string, or a list of labels as one.

    Args:
        value: string, integer, boolean or list of these.
        place: string, file and line, for the error.

    Raises:
        ValueError: `value` is something else.
    """
    if isinstance(value, list):
        return [str(label_text(item, place)) for item in value]
    if isinstance(value, str):
        return value
    check(
        isinstance(value, int),
        f"{place}: a label must be a string, an integer, a boolean or a list of these",
        "Fix the line or name another column.",
        label=value,
    )
    return json.dumps(value)  # 3, true, false


def _lines(path):
    for number, line in enumerate(iterate_lines(path), start=1):
        yield f"{name_of(path)}, line {number}", line


def _tsv_rows(path):
    for place, line in _lines(path):
        yield place, line.split("\t")


def _csv_rows(path):
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_FIELD))
    reader = csv.reader((line + "\n" for line in iterate_lines(path)), strict=True)
    while True:
        place = f"{name_of(path)}, line {reader.line_num + 1}"
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(
                f"{place}: the row cannot be parsed up to line {reader.line_num} "
                f"({error}). Put a field with a comma, quote or line ending into "
                'double quotes, and double a quote inside it: "".'
            ) from error
        yield place, fields


def _table(rows, columns, same_width):
    width = None
    for place, fields in rows:
        if width is None:
            width = len(fields)
            has_header = any(isinstance(column, str) for column in columns)
            _check_columns(columns, fields if has_header else None, width, place)
            if has_header:
                columns = [
                    c if isinstance(c, int) else fields.index(c) for c in columns
                ]
                continue
            values = [fields[column] for column in columns]
            check(
                not _HEADER_NAMES & {value.strip().lower() for value in values},
                f"{place}: columns are given by number, but this is a header",
                "Name the columns, or remove the line.",
                values=values,
            )
        if fields in ([], [""]) and width > 1:
            continue
        check(
            len(fields) == width if same_width else len(fields) > max(columns),
            f"{place}: expected {width} columns",
            "Fix the line, or quote separators in a .csv file.",
            columns=len(fields),
            fields=fields[:8],
        )
        yield place, [fields[column] for column in columns]


def _objects(path, keys):
    for place, line in _lines(path):
        if not line.strip():
            continue
        entry = parse_json(line, place)
        check(
            isinstance(entry, dict), f"{place}: expected a JSON object", line=line[:80]
        )
        _check_columns(keys, list(entry), 0, place)
        yield place, [entry[key] for key in keys]


def _check_columns(columns, header, width, place):
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
