"""Writes lines to standard output, or to a file that a job can resume."""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
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
            another identity is rejected. None: a part is overwritten.

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
        self._path = pathlib.Path(path).resolve()
        if self._path.exists() and not self._path.is_file():
            raise ValueError(
                f"--output must be a file; got {os.fspath(path)!r}, a folder or a "
                "device. Name a file, or leave it out for standard output."
            )
        if not self._path.parent.is_dir():
            raise FileNotFoundError(
                f"--output must be in an existing folder; got {os.fspath(path)!r}. "
                f"Create {os.fspath(self._path.parent)!r} first."
            )
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
        if not self._note.exists() and self._file.seek(0, os.SEEK_END):
            raise ValueError(
                f"{os.fspath(self._part)!r} exists without {os.fspath(self._note)!r}, "
                "which names the command that wrote it. Remove it, or name another "
                "--output."
            )
        if identity is None or not self._note.exists():
            self._file.truncate(0)
            self._note.write_text(note, encoding="utf-8")
            return
        self._truncate_to_whole_lines()
        if self._note.read_bytes() != note.encode():
            if self.num_written:
                raise ValueError(
                    f"{os.fspath(self._part)!r} belongs to another model, other flags "
                    "or other files. Repeat that command, or remove it and "
                    f"{os.fspath(self._note)!r}."
                )
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


def check(path: str | None, files: Iterable[str]) -> None:
    """Rejects an output that is also an input.

    Args:
        path: path of the output, or None.
        files: paths of the input.

    Raises:
        ValueError: they are one file.
    """
    if path is None or not os.path.exists(path):
        return
    names = [name for name in files if name != "-" and os.path.exists(name)]
    if any(os.path.samefile(path, name) for name in names):
        raise ValueError(
            f"--output must not be an input file; got {path!r} for both. Name another."
        )


def prepare(flags: Any, model: str | os.PathLike) -> dict | None:
    """Checks files and flags before the model is loaded.

    Args:
        flags: with `files`, `output` and `window`.
        model: path of the model.

    Returns:
        dict, the identity of the output; None for standard input, which can be
        read only once.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: `--window` is below 1, a file is input and output, or
            standard input or output is closed.
    """
    if flags.window < 1:
        raise ValueError(f"--window must be at least 1; got {flags.window}.")
    lines.check_files(flags.files)
    check(flags.output, flags.files)
    if flags.output is None:
        lines.standard_stream(sys.stdout, "output")
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
        stats = [file.stat() for file in files if file.is_file()]
        times = [[stat.st_size, stat.st_mtime_ns] for stat in stats]
        result.append([os.fspath(name), times])
    return result
