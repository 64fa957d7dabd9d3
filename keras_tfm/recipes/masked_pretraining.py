"""Pretrains the encoder of a classifier with masked tokens of the training
texts.

Source: Devlin et al. 2019, section 3.1, https://arxiv.org/abs/1810.04805
"""

import pathlib
import sys
from typing import TYPE_CHECKING

from keras_tfm import models, text, training
from keras_tfm.file_reading import Config, read_json
from keras_tfm.pipelines.texts import AnyVocabulary
from keras_tfm.recipes import labeled_corpora, runs
from keras_tfm.recipes.flags import jit_argument

if TYPE_CHECKING:  # which imports this module
    from keras_tfm.file_reading import Config, read_json
from keras_tfm.recipes import classification


def pretrain(
    flags: "classification.Flags",
    encoder: models.Encoder,
    corpus: labeled_corpora.LabeledCorpus,
    vocabulary: AnyVocabulary,
    out: pathlib.Path,
) -> float:
    """Trains the encoder to predict masked tokens, from where the run stands.

    Args:
        flags: `classification.Flags`.
        encoder: `models.Encoder`.
        corpus: `labeled_corpora.LabeledCorpus`.
        vocabulary: of the texts.
        out: path of the run folder. `runs.PRETRAINING` in it holds the state.

    Returns:
        float, minutes of training.
    """
    if not flags.pretraining_epochs:
        return 0.0
    report = out / "pretraining.json"
    if runs.state_file(out).exists():  # all weights are restored later
        return Config(read_json(report), report).number("minutes")
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
    seconds = runs.Seconds()
    folder = runs.state_file(out / runs.PRETRAINING).parent
    resume = training.ResumeTraining(folder, [seconds], flags.save_every)
    history = resume.fit(
        model,
        batches,
        flags.pretraining_epochs,
        [seconds],
        verbose=1 if sys.stdout.isatty() else 2,
    )
    minutes = round(sum(history["seconds"]) / 60, 4)
    runs.write_json(report, {"minutes": minutes, "history": history})
    return minutes
