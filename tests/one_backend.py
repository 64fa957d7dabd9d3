"""What one backend makes of given weights: logits, then 20 steps of training.

Run as `python -m tests.one_backend FOLDER` with KERAS_BACKEND set. FOLDER holds
`start.weights.h5` and `start.keras`; `<backend>.npz` is written beside them.
"""

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

from keras_tfm.models import Transformer
from keras_tfm.training import SmoothedCrossentropy

STEPS, ROWS, S, T, V = 20, 8, 6, 5, 30


def make_model():
    """An untied model: its tables get gradients from lookups alone."""
    return Transformer(
        V,
        num_layers=1,
        embedding_dim=16,
        intermediate_dim=32,
        num_heads=2,
        tie=None,
        dropout=0.0,
    )


def batches(count):
    """Draws batches with padding and repeated ids."""
    rng = np.random.default_rng(5)
    for _ in range(count):
        source = rng.integers(4, V, (ROWS, S)).astype("int32")
        target = rng.integers(4, V, (ROWS, T)).astype("int32")
        source[0, 3:] = target[1, 2:] = 0
        source[:, 0] = 7  # in every row
        first = np.full((ROWS, 1), 2, "int32")
        last = np.where(target[:, -1:] == 0, 0, 3).astype("int32")
        inputs = {"source_ids": source, "target_ids": np.hstack([first, target])}
        yield inputs, np.hstack([target, last])


def train(model):
    """Gives the loss of each of 20 steps of Adam."""
    model.compile(keras.optimizers.Adam(1e-3), SmoothedCrossentropy(0.1))
    losses = []
    for inputs, labels in batches(STEPS):
        model.reset_metrics()  # else a loss is the mean of all so far
        losses.append(float(model.train_on_batch(inputs, labels)))
    return losses


def run(folder):
    """Loads the weights, in both formats, and saves what comes of them."""
    model = make_model()
    model.load_weights(folder / "start.weights.h5")
    inputs, _ = next(batches(1))
    logits = keras.ops.convert_to_numpy(model(inputs))
    whole = keras.models.load_model(folder / "start.keras", compile=False)
    results = {"logits": logits, "whole": keras.ops.convert_to_numpy(whole(inputs))}
    results["losses"] = train(model)
    for weight in model.weights:
        results[weight.path] = keras.ops.convert_to_numpy(weight)
    np.savez(folder / f"{keras.backend.backend()}.npz", **results)


if __name__ == "__main__":
    run(pathlib.Path(sys.argv[1]))
