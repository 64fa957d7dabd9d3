"""What a token costs as hypotheses get longer and beams wider.

* Run      python -m benchmarks.lengths             (see --help)
* Counts   milliseconds a step, of a batch that decodes to the length; and the
           most memory that the process has held, less what it held before its
           first batch

Base size, random weights, no end before the length. Each backend and beam has
a process of its own, which takes the lengths in turn, the shortest first:
what it has held is that of the longest so far. Each is decoded twice, and the
second time counts.
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
class Settings:
    """What is measured."""

    backend: str = "jax"
    """Of Keras."""
    beams: tuple[int, ...] = (1, 4, 16)
    """Beam sizes; 1 is greedy."""
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    """Tokens of each hypothesis."""
    sentences: int = 8
    """Decoded at once."""
    source_length: int = 24
    """Tokens of each source."""


def held(peak=False):
    """Memory of this process, in MB."""
    if peak:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def measure(settings, beam_size):
    """Prints a line of numbers for each length."""
    import keras

    from keras_tfm import models
    from keras_tfm.decode import Options
    from keras_tfm.runtime import Decoder

    keras.utils.set_random_seed(0)
    model = models.transformer_base(32_000, dropout=0.0)
    draw = np.random.default_rng(0)
    shape = (settings.sentences, settings.source_length)
    ids = draw.integers(4, 32_000, shape).astype("int32")
    before = held()
    for length in settings.lengths:
        search = Decoder(
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
            search(ids)
            times.append(time.perf_counter() - start)
        numbers = [length, *times, held(peak=True) - before]
        print(json.dumps(numbers), file=sys.__stdout__, flush=True)


def main(settings: Settings):
    """Measures and prints the table."""
    print("| beam | length | ms a step | tokens a second | first | memory, MB |")
    print("|---|---|---|---|---|---|")
    for beam_size in settings.beams:
        job = json.dumps([dataclasses.asdict(settings), beam_size])
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks.lengths", "one", job],
            env={**os.environ, "KERAS_BACKEND": settings.backend},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        for line in process.stdout.splitlines():
            length, first, seconds, memory = json.loads(line)
            print(
                f"| {beam_size} | {length} | {1000 * seconds / length:.1f} | "
                f"{settings.sentences * length / seconds:,.0f} | {first:.1f} s | "
                f"{memory:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        values, size = json.loads(sys.argv[2])
        measure(Settings(**values), size)
    else:
        main(tyro.cli(Settings, description=__doc__))
