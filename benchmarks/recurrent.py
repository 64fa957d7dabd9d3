"""Measures a training step and a decoding step by length and architecture.

* Run      python -m benchmarks.recurrent           (see --help)
* Counts   milliseconds of one training step, with equally many tokens in each
           batch; and of one step of greedy search, with equally many sentences

Compares a Transformer with recurrent networks that have about as many
parameters, in the configurations of the recipe. All sources and targets have
the same length, without padding. The time of a training step, with the loss of
the recipe, is the median of several after one that compiles. Hypotheses do not
end before the length; each batch is decoded twice, and the second time counts.
Each network runs in its own process.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time

import numpy as np

from benchmarks import report
from benchmarks.report import Column

COLUMNS = [
    Column("network"),
    Column("parameters", format=",d"),
    Column("length"),
    Column("training step", "ms", ",.0f"),
    Column("decoding step", "ms", ".1f"),
]


@dataclasses.dataclass(frozen=True)
class Flags(report.Flags):
    """Flags of this command."""

    backend: str = "jax"
    """Backend of Keras."""
    preset: str = "tiny"
    """Configuration, as `size` of keras_tfm.recipes.translation."""
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256)
    """Tokens per source and per target."""
    tokens: int = 4_096
    """Target tokens of a training batch, at every length."""
    sentences: int = 16
    """Sentences of a decoded batch."""
    vocabulary: int = 10_000
    """Tokens of the vocabulary."""
    repeats: int = 5
    """Training steps, of which the median counts."""


# The attention score, and a factor for the recipe's number of units, so that
# all networks have about as many parameters.
KINDS = {
    "Transformer": None,
    "GRU, additive": ("additive", 1.0),
    "GRU, multiplicative": ("multiplicative", 1.27),
}


def make_model(flags, kind):
    """Makes the model of one row of `KINDS`."""
    from keras_tfm import models
    from keras_tfm.recipes.translation_defaults import RECURRENT_SIZES, SIZES

    if KINDS[kind] is None:
        return SIZES[flags.preset](flags.vocabulary)
    config, (attention, factor) = RECURRENT_SIZES[flags.preset], KINDS[kind]
    units = round(factor * config["units"] / 8) * 8
    return models.RecurrentSeq2Seq(
        flags.vocabulary, **{**config, "units": units}, attention=attention
    )


def training_step(flags, network, length):
    """Measures the milliseconds of a training step."""
    draw, rows = np.random.default_rng(0), max(1, flags.tokens // length)
    source, target, labels = draw.integers(
        4, flags.vocabulary, (3, rows, length), "int32"
    )
    batch, times = {"source_ids": source, "target_ids": target}, []
    for _ in range(flags.repeats + 1):
        start = time.perf_counter()
        float(network.train_on_batch(batch, labels))
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times[1:])


def decoding_step(flags, model, length):
    """Measures the milliseconds of a step of greedy search."""
    from keras_tfm.decode import Options
    from keras_tfm.runtime import Decoder

    draw = np.random.default_rng(0)
    shape = (flags.sentences, length)
    ids = draw.integers(4, flags.vocabulary, shape).astype("int32")
    decoder = Decoder(
        model, Options(max_decoding_length=length, suppress_ids=(0, 1, 2, 3))
    )
    for _ in range(2):
        start = time.perf_counter()
        decoder(ids)
        seconds = time.perf_counter() - start
    return 1000 * seconds / length


def measure(flags, kind):
    """Prints the numbers of each length, as JSON."""
    import keras

    from keras_tfm import training

    keras.utils.set_random_seed(0)
    model = make_model(flags, kind)
    network = model.hidden_model()
    network.compile(
        keras.optimizers.Adam(1e-4),
        training.ProjectedCrossentropy(model.target_embedding, 0.1, chunk_tokens=512),
        jit_compile=keras.config.backend() == "jax",
    )
    for length in flags.lengths:
        numbers = [
            model.count_params(),
            length,
            training_step(flags, network, length),
            decoding_step(flags, model, length),
        ]
        print(json.dumps(numbers), file=sys.__stdout__, flush=True)


def measure_all(flags):
    """Yields the rows of the table; each network has a process of its own."""
    for kind in KINDS:
        job = json.dumps([dataclasses.asdict(flags), kind])
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks.recurrent", "measure", job],
            env={**os.environ, "KERAS_BACKEND": flags.backend},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        for line in process.stdout.splitlines():
            yield kind, *json.loads(line)


def main(flags: Flags):
    """Measures and prints the table."""
    report.report("recurrent", flags, report.Table(COLUMNS, measure_all(flags)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        values, name = json.loads(sys.argv[2])
        measure(Flags(**values), name)
    else:
        main(report.parse(Flags, __doc__))
