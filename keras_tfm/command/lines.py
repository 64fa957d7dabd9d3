"""Lines in and out: read in their order, written whole or not at all."""

import contextlib
import itertools
import json
import os
import pathlib
import sys
import time

from keras_tfm.text.files import iterate_lines


def read(files):
    """Yields the lines of files, or of standard input.

    Args:
        files: paths; none, or "-", for standard input.

    Raises:
        ValueError: a line is no UTF-8; the message has its number.
    """
    for name in files or ("-",):
        yield from _standard_input() if name == "-" else iterate_lines(name)


def _standard_input():
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"Standard input, line {number} is no UTF-8 ({error.reason} at byte "
                f"{error.start}). Convert it."
            ) from error


def pairs(files):
    """Yields pairs of lines: of two files, or parted by a tab.

    Args:
        files: paths, two, one, or none for standard input.

    Raises:
        ValueError: files of different lengths, more than two of them, or a line
            without a tab.
    """
    if len(files) > 2:
        raise ValueError(
            f"Source and target are two files, or one. Received: {len(files)} files."
        )
    if len(files) == 2:
        both = itertools.zip_longest(read(files[:1]), read(files[1:]))
        for number, (source, target) in enumerate(both, start=1):
            if source is None or target is None:
                raise ValueError(
                    "Line n of one file goes with line n of the other. Received: files "
                    f"of different lengths, one ends before line {number}."
                )
            yield source, target
        return
    for number, line in enumerate(read(files), start=1):
        source, tab, target = line.partition("\t")
        if not tab:
            raise ValueError(
                f"Line {number}: source and target are parted by a tab. Received: "
                f"{line[:60]!r}."
            )
        yield source, target


def objects(lines, required, known):
    """Yields the JSON objects of lines.

    Args:
        lines: iterable of str.
        required: str, a name that each object has, of a str.
        known: dict from names to types, what else it may have.

    Raises:
        ValueError: a line is no such object; the message has its number.
    """
    for number, line in enumerate(lines, start=1):
        try:
            found = json.loads(line)
        except ValueError as error:
            raise ValueError(f"Line {number} is no JSON ({error}).") from error
        types = {required: str, **known}
        fits = isinstance(found, dict) and required in found
        if not fits or not all(
            isinstance(found[name], kind)
            for name, kind in types.items()
            if found.get(name) is not None
        ):
            raise ValueError(
                f"Line {number}: an object with {required!r} is wanted, and maybe "
                f"{sorted(known)}. Received: {line[:80]!r}."
            )
        yield found


def windows(items, size):
    """Yields lists of so many items.

    Args:
        items: iterable.
        size: int >= 1.
    """
    if size < 1:
        raise ValueError(f"`--window` is 1 or more. Received: {size}.")
    items = iter(items)
    while some := list(itertools.islice(items, size)):
        yield some


class Output:
    """Where lines go: standard output, or a file that appears when it is whole.

    Lines done stand in `FILE.part`, and in `FILE.part.json` what they are of.

    Args:
        path: str or None for standard output.
        of: dict, what lines depend on: a part of other settings is refused.

    Attributes:
        done: int, lines that an earlier start has written.

    Raises:
        ValueError: the part is of something else.
    """

    def __init__(self, path, of=None):
        self.done, self._path = 0, path and pathlib.Path(path)
        if path is None:
            return
        self._part = pathlib.Path(f"{path}.part")
        self._note = pathlib.Path(f"{path}.part.json")
        of = json.dumps(of, sort_keys=True)
        if self._part.exists() and self._note.exists():
            if self._note.read_text(encoding="utf-8") != of:
                raise ValueError(
                    f"{os.fspath(self._part)!r} was begun with other options or other "
                    "files. Take the same, or remove it."
                )
            self._cut_to_whole_lines()
        else:
            self._part.write_bytes(b"")
            self._note.write_text(of, encoding="utf-8")

    def _cut_to_whole_lines(self):
        whole = 0
        with self._part.open("rb+") as file:
            for line in file:
                if line.endswith(b"\n"):
                    self.done, whole = self.done + 1, whole + len(line)
            file.truncate(whole)

    def write_all(self, lines, progress=None):
        """Writes lines, each as it comes.

        Args:
            lines: iterable of str, without those that are done.
            progress: bool or None: say on standard error how far it is; None
                where that is a terminal.
        """
        if progress is None:
            progress = sys.stderr.isatty()
        with contextlib.ExitStack() as stack:
            if self._path is None:
                file = sys.stdout.buffer
            else:
                file = stack.enter_context(self._part.open("ab"))
            begun = said = time.monotonic()
            count = 0
            for count, line in enumerate(lines, start=1):
                # A line for a line, whatever a model says.
                line = line.replace("\n", " ")
                file.write(line.encode("utf-8", "replace") + b"\n")
                file.flush()
                now = time.monotonic()
                if progress and now - said > 1:
                    said = now
                    _say(self.done + count, count / (now - begun), "\r")
            if progress:
                _say(self.done + count, count / (time.monotonic() - begun), "\n")
        if self._path is not None:
            os.replace(self._part, self._path)
            self._note.unlink()


def _say(count, rate, end):
    print(f"\r{count:,} lines, {rate:,.1f} a second", end=end, file=sys.stderr)


def identity(files):
    """Tells files apart, as far as names, sizes and times do.

    Args:
        files: paths.

    Returns:
        list of a list for each.
    """
    found = []
    for name in files:
        known = os.stat(name) if os.path.isfile(name) else None
        found.append([name, known and known.st_size, known and known.st_mtime_ns])
    return found
