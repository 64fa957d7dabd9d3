"""Measures the speed of exports, beside the translator they come from.

* Run      python -m benchmarks.exported --model en-de --text FILE (see --help)
* Counts   seconds of the first batch; milliseconds of a batch of 32 sentences
           and of one sentence, in the order of the file, medians over the
           rounds; and translations that are equal to the translator's

Each row runs in its own process, in turn, for several rounds. The translator
runs on TensorFlow, compiled; exports run in a process that imports only
TensorFlow and tensorflow_text.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import report
from benchmarks.report import Column

SIZE = 32  # sentences of a batch


@dataclasses.dataclass(frozen=True)
class Flags(report.Flags):
    """Flags of this command."""

    model: str
    """Name of a preset, or folder of a saved `Translator`."""
    text: str
    """File of source sentences, one per line."""
    rows: int = 320
    """Number of sentences, from the start of the file."""
    beam_size: int | None = None
    """Beam size; 1 is greedy search; None: that of the model."""
    rounds: int = 3
    """Rounds, in each of which every row runs in a new process."""


COLUMNS = [
    Column("program"),
    Column("first batch", "s", ".1f"),
    Column("batch of 32", "ms", ".0f"),
    Column("of the translator", format=".2f"),
    Column("one sentence", "ms", ".0f"),
    Column("identical translations"),
    Column("of"),
]
ROWS = ("translator", "plain graph", "compiled")


def compare(flags):
    """Exports and measures, and yields the rows of the table."""
    with tempfile.TemporaryDirectory() as folder:
        for kind in ROWS[1:]:
            export(flags, kind, folder)
        results = {kind: [] for kind in ROWS}
        for _ in range(flags.rounds):
            for kind in ROWS:
                results[kind].append(run_measurement(flags, kind, folder))
    expected = results["translator"][0]["translations"]
    baseline = statistics.median(run["batch"] for run in results["translator"])
    for kind, runs in results.items():
        first, batch, single = (
            statistics.median(run[key] for run in runs)
            for key in ("first", "batch", "single")
        )
        pairs = zip(runs[0]["translations"], expected, strict=True)
        identical = sum(a == b for a, b in pairs)
        times = first, 1000 * batch, batch / baseline, 1000 * single
        yield kind, *times, identical, len(expected)


def main(flags: Flags):
    """Measures and prints the table."""
    report.report("exported", flags, report.Table(COLUMNS, compare(flags)))


def export(flags, kind, folder):
    """Writes a SavedModel, in another process."""
    job = [dataclasses.asdict(flags), kind, folder]
    run_task("write", job, check=True)


def run_measurement(flags, kind, folder):
    """Returns the times and translations of one row, from another process."""
    job = [dataclasses.asdict(flags), kind, folder]
    process = run_task("measure", job, check=True, stdout=subprocess.PIPE)
    return json.loads(process.stdout)


def run_task(task, job, **options):
    """Runs this program for one task, in another process."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.exported", task, json.dumps(job)],
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        text=True,
        **options,
    )


def write(flags, kind, folder):
    """Exports the translator as a SavedModel."""
    from keras_tfm import export

    export.saved_model(
        load_translator(flags),
        f"{folder}/{kind}",
        jit_compile=kind == "compiled",
        buckets=((1, 16), (1, 32), (SIZE, 32), (SIZE, 64)),
    )


def load_translator(flags):
    """Loads the translator, with batches of all texts of a call."""
    from keras_tfm.pipelines import Translator

    options = {"batch_size": SIZE, "batch_tokens": 10**6}
    if flags.beam_size is not None:
        options["beam_size"] = flags.beam_size
    return Translator.from_preset(flags.model, **options)


def measure(flags, kind, folder):
    """Prints the times and translations of one row as JSON."""
    with open(flags.text, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file][: flags.rows]
    if kind == "translator":
        translate = load_translator(flags)
    else:
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  registers the tokenizer's operations

        saved = tf.saved_model.load(f"{folder}/{kind}")
        signature = saved.signatures["serving_default"]

        def translate(texts):
            outputs = signature(text=tf.constant(texts))["translation"].numpy()
            return [text.decode() for text in outputs]

    batches = [lines[i : i + SIZE] for i in range(0, len(lines), SIZE)]
    begin = time.perf_counter()
    translate(batches[0])
    times = {"first": time.perf_counter() - begin}
    # The first pass compiles all shapes.
    translations = [text for batch in batches for text in translate(batch)]
    times["batch"] = statistics.median(
        seconds_of(translate, batch) for batch in batches
    )
    singles = [[line] for line in lines[:100]]
    for single in singles:
        translate(single)
    times["single"] = statistics.median(seconds_of(translate, s) for s in singles)
    result = {**times, "translations": translations}
    print(json.dumps(result), file=sys.__stdout__, flush=True)


def seconds_of(function, *arguments):
    """Returns the seconds of a call."""
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin


if __name__ == "__main__":
    if sys.argv[1:2] in (["write"], ["measure"]):
        values, row_kind, row_folder = json.loads(sys.argv[2])
        task = write if sys.argv[1] == "write" else measure
        task(Flags(**values), row_kind, row_folder)
    else:
        main(report.parse(Flags, __doc__))
