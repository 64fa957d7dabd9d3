"""Measures the time and memory of loading pretrained checkpoints.

* Run      python -m benchmarks.loading (see --help)
* Needs    pip install keras-tfm[zoo] ctranslate2
* Counts   seconds; and memory as a multiple of the size of the weights: the
           peak while loading and the memory afterwards, each minus the memory
           before. Mapped pages of the file, which the operating system can
           drop, are counted separately.

The weights are those of a Marian of base size, drawn at random, written by
`zoo.to_hugging_face` and `zoo.to_ctranslate2`. Each row runs in its own
process.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

from benchmarks import report
from benchmarks.report import Column

COLUMNS = [
    Column("weights"),
    Column("size", "MB", ".0f"),
    Column("backend"),
    Column("time", "s", ".1f"),
    Column("peak", format=".2f"),
    Column("after loading", format=".2f"),
    Column("mapped", format=".2f"),
]
KINDS = {
    "safetensors": ("transformers", "model.safetensors"),
    "CTranslate2, float32": ("float32", "model.bin"),
    "CTranslate2, int8": ("int8", "model.bin"),
}


@dataclasses.dataclass(frozen=True)
class Flags(report.Flags):
    """Flags of this command."""

    vocabulary_size: int = 60_000
    """Tokens of the joint vocabulary; 60,000 make 300 MB of weights."""
    backends: tuple[str, ...] = ("tensorflow", "jax", "torch")
    """Backends of Keras to measure."""


def write(folder, vocabulary_size):
    """Writes one model in each file format."""
    from keras_tfm import models, zoo

    model = models.transformer_base(vocabulary_size)
    zoo.to_hugging_face(model, folder / "transformers")
    tokens = [f"t{i}" for i in range(vocabulary_size)]
    for kind in ("float32", "int8"):
        quantization = None if kind == "float32" else kind
        zoo.to_ctranslate2(model, tokens, folder / kind, quantization)


def memory_bytes():
    """Returns the bytes of this process: its own, and those of mapped files."""
    sizes = {}
    with open("/proc/self/status", encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in ("RssAnon", "RssFile", "RssShmem"):
                sizes[name] = int(value.split()[0]) * 1024
    return sizes["RssAnon"] + sizes["RssShmem"], sizes["RssFile"]


def measure(folder, name):
    """Prints the numbers of one row as JSON."""
    import keras
    import numpy as np

    from keras_tfm import models, zoo

    # Load the backend with a tiny model first, so that it is not counted.
    ids = np.ones((1, 2), "int32")
    ids = {"source_ids": ids, "target_ids": ids}
    keras.ops.convert_to_numpy(models.transformer_tiny(50)(ids))
    read = zoo.from_hugging_face if name == "transformers" else zoo.from_ctranslate2
    initial, initial_mapped = memory_bytes()
    peaks, finished = [initial, initial_mapped], threading.Event()

    def watch():
        while not finished.wait(0.002):
            peaks[:] = map(max, peaks, memory_bytes())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    start = time.perf_counter()
    checkpoint = read(pathlib.Path(folder, name))
    seconds = time.perf_counter() - start
    finished.set()
    watcher.join()
    peak, retained = peaks[0] - initial, memory_bytes()[0] - initial
    parameters = checkpoint.model.count_params()
    numbers = [seconds, peak, retained, peaks[1] - initial_mapped, parameters]
    print(json.dumps(numbers), file=sys.__stdout__, flush=True)


def measure_all(flags):
    """Yields the rows of the table, each from another process."""
    with tempfile.TemporaryDirectory() as folder:
        job = [sys.executable, "-m", "benchmarks.loading", "write", folder]
        subprocess.run([*job, str(flags.vocabulary_size)], check=True)
        for kind, (name, file) in KINDS.items():
            size = pathlib.Path(folder, name, file).stat().st_size
            for backend in flags.backends:
                process = subprocess.run(
                    [
                        sys.executable,
                        "-m",
                        "benchmarks.loading",
                        "measure",
                        folder,
                        name,
                    ],
                    env={**os.environ, "KERAS_BACKEND": backend},
                    stdout=subprocess.PIPE,
                    check=True,
                    text=True,
                )
                seconds, *sizes, parameters = json.loads(process.stdout)
                # Relative to the float32 weights, also if the file holds int8.
                weight_bytes = max(size, 4 * parameters)
                ratios = [memory / weight_bytes for memory in sizes]
                yield kind, size / 1e6, backend, seconds, *ratios


def main(flags: Flags):
    """Measures and prints the table."""
    report.report("loading", flags, report.Table(COLUMNS, measure_all(flags)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write(pathlib.Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1:2] == ["measure"]:
        measure(*sys.argv[2:])
    else:
        main(report.parse(Flags, __doc__))
