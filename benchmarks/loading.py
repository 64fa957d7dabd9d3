"""What loading other programs' weights costs.

* Run      python -m benchmarks.loading (see --help)
* Needs    pip install keras-tfm[zoo] ctranslate2
* Counts   seconds, and memory of a process in parts of the size of the weights:
           the most it held while it loaded, and what it holds afterwards, over
           what it held before; pages of the file that the system has read and
           may drop, as safetensors maps them, apart

The weights are of a Marian of base size, drawn at random, written by
`zoo.to_hugging_face` and `zoo.to_ctranslate2`. Each row is a process of its
own.
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

import tyro

KINDS = {
    "safetensors": ("transformers", "model.safetensors"),
    "CTranslate2, float32": ("float32", "model.bin"),
    "CTranslate2, int8": ("int8", "model.bin"),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is measured."""

    vocabulary_size: int = 60_000
    """Rows of the one table; 60,000 make 300 MB."""
    backends: tuple[str, ...] = ("tensorflow", "jax", "torch")
    """Those measured."""


def write(folder, vocabulary_size):
    """Writes one model in each form."""
    from keras_tfm import models, zoo

    model = models.transformer_base(vocabulary_size)
    zoo.to_hugging_face(model, folder / "transformers")
    tokens = [f"t{i}" for i in range(vocabulary_size)]
    for kind in ("float32", "int8"):
        quantization = None if kind == "float32" else kind
        zoo.to_ctranslate2(model, tokens, folder / kind, quantization)


def held():
    """Bytes of this process: its own, and of mapped files."""
    found = {}
    with open("/proc/self/status", encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in ("RssAnon", "RssFile", "RssShmem"):
                found[name] = int(value.split()[0]) * 1024
    return found["RssAnon"] + found["RssShmem"], found["RssFile"]


def measure(folder, name):
    """Prints what one process counts."""
    import keras
    import numpy as np

    from keras_tfm import models, zoo

    # What is there before any weights: the backend, with a model of its own.
    ids = np.ones((1, 2), "int32")
    ids = {"source_ids": ids, "target_ids": ids}
    keras.ops.convert_to_numpy(models.transformer_tiny(50)(ids))
    read = zoo.from_hugging_face if name == "transformers" else zoo.from_ctranslate2
    before, mapped = held()
    most, done = [before, mapped], threading.Event()

    def watch():
        while not done.wait(0.002):
            most[:] = map(max, most, held())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    start = time.perf_counter()
    found = read(pathlib.Path(folder, name))
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    after = held()[0]
    parameters = found.model.count_params()
    numbers = [seconds, most[0] - before, after - before, most[1] - mapped, parameters]
    print(json.dumps(numbers), file=sys.__stdout__, flush=True)


def main(settings: Settings):
    """Measures and prints the table."""
    print("| weights | MB | backend | seconds | most held | held after | mapped |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        job = [sys.executable, "-m", "benchmarks.loading", "write", folder]
        subprocess.run([*job, str(settings.vocabulary_size)], check=True)
        for kind, (name, file) in KINDS.items():
            size = pathlib.Path(folder, name, file).stat().st_size
            for backend in settings.backends:
                process = subprocess.run(
                    [sys.executable, "-m", "benchmarks.loading", "one", folder, name],
                    env={**os.environ, "KERAS_BACKEND": backend},
                    stdout=subprocess.PIPE,
                    check=True,
                    text=True,
                )
                seconds, *parts, parameters = json.loads(process.stdout)
                # Of the float32 weights in memory, whatever the file holds.
                whole = max(size, 4 * parameters)
                row = " | ".join(f"{part / whole:.2f}" for part in parts)
                row = f"{size / 1e6:.0f} | {backend} | {seconds:.1f} | {row}"
                print(f"| {kind} | {row} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write(pathlib.Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1:2] == ["one"]:
        measure(*sys.argv[2:])
    else:
        main(tyro.cli(Settings, description=__doc__))
