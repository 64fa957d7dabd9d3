"""Lines of files, plain or gzip, with errors that name the line."""

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any


def iterate_lines(
    path: str | os.PathLike | IO[bytes], allow_empty: bool = False
) -> Iterator[str]:
    """Yields the lines of a UTF-8 file without their line endings.

    Only `\\n` and `\\r\\n` end a line. Other characters that Unicode calls line
    separators (U+2028, form feed, a lone `\\r`) stay inside it, so that two
    parallel files never drift apart. A byte order mark at the start is left
    out.

    Args:
        path: string or path. A name that ends in `.gz` is decompressed. Or an
            open binary file, such as `sys.stdin.buffer`, which may be empty.
        allow_empty: bool. Accept a file without a line.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is empty and may not, is not UTF-8 (with line and
            byte), or its gzip data is damaged or truncated.
    """
    if hasattr(path, "readline"):
        for number, line in enumerate(path, start=1):
            yield _decode(line, name_of(path), number)
        return
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"`path` must be a text file; got {path!r}, which is no file. Check the "
            "name and the folder."
        )
    number = 0
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                yield _decode(line, path, number)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path}, after line {number}: the gzip data is damaged or truncated "
            f"({error}). Download or compress the file again."
        ) from error
    if not number and not allow_empty:
        raise ValueError(
            f"{path} is empty, expected at least one line of text. Check that it was "
            "written completely."
        )


def chunks(items: Iterable, size: int) -> Iterator[list]:
    """Yields lists of up to `size` items.

    Where the iterable raises, the items before the error still come, and then
    the error.

    Args:
        items: iterable.
        size: int >= 1.

    Raises:
        ValueError: as `items` do.
    """
    chunk = []
    try:
        for item in items:
            chunk.append(item)
            if len(chunk) == size:
                yield chunk
                chunk = []
    except ValueError:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def parse_json(line: str, place: str) -> Any:
    """Parses a line of JSON.

    Args:
        line: string.
        place: string, file and line, for the error.

    Raises:
        ValueError: it is no JSON, nested too deeply, or a number is too long.
    """
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{place}: expected one JSON object per line, got a line that is no JSON "
            f"({error}). Fix or remove the line."
        ) from error


def is_unicode(text: str) -> bool:
    """Returns whether UTF-8 can encode a string: it has no lone surrogate.

    Args:
        text: string.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def name_of(path: str | os.PathLike | IO[bytes]) -> str:
    """Returns the name of a file for an error.

    Args:
        path: string, path or open file.
    """
    return "standard input" if hasattr(path, "readline") else os.fspath(path)


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
