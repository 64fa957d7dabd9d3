"""A small run that a test kills: `python run_to_kill.py FOLDER`.

It waits in the middle of its third epoch and prints a message.
"""

import sys
import time

import keras
import numpy as np

from keras_tfm.training import ResumeTraining, SmoothedCrossentropy

STEPS = 5
EPOCHS = 4


def make_model():
    """A model with dropout, with the same weights on every backend."""
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(11, 8)(ids)
    x = keras.layers.Dropout(0.3, seed=7)(x)
    x = keras.layers.Dense(8, activation="relu")(x)
    x = keras.layers.Dropout(0.3, seed=8)(x)
    model = keras.Model(ids, keras.layers.Dense(11)(x))
    rng = np.random.default_rng(0)
    model.set_weights([0.3 * rng.normal(size=w.shape) for w in model.get_weights()])
    model.compile(keras.optimizers.Adam(0.01), SmoothedCrossentropy(0.1))
    return model


def batches(first_step):
    """Yields batches that depend on the number of the step alone."""
    step = first_step
    while True:
        ids = np.random.default_rng(step).integers(1, 11, size=(4, 6)).astype("int32")
        yield ids, ids
        step += 1


def run(folder, epochs=EPOCHS, callbacks=()):
    """Starts or resumes the run; returns the model and its history."""
    model, resume = make_model(), ResumeTraining(folder)
    epoch = resume.restore(model)
    data = batches(epoch * STEPS)
    history = model.fit(
        data, steps_per_epoch=STEPS, initial_epoch=epoch, epochs=epochs,
        shuffle=False, verbose=0, callbacks=[*callbacks, resume],
    )  # fmt: skip
    return model, history


class WaitForKill(keras.callbacks.Callback):
    """Waits to be killed after the second step of the third epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (2, 1):
            print("in the middle of the third epoch", flush=True)  # noqa: T201
            time.sleep(600)


if __name__ == "__main__":
    run(sys.argv[1], callbacks=[WaitForKill()])
