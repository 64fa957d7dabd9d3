"""What an update and a token cost as sequences get longer, by kind of network.

* Run      python -m benchmarks.recurrent           (see --help)
* Counts   milliseconds of one training step, of batches of equal tokens; and of
           one step of greedy search, of a fixed number of sentences

A Transformer and recurrent networks of about as many parameters: the shapes of
the recipe. Sources and targets are of one length, without padding. A training
step is one of `fit`, with the loss of the recipe, the median of several after
one that compiles. A search has no end before the length; it is done twice, and
the second time counts. Each kind of network has a process of its own.
"""

import dataclasses
import json
import os
import statistics
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
    preset: str = "tiny"
    """Shape, as of keras_tfm.recipes.translation."""
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256)
    """Tokens of each source and target."""
    tokens: int = 4_096
    """Target tokens of a training batch, whatever the length."""
    sentences: int = 16
    """Decoded at once."""
    vocabulary: int = 10_000
    """Pieces."""
    repeats: int = 5
    """Training steps that the median is of."""


# How attention is scored, and what makes units of those of the recipe, so that
# parameters are about as many.
KINDS = {
    "Transformer": None,
    "GRU, additive": ("additive", 1.0),
    "GRU, multiplicative": ("multiplicative", 1.27),
}


def make(settings, kind):
    """Makes a network of that kind."""
    from keras_tfm import models
    from keras_tfm.recipes import translation

    if KINDS[kind] is None:
        return translation.PRESETS[settings.preset](settings.vocabulary)
    shape, (attention, factor) = translation.RECURRENT[settings.preset], KINDS[kind]
    units = round(factor * shape["units"] / 8) * 8
    return models.RecurrentSeq2Seq(
        settings.vocabulary, **{**shape, "units": units}, attention=attention
    )


def training(settings, network, length):
    """Milliseconds of a training step."""
    draw, rows = np.random.default_rng(0), max(1, settings.tokens // length)
    source, target, labels = draw.integers(
        4, settings.vocabulary, (3, rows, length), "int32"
    )
    batch, times = {"source_ids": source, "target_ids": target}, []
    for _ in range(settings.repeats + 1):
        start = time.perf_counter()
        float(network.train_on_batch(batch, labels))
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times[1:])


def decoding(settings, model, length):
    """Milliseconds of a step of greedy search."""
    from keras_tfm.decode import Options
    from keras_tfm.runtime import Decoder

    draw = np.random.default_rng(0)
    shape = (settings.sentences, length)
    ids = draw.integers(4, settings.vocabulary, shape).astype("int32")
    search = Decoder(
        model, Options(max_decoding_length=length, suppress_ids=(0, 1, 2, 3))
    )
    for _ in range(2):
        start = time.perf_counter()
        search(ids)
        seconds = time.perf_counter() - start
    return 1000 * seconds / length


def measure(settings, kind):
    """Prints a line of numbers for each length."""
    import keras

    from keras_tfm import training as losses

    keras.utils.set_random_seed(0)
    model = make(settings, kind)
    network = model.hidden_model()
    network.compile(
        keras.optimizers.Adam(1e-4),
        losses.ProjectedCrossentropy(model.target_embedding, 0.1, chunk_tokens=512),
        jit_compile=keras.config.backend() == "jax",
    )
    for length in settings.lengths:
        numbers = [
            model.count_params(),
            length,
            training(settings, network, length),
            decoding(settings, model, length),
        ]
        print(json.dumps(numbers), file=sys.__stdout__, flush=True)


def main(settings: Settings):
    """Measures and prints the table."""
    print("| network | parameters | length | ms a training step | ms a decoding step |")
    print("|---|---|---|---|---|")
    for kind in KINDS:
        job = json.dumps([dataclasses.asdict(settings), kind])
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks.recurrent", "one", job],
            env={**os.environ, "KERAS_BACKEND": settings.backend},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        for line in process.stdout.splitlines():
            parameters, length, training_step, step = json.loads(line)
            print(
                f"| {kind} | {parameters:,} | {length} | {training_step:,.0f} | "
                f"{step:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        values, name = json.loads(sys.argv[2])
        measure(Settings(**values), name)
    else:
        main(tyro.cli(Settings, description=__doc__))
