"""From sentence to sentence: a model with its vocabulary and a search."""

import json
import os
import pathlib
from collections.abc import Iterable

import keras
import numpy as np

from keras_tfm.decode.search import Search
from keras_tfm.text.vocabulary import Vocabulary


class Translator:
    """Translates text with a model, its vocabularies, and a search.

    Args:
        model: `Transformer`, or what else has `begin` and `step`.
        vocabulary: `Vocabulary` of the source, and of the target unless
            another is given.
        target_vocabulary: `Vocabulary` of the target, or None.
        beam_size: int >= 1. 1 is greedy search.
        length_penalty: float >= 0, see `keras_tfm.decode.penalty`.
        batch_size: int >= 1, in sentences. Decoded at once.
        max_source_length: int >= 1, in tokens. A longer text is refused.
        **search: further settings of `keras_tfm.decode.Search`.

    Call arguments:
        texts: str, or list of str.
        progress: bool. Show a progress bar.

    Returns:
        str, or list of str in the same order.

    Raises:
        ValueError: a size below 1, a vocabulary larger than the model's
            table, or a text of more than `max_source_length` tokens.
        TypeError: what comes is not text.
    """

    def __init__(
        self,
        model,
        vocabulary,
        target_vocabulary=None,
        beam_size=4,
        length_penalty=1.0,
        batch_size=64,
        max_source_length=1024,
        **search,
    ):
        if batch_size < 1 or max_source_length < 1:
            raise ValueError(
                "A batch has at least one sentence of at least one token. Received: "
                f"batch_size={batch_size}, max_source_length={max_source_length}."
            )
        self.model = model
        self.vocabulary = vocabulary
        self.target_vocabulary = target_vocabulary or vocabulary
        self.batch_size = batch_size
        self.max_source_length = max_source_length
        sides = (
            ("vocabulary_size", self.vocabulary),
            ("target_vocabulary_size", self.target_vocabulary),
        )
        for name, side in sides:
            size = getattr(model, name, None)
            if size is not None and side.size > size:
                raise ValueError(
                    "The vocabulary has more pieces than the model has rows. "
                    f"Received: {side.size} pieces, {name}={size}. Load the "
                    "vocabulary the model was trained with."
                )
        # What `save` writes: a translator read back searches as this one does.
        self.settings = {
            "beam_size": beam_size,
            "length_penalty": length_penalty,
            "batch_size": batch_size,
            "max_source_length": max_source_length,
            **search,
        }
        self.search = Search(
            model,
            beam_size=beam_size,
            length_penalty=length_penalty,
            start_id=self.target_vocabulary.start_id,
            end_id=self.target_vocabulary.end_id,
            **search,
        )

    def __call__(self, texts, progress=False):
        if isinstance(texts, str):
            return self([texts], progress)[0]
        rows = self._rows(texts)
        # Longest first: what does not fit in memory fails at once. Sentences
        # of one length share a batch, and so waste no steps on each other.
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        translations = [""] * len(rows)
        bar = keras.utils.Progbar(len(rows), unit_name="sentence") if progress else None
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            hypotheses = self.search(self._padded([rows[i] for i in chosen]))
            best = self.target_vocabulary.decode(hypotheses.ids[: len(chosen), 0])
            for i, translation in zip(chosen, best, strict=True):
                translations[i] = translation
            if bar:
                bar.update(min(start + self.batch_size, len(order)))
        return translations

    def save(self, folder):
        """Writes model, vocabularies and settings to a folder.

        Args:
            folder: path. Made if it is not there.
        """
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # A fresh copy: a compiled model names the optimizer of its backend.
        model = type(self.model).from_config(self.model.get_config())
        model.set_weights(self.model.get_weights())
        model.save(folder / "model.keras")
        self.vocabulary.save(folder / "source.model")
        self.target_vocabulary.save(folder / "target.model")
        settings = json.dumps(self.settings, indent=1)
        (folder / "search.json").write_text(settings + "\n")

    @classmethod
    def load(cls, folder, **settings):
        """Reads what `save` wrote, on any backend.

        Args:
            folder: path.
            **settings: of `Translator`, over those saved.

        Returns:
            `Translator`.

        Raises:
            FileNotFoundError: the folder lacks a file.
        """
        folder = pathlib.Path(folder)
        names = ("model.keras", "source.model", "target.model", "search.json")
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise FileNotFoundError(
                f"No saved translator in {os.fspath(folder)!r}: {missing} missing. "
                "Name a folder that `Translator.save` or a recipe has written."
            )
        saved = json.loads((folder / "search.json").read_text())
        return cls(
            keras.models.load_model(folder / "model.keras"),
            Vocabulary.load(folder / "source.model"),
            Vocabulary.load(folder / "target.model"),
            **{**saved, **settings},
        )

    def export(self, folder, max_decoding_length=128):
        """Writes a SavedModel that takes sentences and gives sentences.

        It holds network, vocabularies and search, and runs with TensorFlow and
        tensorflow_text, without this library: `tf.saved_model.load(folder)
        .signatures["serving_default"](text=...)` with `text` a string `(B,)`
        gives `translation`, a string `(B,)`, and `score`, float32 `(B,)`.

        Args:
            folder: path.
            max_decoding_length: int >= 1, in tokens. Longer translations are
                cut.

        Raises:
            RuntimeError: the backend is not TensorFlow.
            ImportError: tensorflow_text is missing.
        """
        if keras.config.backend() != "tensorflow":
            raise RuntimeError(
                "A SavedModel is written by the TensorFlow backend. Received: "
                f"backend={keras.config.backend()!r}. Save the translator, and load "
                "and export it with KERAS_BACKEND=tensorflow."
            )
        import tensorflow as tf

        tokenizer = self.vocabulary.tensorflow_tokenizer()
        detokenizer = self.target_vocabulary.tensorflow_tokenizer()
        search, target_size = self.search, self.target_vocabulary.size
        end_id = self.target_vocabulary.end_id

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
        def translate(text):
            ids = tokenizer.tokenize(text).to_tensor(0)
            best = search.decode(tf.cast(ids, tf.int32), max_decoding_length)
            ids = best.ids[:, 0]
            real = (ids != 0) & (ids != end_id) & (ids < target_size)
            sentence = detokenizer.detokenize(tf.ragged.boolean_mask(ids, real))
            return {"translation": sentence, "score": best.scores[:, 0]}

        module = tf.Module()
        module.model, module.translate = self.model, translate
        module.tokenizers = (tokenizer, detokenizer)
        tf.saved_model.save(
            module,
            os.fspath(folder),
            signatures={"serving_default": translate.get_concrete_function()},
        )

    def _rows(self, texts):
        rows = self.vocabulary.encode(_text_list(texts))
        for i, row in enumerate(rows):
            if len(row) > self.max_source_length:
                raise ValueError(
                    f"Text {i} has {len(row)} tokens; max_source_length="
                    f"{self.max_source_length}. Split it into sentences."
                )
        return rows

    def _padded(self, rows):
        """One batch of a fixed number of rows, so that shapes are few."""
        counts = (1, min(8, self.batch_size), self.batch_size)
        count = next(count for count in counts if count >= len(rows))
        ids = np.zeros((count, max(1, *map(len, rows))), "int32")
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
        return ids


def _text_list(texts):
    """Refuses what is not text, before any of it is translated."""
    kinds = {type(texts).__name__}
    if isinstance(texts, Iterable) and not isinstance(texts, bytes):
        texts = list(texts)
        kinds = {type(text).__name__ for text in texts if not isinstance(text, str)}
    if kinds:
        raise TypeError(
            f"Text is str or a list of str. Received: {sorted(kinds)}. Decode "
            "bytes, and put '' where there is no text."
        )
    return texts
