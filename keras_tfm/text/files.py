"""Lines of files, plain or gzip, UTF-8 or UTF-16, with faults by line."""

import codecs
import contextlib
import functools
import gzip
import itertools
import os
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, cast

from keras_tfm.text.reading import Fault

# Byte order marks; that of UTF-32 begins with that of UTF-16.
WIDE_ENCODINGS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# First bytes of files that hold no text, and what these are.
_COMPRESSED = (
    (b"\x1f\x8b", "gzip data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ\0", "xz data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"PK\x03\x04", "a zip archive, as .zip, .xlsx and .docx are"),
    (b"%PDF-", "a PDF"),
)
GZIP_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)
# Bytes of a line, or of a row or unit of several: a few bytes of gzip data can
# be gigabytes. Text8, a corpus in one line, has 100,000,000.
MAX_LINE = 2**27
_CHUNK = 2**16  # bytes


def iterate_lines(
    path: str | os.PathLike | IO[bytes], allow_empty: bool = False
) -> Iterator[str]:
    """Yields the lines of a file without their line endings.

    Only `\\n` and `\\r\\n` end a line. Other characters that Unicode calls line
    separators (U+2028, form feed, a lone `\\r`) stay inside it, so that two
    parallel files never drift apart. A byte order mark at the start of a line
    is left out: concatenated files have several. That of UTF-16 or UTF-32 says
    how to decode the file.

    Args:
        path: string or path. A name that ends in `.gz` is decompressed. Or an
            open binary file, such as `sys.stdin.buffer`, which may be empty.
        allow_empty: bool. Accept a file without a line.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is empty and may not, cannot be decoded (with line
            and byte), or its gzip data is damaged or truncated.
    """
    for number, line in numbered_lines(path, allow_empty):
        if isinstance(line, Fault):
            raise line.error(name_of(path), number)
        yield line


def numbered_lines(
    path: str | os.PathLike | IO[bytes], allow_empty: bool = False
) -> Iterator[tuple[int, str | Fault]]:
    """Yields `(number, line)`, as `iterate_lines`, with faults in place.

    Args:
        path: as in `iterate_lines`.
        allow_empty: bool. Accept a file without a line.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is empty and may not.
    """
    number = 0
    try:
        with open_binary(path) as file:
            for number, line in enumerate(_decoded(file), start=1):
                yield number, line
    except GZIP_ERRORS as error:
        yield number + 1, damaged_gzip(error)
        return
    if not number and not allow_empty and not hasattr(path, "readline"):
        raise ValueError(
            f"{name_of(path)} is empty, expected at least one line of text. Check that "
            "it was written completely."
        )


@contextlib.contextmanager
def open_binary(path: str | os.PathLike | IO[bytes]) -> Iterator[IO[bytes]]:
    """Opens a file. Gzip data is decompressed, whatever the name.

    Args:
        path: string or path; or an open file, which stays open.

    Raises:
        FileNotFoundError: there is no such file.
        PermissionError: it may not be read.
    """
    if not isinstance(path, str | os.PathLike):
        yield path
        return
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"`path` must be a text file; got {path!r}, which is no file. Check the "
            "name and the folder."
        )
    try:
        with open(path, "rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b" or path.endswith(".gz")
    except PermissionError as error:
        raise PermissionError(
            f"`path` must be readable; got {path!r}, which this user may not read. "
            "Change its permissions with chmod."
        ) from error
    with (gzip.open if is_gzip else open)(path, "rb") as file:
        yield cast("IO[bytes]", file)


def no_text(first: bytes) -> Fault | None:
    """Returns the fault of a file that begins as compressed data does.

    Args:
        first: bytes, the beginning of the file.
    """
    kind = next((name for mark, name in _COMPRESSED if first.startswith(mark)), None)
    if kind is None:
        return None
    return Fault(
        "no text",
        f"expected text, got {kind}",
        "Decompress it, or export its content as text; .gz is read as it is.",
        ends_file=True,
    )


def damaged_gzip(error: Exception) -> Fault:
    """Returns the fault of a file whose decompression fails."""
    return Fault(
        "damaged gzip data",
        f"the gzip data is damaged or truncated ({error})",
        "Download or compress the file again.",
        ends_file=True,
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


def _decoded(file: IO[bytes]) -> Iterator[str | Fault]:
    read_line = functools.partial(file.readline, MAX_LINE + 1)
    first = read_line()
    if fault := no_text(first):
        yield fault
        return
    encoding = next((e for mark, e in WIDE_ENCODINGS if first.startswith(mark)), None)
    if encoding:
        chunks_of_bytes = iter(functools.partial(file.read, _CHUNK), b"")
        yield from _decoded_wide(itertools.chain([first], chunks_of_bytes), encoding)
        return
    for line in itertools.chain([first] if first else [], iter(read_line, b"")):
        if len(line) > MAX_LINE:
            yield too_long("line")
            return
        line = line.removeprefix(codecs.BOM_UTF8)
        yield _decode(line.removesuffix(b"\n").removesuffix(b"\r"))


def too_long(kind: str) -> Fault:
    """Returns the fault of a line, row or unit without an end.

    Args:
        kind: str, what it is.
    """
    return Fault(
        f"a {kind} is too long",
        f"expected at most {MAX_LINE:,} bytes in a {kind}, got more",
        "Check that the file is text, and that its line endings are \\n.",
        ends_file=True,
    )


def null_characters(content: object) -> Fault:
    """Returns the fault of NUL characters, which UTF-16 without a byte order
    mark seems to have.

    Args:
        content: text or bytes that hold them.
    """
    fix = "If this is UTF-16, convert it with `iconv -f utf-16le -t utf-8`."
    return Fault("NUL characters", f"expected text, got {content!r:.200}", fix)


def _decode(line: bytes) -> str | Fault:
    if 3 * line.count(0) > len(line):  # of a European language half are NUL
        return null_characters(line)
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        usual = "utf-16le" if b"\0" in line else "latin1"
        return Fault(
            "not UTF-8",
            f"byte {error.start + 1} of the line (0x{line[error.start]:02x}) is not "
            "valid UTF-8",
            f"Convert the file, for example with `iconv -f {usual} -t utf-8`.",
        )


def _decoded_wide(data: Iterable[bytes], encoding: str) -> Iterator[str | Fault]:
    """Yields the lines of UTF-16 or UTF-32, in which \\n is not one byte."""
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    rest: list[str] = []  # of a line, without its ending
    size = 0
    for part in itertools.chain(data, [b""]):
        try:
            text = decoder.decode(part, final=not part)
        except UnicodeDecodeError as error:
            detail = f"the file is not valid {encoding.upper()} ({error.reason})"
            yield Fault(f"not {encoding.upper()}", detail, ends_file=True)
            return
        *complete, unfinished = text.split("\n")
        for line in complete:
            yield _checked_line("".join([*rest, line]))
            rest, size = [], 0
        rest.append(unfinished)
        size += len(unfinished)
        if size > MAX_LINE // 4:  # characters
            yield too_long("line")
            return
    if any(rest):
        yield _checked_line("".join(rest))


def _checked_line(line: str) -> str | Fault:
    line = line.removesuffix("\r")
    return line if is_unicode(line) else Fault("lone surrogate", repr(line))
