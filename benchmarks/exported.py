"""How fast an export is beside the translator it was made of.

* Run      python -m benchmarks.exported --model en-de --text FILE (see --help)
* Counts   seconds of a first batch; milliseconds for a batch of 32 sentences
           and for one, as they come in the file, medians of some rounds; and
           the translations that are those of the translator

Each row is a process of its own, in turn, several rounds. The translator runs
on TensorFlow, compiled; exports run in a process that imports TensorFlow and
tensorflow_text alone.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import tyro

SIZE = 32


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is measured."""

    model: str
    """A preset, or the folder of a translator."""
    text: str
    """File of source sentences, one a line."""
    rows: int = 320
    """Sentences, the first of the file."""
    beam_size: int | None = None
    """1 is greedy; else as the model comes."""
    rounds: int = 3
    """Processes of each row."""


ROWS = ("translator", "plain graph", "compiled")


def main(settings: Settings):
    """Exports, measures, and prints the table."""
    with tempfile.TemporaryDirectory() as folder:
        for kind in ROWS[1:]:
            export(settings, kind, folder)
        found = {kind: [] for kind in ROWS}
        for _ in range(settings.rounds):
            for kind in ROWS:
                found[kind].append(measured(settings, kind, folder))
    wanted = found["translator"][0]["said"]
    print("| | first | batch of 32 | one | the same |")
    print("|---|---|---|---|---|")
    base = statistics.median(one["batch"] for one in found["translator"])
    for kind, runs in found.items():
        first, batch, alone = (
            statistics.median(run[key] for run in runs)
            for key in ("first", "batch", "alone")
        )
        pairs = zip(runs[0]["said"], wanted, strict=True)
        same = sum(one == other for one, other in pairs)
        print(
            f"| {kind} | {first:.1f} s | {1000 * batch:.0f} ms ({batch / base:.2f}) | "
            f"{1000 * alone:.0f} ms | {same} of {len(wanted)} |"
        )


def export(settings, kind, folder):
    """Writes a SavedModel, in a process of its own."""
    job = [dataclasses.asdict(settings), kind, folder]
    run("write", job, check=True)


def measured(settings, kind, folder):
    """Gives the times of a process, and what it said."""
    job = [dataclasses.asdict(settings), kind, folder]
    return json.loads(run("one", job, check=True, stdout=subprocess.PIPE).stdout)


def run(task, job, **options):
    """Starts this program for one task."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.exported", task, json.dumps(job)],
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        text=True,
        **options,
    )


def write(settings, kind, folder):
    """Exports the translator."""
    from keras_tfm import export

    export.saved_model(
        translator_of(settings),
        f"{folder}/{kind}",
        jit_compile=kind == "compiled",
        buckets=((1, 16), (1, 32), (SIZE, 32), (SIZE, 64)),
    )


def translator_of(settings):
    """Loads the translator, to decode as many texts at once as are asked."""
    from keras_tfm.pipelines import Translator

    given = {"batch_size": SIZE, "batch_tokens": 10**6}
    if settings.beam_size is not None:
        given["beam_size"] = settings.beam_size
    return Translator.from_preset(settings.model, **given)


def measure(settings, kind, folder):
    """Prints the times of one row, and its translations."""
    with open(settings.text, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file][: settings.rows]
    if kind == "translator":
        translate = translator_of(settings)
    else:
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  registers the tokenizer's operations

        loaded = tf.saved_model.load(f"{folder}/{kind}").signatures["serving_default"]

        def translate(texts):
            found = loaded(text=tf.constant(texts))["translation"].numpy()
            return [text.decode() for text in found]

    batches = [lines[i : i + SIZE] for i in range(0, len(lines), SIZE)]
    begin = time.perf_counter()
    translate(batches[0])
    times = {"first": time.perf_counter() - begin}
    said = [text for some in batches for text in translate(some)]  # all shapes
    times["batch"] = statistics.median(timed(translate, some) for some in batches)
    alone = [[line] for line in lines[:100]]
    for one in alone:
        translate(one)
    times["alone"] = statistics.median(timed(translate, one) for one in alone)
    print(json.dumps({**times, "said": said}), file=sys.__stdout__, flush=True)


def timed(function, *arguments):
    """The seconds of a call."""
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin


if __name__ == "__main__":
    if sys.argv[1:2] in (["write"], ["one"]):
        values, row, where = json.loads(sys.argv[2])
        task = write if sys.argv[1] == "write" else measure
        task(Settings(**values), row, where)
    else:
        main(tyro.cli(Settings, description=__doc__))
