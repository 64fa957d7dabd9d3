"""Measures the time and memory of a step by length and beam size.

* Run      python -m benchmarks.lengths             (see --help)
* Counts   milliseconds per step of a batch that decodes up to the length; and
           the peak memory of the process, minus its memory before the first
           batch

Base size, random weights; hypotheses do not end before the length. Each beam
size runs in its own process, the shortest length first, so that the peak memory
is that of the longest length so far. Each batch is decoded twice; the second
time counts.
"""

import dataclasses
import json
import os
import resource
import subprocess
import sys
import time

import numpy as np
import tyro


@dataclasses.dataclass(frozen=True)
class Flags:
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


def memory_megabytes(peak=False):
    """Returns the memory of this process, or its peak so far, in MB."""
    if peak:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def measure(flags, beam_size):
    """Prints the numbers of each length, as JSON."""
    import keras

    from keras_tfm import models
    from keras_tfm.decode import Options
    from keras_tfm.runtime import Decoder

    keras.utils.set_random_seed(0)
    model = models.transformer_base(32_000, dropout=0.0)
    draw = np.random.default_rng(0)
    shape = (flags.sentences, flags.source_length)
    ids = draw.integers(4, 32_000, shape).astype("int32")
    initial_memory = memory_megabytes()
    for length in flags.lengths:
        decoder = Decoder(
            model,
            Options(
                beam_size=beam_size,
                max_decoding_length=length,
                suppress_ids=(0, 1, 2, 3),
            ),
        )
        times = []
        for _ in range(2):
            start = time.perf_counter()
            decoder(ids)
            times.append(time.perf_counter() - start)
        memory = memory_megabytes(peak=True) - initial_memory
        numbers = [length, *times, memory]
        print(json.dumps(numbers), file=sys.__stdout__, flush=True)


def main(flags: Flags):
    """Measures and prints the table."""
    print("| beam | length | ms per step | tokens per second | first | memory, MB |")
    print("|---|---|---|---|---|---|")
    for beam_size in flags.beams:
        job = json.dumps([dataclasses.asdict(flags), beam_size])
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks.lengths", "measure", job],
            env={**os.environ, "KERAS_BACKEND": flags.backend},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        for line in process.stdout.splitlines():
            length, first, seconds, memory = json.loads(line)
            print(
                f"| {beam_size} | {length} | {1000 * seconds / length:.1f} | "
                f"{flags.sentences * length / seconds:,.0f} | {first:.1f} s | "
                f"{memory:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        values, size = json.loads(sys.argv[2])
        measure(Flags(**values), size)
    else:
        main(tyro.cli(Flags, description=__doc__))
