"""COMET: source, translation and reference in, an estimate of quality out."""

import itertools
import math
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import keras
import numpy as np

from keras_tfm import zoo
from keras_tfm.pipelines.encoder_batches import bucket_of, run_in_batches
from keras_tfm.pipelines.texts import (
    AnyVocabulary,
    check_encoder_vocabulary,
    check_unicode,
)
from keras_tfm.runtime.compile import compiled
from keras_tfm.text.pair_packing import count_special_tokens, pack_texts

SPARE_POSITIONS = 2  # which the published code leaves unused
ESTIMATES = 1024  # segments that are estimated at once


class CometScores(NamedTuple):
    """The scores of segments, in their order.

    Attributes:
        scores: list of float, the estimate of each segment.
        truncated: list of bool. True if only the beginning of the source, the
            translation or the reference was read.

    Example:
        ```python
        from keras_tfm.pipelines import CometScores

        print(CometScores([0.5, 1.0], [False, False]).mean)  # 0.75
        ```
    """

    scores: list[float]
    truncated: list[bool]

    @property
    def mean(self) -> float:
        """The score of a system: the mean over its segments; NaN for none."""
        return math.fsum(self.scores) / len(self.scores) if self.scores else math.nan


class Comet:
    """Scores translations with COMET.

    Args:
        model: `keras_tfm.models.TranslationEstimator`.
        vocabulary: `TokenizersVocabulary` or `Vocabulary`, of its encoder.
        max_length: int, in tokens with start and end tokens; None for two less
            than the encoder's positions, as in the published code. A longer
            text is truncated; `CometScores.truncated` says so.
        batch_tokens: int >= `max_length`, the most tokens, with padding, that
            are encoded at once.

    Raises:
        ValueError: an argument does not fit the model.

    Source: Rei et al. 2020, https://arxiv.org/abs/2009.09025

    Example:
        ```python
        from keras_tfm import models, pipelines, text

        vocabulary = text.Vocabulary.train(["A small boat."] * 9, size=270)
        encoder = models.encoder_small(vocabulary.size)
        model = models.TranslationEstimator(encoder, hidden_dims=[16])
        comet = pipelines.Comet(model, vocabulary, max_length=64)
        result = comet.score(["Ein Boot."], ["A boat."], ["A small boat."])
        print(len(result.scores))  # 1
        ```
    """

    def __init__(
        self,
        model: keras.Model,
        vocabulary: AnyVocabulary,
        max_length: int | None = None,
        batch_tokens: int = 4096,
    ):
        self.model, self.vocabulary = model, vocabulary
        check_encoder_vocabulary(vocabulary, model.encoder)
        positions = model.encoder.max_positions
        if max_length is None:
            max_length = 512 if positions is None else positions - SPARE_POSITIONS
        self.max_length, self.batch_tokens = int(max_length), int(batch_tokens)
        self._special_tokens = count_special_tokens(vocabulary, 1)
        largest = self.batch_tokens if positions is None else positions
        largest = min(self.batch_tokens, largest)
        if not self._special_tokens < self.max_length <= largest:
            raise ValueError(
                f"`max_length` must exceed the {self._special_tokens} special tokens, "
                "and be at most the positions of the encoder and `batch_tokens`; got "
                f"max_length={self.max_length}, positions={positions}, "
                f"batch_tokens={self.batch_tokens}."
            )
        self._encode_batch = compiled(model.sentence_encoder, model, jit_compile=False)
        self._estimate_batch = compiled(self._estimate, model, jit_compile=False)

    def __repr__(self) -> str:
        return f"<Comet: {self.vocabulary!r}, {self.max_length} tokens>"

    @classmethod
    def load(
        cls,
        name: str | os.PathLike,
        encoder: str | os.PathLike | None = None,
        max_length: int | None = None,
        batch_tokens: int = 4096,
    ) -> "Comet":
        """Loads a checkpoint of COMET.

        Args:
            name: path of a folder with `hparams.yaml` and
                `checkpoints/model.ckpt`; or a repository, such as
                `"hf://Unbabel/wmt22-comet-da"`, which is downloaded once.
            encoder: path or repository with the `config.json` and the
                `tokenizer.json` of the encoder; None for the repository that
                the checkpoint names.
            max_length, batch_tokens: see `Comet`.

        Raises:
            FileNotFoundError, ImportError, ValueError: see `zoo.from_comet`.
        """
        imported = zoo.from_comet(name, encoder)
        return cls(imported.model, imported.vocabulary, max_length, batch_tokens)

    def score(
        self,
        sources: Iterable[str],
        translations: Iterable[str],
        references: Iterable[str],
    ) -> CometScores:
        """Scores segments. Each different text is encoded once.

        Args:
            sources, translations, references: lists of N str; they may be
                empty strings.

        Returns:
            `CometScores`, of N segments.

        Raises:
            TypeError: an argument is not a list of str.
            ValueError: the lists have different lengths, or a text has a lone
                surrogate.
        """
        sides = {
            "sources": sources,
            "translations": translations,
            "references": references,
        }
        columns = [_check_side(name, side) for name, side in sides.items()]
        if len({*map(len, columns)}) > 1:
            lengths = {k: len(v) for k, v in zip(sides, columns, strict=True)}
            raise ValueError(
                "`translations` must be as many as `sources` and `references`; got "
                f"{lengths}. Pass '' for a missing text."
            )
        numbers: dict[str, int] = {}
        for text in itertools.chain(*columns):
            numbers.setdefault(text, len(numbers))
        vectors, truncated = self._vectors(list(numbers))
        indices = np.array([[numbers[text] for text in side] for side in columns], int)
        scores = self._scores(vectors, indices)
        return CometScores(scores.tolist(), truncated[indices].any(0).tolist())

    def _vectors(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns float32 `(n, D)` of n texts, and bool `(n,)`, truncated."""
        rows = self.vocabulary.encode(texts)
        capacity = self.max_length - self._special_tokens
        truncated = np.array([len(ids) > capacity for ids in rows], bool)
        rows = [ids[:capacity] for ids in rows]

        def _batch(indices, length):
            chosen = [(rows[index],) for index in indices]
            return pack_texts(chosen, length, self.vocabulary, segments=False)

        buckets = [
            bucket_of(len(ids) + self._special_tokens, self.max_length) for ids in rows
        ]
        dims = (self.model.encoder.embedding_dim,)
        vectors = run_in_batches(
            self._encode_batch, _batch, buckets, self.batch_tokens, dims
        )
        return vectors, truncated

    def _scores(self, vectors: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Returns float32 `(N,)`, of the vectors that int `(3, N)` selects."""

        def _batch(segments, _):
            names = ("source", "translation", "reference")
            chosen = vectors[indices[:, segments]]  # (3, B, D)
            return dict(zip(names, chosen, strict=True))

        buckets = np.ones(indices.shape[1], int)
        return run_in_batches(self._estimate_batch, _batch, buckets, ESTIMATES, ())

    def _estimate(self, vectors):
        return self.model.estimate(**vectors)


def _check_side(name: str, texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise TypeError(
            f"`{name}` must be a list of str; got {type(texts).__name__}. Pass a list, "
            "also of one text."
        )
    side = list(texts)
    for number, text in enumerate(side):
        if not isinstance(text, str):
            raise TypeError(
                f"`{name}` must be a list of str; got {type(text).__name__} at index "
                f"{number}. Decode bytes, and pass '' for a missing text."
            )
        check_unicode(text, number)
    return side
