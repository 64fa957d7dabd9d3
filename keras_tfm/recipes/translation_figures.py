"""Figures of a translation run: curves, and the attention of one sentence."""

import pathlib

import keras
import numpy as np

from keras_tfm import pipelines, plot
from keras_tfm.recipes import corpora


def draw(
    translator: pipelines.Translator,
    corpus: corpora.Corpus,
    history: dict[str, list],
    out: pathlib.Path,
) -> None:
    """Draws the curves of the run and the cross-attention of one sentence.

    Args:
        translator: `pipelines.Translator`.
        corpus: `corpora.Corpus`.
        history: dict from str to list, losses and scores of all epochs.
        out: run folder; `curves.png` and `attention.png` are written there.
    """
    plot.training_curves(history).savefig(out / "curves.png", dpi=150)
    words = np.array([len(sentence.split()) for sentence in corpus.test.source])
    sentence = corpus.test.source[int(np.argmin(np.abs(words - 9)))]
    vocabulary, config = translator.vocabulary, translator.config
    source = [*config.source_prefix, *vocabulary.encode([sentence])[0]]
    source += config.source_suffix
    longest, target_vocabulary = (
        translator.decoder.max_positions,
        translator.target_vocabulary,
    )
    target = [
        *config.target_prefix,
        *target_vocabulary.encode([translator(sentence)])[0],
    ][: longest and longest - 1]
    maps = translator.model.attention_maps(
        np.array([source], "int32"),
        np.array([[target_vocabulary.start_id, *target]], "int32"),
    )
    # Row t is the query that predicts token t: the position of token t - 1.
    weights = keras.ops.convert_to_numpy(maps["cross"][-1])[0]  # (H, T, S)
    figure = plot.attention_map(
        weights,
        vocabulary.tokens(source),
        [*target_vocabulary.tokens(target), "(end)"],
        title="Cross-attention, last layer, mean of the heads",
    )
    figure.savefig(out / "attention.png", dpi=150)
