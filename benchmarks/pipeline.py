"""Measures how fast batches are made and how fast the tiny model trains.

* Run      KERAS_TFM_DATA=DIR python -m benchmarks.pipeline
* Needs    2 cores, 92 s of processor time, 2.1 GB; Multi30k, or your own files
* Counts   target tokens per second, without padding, start and end tokens
"""

import dataclasses
import logging
import os
import time

import keras
import numpy as np

from benchmarks import report
from benchmarks.report import Column
from keras_tfm import text
from keras_tfm.models import transformer_tiny
from keras_tfm.training import SmoothedCrossentropy

RATES = [
    Column("pipeline"),
    Column("rate", "target tokens/s", ",.0f"),
    Column("times training", format=",.1f"),
]
PADDING = [Column("buckets")]
PADDING += [Column(f"{side} padding", "", ".1%") for side in ("source", "target")]
PADDING += [Column("total", "", ".1%")]
MULTI30K = "multi30k/tok/train.lc.norm.tok.{}.gz"


@dataclasses.dataclass(frozen=True)
class Flags(report.Flags):
    """Flags of this command."""

    source: str = ""  # file of sources; empty: Multi30k, English
    target: str = ""  # file of targets; empty: Multi30k, German
    vocabulary_size: int = 10_000  # tokens of a joint BPE vocabulary
    batch_tokens: int = 4096  # maximum target tokens of a batch, padding included
    seconds: float = 5.0  # time to measure each pipeline
    train_steps: int = 20  # steps of the tiny model; 0 leaves it out


def files(flags: Flags) -> tuple[str, str]:
    """Returns the paths of the source file and the target file."""
    if flags.source and flags.target:
        return flags.source, flags.target
    folder = os.environ.get("KERAS_TFM_DATA")
    if not folder:
        raise SystemExit("Set KERAS_TFM_DATA, or --source and --target.")
    return tuple(os.path.join(folder, MULTI30K.format(side)) for side in ("en", "de"))


def real_tokens(labels) -> int:
    """Counts target tokens, without padding and end tokens."""
    return int(np.count_nonzero(np.asarray(labels) > text.Vocabulary.end_id))


def pipeline_rate(batches, seconds: float) -> float:
    """Measures the target tokens per second of an endless dataset."""
    batches = iter(batches)
    next(batches)  # work done only once is not counted
    tokens, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        tokens += real_tokens(next(batches)[1])
    return tokens / (time.perf_counter() - start)


def training_rate(batches, vocabulary, steps: int) -> float:
    """Measures the target tokens per second of training the tiny model."""
    model = transformer_tiny(vocabulary.size)
    model.compile("adam", SmoothedCrossentropy(0.1))

    def fit(first_step, count):
        dataset = batches.dataset(first_step, repeat=True)
        model.fit(dataset, steps_per_epoch=count, shuffle=False, verbose=0)

    fit(0, steps)  # compiles all shapes
    start = time.perf_counter()
    fit(steps, steps)
    seconds = time.perf_counter() - start
    timed_steps = range(steps, 2 * steps)
    return sum(real_tokens(batches.batch(step)[1]) for step in timed_steps) / seconds


def main(flags: Flags):
    """Measures and prints the tables."""
    logging.disable(logging.WARNING)  # reports of a stream after each pass
    paths = files(flags)
    pairs = text.read_pairs(*paths)
    texts = pairs.source + pairs.target
    vocabulary = text.Vocabulary.train(texts, flags.vocabulary_size, "bpe")
    budget = {"batch_tokens": flags.batch_tokens}
    start = time.perf_counter()
    plain = text.Batches(pairs, vocabulary, **budget)
    seconds = time.perf_counter() - start
    sampled = text.Batches(pairs, vocabulary, subword_sampling=0.1, **budget)
    print(f"{pairs.report}; encoded and bucketed in {seconds:.1f} s\n")
    datasets = {
        "Batches": plain.dataset(repeat=True),
        "Batches, subword sampling": sampled.dataset(repeat=True),
        "stream": text.stream(paths, vocabulary, repeat=True, **budget),
    }
    rates = {
        name: pipeline_rate(dataset, flags.seconds)
        for name, dataset in datasets.items()
    }
    baseline = 0
    if flags.train_steps:
        baseline = training_rate(plain, vocabulary, flags.train_steps)
        rates[f"training, tiny, {keras.backend.backend()}"] = baseline
    rows = (
        (name, rate, rate / baseline if baseline else None)
        for name, rate in rates.items()
    )
    bucketed = (
        (count, text.Batches(pairs, vocabulary, num_buckets=count, **budget))
        for count in (4, 8, 11, 12, 16)
    )
    padding = ((count, *batches.padding.values()) for count, batches in bucketed)
    tables = report.Table(RATES, rows), report.Table(PADDING, padding)
    report.report("pipeline", flags, *tables)


if __name__ == "__main__":
    main(report.parse(Flags, __doc__))
