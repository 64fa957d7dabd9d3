"""Measures how long the first translation of a process takes.

* Run      python -m benchmarks.first --model en-de --text FILE (see --help)
* Counts   seconds from the start of a process until the translator is loaded,
           and until it has translated one sentence of the file; seconds of the
           same sentence again, without compiling; and of the whole file, twice

Each row runs in its own process. The row "jax, compiled before" reads the
compiled functions of the row "jax" from disk (JAX_COMPILATION_CACHE_DIR).
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time

from benchmarks import report
from benchmarks.report import Column

PROCESS_START = time.perf_counter()


@dataclasses.dataclass(frozen=True)
class Flags(report.Flags):
    """Flags of this command."""

    model: str
    """Name of a preset, or folder of a saved `Translator`."""
    text: str
    """File of source sentences, one per line."""
    beam_size: int | None = None
    """Beam size; 1 is greedy search; None: that of the model."""


TIMES = ("loaded", "first sentence", "repeated", "whole file", "file repeated")
ROWS = {
    "tensorflow": ("tensorflow", {}),
    "tensorflow, limit of 1,024 tokens": (
        "tensorflow",
        {"max_decoding_length": 1024},
    ),
    "jax": ("jax", {}),
    "jax, limit of 1,024 tokens": ("jax", {"max_decoding_length": 1024}),
    "jax, compiled before": ("jax", {}),
    "torch": ("torch", {}),
}


def measure(flags, options):
    """Prints the seconds of one row as JSON."""
    from keras_tfm.pipelines import Translator

    with open(flags.text, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    times = []

    def record_since(start):
        times.append(time.perf_counter() - start)

    if flags.beam_size is not None:
        options = {**options, "beam_size": flags.beam_size}
    translator = Translator.from_preset(flags.model, **options)
    record_since(PROCESS_START)
    translator(lines[0])
    record_since(PROCESS_START)
    for texts in (lines[0], lines, lines):
        start = time.perf_counter()
        translator(texts)
        record_since(start)
    print(json.dumps(times), file=sys.__stdout__, flush=True)


def measure_all(flags):
    """Yields the rows of the table, each from another process."""
    with tempfile.TemporaryDirectory() as cache:
        for name, (backend, options) in ROWS.items():
            environment = {**os.environ, "KERAS_BACKEND": backend}
            if name in ("jax", "jax, compiled before"):
                environment["JAX_COMPILATION_CACHE_DIR"] = cache
            job = json.dumps([dataclasses.asdict(flags), options])
            process = subprocess.run(
                [sys.executable, "-m", "benchmarks.first", "measure", job],
                env=environment,
                stdout=subprocess.PIPE,
                check=True,
                text=True,
            )
            times = json.loads(process.stdout)
            yield name, *times


def main(flags: Flags):
    """Measures and prints the table."""
    columns = [Column("program")] + [Column(name, "s", ".2f") for name in TIMES]
    report.report("first", flags, report.Table(columns, measure_all(flags)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        values, row_options = json.loads(sys.argv[2])
        measure(Flags(**values), row_options)
    else:
        main(report.parse(Flags, __doc__))
