"""How fast batches are made, beside how fast the tiny model trains on them.

* Run      KERAS_TFM_DATA=DIR python -m benchmarks.pipeline
* Needs    2 cores, 92 s of processor time, 2.1 GB; Multi30k, or files of yours
* Counts   target tokens a second; padding, start and end are not counted
"""

import dataclasses
import logging
import os
import time

import keras
import numpy as np
import tyro

from keras_tfm import text
from keras_tfm.models import transformer_tiny
from keras_tfm.training import SmoothedCrossentropy

MULTI30K = "multi30k/tok/train.lc.norm.tok.{}.gz"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is measured."""

    source: str = ""  # file of sources; empty: Multi30k, English
    target: str = ""  # file of targets; empty: Multi30k, German
    vocabulary_size: int = 10_000  # pieces, BPE, joint
    batch_tokens: int = 4096  # target positions of a batch at most
    seconds: float = 5.0  # time given to each way of making batches
    train_steps: int = 20  # steps of the tiny model; 0 leaves it out


def files(settings: Settings) -> tuple[str, str]:
    """Gives the two files that are read."""
    if settings.source and settings.target:
        return settings.source, settings.target
    folder = os.environ.get("KERAS_TFM_DATA")
    if not folder:
        raise SystemExit("Set KERAS_TFM_DATA, or name --source and --target.")
    return tuple(os.path.join(folder, MULTI30K.format(side)) for side in ("en", "de"))


def real_tokens(labels) -> int:
    """Counts target tokens, without padding and end."""
    return int(np.count_nonzero(np.asarray(labels) > text.Vocabulary.end_id))


def making(batches, seconds: float) -> float:
    """Measures how many target tokens a second an endless dataset gives."""
    batches = iter(batches)
    next(batches)  # what is made once is not counted
    tokens, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        tokens += real_tokens(next(batches)[1])
    return tokens / (time.perf_counter() - start)


def training(batches, vocabulary, steps: int) -> float:
    """Measures how many target tokens a second the tiny model trains on."""
    model = transformer_tiny(vocabulary.size)
    model.compile("adam", SmoothedCrossentropy(0.1))

    def fit(first_step, count):
        dataset = batches.dataset(first_step)
        model.fit(dataset, steps_per_epoch=count, shuffle=False, verbose=0)

    fit(0, steps)  # meets the shapes
    start = time.perf_counter()
    fit(steps, steps)
    seconds = time.perf_counter() - start
    trained = range(steps, 2 * steps)
    return sum(real_tokens(batches.batch(step)[1]) for step in trained) / seconds


def main(settings: Settings):
    """Prints the table."""
    logging.disable(logging.WARNING)  # what a stream says after each pass
    paths = files(settings)
    pairs = text.read_pairs(*paths)
    both_sides = pairs.source + pairs.target
    vocabulary = text.Vocabulary.train(both_sides, settings.vocabulary_size, "bpe")
    budget = {"batch_tokens": settings.batch_tokens}
    start = time.perf_counter()
    plain = text.Batches(pairs, vocabulary, **budget)
    seconds = time.perf_counter() - start
    sampled = text.Batches(pairs, vocabulary, subword_sampling=0.1, **budget)
    print(f"{pairs.report}; encoded and laid out in {seconds:.1f} s\n")
    ways = {
        "Batches": plain.dataset(),
        "Batches, subword sampling": sampled.dataset(),
        "stream": text.stream(paths, vocabulary, **budget),
    }
    rates = {name: making(way, settings.seconds) for name, way in ways.items()}
    trained = 0
    if settings.train_steps:
        trained = training(plain, vocabulary, settings.train_steps)
        rates[f"training, tiny, {keras.backend.backend()}"] = trained
    print("| pipeline | target tokens a second | times training |\n|---|---|---|")
    for name, rate in rates.items():
        times = f"{rate / trained:,.1f}" if trained else ""
        print(f"| {name} | {rate:,.0f} | {times} |")
    print("\n| shapes | padding of source | of target | of both |\n|---|---|---|---|")
    for count in (4, 8, 11, 12, 16):
        batches = text.Batches(pairs, vocabulary, num_buckets=count, **budget)
        shares = " | ".join(f"{share:.1%}" for share in batches.padding.values())
        print(f"| {count} | {shares} |")


if __name__ == "__main__":
    main(tyro.cli(Settings))
