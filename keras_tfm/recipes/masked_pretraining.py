"""Pretrains the encoder of a classifier with masked tokens of the training
texts.

Source: Devlin et al. 2019, section 3.1, https://arxiv.org/abs/1810.04805
"""

import json
import pathlib
import sys
import time
from typing import TYPE_CHECKING

import keras

from keras_tfm import models, text, training
from keras_tfm.pipelines.texts import AnyVocabulary
from keras_tfm.recipes import labeled_corpora, runs
from keras_tfm.recipes.flags import jit_argument
from keras_tfm.training import training_state

if TYPE_CHECKING:  # which imports this module
    from keras_tfm.recipes import classification


class CheckFinite(keras.callbacks.Callback):
    """Ends training that has diverged, before its weights are saved."""

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        training_state.check_finite(self.model, logs["loss"], "No weights were saved.")


def pretrain(
    flags: "classification.Flags",
    encoder: models.Encoder,
    corpus: labeled_corpora.LabeledCorpus,
    vocabulary: AnyVocabulary,
    out: pathlib.Path,
    identity: dict,
) -> float:
    """Trains the encoder to predict masked tokens, once for each run.

    A resumed run with the same identity loads the pretrained weights.

    Args:
        flags: `classification.Flags`.
        encoder: `models.Encoder`.
        corpus: `labeled_corpora.LabeledCorpus`.
        vocabulary: of the texts.
        out: path of the run folder.
        identity: dict, see `runs.identity`.

    Returns:
        float, minutes of training.
    """
    if not flags.pretraining_epochs:
        return 0.0
    weights = out / "pretrained.weights.h5"
    report = out / "pretraining.json"
    if report.is_file():  # written after the weights
        stored = json.loads(report.read_text(encoding="utf-8"))
        if runs.is_resumable(out):  # all weights are restored later
            return stored["minutes"]
        if stored["identity"] == identity:
            encoder.load_weights(weights)
            return stored["minutes"]
    batches = text.MaskedBatches(
        text.LabelBatches(
            corpus.train,
            vocabulary,
            batch_tokens=flags.batch_tokens,
            max_length=flags.max_length,
            seed=flags.seed,
            segments=encoder.config["num_segments"] > 0,
        )
    )
    model = models.MaskedLM(encoder)
    updates = flags.pretraining_epochs * batches.steps_per_epoch
    model.compile(
        runs.make_adamw(
            model,
            flags.learning_rate,
            updates,
            warmup_steps=updates // 10,
            weight_decay=0.01,
            clip_norm=flags.clip_norm,
        ),
        training.SmoothedCrossentropy(0.0),
        weighted_metrics=[training.TokenAccuracy(), training.Perplexity()],
        jit_compile=jit_argument(flags.jit_compile),
    )
    print("Pretraining with masked tokens:")
    start = time.perf_counter()
    history = model.fit(
        batches.dataset(repeat=True),
        steps_per_epoch=batches.steps_per_epoch,
        epochs=flags.pretraining_epochs,
        shuffle=False,
        verbose=1 if sys.stdout.isatty() else 2,
        callbacks=[CheckFinite()],
    ).history
    minutes = round((time.perf_counter() - start) / 60, 4)
    encoder.save_weights(weights)
    runs.write_json(
        report, {"minutes": minutes, "history": history, "identity": identity}
    )
    return minutes
