"""Lines in and out: read in their order, written whole or not at all."""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import sys
import time

from keras_tfm.text.files import (
    is_unicode,
    iterate_lines,
    iterate_pairs,
    iterate_pairs_tsv,
)

KINDS = {str: "a str", list: "a list of str"}


def read(files):
    """Gives an iterator over the lines of files, or of standard input.

    Args:
        files: paths; none, or "-", for standard input.

    Raises:
        FileNotFoundError: one is not there, before any is read.
        ValueError: a line is no UTF-8; the message has its number.
    """
    opened = map(_opened, check_files(files))
    return itertools.chain.from_iterable(iterate_lines(o, empty=True) for o in opened)


def check_files(files):
    """Gives the names of what is read, where all are there.

    Args:
        files: paths; none, or "-", for standard input.

    Raises:
        FileNotFoundError: one is not there.
        ValueError: standard input is closed.
    """
    names = files or ("-",)
    for name in names:
        if name == "-":
            _opened(name)
        elif not pathlib.Path(name).is_file():
            raise FileNotFoundError(
                f"Text files are wanted. Received: {name!r}, which is no file. Check "
                "the name and the folder."
            )
    return names


def _opened(name):
    return _stream(sys.stdin, "input") if name == "-" else name


def _stream(stream, title):
    if stream is None:
        raise ValueError(f"Standard {title} is closed. Open it, or name a file.")
    return stream.buffer


def pairs(files):
    """Yields pairs of lines: of two files, or of the first two columns of one.

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
    opened = [_opened(name) for name in files or ("-",)]
    if opened[1:]:
        yield from iterate_pairs(*opened)
        return
    try:
        yield from iterate_pairs_tsv(*opened)
    except ValueError as error:
        raise ValueError(
            f"{error} Or name two files, of sources and of targets."
        ) from error


def objects(lines, required, known, first=1):
    """Yields the JSON objects of lines.

    Args:
        lines: iterable of str.
        required: list of str, names that each object has, of a str.
        known: dict from names to types, what else it may have: str, or list of
            str; and `"id"` of any type.
        first: int, the number of the first line.

    Raises:
        ValueError: a line is no such object, or has other names; the message
            has its number.
    """
    for number, line in enumerate(lines, start=first):
        try:
            found = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"Line {number} is no JSON ({error}).") from error
        wanted = f"an object has {' and '.join(map(repr, required))}, a str, and maybe "
        wanted += " and ".join(["'id'", *(f"{n!r}, {KINDS[known[n]]}" for n in known)])
        fits = isinstance(found, dict) and all(
            _is_text(found.get(name)) for name in required
        )
        if not fits or not all(
            found.get(name) is None or _fits(found[name], kind)
            for name, kind in known.items()
        ):
            raise ValueError(f"Line {number}: {wanted}. Received: {line[:80]!r}.")
        if unknown := sorted({*found} - {*required, "id", *known}):
            raise ValueError(f"Line {number}: {wanted}. Received: {unknown}.")
        if not _comes_back(found.get("id")):
            raise ValueError(
                f"Line {number}: an 'id' is given back as it is, and so has numbers "
                f"that JSON has, and whole characters. Received: {line[:80]!r}."
            )
        yield found


def texts_of(items, names):
    """Gives what stands under names in objects.

    Args:
        items: list of dict, of `objects`.
        names: list of str, one or two.

    Returns:
        list of str; of two names of tuples of them.
    """
    if names[1:]:
        return [tuple(one[name] for name in names) for one in items]
    return [one[names[0]] for one in items]


def same_id(item):
    """Gives what an answer has of the object that it answers.

    Args:
        item: dict, of `objects`.
    """
    return {"id": item["id"]} if "id" in item else {}


def _refuse(name):
    raise ValueError(f"JSON has no {name}")


def _comes_back(value):
    """Whether it can be written: no infinity, and no half of a character."""
    try:
        return is_unicode(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except ValueError:
        return False


def _fits(value, kind):
    if kind is str:
        return _is_text(value)
    return isinstance(value, list) and all(map(_is_text, value))


def _is_text(value):
    return isinstance(value, str) and is_unicode(value)


def answered(function, items, first):
    """Yields what a function gives for each item, in their order.

    Where one is refused, those before it still come.

    Args:
        function: from a list of items to as many answers; it refuses before it
            does any work.
        items: list.
        first: int, the number of the first line.

    Raises:
        ValueError, TypeError: of the function, with the line.
    """
    try:
        found = function(items)
    except (ValueError, TypeError) as error:
        if len(items) == 1:
            raise type(error)(f"Line {first}: {error}") from error
        half = len(items) // 2
        yield from answered(function, items[:half], first)
        yield from answered(function, items[half:], first + half)
    else:
        yield from found


def check_output(output, files):
    """Refuses to write over what is read.

    Args:
        output: path or None.
        files: paths.

    Raises:
        ValueError: one of them is the output.
    """
    if output is None or not os.path.exists(output):
        return
    names = [name for name in files if name != "-" and os.path.exists(name)]
    if any(os.path.samefile(output, name) for name in names):
        raise ValueError(
            f"Lines go to another file than they come from. Received: {output!r} for "
            "both. Name another."
        )


class Output:
    """Where lines go: standard output, or a file that appears when it is whole.

    Lines done stand in `FILE.part`, and in `FILE.part.json` what they are of.

    Args:
        path: str or None for standard output. What a link leads to is replaced,
            and not the link.
        of: dict, what lines depend on: a part of other settings is refused. Or
            None: a part is begun anew.

    Attributes:
        done: int, lines that an earlier start has written.

    Raises:
        ValueError: the part is of something else, another process writes it, or
            the path is of no file; nothing is lost.
    """

    def __init__(self, path, of=None):
        self.done, self._path = 0, None
        if path is None:
            return
        self._path = pathlib.Path(path).resolve()
        if self._path.exists() and not self._path.is_file():
            raise ValueError(
                f"Lines go to a file. Received: {os.fspath(path)!r}, which is a folder "
                "or a device. Name a file, or leave it out for standard output."
            )
        if not self._path.parent.is_dir():
            raise FileNotFoundError(
                f"A file is written into a folder that is there. Received: "
                f"{os.fspath(path)!r}. Make {os.fspath(self._path.parent)!r} first."
            )
        self._part = self._path.with_name(f"{self._path.name}.part")
        self._note = self._path.with_name(f"{self._path.name}.part.json")
        self._file = self._part.open("ab+")
        try:
            self._lock()
            self._begin(of, json.dumps(of, sort_keys=True))
        except BaseException:
            self._file.close()
            raise

    def _begin(self, of, wanted):
        if not self._note.exists() and self._file.seek(0, os.SEEK_END):
            raise ValueError(
                f"{os.fspath(self._part)!r} is there, and was begun by something else. "
                "Remove it, or name another file."
            )
        if of is None or not self._note.exists():
            self._file.truncate(0)
            self._note.write_text(wanted, encoding="utf-8")
        elif self._note.read_text(encoding="utf-8") != wanted:
            self._cut_to_whole_lines()
            if self.done:
                raise ValueError(
                    f"{os.fspath(self._part)!r} was begun with another model, other "
                    "options or other files. Take the same, or remove it and "
                    f"{os.fspath(self._note)!r}."
                )
            self._note.write_text(wanted, encoding="utf-8")
        else:
            self._cut_to_whole_lines()

    def _lock(self):
        try:
            import fcntl
        except ImportError:  # on Windows nobody else can open it to write
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(
                f"{os.fspath(self._part)!r} is being written by another process. Let "
                "it end, or name another file."
            ) from error

    def _cut_to_whole_lines(self):
        whole = 0
        self._file.seek(0)
        for line in self._file:
            if line.endswith(b"\n"):
                self.done, whole = self.done + 1, whole + len(line)
        self._file.truncate(whole)

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
                file = _stream(sys.stdout, "output")
            else:
                file = stack.enter_context(self._file)
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


def basis(command, model):
    """Checks a command before its model is loaded.

    Args:
        command: with `files`, `output` and `window`.
        model: path.

    Returns:
        dict, what its lines depend on; or None where they come from standard
        input, which comes once.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: the window is below 1, a file is the output too, or what is
            read from or written to is closed.
    """
    if command.window < 1:
        raise ValueError(f"`--window` is 1 or more. Received: {command.window}.")
    check_files(command.files)
    check_output(command.output, command.files)
    if command.output is None:
        _stream(sys.stdout, "output")
    if not command.files or "-" in command.files:
        return None
    of = dataclasses.asdict(command)
    of["files"] = identity(*command.files)
    of["model"] = identity(model, output=command.output)
    for name in ("progress", "window"):
        of.pop(name, None)
    return of


def write(command, of, given, answers, progress):
    """Writes what answers there are to lines, but for those that are done.

    Args:
        command: with `output`.
        of: of `basis`.
        given: iterable of what is answered.
        answers: `(given, first) -> iterable of str`, of which the first has
            that number.
        progress: of `Output.write_all`.
    """
    output = Output(command.output, of)
    left = itertools.islice(given, output.done, None)
    output.write_all(answers(left, output.done + 1), progress)


def identity(*names, output=None):
    """Tells files and folders apart, as far as names, sizes and times do.

    Args:
        *names: paths, or other names, which stand for themselves.
        output: path or None. Of a folder this file does not count, nor what
            `Output` leaves beside it.

    Returns:
        list, of what JSON knows.
    """
    found = []
    own = {f"{output}{end}" for end in ("", ".part", ".part.json")} if output else ()
    own = {pathlib.Path(each).resolve() for each in own}
    for name in map(pathlib.Path, names):
        files = sorted(name.rglob("*")) if name.is_dir() else [name]
        files = [file for file in files if not own or file.resolve() not in own]
        known = [file.stat() for file in files if file.is_file()]
        times = [[each.st_size, each.st_mtime_ns] for each in known]
        found.append([os.fspath(name), times])
    return found
