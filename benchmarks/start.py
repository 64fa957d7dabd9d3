"""Measures how long a server takes to start.

* Run      python -m benchmarks.start --model en-de (see --help)
* Counts   seconds, and seconds of processor time, from the start of
           `keras-tfm serve` until it accepts requests; seconds of its first
           answer, to one short text; then until all functions are compiled

For each backend that compiles, the first row starts without compiled functions
on disk, and the second with those of the first.
"""

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import httpx
import psutil

from benchmarks import report
from benchmarks.report import Column

COLUMNS = [
    Column("backend"),
    Column("accepts requests", "s", ".1f"),
    Column("processor time", "s", ".1f"),
    Column("first answer", "s", ".2f"),
    Column("all compiled", "s", ".1f"),
    Column("processor time", "s", ".1f"),
]
ROWS = {
    "tensorflow": "tensorflow",
    "tensorflow, compiled before": "tensorflow",
    "jax": "jax",
    "jax, compiled before": "jax",
    "torch": "torch",
}


@dataclasses.dataclass(frozen=True)
class Flags(report.Flags):
    """Flags of this command."""

    model: str = "en-de"
    """Name of a preset, or folder of a saved `Translator`."""
    text: str = "Where is the station?"
    """The first text."""


@contextlib.contextmanager
def serving(flags: Flags, backend: str, folder: str) -> Iterator[subprocess.Popen]:
    """Runs a server for the time of a `with` block.

    Args:
        flags: `Flags`.
        backend: str, of Keras.
        folder: str, where compiled functions are kept.

    Yields:
        The process, with pipes for its output.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_tfm", "serve", flags.model, "--port", "0"],
        env={**os.environ, "KERAS_BACKEND": backend, "KERAS_TFM_COMPILED": folder},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def measure(flags: Flags, backend: str, folder: str) -> list[float]:
    """Starts a server; returns the figures of a row."""
    start = time.perf_counter()
    with serving(flags, backend, folder) as process:
        family = psutil.Process(process.pid)

        def times():
            return time.perf_counter() - start, sum(family.cpu_times()[:2])

        line = process.stdout.readline()
        if " at " not in line:
            raise ChildProcessError(process.stderr.read())
        address = line.split(" at ")[1].strip()
        accepts, request_start = times(), time.perf_counter()
        httpx.post(f"{address}/translate", json={"text": flags.text}, timeout=60)
        answer = time.perf_counter() - request_start
        for line in process.stderr:
            if line.endswith(": warm\n"):
                return [*accepts, answer, *times()]
        raise ChildProcessError(f"The server ended with status {process.wait()}.")


def measure_all(flags: Flags) -> Iterator[list]:
    """Yields the rows of the table."""
    with tempfile.TemporaryDirectory() as cache:
        for name, backend in ROWS.items():
            yield [name, *measure(flags, backend, cache)]


def main(flags: Flags) -> None:
    """Measures and prints the table."""
    report.report("start", flags, report.Table(COLUMNS, measure_all(flags)))


if __name__ == "__main__":
    main(report.parse(Flags, __doc__))
