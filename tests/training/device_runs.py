"""Trains on four devices of one process, in several ways; prints JSON.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 KERAS_BACKEND=jax \\
        python -m tests.training.device_runs FOLDER

Each way begins with the same weights and sees the same batches, so that losses
and translations must be those of one device.
"""

import json
import pathlib
import sys

import jax
import keras
import numpy as np

from keras_tfm import decode, models, runtime, training

VOCABULARY = 40
STEPS = 4


class Batches:
    """Random sources, and targets that copy them."""

    steps_per_epoch = 2

    def batch(self, step):
        generator = np.random.default_rng(step)
        lengths = generator.integers(3, 9, 24)
        lengths[-3:] = 0  # rows that fill a batch
        ids = generator.integers(4, VOCABULARY, (24, 8)) * (
            np.arange(8) < lengths[:, None]
        )
        targets = np.pad(ids, ((0, 0), (1, 0)))[:, :-1]
        targets[lengths > 0, 0] = 2
        return {"source_ids": ids, "target_ids": targets * (ids > 0)}, ids

    def dataset(self, first_step=0, repeat=True):
        step = first_step
        while True:
            yield self.batch(step)
            step += 1


def make(projected=False):
    """Makes the compiled network of a recipe, with its dropout."""
    keras.utils.set_random_seed(3)
    model = models.Transformer(
        VOCABULARY,
        num_layers=1,
        embedding_dim=16,
        num_heads=2,
        intermediate_dim=32,
        dropout=0.1,
    )
    network, loss = model, training.SmoothedCrossentropy(0.1)
    if projected:
        network = model.hidden_model()
        loss = training.ProjectedCrossentropy(model.target_embedding, 0.1)
    optimizer = keras.optimizers.Adam(1e-2, global_clipnorm=1.0)
    network.compile(optimizer, loss)
    return model, network


def losses(network, steps=STEPS, **options):
    history = network.fit(
        Batches().dataset(),
        steps_per_epoch=1,
        epochs=steps,
        shuffle=False,
        verbose=0,
        **options,
    )
    return history.history["loss"]


def set_devices(count, model_devices=1):
    """Distributes over so many devices, or not at all."""
    keras.distribution.set_distribution(None)
    layouts = models.LAYOUTS if model_devices > 1 else None
    return training.distribute(count, model_devices=model_devices, layouts=layouts)


def sharding(network):
    """Returns how a kernel of attention is divided."""
    path = "encoder_0/self_attention/query/kernel"
    kernel = next(v for v in network.variables if v.path.endswith(path))
    return str(getattr(kernel.value.sharding, "spec", None))


def resumed(folder):
    """Returns the loss of three epochs, on 4 devices, then 2, then 1."""
    for epochs, count in ((1, 4), (2, 2), (3, 1)):
        set_devices(count)
        _, network = make()
        resume = training.ResumeTraining(folder / "resume")
        average = training.CheckpointAverage(folder / "average", last=2)
        history = resume.fit(network, Batches(), epochs, [average], verbose=0)
    average.apply(network)
    return history["loss"], float(np.abs(network.get_weights()[0]).sum())


def unbroken(folder):
    set_devices(1)
    _, network = make()
    average = training.CheckpointAverage(folder / "unbroken", last=2)
    history = network.fit(
        Batches().dataset(),
        steps_per_epoch=2,
        epochs=3,
        shuffle=False,
        verbose=0,
        callbacks=[average],
    )
    average.apply(network)
    return history.history["loss"], float(np.abs(network.get_weights()[0]).sum())


def search():
    """Returns ids and scores of a beam search."""
    model, _ = make()
    options = decode.Options(start_id=2, end_id=3, beam_size=2)
    decoder = runtime.Decoder(model, options)
    source_ids = Batches().batch(0)[0]["source_ids"][:8]
    result = decoder(source_ids)
    return result.ids.tolist(), result.scores.tolist()


def rows_of_a_search():
    """Returns how a compiled function gets the rows of its argument."""
    model, _ = make()
    shardings = []

    def double(ids):
        jax.debug.inspect_array_sharding(ids, callback=shardings.append)
        return 2 * ids

    runtime.compiled(double, model)(keras.ops.ones((8, 2), "int32"))
    [sharding] = shardings
    return str(getattr(sharding, "spec", None)), len(sharding.device_set)


def main(folder):
    assert len(jax.devices()) == 4
    table = {}
    for name, arguments, projected in (
        ("one", (1,), False),
        ("4 devices", (4,), False),
        ("3 devices, hidden states", (3,), True),
        ("2 x 2 devices, hidden states", (4, 2), True),
    ):
        set_devices(*arguments)
        _, network = make(projected)
        table[name] = {"losses": losses(network), "sharding": sharding(network)}
    table["resumed"], table["unbroken"] = resumed(folder), unbroken(folder)
    set_devices(1)
    table["search one"], rows = search(), [rows_of_a_search()]
    set_devices(4)
    table["search 4"] = search()
    table["rows of a search"] = [*rows, rows_of_a_search()]
    sys.stdout.write(json.dumps(table))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
