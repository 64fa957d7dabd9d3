"""Writes lines to standard output, or to a file that a job can resume."""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import stat
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from keras_tfm.cli import lines


class Locked(ValueError):
    """Another process writes the output."""


class Output:
    """Writes lines to standard output or to a file.

    A file appears under its name when it is complete. Until then its lines are
    in `FILE.part`, and what they depend on is in `FILE.part.json`.

    Args:
        path: str, or None for standard output. A link is followed.
        identity: dict of JSON values that the lines depend on: a part with
            another identity is rejected. None: a part that has none either is
            overwritten.

    Attributes:
        num_written: int, lines that an interrupted job has written.

    Raises:
        ValueError: the part has another identity, another process writes it, or
            the path is not a file; nothing is lost.
        FileNotFoundError: the folder does not exist.
    """

    def __init__(self, path: str | os.PathLike | None, identity: dict | None = None):
        self.num_written, self._path = 0, None
        if path is None:
            return
        self._path = check_name(path)
        self._part = self._path.with_name(f"{self._path.name}.part")
        self._note = self._path.with_name(f"{self._path.name}.part.json")
        self._file = self._part.open("ab+")
        try:
            self._lock()
            self._resume(identity, json.dumps(identity, sort_keys=True))
        except BaseException:
            self._file.close()
            raise

    def _resume(self, identity, note):
        has_content = self._file.seek(0, os.SEEK_END) > 0
        if not self._note.exists() and has_content:
            raise ValueError(
                f"{os.fspath(self._part)!r} exists without {os.fspath(self._note)!r}, "
                "which names the command that wrote it. Remove it, or name another "
                "--output."
            )
        previous = self._note.read_bytes() if self._note.exists() else b"null"
        if identity is None and previous == b"null":
            self._file.truncate(0)
        else:
            self._truncate_to_whole_lines()
        if previous != note.encode() and self.num_written:
            raise ValueError(
                f"{os.fspath(self._part)!r} belongs to another model, other flags "
                "or other files. Repeat that command, or remove it and "
                f"{os.fspath(self._note)!r}."
            )
        if previous != note.encode() or not self._note.exists():
            self._note.write_text(note, encoding="utf-8")

    def _lock(self):
        try:
            import fcntl
        except ImportError:  # Windows lets no other process open it for writing
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Locked(
                f"{os.fspath(self._part)!r} is being written by another process. Wait "
                "for it, or name another output."
            ) from error

    def _truncate_to_whole_lines(self):
        size = 0
        self._file.seek(0)
        for line in self._file:
            if line.endswith(b"\n"):
                self.num_written, size = self.num_written + 1, size + len(line)
        self._file.truncate(size)

    def write_all(self, texts: Iterable[str], progress: bool | None = None) -> int:
        """Writes texts, one per line, as they come.

        Args:
            texts: iterable of str, without the lines that are done.
            progress: bool, print the number of lines on standard error; None:
                if that is a terminal.

        Returns:
            int, lines of the whole output.
        """
        if progress is None:
            progress = sys.stderr.isatty()
        with contextlib.ExitStack() as stack:
            if self._path is None:
                file = lines.standard_stream(sys.stdout, "output")
            else:
                file = stack.enter_context(self._file)
            start = last_report = time.monotonic()
            count = 0
            for count, text in enumerate(texts, start=1):
                # Exactly one line for each input line.
                line = text.replace("\n", " ")
                file.write(line.encode("utf-8", "replace") + b"\n")
                file.flush()
                current_time = time.monotonic()
                if progress and current_time - last_report > 1:
                    last_report = current_time
                    _report(
                        self.num_written + count, count / (current_time - start), "\r"
                    )
            if progress:
                _report(
                    self.num_written + count, count / (time.monotonic() - start), "\n"
                )
        if self._path is not None:
            os.replace(self._part, self._path)
            self._note.unlink()
        return self.num_written + count


def _report(count, rate, end):
    print(f"\r{count:,} lines, {rate:,.1f} per second", end=end, file=sys.stderr)


def check_name(name: str | os.PathLike, flag: str = "--output") -> pathlib.Path:
    """Rejects the name of a file that cannot be written.

    Args:
        name: path. A link is followed.
        flag: str, for the error.

    Returns:
        The absolute path.

    Raises:
        ValueError: the path is not a file, is standard output, or names a
            compressed file.
        FileNotFoundError: the folder does not exist.
        PermissionError: the file or its folder may not be written to.
    """
    path = pathlib.Path(name).resolve()
    stdout = _status("-", sys.stdout)
    # Where /dev/stdout is redirected to a file, that file would be replaced.
    is_stdout = path.exists() and stdout and os.path.samestat(stdout, path.stat())
    if is_stdout or (path.exists() and not path.is_file()):
        raise ValueError(
            f"{flag} must be a file; got {os.fspath(name)!r}, a folder or a device. "
            "Name a file, or leave it out for standard output."
        )
    if path.suffix == ".gz":
        raise ValueError(
            f"{flag} must not end in .gz, since lines are written uncompressed; got "
            f"{os.fspath(name)!r}. Leave the ending out, and run gzip afterwards."
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"{flag} must be in an existing folder; got {os.fspath(name)!r}. "
            f"Create {os.fspath(path.parent)!r} first."
        )
    for place in (path.parent, path):  # before a model is loaded
        if place.exists() and not os.access(place, os.W_OK):
            raise PermissionError(
                f"{flag} must be writable; got {os.fspath(name)!r}, and this user may "
                f"not write to {os.fspath(place)!r}. Name another, or change its "
                "permissions with chmod."
            )
    return path


def check(
    path: str | None, inputs: Iterable[str | None], flag: str = "--output"
) -> None:
    """Rejects an output that is also an input.

    Args:
        path: path of the output, or None for standard output.
        inputs: paths of what is read; "-" for standard input; None is left out.
        flag: str, for the error.

    Raises:
        ValueError: they are one file.
    """
    target = _status("-" if path is None else path, sys.stdout)
    for name in filter(None, inputs):
        status = _status(name, sys.stdin)
        if target and status and os.path.samestat(target, status):
            title = "Standard output" if path is None else flag
            raise ValueError(
                f"{title} must not be an input file; got {path or name!r} for both. "
                "Name another."
            )


def _status(name, stream):
    """The status of a regular file, or of a stream for "-"; else None."""
    try:
        status = os.fstat(stream.fileno()) if name == "-" else os.stat(name)
    except (OSError, ValueError, AttributeError):  # missing, closed, or in memory
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def prepare(flags: Any, model: str | os.PathLike) -> dict | None:
    """Checks files and flags before the model is loaded.

    Args:
        flags: with `files`, `output` and `window`, and perhaps `glossary`.
        model: path of the model.

    Returns:
        dict, the identity of the output; None for standard input, which can be
        read only once.

    Raises:
        FileNotFoundError: a file, or the folder of the output, is missing.
        ValueError: `--window` is below 1, a file is input and output, or
            standard input or output is closed.
    """
    if flags.window < 1:
        raise ValueError(f"--window must be at least 1; got {flags.window}.")
    inputs = lines.check_files(flags.files)
    if flags.output is None:
        lines.standard_stream(sys.stdout, "output")
    else:
        check_name(flags.output)
    check(flags.output, [*inputs, getattr(flags, "glossary", None)])
    if not flags.files or "-" in flags.files:
        return None
    identity = dataclasses.asdict(flags)
    identity["files"] = fingerprints(*flags.files)
    identity["model"] = fingerprints(model, output=flags.output)
    for name in ("progress", "window"):
        identity.pop(name, None)
    return identity


def write(
    flags: Any,
    identity: dict | None,
    items: Iterable,
    answer: Callable,
    progress: bool | None = None,
) -> int:
    """Writes the answers to all items that are not done yet.

    Args:
        flags: with `output`.
        identity: of `prepare`.
        items: iterable.
        answer: `(items, first) -> iterable of str`, where `first` is the number
            of the first item.
        progress: see `Output.write_all`.

    Returns:
        int, lines of the whole output.
    """
    output = Output(flags.output, identity)
    remaining = itertools.islice(items, output.num_written, None)
    return output.write_all(answer(remaining, output.num_written + 1), progress)


def fingerprints(*names, output: str | None = None) -> list:
    """Returns names, sizes and modification times of files and folders.

    Args:
        *names: paths, or other names, which stand for themselves.
        output: path or None. It and its part do not count as content of a
            folder.

    Returns:
        list of JSON values.
    """
    suffixes = ("", ".part", ".part.json") if output else ()
    ignored = {pathlib.Path(f"{output}{suffix}").resolve() for suffix in suffixes}
    result = []
    for name in map(pathlib.Path, names):
        files = sorted(name.rglob("*")) if name.is_dir() else [name]
        files = [f for f in files if not ignored or f.resolve() not in ignored]
        states = [file.stat() for file in files if file.is_file()]
        times = [[state.st_size, state.st_mtime_ns] for state in states]
        result.append([os.fspath(name), times])
    return result
