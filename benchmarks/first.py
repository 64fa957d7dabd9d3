"""How long the first sentence takes, and the next.

Run      python -m benchmarks.first --model FOLDER --text FILE (see --help)
Counts   seconds: from the start of a process until it has read the translator
         and translated one sentence of the file; another of the same length,
         for which nothing is compiled; and all of the file, twice

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
    """Folder of a `Translator`."""
    text: str
    """File of source sentences, one a line."""
    beam_size: int = 4
    """1 is greedy."""


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
    from keras_tfm.serving import Translator

    with open(settings.text, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    times = []

    def since(start):
        times.append(time.perf_counter() - start)

    translator = Translator.load(
        settings.model, beam_size=settings.beam_size, **options
    )
    translator(lines[0])
    since(BEGUN)
    for some in (lines[0], lines, lines):
        start = time.perf_counter()
        translator(some)
        since(start)
    print(json.dumps(times), file=sys.__stdout__, flush=True)


def main(settings: Settings):
    """Measures and prints the table."""
    print("| | first sentence | again | the file | again |")
    print("|---|---|---|---|---|")
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
