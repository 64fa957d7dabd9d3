"""Rows of a table with texts and labels: TSV, CSV, JSON lines, label first."""

import csv
import json
import os
from collections.abc import Iterator

from keras_tfm.text.files import iterate_lines, parse_json

LONGEST_FIELD = 2**31 - 1  # characters; Python's own limit is 131,072
NAMES = {"text", "label", "labels", "sentence"}  # that head columns
_FORMATS = ("tsv", "csv", "jsonl", "label_first")


def iterate_records(path, format: str, columns: list) -> Iterator[tuple]:
    """Yields `(place, text, label, second text or None)` of each row.

    Args:
        path: string or path of a UTF-8 file, plain or `.gz`.
        format: string, from `format_of`.
        columns: three lists of names or numbers, of the columns of text, label
            and second text, which `refuse_options` has let pass.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: the file is empty or not UTF-8, lacks a column, or a line
            cannot be read.
    """
    if format == "jsonl":
        yield from _json_records(path, columns)
    elif format == "label_first":
        for number, line in enumerate(iterate_lines(path), start=1):
            label, _, text = line.partition(" ")
            yield f"{path}, line {number}", text, label, None
    else:
        yield from _table_records(path, format, columns)


def _table_records(path, format: str, columns: list) -> Iterator[tuple]:
    rows = _csv_rows(path) if format == "csv" else _tsv_rows(path)
    flat = [column for group in columns for column in group]
    width = header = None
    for place, fields in rows:
        if width is None:
            width = len(fields)
            if any(isinstance(column, str) for column in flat):
                header = fields
            _refuse_columns(flat, header, width, place)
            if header is not None:
                columns = [
                    [c if isinstance(c, int) else header.index(c) for c in group]
                    for group in columns
                ]
                continue
            _refuse_names([fields[column] for column in flat], place)
        if fields in ([], [""]) and width > 1:
            continue  # a blank line, at the end of a file for the most part
        if len(fields) != width:
            raise ValueError(
                f"{place}: {width} columns are wanted, as in the first line. Received "
                f"{len(fields)}: {str(fields)[:80]}. Mend the line, or quote its "
                f"separators{' in a .csv file' * (format == 'tsv')}."
            )
        first, label, second = (
            " ".join(fields[column] for column in group) for group in columns
        )
        yield place, first, label, second if columns[2] else None


def _tsv_rows(path) -> Iterator[tuple[str, list[str]]]:
    for number, line in enumerate(iterate_lines(path), start=1):
        yield f"{path}, line {number}", line.split("\t")


def _csv_rows(path) -> Iterator[tuple[str, list[str]]]:
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))
    reader = csv.reader((line + "\n" for line in iterate_lines(path)), strict=True)
    while True:
        place = f"{path}, line {reader.line_num + 1}"
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(
                f"{place}: this row cannot be read up to line {reader.line_num} "
                f"({error}). A field with a comma, quote or line end is wanted in "
                'double quotes, and a quote inside it doubled: "". Mend the row.'
            ) from error
        yield place, fields


def _json_records(path, columns: list) -> Iterator[tuple]:
    for number, line in enumerate(iterate_lines(path), start=1):
        place = f"{path}, line {number}"
        if not line.strip():
            continue
        entry = parse_json(line, place)
        if not isinstance(entry, dict):
            raise ValueError(
                f"{place}: a JSON object is wanted. Received: {line[:80]!r}. Mend or "
                "remove the line."
            )
        flat = [column for group in columns for column in group]
        _refuse_columns(flat, list(entry), len(entry), place)
        for key in (*columns[0], *columns[2]):
            if not isinstance(entry[key], str):
                raise ValueError(
                    f"{place}: a string is wanted under {key!r}. Received: "
                    f"{entry[key]!r}. Mend the line or name another column."
                )
        first, second = (" ".join(entry[key] for key in columns[i]) for i in (0, 2))
        label = _json_label(entry[columns[1][0]], place)
        yield place, first, label, second if columns[2] else None


def _json_label(value, place: str):
    if isinstance(value, list):
        return [_json_label(each, place) for each in value]
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return json.dumps(value)  # 3, true, false
    raise ValueError(
        f"{place}: a label is a string, a whole number, true or false, or a list of "
        f"these. Received: {value!r}. Mend the line or name another column."
    )


def format_of(path, format: str | None) -> str:
    """Gives the format of a file, by its name where None is given."""
    if format is None:
        name = os.fspath(path).removesuffix(".gz")
        format = os.path.splitext(name)[1].removeprefix(".")
        if format in _FORMATS:
            return format
    if format not in _FORMATS:
        raise ValueError(
            f"{path}: `format` must be one of {_FORMATS}, or the file's name end in "
            f".tsv, .csv or .jsonl. Received: {format!r}. Give `format`."
        )
    return format


def refuse_options(columns: list, format: str, label_separator: str | None):
    """Refuses columns that contradict each other or the format.

    Args:
        columns: three lists of names or numbers: text, label, second text.
        format: string, from `format_of`.
        label_separator: string or None.

    Raises:
        ValueError: they do.
    """
    flat = [column for group in columns for column in group]
    fault = None
    if format == "label_first" and (flat != ["text", "label"] or label_separator):
        fault = "a file with the label first has one label, one text and no columns"
    elif format == "jsonl" and not all(isinstance(c, str) for c in flat):
        fault = "the columns of JSON objects have names, not numbers"
    elif len(columns[1]) != 1 or not columns[0]:
        fault = "there is one column of labels, and one of text at least"
    elif len(set(flat)) < len(flat):
        fault = "a column is named once, as text, as second text or as label"
    elif any(isinstance(column, int) and column < 0 for column in flat):
        fault = "columns are counted from 0"
    elif label_separator is not None and not label_separator:
        fault = "a separator is one character at least"
    if fault:
        text, label, pair = columns
        raise ValueError(
            f"These options do not go together: {fault}. Received: format={format!r}, "
            f"text={text}, label={label}, text_pair={pair}, label_separator="
            f"{label_separator!r}. Change or leave out one."
        )


def _refuse_columns(wanted: list, header: list | None, width: int, place: str):
    for column in wanted:
        there = column < width if isinstance(column, int) else column in header
        if not there:
            has = f"{width} columns" if header is None else f"the columns {header}"
            raise ValueError(
                f"{place}: a column {column!r} is wanted. Received {has}. Choose one "
                "of these by its name; or, of a file without a header, by number."
            )
        if isinstance(column, str) and header.count(column) > 1:
            raise ValueError(
                f"{place}: one column {column!r} is wanted. Received {header}, which "
                "has several. Rename them."
            )


def _refuse_names(fields: list[str], place: str):
    if NAMES & {field.strip().lower() for field in fields}:
        raise ValueError(
            f"{place}: a row of text and label is wanted, as columns are given by "
            f"number. Received {str(fields)[:80]}, the names of columns. Give their "
            "names, or take the line away."
        )


def column_list(columns) -> list:
    """Gives one column, several or None as a list."""
    if columns is None:
        return []
    return [columns] if isinstance(columns, str | int) else list(columns)
