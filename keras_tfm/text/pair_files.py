"""Pairs from files: two parallel ones, TSV, CSV, JSON Lines or TMX."""

import itertools
import os
from collections.abc import Iterator
from typing import Any, cast

from keras_tfm.text.checks import check
from keras_tfm.text.csv_jsonl import (
    check_columns,
    extension,
    iterate_objects,
    iterate_table,
)
from keras_tfm.text.files import (
    is_unicode,
    name_of,
    null_characters,
    numbered_lines,
)
from keras_tfm.text.pairs import Pairs
from keras_tfm.text.reading import MAX_BAD_RATE, Fault, ReadingReport
from keras_tfm.text.sides import Sides, choose_sides, is_header, language_of
from keras_tfm.text.tmx import iterate_units

FORMATS = ("tsv", "csv", "jsonl", "tmx")
# Other extensions, such as .txt, are those of tables with tabs.
EXTENSIONS = {name: name for name in FORMATS} | {"json": "jsonl", "ndjson": "jsonl"}
_ADVICE = (
    "Check the languages, or choose both with `source_column` and `target_column`."
)
Column = str | int | None
Row = tuple[int, tuple[str, str] | Fault]  # with the number of its line


def read_pairs(
    source: Any,
    target: Any = None,
    *,
    source_column: Column = None,
    target_column: Column = None,
    languages: Sides | None = None,
    format: str | None = None,
    max_bad_rate: float = MAX_BAD_RATE,
) -> Pairs:
    """Reads pairs from two parallel files, or from a TSV, CSV, JSONL or TMX.

    Files are UTF-8, or UTF-16 with a byte order mark, plain or `.gz`. The first
    row of a table may be a header. JSON objects are `{"en": ..., "de": ...}`,
    `{"source": ..., "target": ...}`, or hold such an object as
    `"translation"`. In a TSV quotes have no meaning; a CSV has commas,
    semicolons or tabs. The header, and rows that cannot be read, are logged as
    warnings.

    Args:
        source: string or path. The sources, or a file with both sides, whose
            name ends in `.csv`, `.jsonl` or `.tmx`; others have tabs.
        target: string or path, or None. The targets: line n translates line n
            of `source`.
        source_column: where the sources are in a file with both sides: the name
            of a column, a key, a language of a TMX; or a number from 0, of a
            table. None: as the header says, or 0.
        target_column: where the targets are; None: as the header says, or 1.
        languages: codes of source and target, such as `("en", "de")`, which the
            header, the keys or the TMX may name.
        format: one of `"tsv"`, `"csv"`, `"jsonl"`, `"tmx"`; None goes by the
            name of the file.
        max_bad_rate: float from 0 to 1. Fraction of rows that may be unreadable
            and are skipped.

    Returns:
        `Pairs`, without those that have an empty side.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the columns cannot be told, or too many rows cannot be read;
            the file is empty, truncated, or has too few lines for the other.

    Example:
        ```python
        import pathlib
        import tempfile

        from keras_tfm import text

        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "pairs.csv")
            file.write_text('en,de\\n"one, two","eins, zwei"\\nthree,drei\\n')
            print(list(text.read_pairs(file)))
        ```
    """
    report = ReadingReport(report_name(source, target), max_bad_rate)
    columns = (source_column, target_column)
    rows = iterate_rows(source, target, report, columns, languages, format)
    sides: tuple[list[str], list[str]] = ([], [])
    for _, pair in report.readable(rows):
        for side, text in zip(sides, pair, strict=True):
            side.append(text)
    report.log()
    return Pairs(*sides, report.name)


def iterate_pairs(
    source: Any,
    target: Any = None,
    *,
    source_column: Column = None,
    target_column: Column = None,
    languages: Sides | None = None,
    format: str | None = None,
    header: bool = True,
    max_bad_rate: float = 0.0,
) -> Iterator[tuple[str, str]]:
    """Yields the pairs of files one by one, those with an empty side too.

    Args:
        source: as in `read_pairs`; or an open binary file, such as
            `sys.stdin.buffer`.
        target: as `source`, or None.
        source_column: as in `read_pairs`.
        target_column: as in `read_pairs`.
        languages: as in `read_pairs`.
        format: as in `read_pairs`.
        header: bool. False takes the first row of a table for a pair, unless
            columns have names.
        max_bad_rate: float from 0 to 1. Fraction of rows that may be unreadable
            and are skipped; 0 raises at the first one.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: as in `read_pairs`. A fault of a row, and different numbers
            of lines, are raised where they are reached, and a fraction of
            faults above `max_bad_rate` after the last pair.

    Example:
        ```python
        import io

        from keras_tfm import text

        source, target = io.BytesIO(b"one\\ntwo"), io.BytesIO(b"eins\\nzwei")
        print(list(text.iterate_pairs(source, target)))
        ```
    """
    report = ReadingReport(report_name(source, target), max_bad_rate)
    columns = (source_column, target_column)
    rows = iterate_rows(source, target, report, columns, languages, format, header)
    for _, pair in report.readable(rows):
        yield pair
    report.log()


def iterate_rows(
    source: Any,
    target: Any,
    report: ReadingReport,
    columns: tuple[Column, Column] = (None, None),
    languages: Sides | None = None,
    format: str | None = None,
    header: bool = True,
) -> Iterator[Row]:
    """Yields pairs with their lines, and a fault where a row cannot be read.

    Args:
        source: as in `iterate_pairs`.
        target: as in `iterate_pairs`.
        report: `ReadingReport`, which notes the header and the sides.
        columns: those of source and target, as in `read_pairs`.
        languages: as in `read_pairs`.
        format: as in `read_pairs`.
        header: as in `iterate_pairs`.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is empty, or its columns cannot be told.
    """
    check(
        (columns[0] is None) == (columns[1] is None),
        "`source_column` and `target_column` must be set together",
        source_column=columns[0],
        target_column=columns[1],
    )
    if target is not None:
        check(
            columns[0] is None,
            "`source_column` and `target_column` are for a file with both sides; with "
            "two files they must be left out",
            source_column=columns[0],
        )
        rows = _parallel(source, target)
    else:
        format = format or _format_of(source)
        check(format in FORMATS, f"`format` must be one of {FORMATS}", format=format)
        if format in ("tsv", "csv"):
            table = iterate_table(source, format)
            rows = _from_table(table, report, columns, languages, header)
        else:
            read = iterate_objects if format == "jsonl" else iterate_units
            rows = _from_objects(read(source), report, columns, languages)
    return map(_checked, rows)


def report_name(source: Any, target: Any) -> str:
    """Returns the name of one or two files in reports."""
    return ", ".join(name_of(file) for file in (source, target) if file is not None)


def _format_of(path):
    return (
        "tsv" if hasattr(path, "readline") else EXTENSIONS.get(extension(path), "tsv")
    )


def _checked(row: tuple[int, Any]) -> Row:
    """Returns a row, or a fault if its pair is not two texts."""
    line, pair = row
    if isinstance(pair, Fault):
        return row
    if not all(isinstance(text, str) and is_unicode(text) for text in pair):
        detail = f"expected two strings without lone surrogates, got {pair!r:.200}"
        return line, Fault("no two strings", detail)
    if any("\0" in text for text in pair):
        return line, null_characters(pair)
    return row


def _parallel(source, target) -> Iterator[Row]:
    names, counts = [os.path.basename(name_of(f)) for f in (source, target)], [0, 0]
    files = (numbered_lines(source), numbered_lines(target))
    for number, sides in enumerate(itertools.zip_longest(*files), start=1):
        texts = [None if side is None else side[1] for side in sides]
        faults = [
            Fault(text.kind, f"{name}: {text.detail}", text.fix, text.ends_file)
            for name, text in zip(names, texts, strict=True)
            if isinstance(text, Fault)
        ]
        counts = [n + (text is not None) for n, text in zip(counts, texts, strict=True)]
        if faults:
            yield number, max(faults, key=lambda fault: fault.ends_file)
            if any(fault.ends_file for fault in faults):
                return
        elif None not in texts:
            yield number, cast("Sides", tuple(texts))
    if counts[0] != counts[1]:
        detail = "line n of one file must translate line n of the other, but "
        detail += f"{names[0]} has {counts[0]:,} lines, {names[1]} has {counts[1]:,}"
        fix = "Align the two files again."
        fault = Fault("different numbers of lines", detail, fix, ends_file=True)
        yield min(counts) + 1, fault


def _from_table(rows, report, columns, languages, header) -> Iterator[Row]:
    indices = None
    for line, fields in rows:
        if isinstance(fields, Fault):
            yield line, fields
        elif not any(map(str.strip, fields)):
            yield line, ("", "")
        elif indices is None:
            place = f"{report.name}, line {line}"
            indices, has_names = _indices(fields, columns, languages, header, place)
            if has_names:
                report.sides = tuple(fields[index] for index in indices)
                names = " and ".join(map(repr, report.sides))
                report.notes.append(f"line {line} is a header; the sides are {names}.")
            else:
                yield line, _fields(fields, indices)
        else:
            yield line, _fields(fields, indices)


def _fields(fields, indices):
    if len(fields) > max(indices):
        return tuple(fields[index] for index in indices)
    return Fault(
        "too few columns",
        f"expected {max(indices) + 1} columns or more, got {len(fields)}: "
        f"{fields!r:.200}",
        "Separate columns by tabs in a .tsv file, by commas in a .csv file; or give "
        "two parallel files.",
    )


def _indices(fields, columns, languages, header, place):
    """Returns the columns of the sides, and whether the row is a header."""
    if columns[0] is None:
        if not (header and is_header(fields, languages)):
            _check_no_numbers(fields, place)
            return (0, 1), False
        columns = choose_sides(fields, languages) or ()
        check(
            columns and all(fields.count(column) == 1 for column in columns),
            f"{place}: the header must name one column for each side",
            _ADVICE,
            header=fields,
            languages=languages,
        )
        return tuple(fields.index(column) for column in columns), True
    names = [column for column in columns if isinstance(column, str)]
    check_columns(names, fields, len(fields), place)
    indices = tuple(c if isinstance(c, int) else fields.index(c) for c in columns)
    check(min(indices) >= 0, "a column must have a number from 0", columns=columns)
    cells = [field for index, field in enumerate(fields) if index in indices]
    return indices, bool(names) or (header and is_header(cells, languages))


def _check_no_numbers(fields, place):
    """Rejects a table whose first columns are not text, such as ids."""
    check(
        len(fields) < 3 or not any(field.strip().isdecimal() for field in fields[:2]),
        f"{place}: the first two of {len(fields)} columns must be text",
        _ADVICE,
        fields=fields[:8],
    )


def _from_objects(rows, report, columns, languages) -> Iterator[Row]:
    """Yields pairs from JSON objects, or from texts by language of a TMX."""
    keys = None
    for line, item in rows:
        if isinstance(item, Fault):
            yield line, item
            continue
        if isinstance(item.get("translation"), dict):
            item = item["translation"]
        if keys is None or not {*keys} <= {*item}:
            keys = _keys(item, columns, languages)
            report.sides = report.sides or keys
            if keys and columns[0] is None and languages is None:
                names = " and ".join(map(repr, keys))
                note = f"the sides are {names}."
                report.notes += [note] * (note not in report.notes)
        if keys:
            yield line, tuple(item[key] for key in keys)
        else:
            expected = " and ".join(map(repr, languages or ("source", "target")))
            if columns[0] is not None:
                expected = " and ".join(map(repr, columns))
            detail = f"expected {expected}, got {', '.join(item)[:200] or 'nothing'}"
            yield line, Fault("a side is missing", detail, _ADVICE)


def _keys(item, columns, languages):
    """Returns the keys of both sides, or None if one is missing."""
    if columns[0] is None:
        texts = [key for key, value in item.items() if isinstance(value, str)]
        sides = None if languages else choose_sides(texts, None)
        return sides or choose_sides(item, languages)
    if all(column in item for column in columns):
        return columns
    # A TMX may write the language "en" as "EN-us".
    names = {language_of(name): name for name in reversed(item)}
    keys = tuple(names.get(language_of(str(column))) for column in columns)
    return None if None in keys else keys
