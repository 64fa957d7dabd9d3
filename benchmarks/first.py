"""How long the first sentence takes, and the next.

* Run      python -m benchmarks.first --model en-de --text FILE (see --help)
* Counts   seconds: from the start of a process until it has read the
           translator, and until it has translated one sentence of the file; the
           same again, for which nothing is compiled; and all of the file, twice

Each row is a process of its own. On JAX the second row of two finds what the
first has compiled on disk (JAX_COMPILATION_CACHE_DIR).
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time

import tyro

BEGUN = time.perf_counter()


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is measured."""

    model: str
    """A preset, or the folder of a translator."""
    text: str
    """File of source sentences, one a line."""
    beam_size: int | None = None
    """1 is greedy; else as the model comes."""


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


def measure(settings, options):
    """Prints the seconds of one row."""
    from keras_tfm.pipelines import Translator

    with open(settings.text, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    times = []

    def since(start):
        times.append(time.perf_counter() - start)

    if settings.beam_size is not None:
        options = {**options, "beam_size": settings.beam_size}
    translator = Translator.from_preset(settings.model, **options)
    since(BEGUN)
    translator(lines[0])
    since(BEGUN)
    for some in (lines[0], lines, lines):
        start = time.perf_counter()
        translator(some)
        since(start)
    print(json.dumps(times), file=sys.__stdout__, flush=True)


def main(settings: Settings):
    """Measures and prints the table."""
    print("| | loaded | first sentence | again | the file | again |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as cache:
        for name, (backend, options) in ROWS.items():
            environment = {**os.environ, "KERAS_BACKEND": backend}
            if name in ("jax", "jax, compiled before"):
                environment["JAX_COMPILATION_CACHE_DIR"] = cache
            job = json.dumps([dataclasses.asdict(settings), options])
            process = subprocess.run(
                [sys.executable, "-m", "benchmarks.first", "one", job],
                env=environment,
                stdout=subprocess.PIPE,
                check=True,
                text=True,
            )
            times = json.loads(process.stdout)
            row = " | ".join(f"{seconds:.2f} s" for seconds in times)
            print(f"| {name} | {row} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        values, row_options = json.loads(sys.argv[2])
        measure(Settings(**values), row_options)
    else:
        main(tyro.cli(Settings, description=__doc__))
