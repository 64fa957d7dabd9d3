"""From text to labels: a classifier with its vocabulary."""

import json
import logging
import os
import pathlib
import tempfile
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import keras
import numpy as np

from keras_tfm.decode.inputs import rounded_up
from keras_tfm.export import saved_model
from keras_tfm.pipelines import pretrained as preset
from keras_tfm.pipelines.folders import check_saved, read_model, write_model
from keras_tfm.runtime.compile import compiled
from keras_tfm.text.files import is_unicode
from keras_tfm.text.pair_packing import (
    count_special_tokens,
    pack_texts,
    truncated_lengths,
)
from keras_tfm.text.tokenizers_vocabulary import load_vocabulary
from keras_tfm.zoo.config_file import read_json

# Of a saved classifier.
FILES = ("model.keras", "vocabulary.model", "classifier.json")
# Lengths are rounded up to these, so that few programs are compiled.
LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)

_log = logging.getLogger(__name__)


class Prediction(NamedTuple):
    """What a classifier says of one text.

    Attributes:
        label: str, the likeliest class; or a list of str, those at or above
            the threshold, where a text may have several.
        probability: float, of the likeliest class.
        probabilities: dict from each class to float.
        truncated: bool. Only the beginning of the text was read.
    """

    label: str | list[str]
    probability: float
    probabilities: dict[str, float]
    truncated: bool


class Classifier:
    """Labels texts with a model and its vocabulary.

    Args:
        model: `keras_tfm.models.SequenceClassifier`.
        vocabulary: `Vocabulary`, or `TokenizersVocabulary`.
        classes: list of C str: class c is `classes[c]`.
        paired: bool. Texts are pairs.
        max_length: int, in tokens with start and ends; or None for 256, or as
            many as the model has positions for. A longer text is cut, which
            its `Prediction`, `truncated` and a warning say; of a pair the
            longer text is cut first.
        batch_tokens: int >= `max_length`, in tokens with padding: labelled at
            once, at most.
        threshold: float in (0, 1). The least probability of a label where a
            text may have several.

    Attributes:
        truncated: int, texts of the last call that were cut.

    Call arguments:
        texts: str, a tuple of two str for a pair, or a list of these.

    Returns:
        `Prediction`, or a list of them in the same order.

    Raises:
        ValueError: settings that do not fit each other or the model, or a text
            without a token.
        TypeError: what comes is not text.
    """

    def __init__(
        self,
        model,
        vocabulary,
        classes,
        paired=False,
        max_length=None,
        batch_tokens=4096,
        threshold=0.5,
    ):
        self.model, self.vocabulary = model, vocabulary
        self.classes, self.paired = list(classes), bool(paired)
        if max_length is None:
            places = model.encoder.config["sequence_length"]
            max_length = min(256, places or 256)
        self.max_length, self.batch_tokens = int(max_length), int(batch_tokens)
        self.threshold = float(threshold)
        self.truncated = 0
        self._check_settings()
        self._program = compiled(self._probabilities, model, jit_compile=False)

    def __call__(self, texts):
        if isinstance(texts, str | tuple):
            return self([texts])[0]
        texts, rows, cut = self._read(texts)
        found = self._predict(rows)
        return [
            self._prediction(row, bool(one))
            for row, one in zip(found, cut, strict=True)
        ]

    def probabilities(self, texts) -> np.ndarray:
        """Gives the probabilities alone.

        Args:
            texts: list of N str, or of N tuples of two str; or one of them.

        Returns:
            float32 `(N, C)`, of one text `(C,)`: of each class by itself where
            a text may have several, else summing to one.
        """
        if isinstance(texts, str | tuple):
            return self.probabilities([texts])[0]
        return self._predict(self._read(texts)[1])

    def word_weights(self, text) -> list[tuple[str, float]]:
        """Tells how much each word weighs in the pooled vector.

        Args:
            text: str, or a tuple of two str.

        Returns:
            list of pairs of a word, as the vocabulary has it, and the float
            sum of the weights of its pieces; with start and ends these sum to
            one.

        Raises:
            ValueError: the model does not pool by attention; or as a call.
        """
        _, [sides], _ = self._read([text])
        inputs = self._inputs([sides], self._length(sides))
        weights = keras.ops.convert_to_numpy(self.model.pooling_weights(inputs))[0]
        place, found = 1, []
        for side in sides:
            end = place + len(side)
            shares = np.bincount(
                self.vocabulary.word_indices(side), weights=weights[place:end]
            )
            found += zip(self.vocabulary.words(side), shares.tolist(), strict=True)
            place = end + len(self.vocabulary.separator_ids)
        return found

    def save(self, folder):
        """Writes model, vocabulary and settings to a folder.

        What the folder held before stays until all is written.

        Args:
            folder: path. Made if it is not there.
        """
        folder = pathlib.Path(folder)
        settings = {
            "classes": self.classes,
            "paired": self.paired,
            "max_length": self.max_length,
            "batch_tokens": self.batch_tokens,
            "threshold": self.threshold,
        }
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as part:
            part = pathlib.Path(part)
            write_model(self.model, part)
            self.vocabulary.save(part / FILES[1])
            settings = json.dumps(settings, indent=1, ensure_ascii=False)
            (part / FILES[2]).write_text(settings + "\n", encoding="utf-8")
            for name in FILES:
                os.replace(part / name, folder / name)

    @classmethod
    def load(cls, folder, **settings):
        """Reads what `save` wrote, on any backend.

        Args:
            folder: path.
            **settings: of `Classifier`, over those saved.

        Returns:
            `Classifier`.

        Raises:
            FileNotFoundError: the folder lacks a file.
            ValueError: a file is damaged.
        """
        model, vocabulary, own = check_saved(folder, FILES, "Classifier")
        return cls(
            read_model(model),
            load_vocabulary(vocabulary),
            **{**read_json(own), **settings},
        )

    @classmethod
    def from_preset(cls, name, **settings):
        """Loads a model that labels, whoever has trained it.

        Args:
            name: str or path: a name of `keras_tfm.presets()`;
                `"hf://owner/name"`, a repository of Hugging Face, fetched once
                by huggingface-hub; or a folder: of a recipe's run, of `save`,
                or as transformers writes it.
            **settings: of `Classifier`, over those it comes with.

        Returns:
            `Classifier`.

        Raises:
            ValueError: there is no such name, or no vocabulary with it, or it
                has no classes.
            FileNotFoundError: the folder holds no model that is known.
        """
        found, own = preset.find(name, "classification")
        settings = {**own, **settings}
        if isinstance(found, pathlib.Path):
            return cls.load(found, **settings)
        if found.classes is None:
            raise ValueError(
                "A model with classes is wanted. Received: "
                f"{type(found.model).__name__} from {os.fspath(name)!r}, which has "
                "none. Train one from it: `keras_tfm.recipes.classification --from`."
            )
        return cls(found.model, found.vocabulary, found.classes, **settings)

    def export(self, folder, version=None):
        """Writes a SavedModel that takes texts and gives labels.

        It runs with TensorFlow and tensorflow_text, without this library. Its
        `serving_default` takes `text`, a string `(B,)`, and of pairs `second`
        too, and gives `labels`, strings `(B, C)`, the likeliest first, with
        their `probabilities`, float32 `(B, C)`, and `truncated`, bool `(B,)`,
        True where only the beginning of the text was read. Where a text has no
        token, labels are "" and probabilities 0.

        From JAX and PyTorch a process with TensorFlow writes it.

        Args:
            folder: path. Replaced when all is written.
            version: int >= 0 or None. For TensorFlow Serving: the model goes to
                `folder/version`, with texts that warm it up.

        Raises:
            FileExistsError: the folder holds something else than a SavedModel.
            ImportError: TensorFlow or tensorflow_text is missing; from JAX and
                PyTorch a RuntimeError, which says so.
            TypeError: the vocabulary is none of SentencePiece.
        """
        if not hasattr(self.vocabulary, "tensorflow_tokenizer"):
            raise TypeError(
                "A SavedModel cuts text by SentencePiece. Received: a vocabulary of "
                f"type {type(self.vocabulary).__name__}. Serve the classifier itself."
            )
        if keras.config.backend() != "tensorflow":
            saved_model.write_elsewhere(self, folder, {"version": version})
            return
        saved_model.write_classifier(self, folder, version)

    def _check_settings(self):
        marks = count_special_tokens(self.vocabulary, 1 + self.paired)
        fits = marks + self.paired < self.max_length <= self.batch_tokens
        if not fits or not 0 < self.threshold < 1:
            raise ValueError(
                f"`max_length` has room for {marks} marks and a token of each text, "
                "`batch_tokens` for a text of that length, and `threshold` is between "
                f"0 and 1. Received: max_length={self.max_length}, batch_tokens="
                f"{self.batch_tokens}, threshold={self.threshold}."
            )
        if len(self.classes) != self.model.num_classes:
            raise ValueError(
                f"The model has {self.model.num_classes} classes. Received: "
                f"{len(self.classes)}, {self.classes}. Give those it was trained on, "
                "in their order."
            )
        if len(set(self.classes)) < len(self.classes):
            raise ValueError(
                f"Each class has a name of its own. Received: {self.classes}. Give "
                "those that are named twice another."
            )
        encoder = self.model.encoder
        if self.vocabulary.size > encoder.vocabulary_size:
            raise ValueError(
                "The vocabulary has more pieces than the model has rows. Received: "
                f"{self.vocabulary.size} pieces, vocabulary_size="
                f"{encoder.vocabulary_size}. Load the vocabulary the model was "
                "trained with."
            )
        if self.vocabulary.pad_id != encoder.config["pad_id"]:
            raise ValueError(
                "Texts are padded with another id than the model masks. Received: "
                f"{self.vocabulary.pad_id}, pad_id={encoder.config['pad_id']}. Make "
                "the encoder with the vocabulary's."
            )
        places = encoder.config["sequence_length"]
        if places is not None and self.max_length > places:
            raise ValueError(
                f"The model has learned {places} positions. Received: max_length="
                f"{self.max_length}. Lower it."
            )

    def _read(self, texts):
        """Gives texts, the tokens kept of each, and which were cut."""
        texts = [self._checked(i, text) for i, text in enumerate(_text_list(texts))]
        sides = [[text[side] for text in texts] for side in range(1 + self.paired)]
        encoded = [self.vocabulary.encode(side) for side in sides]
        tokens = np.array([[len(row) for row in side] for side in encoded], "int64")
        self._check_tokens(texts, tokens)
        marks = count_special_tokens(self.vocabulary, len(sides))
        kept = truncated_lengths(tokens, self.max_length - marks)
        cut = (kept < tokens).any(0)
        self.truncated = int(cut.sum())
        if self.truncated:
            longest = int(tokens.sum(0).max())
            _log.warning(
                f"{self.truncated:,} of {len(texts):,} texts have more than "
                f"{self.max_length} tokens ({longest:,} the longest); only their "
                "beginnings were read."
            )
        rows = [
            tuple(row[:n] for row, n in zip(sides, numbers, strict=True))
            for sides, numbers in zip(zip(*encoded, strict=True), kept.T, strict=True)
        ]
        return texts, rows, cut

    def _checked(self, index, text):
        sides = (text,) if isinstance(text, str) else text
        fits = isinstance(sides, tuple | list) and len(sides) == 1 + self.paired
        if not fits or not all(isinstance(side, str) for side in sides):
            wanted = "a tuple of two str" if self.paired else "a str"
            mend = "Give (first, second)." if self.paired else "Give its text alone."
            if any(isinstance(side, bytes) for side in _as_sides(text)):
                mend = "Decode bytes."
            raise TypeError(
                f"A text is {wanted} for this classifier. Received: {str(text)[:60]!r} "
                f"of type {type(text).__name__}, text {index}. {mend}"
            )
        if not all(map(is_unicode, sides)):
            raise ValueError(
                f"Text {index} has half of a surrogate pair, which is no character. "
                f"Received: {str(text)[:60]!r}. Mend how it was decoded."
            )
        if not all(side.strip() for side in sides):
            raise ValueError(
                f"Nothing can be said of an empty text. Received: {text!r}, text "
                f"{index}. Leave it out."
            )
        return tuple(sides)

    def _check_tokens(self, texts, tokens):
        blank = np.flatnonzero((tokens == 0).any(0))
        if len(blank):
            raise ValueError(
                "Nothing of a text is left in this vocabulary. Received: "
                f"{texts[blank[0]]!r}, text {blank[0]}. Leave it out."
            )

    def _length(self, sides):
        length = sum(map(len, sides)) + count_special_tokens(
            self.vocabulary, len(sides)
        )
        return min(rounded_up(length, LENGTHS), self.max_length)

    def _inputs(self, rows, length):
        segments = self.model.encoder.config["num_segments"] > 0
        return pack_texts(rows, length, self.vocabulary, segments)

    def _probabilities(self, inputs):
        return self.model.probabilities(self.model(inputs, training=False))

    def _predict(self, rows):
        """Labels rows by length, with few shapes of batches."""
        found = np.zeros((len(rows), len(self.classes)), "float32")
        lengths = np.array([self._length(row) for row in rows])
        for length in np.unique(lengths):
            places = np.flatnonzero(lengths == length)
            most = self.batch_tokens // length
            for first in range(0, len(places), most):
                some = places[first : first + most]
                # As many rows as a power of two; those that are more are cut.
                full = min(most, 1 << (len(some) - 1).bit_length())
                padded = np.resize(some, full)
                inputs = self._inputs([rows[place] for place in padded], length)
                inputs = {k: keras.ops.convert_to_tensor(v) for k, v in inputs.items()}
                answer = keras.ops.convert_to_numpy(self._program(inputs))
                found[some] = answer[: len(some)]
        return found

    def _prediction(self, row, cut):
        probabilities = dict(zip(self.classes, row.tolist(), strict=True))
        label = max(probabilities, key=probabilities.get)
        probability = probabilities[label]
        if self.model.multi_label:
            label = [c for c, p in probabilities.items() if p >= self.threshold]
        return Prediction(label, probability, probabilities, cut)


def _as_sides(text):
    return text if isinstance(text, tuple | list) else (text,)


def _text_list(texts):
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Mapping):
        mend = "Decode bytes." if isinstance(texts, bytes) else "Give a list."
        raise TypeError(
            "Texts are a str, a tuple of two, or a list of these. Received: "
            f"{type(texts).__name__}. {mend}"
        )
    return list(texts)
