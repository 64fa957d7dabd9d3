"""Lines and pairs from files, plain or gzip, with errors that name the line."""

import gzip
import itertools
import json
import os
import zlib
from collections.abc import Iterator


def iterate_lines(path, empty: bool = False) -> Iterator[str]:
    """Yields the lines of a UTF-8 file without their line ends.

    Only `\\n` and `\\r\\n` end a line. Other characters that Unicode calls line
    ends (U+2028, form feed, a lone `\\r`) stay inside it, so that two parallel
    files never drift apart. A byte order mark at the start is left out.

    Args:
        path: string or path. A name that ends in `.gz` is decompressed. Or an
            open binary file, such as `sys.stdin.buffer`, which may be empty.
        empty: bool. A file may have no line.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is empty and may not, is not UTF-8 (with line and
            byte), or its gzip data is damaged or cut off.
    """
    if hasattr(path, "readline"):
        for number, line in enumerate(path, start=1):
            yield _decode(line, _name(path), number)
        return
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"A text file is wanted. Received: {path!r}, which is no file. "
            "Check the name and the folder."
        )
    opener = gzip.open if path.endswith(".gz") else open
    number = 0
    try:
        with opener(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                yield _decode(line, path, number)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path}, after line {number}: the gzip data is damaged or cut off "
            f"({error}). Fetch or compress the file again."
        ) from error
    if not number and not empty:
        raise ValueError(
            f"{path} is empty: at least one line of text is wanted. "
            "Check that it was written completely."
        )


def iterate_pairs(source, target) -> Iterator[tuple[str, str]]:
    """Yields line n of two parallel files as pair n.

    Args:
        source: string or path of a UTF-8 file, plain or `.gz`; or an open file,
            see `iterate_lines`.
        target: likewise, with as many lines.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is empty or not UTF-8, or, after the last pair, the
            numbers of lines differ.
    """
    counts = [0, 0]
    for pair in itertools.zip_longest(iterate_lines(source), iterate_lines(target)):
        counts = [n + (side is not None) for n, side in zip(counts, pair, strict=True)]
        if None not in pair:
            yield pair
    if counts[0] != counts[1]:
        raise ValueError(
            "Line n of one file must translate line n of the other. Received: "
            f"{_name(source)} with {counts[0]:,} lines and {_name(target)} with "
            f"{counts[1]:,}. "
            "Align the two files again."
        )


def iterate_pairs_tsv(path, source_column=0, target_column=1):
    """Yields two columns of a tab-separated file as pairs.

    Quotes have no meaning: a field is what stands between two tabs.

    Args:
        path: string or path of a UTF-8 file, plain or `.gz`; or an open file,
            see `iterate_lines`.
        source_column: int from 0, or the name of the column; a name makes the
            first line a header.
        target_column: int from 0, or the name of the column.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: a line has too few columns, the header lacks the name, or
            the file is empty or not UTF-8.
    """
    lines = enumerate(iterate_lines(path), start=1)
    columns = [source_column, target_column]
    if any(isinstance(column, str) for column in columns):
        header = next(lines)[1].split("\t")
        columns = [_column_index(column, header, path) for column in columns]
    if min(columns) < 0:
        raise ValueError(
            f"Columns are counted from 0. Received: source_column={source_column}, "
            f"target_column={target_column}. Name them by 0, 1, 2 or by a header."
        )
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) <= max(columns):
            raise ValueError(
                f"{_name(path)}, line {number}: column {max(columns)} (counted from 0) "
                f"is wanted, but the line has {len(fields)}. Mend the line or choose "
                "other columns."
            )
        yield fields[columns[0]], fields[columns[1]]


def iterate_pairs_jsonl(path, source_key: str, target_key: str):
    """Yields pairs from a file with one JSON object a line.

    Args:
        path: string or path of a UTF-8 file, plain or `.gz`.
        source_key: string. Name of the source sentence in each object.
        target_key: string. Name of the target sentence in each object.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: a line is no JSON object, lacks a key, or holds something
            else than a string there, or half a character; or the file is empty
            or not UTF-8.
    """
    for number, line in enumerate(iterate_lines(path), start=1):
        entry = parse_json(line, f"{path}, line {number}")
        for key in (source_key, target_key):
            if not isinstance(entry, dict) or not isinstance(entry.get(key), str):
                raise ValueError(
                    f"{path}, line {number}: an object with a string under {key!r} "
                    f"is wanted. Received: {line[:80]!r}. Mend the line or name "
                    "other keys."
                )
            if not is_unicode(entry[key]):
                raise ValueError(
                    f"{path}, line {number}: the string under {key!r} holds half of a "
                    f"character (a lone surrogate). Received: {line[:80]!r}. Mend or "
                    "remove the line."
                )
        yield entry[source_key], entry[target_key]


def chunks(items, size: int) -> Iterator[list]:
    """Yields lists of so many items.

    Where an item is refused, those before it still come, and then the error.

    Args:
        items: iterable.
        size: int >= 1.

    Raises:
        ValueError: as `items` do.
    """
    some = []
    try:
        for item in items:
            some.append(item)
            if len(some) == size:
                yield some
                some = []
    except ValueError:
        if some:
            yield some
        raise
    if some:
        yield some


def _decode(line: bytes, path: str, number: int) -> str:
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, line {number}: byte {error.start + 1} of the line "
            f"(0x{line[error.start]:02x}) is not valid UTF-8. Convert the file, "
            "for example with `iconv -f latin1 -t utf-8`."
        ) from error


def _name(path) -> str:
    return "standard input" if hasattr(path, "readline") else os.fspath(path)


def parse_json(line: str, place: str):
    """Reads a line of JSON.

    Args:
        line: string.
        place: string, what the error names.

    Raises:
        ValueError: it is no JSON, or deeper or of longer numbers than are read.
    """
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{place}: one JSON object a line is wanted, but this is no JSON "
            f"({error}). Mend or remove the line."
        ) from error


def is_unicode(text: str) -> bool:
    """Tells whether UTF-8 can write a string: it holds no half of a character.

    Args:
        text: string.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _column_index(column, header: list[str], path) -> int:
    if isinstance(column, int):
        return column
    if column not in header:
        raise ValueError(
            f"{path}, line 1: a column named {column!r} is wanted. Received the "
            f"header {header}. Choose one of these, or a number from 0."
        )
    return header.index(column)
