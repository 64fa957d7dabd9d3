"""A small run that a test kills: `python run_to_kill.py FOLDER`.

It trains network, batches and optimizer of the translation recipe. In the
fourth step of its second epoch it prints a message and waits.
"""

import pathlib
import random
import sys
import time
import types

import keras
import numpy as np

from keras_tfm import text
from keras_tfm.recipes import translation
from keras_tfm.recipes.tokenization import Tokenization
from keras_tfm.training import CheckpointAverage, ResumeTraining

FLAGS = translation.Flags(
    size="tiny",
    num_layers=(1, 1),
    batch_tokens=32,
    num_buckets=1,
    epochs=3,
    learning_rate=1e-2,
    warmup_steps=4,
    cooldown_epochs=1,
    dropout=0.3,
    subword_sampling=0.3,
)
SENTENCES = [f"{verb} {noun}" for verb in ("see", "hear") for noun in "abcdefghij"]


class Steps:
    """The batches of the recipe, without the import of tf.data."""

    def __init__(self, vocabulary):
        pairs = text.Pairs(SENTENCES, SENTENCES[::-1])
        corpus = types.SimpleNamespace(train=pairs, validation=pairs)
        self.batches, _ = translation.make_batches(
            FLAGS, corpus, Tokenization(vocabulary, vocabulary)
        )
        self.steps_per_epoch = self.batches.steps_per_epoch

    def dataset(self, first_step, repeat):
        step = first_step
        while True:
            yield self.batches.batch(step)
            step += 1


def prepare():
    """Makes the compiled network and its batches."""
    random.seed(0)  # Keras draws the seeds of layers and initializers from it
    if keras.backend.backend() == "torch":
        import torch

        torch.manual_seed(0)  # of dropout
    vocabulary = text.Vocabulary.train(SENTENCES, size=280, exact=False)
    batches = Steps(vocabulary)
    model = translation.make_model(FLAGS, vocabulary)
    network = translation.compile_network(FLAGS, model, batches.steps_per_epoch)
    return network, batches


def fit(folder, network, batches, *callbacks):
    """Starts or resumes the run; returns its history."""
    average = CheckpointAverage(pathlib.Path(folder) / "averages", last=2)
    resume = ResumeTraining(folder, every_steps=2)
    return resume.fit(network, batches, FLAGS.epochs, [average, *callbacks], verbose=0)


def state(model):
    """Copies all variables of the model and its optimizer."""
    variables = [*model.variables, *model.optimizer.variables]
    return [np.array(keras.ops.convert_to_numpy(v)) for v in variables]


class WaitForKill(keras.callbacks.Callback):
    """Waits to be killed in the fourth step of the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (1, 3):
            print("in the middle of the second epoch", flush=True)  # noqa: T201
            time.sleep(600)


if __name__ == "__main__":
    fit(sys.argv[1], *prepare(), WaitForKill())
