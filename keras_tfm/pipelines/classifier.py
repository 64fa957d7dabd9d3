"""Text in, labels out: a classifier with its vocabulary."""

import logging
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_tfm.file_reading import reading
from keras_tfm.pipelines.encoder_batches import bucket_of, run_in_batches
from keras_tfm.pipelines.pretrained import resolve
from keras_tfm.pipelines.saving import (
    CLASSIFIER_FILES,
    read_classifier,
    save_classifier,
)
from keras_tfm.pipelines.texts import (
    AnyVocabulary,
    check_encoder_vocabulary,
    check_unicode,
)
from keras_tfm.runtime.compile import compiled
from keras_tfm.text.pair_packing import (
    count_special_tokens,
    pack_texts,
    truncated_lengths,
)

_log = logging.getLogger(__name__)

Text = str | tuple[str, str]


class Prediction(NamedTuple):
    """The labels of one text.

    Attributes:
        label: str, the most likely class; of a multi-label model a list of str,
            the classes whose probability reaches the threshold.
        probability: float, of the most likely class.
        probabilities: dict from each class to float.
        truncated: bool. True if only the beginning of the text was read.

    Example:
        ```python
        from keras_tfm.pipelines import Classifier

        classifier = Classifier.from_preset("sentiment-en")
        prediction = classifier("What a wonderful film!")
        assert prediction.probability == max(prediction.probabilities.values())
        ```
    """

    label: str | list[str]
    probability: float
    probabilities: dict[str, float]
    truncated: bool


class Classifier:
    """Classifies texts with a model and its vocabulary.

    Args:
        model: `keras_tfm.models.SequenceClassifier`.
        vocabulary: `Vocabulary` or `TokenizersVocabulary`.
        classes: list of C str: class c is `classes[c]`.
        paired: bool. Each text is a pair of texts.
        max_length: int, in tokens with start and end tokens; None for 256, or
            for the number of learned positions if that is smaller. A longer
            text is truncated; its `Prediction` says so, and a warning once. Of
            a pair, the longer text is truncated first.
        batch_tokens: int >= `max_length`, the most tokens, with padding,
            classified at once.
        threshold: float in (0, 1), the least probability of a label of a
            multi-label model.

    Call arguments:
        texts: str, a tuple of two str for a pair, or a list of these.

    Returns:
        `Prediction`, or a list of them in the same order.

    Raises:
        ValueError: an argument does not fit the model, or a text has no tokens.
        TypeError: `texts` is not text.

    Example:
        ```python
        from keras_tfm.pipelines import Classifier

        classifier = Classifier.from_preset("sentiment-en")
        assert classifier("What a wonderful film!").label == "positive"
        ```
    """

    def __init__(
        self,
        model: keras.Model,
        vocabulary: AnyVocabulary,
        classes: Sequence[str],
        paired: bool = False,
        max_length: int | None = None,
        batch_tokens: int = 4096,
        threshold: float = 0.5,
    ):
        self.model, self.vocabulary = model, vocabulary
        self.classes, self.paired = list(classes), bool(paired)
        if max_length is None:
            max_length = min(256, model.encoder.config["sequence_length"] or 256)
        self.max_length, self.batch_tokens = int(max_length), int(batch_tokens)
        self.threshold = float(threshold)
        _check_classes(self.classes, model)
        check_encoder_vocabulary(vocabulary, model.encoder)
        self._check_lengths()
        self._has_warned = False
        self._predict_batch = compiled(self._call_model, model, jit_compile=False)

    def __call__(self, texts: Text | Iterable[Text]) -> Prediction | list[Prediction]:
        single = isinstance(texts, str | tuple)
        rows, truncated = self._encode([texts] if single else texts)
        predictions = [
            self._prediction(row, bool(flag))
            for row, flag in zip(self._predict(rows), truncated, strict=True)
        ]
        return predictions[0] if single else predictions

    def __repr__(self) -> str:
        return f"<Classifier: {self.vocabulary!r}, classes {self.classes}>"

    def probabilities(self, texts: Text | Iterable[Text]) -> np.ndarray:
        """Returns the probabilities of all classes.

        Args:
            texts: list of N str, or of N tuples of two str; or one of them.

        Returns:
            float32 `(N, C)`, for one text `(C,)`. They sum to 1; those of a
            multi-label model are independent.

        Example:
            ```python
            from keras_tfm.pipelines import Classifier

            classifier = Classifier.from_preset("sentiment-en")
            probabilities = classifier.probabilities(["A wonderful film!"])
            assert probabilities.shape == (1, 2) and probabilities[0, 1] > 0.5
            ```
        """
        if isinstance(texts, str | tuple):
            return self.probabilities([texts])[0]
        return self._predict(self._encode(texts)[0])

    def word_weights(self, text: Text) -> list[tuple[str, float]]:
        """Returns the weight of each word in attention pooling.

        Args:
            text: str, or a tuple of two str.

        Returns:
            list of pairs of a word, as the vocabulary has it, and a float, the
            sum of the weights of its tokens. The weights of words and special
            tokens sum to 1.

        Raises:
            ValueError: the model does not pool by attention; or as a call.

        Example:
            ```python
            from keras_tfm.pipelines import Classifier

            classifier = Classifier.from_preset("sentiment-en")
            weights = dict(classifier.word_weights("a wonderful film"))
            assert max(weights, key=weights.get) == "wonderful"
            ```
        """
        [sides], _ = self._encode([text])
        inputs = self._inputs([sides], self._bucket(sides))
        weights = keras.ops.convert_to_numpy(self.model.pooling_weights(inputs))[0]
        begin, words = 1, []  # after the start token
        for ids in sides:
            end = begin + len(ids)
            sums = np.bincount(
                self.vocabulary.word_indices(ids), weights=weights[begin:end]
            )
            words += zip(self.vocabulary.words(ids), sums.tolist(), strict=True)
            begin = end + len(self.vocabulary.separator_ids)
        return words

    def save(self, folder: str | os.PathLike) -> None:
        """Writes model, vocabulary and configuration to a folder.

        Files in the folder are replaced after all new files are written.

        Args:
            folder: path. Created if it does not exist.
        """
        save_classifier(self, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike, **changes: Any) -> "Classifier":
        """Reads what `save` wrote, on any backend.

        Args:
            folder: path.
            **changes: arguments of `Classifier`, in place of those saved.

        Raises:
            FileNotFoundError: the folder lacks a file.
            ValueError: a file is damaged.
        """
        return _load(cls, folder, {}, changes)

    @classmethod
    def from_preset(cls, name: str | os.PathLike, **changes: Any) -> "Classifier":
        """Loads a pretrained classifier.

        Args:
            name: str or path: a name of `presets()`; `"hf://owner/name"`, a
                repository of Hugging Face, downloaded once by huggingface-hub;
                or a folder: of a recipe's run, of `save`, or as transformers
                or KerasHub writes it.
            **changes: arguments of `Classifier`, in place of the model's.

        Raises:
            ValueError: there is no such name, or the model has no vocabulary or
                no classes.
            FileNotFoundError: the folder does not hold a known model.

        Example:
            ```python
            from keras_tfm.pipelines import Classifier

            classifier = Classifier.from_preset("sentiment-en", threshold=0.9)
            assert classifier.classes == ["negative", "positive"]
            ```
        """
        model, arguments = resolve(name, "classification")
        if isinstance(model, pathlib.Path):
            return _load(cls, model, arguments, changes)
        if model.classes is None:
            raise ValueError(
                f"`name` must be a model with classes; got {os.fspath(name)!r}, a "
                f"{type(model.model).__name__} without: `architectures` of "
                "`config.json`, or `task.json`, names no classifier. Fine-tune it "
                "first: `keras-tfm train classification --from`."
            )
        arguments |= changes
        return cls(model.model, model.vocabulary, model.classes, **arguments)

    def _check_lengths(self):
        special = count_special_tokens(self.vocabulary, 1 + self.paired)
        fits = special + self.paired < self.max_length <= self.batch_tokens
        if not fits or not 0 < self.threshold < 1:
            raise ValueError(
                f"`max_length` must exceed the {special} special tokens and one token "
                "of each text, `batch_tokens` must be at least `max_length`, and "
                f"`threshold` between 0 and 1; got max_length={self.max_length}, "
                f"batch_tokens={self.batch_tokens}, threshold={self.threshold}."
            )
        positions = self.model.encoder.config["sequence_length"]
        if positions is not None and self.max_length > positions:
            raise ValueError(
                f"`max_length` must be at most {positions}, the learned positions of "
                f"the model; got max_length={self.max_length}."
            )

    def _encode(self, texts):
        """Returns the tokens read of each text, and bool `(N,)`, truncated."""
        texts = _check_texts(texts, 1 + self.paired)
        sides = [
            self.vocabulary.encode(list(side)) for side in zip(*texts, strict=True)
        ]
        sides = sides or [[]] * (1 + self.paired)
        lengths = np.array([[len(ids) for ids in side] for side in sides], "int64")
        empty = np.flatnonzero((lengths == 0).any(0))
        if len(empty):
            raise ValueError(
                f"Text {empty[0]} has no tokens in this vocabulary; got "
                f"{str(texts[empty[0]])!r:.80}. Leave it out."
            )
        special = count_special_tokens(self.vocabulary, len(sides))
        kept_lengths = truncated_lengths(lengths, self.max_length - special)
        truncated = (kept_lengths < lengths).any(0)
        # Once: any client of a server could fill its log.
        if truncated.any() and not self._has_warned:
            self._has_warned = True
            _log.warning(
                f"{truncated.sum():,} of {len(texts):,} texts have more than "
                f"{self.max_length} tokens ({lengths.sum(0).max():,} the longest) and "
                "were truncated. Later texts are truncated without a warning."
            )
        rows = [
            tuple(ids[:n] for ids, n in zip(pair, numbers, strict=True))
            for pair, numbers in zip(
                zip(*sides, strict=True), kept_lengths.T, strict=True
            )
        ]
        return rows, truncated

    def _bucket(self, sides):
        special = count_special_tokens(self.vocabulary, len(sides))
        length = sum(map(len, sides)) + special
        return bucket_of(length, self.max_length)

    def _inputs(self, rows, length):
        segments = self.model.encoder.config["num_segments"] > 0
        return pack_texts(rows, length, self.vocabulary, segments)

    def _call_model(self, inputs):
        return self.model.probabilities(self.model(inputs, training=False))

    def _predict(self, rows):
        """float32 `(N, C)`, from batches of few sizes."""

        def _batch(indices, length):
            return self._inputs([rows[index] for index in indices], length)

        buckets = [self._bucket(row) for row in rows]
        dims = (len(self.classes),)
        return run_in_batches(
            self._predict_batch, _batch, buckets, self.batch_tokens, dims
        )

    def _prediction(self, row, truncated):
        probabilities = dict(zip(self.classes, row.tolist(), strict=True))
        label = max(probabilities, key=probabilities.get)
        probability = probabilities[label]
        if self.model.multi_label:
            label = [c for c, p in probabilities.items() if p >= self.threshold]
        return Prediction(label, probability, probabilities, truncated)


def _load(cls, folder, described, changes):
    """Reads a saved classifier; `described` is of its preset.json."""
    arguments = read_classifier(folder) | described
    names = *CLASSIFIER_FILES, *(["preset.json"] if described else [])
    with reading(folder, "a classifier", names=names):
        classifier = cls(**arguments)
    return cls(**arguments | changes) if changes else classifier


def _check_classes(classes, model):
    are_names = all(isinstance(name, str) for name in classes)
    are_different = are_names and len(set(classes)) == len(classes)
    if len(classes) != model.num_classes or not are_different:
        raise ValueError(
            f"`classes` must be {model.num_classes} different names, in the order of "
            f"training; got {len(classes)}: {classes}."
        )


def _check_texts(texts, sides):
    """Returns a list of tuples of one or two str."""
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Mapping):
        raise TypeError(
            "`texts` must be a str, a tuple of two, or a list of these; got "
            f"{type(texts).__name__}. Decode bytes; pass a list."
        )
    return [_check_text(number, text, sides) for number, text in enumerate(texts)]


def _check_text(number, text, sides):
    parts = (text,) if isinstance(text, str) else text
    fits = isinstance(parts, tuple | list) and len(parts) == sides
    if not fits or not all(isinstance(part, str) for part in parts):
        expected = "a tuple of two str" if sides == 2 else "a str"
        raise TypeError(
            f"Text {number} must be {expected} for this classifier; got "
            f"{str(text)!r:.80} of type {type(text).__name__}. Decode bytes."
        )
    for part in parts:
        check_unicode(part, number)
        if not part.strip():
            raise ValueError(
                f"Text {number} must not be empty; got {str(text)!r:.80}. Leave it out."
            )
    return tuple(parts)
