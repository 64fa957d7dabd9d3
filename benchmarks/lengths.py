"""Measures the time and memory of a step by length and beam size.

* Run      python -m benchmarks.lengths             (see --help)
* Counts   milliseconds per step of a batch that decodes up to the length; and
           the memory of a search: the peak of the process meanwhile, minus its
           memory before

Base size, random weights; hypotheses do not end before the length. Each beam
size and length runs in its own process. Each batch is decoded twice: the first
time with compilation, the second time counts. Linux only.
"""

import ctypes
import dataclasses
import gc
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import numpy as np

from benchmarks import report
from benchmarks.report import Column

COLUMNS = [
    Column("beam"),
    Column("length"),
    Column("step", "ms", ".1f"),
    Column("speed", "tokens/s", ",.0f"),
    Column("first batch", "s", ".1f"),
    Column("its memory", "MB", ",.0f"),
    Column("memory", "MB", ",.0f"),
    Column("of the caches", format=".2f"),
]


@dataclasses.dataclass(frozen=True)
class Flags(report.Flags):
    """Flags of this command."""

    backend: str = "jax"
    """Backend of Keras."""
    beams: tuple[int, ...] = (1, 4, 16)
    """Beam sizes; 1 is greedy search."""
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    """Tokens per hypothesis."""
    sentences: int = 8
    """Sentences per batch."""
    source_length: int = 24
    """Tokens per source."""


def memory_megabytes(name):
    """Returns a line of the status of this process, such as `VmRSS`, in MB."""
    status = pathlib.Path("/proc/self/status").read_text("ascii")
    return int(re.search(rf"^{name}:\s+(\d+) kB", status, re.M)[1]) / 1024


def measure(flags, beam_size, length):
    """Prints seconds and megabytes of both batches, and those of the caches."""
    import keras

    from keras_tfm import models
    from keras_tfm.decode import Options
    from keras_tfm.runtime import Decoder

    keras.utils.set_random_seed(0)
    model = models.transformer_base(32_000, dropout=0.0)
    draw = np.random.default_rng(0)
    shape = (flags.sentences, flags.source_length)
    ids = draw.integers(4, 32_000, shape).astype("int32")
    options = Options(
        beam_size=beam_size,
        max_decoding_length=length,
        suppress_ids=(0, 1, 2, 3),
    )
    decoder, numbers = Decoder(model, options), []
    for _ in range(2):
        # Memory that was freed but not returned would not count again.
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        memory = memory_megabytes("VmRSS")
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        start = time.perf_counter()
        decoder(ids)
        numbers.append(time.perf_counter() - start)
        numbers.append(memory_megabytes("VmHWM") - memory)
    layers, dim, float_bytes = 6, 512, 4
    cache = 2 * layers * dim * float_bytes * flags.sentences * beam_size * length
    print(json.dumps([*numbers, cache / 2**20]), file=sys.__stdout__, flush=True)


def measure_all(flags):
    """Yields the rows of the table, each from another process."""
    for beam_size, length in itertools.product(flags.beams, flags.lengths):
        job = json.dumps([dataclasses.asdict(flags), beam_size, length])
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks.lengths", "measure", job],
            env={**os.environ, "KERAS_BACKEND": flags.backend},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        first, first_memory, seconds, memory, cache = json.loads(process.stdout)
        speed = flags.sentences * length / seconds
        sizes = first_memory, memory, memory / cache
        yield beam_size, length, 1000 * seconds / length, speed, first, *sizes


def main(flags: Flags):
    """Measures and prints the table."""
    report.report("lengths", flags, report.Table(COLUMNS, measure_all(flags)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        values, *numbers = json.loads(sys.argv[2])
        measure(Flags(**values), *numbers)
    else:
        main(report.parse(Flags, __doc__))
