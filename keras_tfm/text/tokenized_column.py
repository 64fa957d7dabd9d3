"""One column of a corpus as token ids."""

import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from keras_tfm.text.checks import check
from keras_tfm.text.vocabulary import Vocabulary

_CHUNK = 100_000  # texts encoded at a time, which bounds the memory for lists


class Tokens(Protocol):
    """The tokens of N texts.

    Attributes:
        lengths: int array `(N,)`, tokens of each text.
    """

    lengths: np.ndarray

    def rows(self, indices: np.ndarray, length: int) -> np.ndarray:
        """Returns the first tokens of some texts.

        Args:
            indices: int array `(B,)` of texts.
            length: int.

        Returns:
            int32 `(B, length)`, padded with 0.
        """
        ...


class TokenArray:
    """Tokens of all texts in one array, see `Tokens`.

    Args:
        ids: int array, the tokens of all texts, one after the other.
        starts: int array `(N,)`, where each text starts in `ids`.
        lengths: int array `(N,)`, tokens of each text.
    """

    def __init__(self, ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray):
        self.ids, self.starts, self.lengths = ids, starts, lengths

    @classmethod
    def encode(cls, texts: Sequence[str], vocabulary: Vocabulary) -> "TokenArray":
        """Tokenizes texts."""
        chunks, lengths = [], []
        for first in range(0, len(texts), _CHUNK):
            rows = vocabulary.encode(texts[first : first + _CHUNK])
            lengths.extend(map(len, rows))
            chunks.append(np.fromiter(itertools.chain.from_iterable(rows), "int32"))
        chunks.append(np.zeros(1, "int32"))  # texts without a token start somewhere
        counts = np.array(lengths, "int32")
        return cls(np.concatenate(chunks), np.cumsum(counts) - counts, counts)

    def rows(self, indices: np.ndarray, length: int) -> np.ndarray:
        """Returns the first tokens of some texts, int32 `(B, length)`."""
        return padded_rows(
            self.ids, self.starts[indices], self.lengths[indices], length
        )


def padded_rows(
    ids: np.ndarray, starts: np.ndarray, counts: np.ndarray, length: int
) -> np.ndarray:
    """Returns sections of an array as rows.

    Args:
        ids: int array.
        starts: int array `(B,)`, where each section starts in `ids`.
        counts: int array `(B,)`, how long it is.
        length: int. Of longer sections these first ids.

    Returns:
        int32 `(B, length)`, padded with 0.
    """
    position = np.arange(length)
    flat = starts[:, None].astype("int64") + position  # (B, length)
    rows = ids[np.minimum(flat, len(ids) - 1)]
    return np.where(position < counts[:, None], rows, 0).astype("int32", copy=False)


class TokenizedColumn:
    """The token ids of all texts of a column, with tokens around each text.

    Args:
        tokens: `Tokens` of N texts.
        vocabulary: `Vocabulary`.
        max_length: int, positions. Longer texts are truncated.
        is_target: bool. True adds the start and the end token. The length
            counts one of the two: the decoder reads the start and predicts the
            end.
        prefix: ints before each text, which a truncation keeps.
        suffix: ints after each text, before the end, which it keeps too.
        texts: the texts, for `resample` alone.
    """

    def __init__(
        self,
        tokens: Tokens,
        vocabulary: Vocabulary,
        max_length: int,
        is_target: bool = False,
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
        texts: Sequence[str] = (),
    ):
        self.tokens = tokens
        self.texts = texts
        self.vocabulary = vocabulary
        self.max_length = max_length
        self.is_target = is_target
        self._prefix, self._suffix = [*prefix], [*suffix]
        self._limit = max_length - len(self._prefix) - len(self._suffix)
        check(
            self._limit > 0,
            "`special_tokens` must leave a position for the text",
            max_length=max_length,
        )

    @property
    def num_tokens(self) -> np.ndarray:
        """Tokens of each text without those around it, int `(N,)`."""
        return self.tokens.lengths

    @property
    def is_empty(self) -> np.ndarray:
        """Whether a text has no token of its own, bool `(N,)`."""
        return self.num_tokens == 0

    @property
    def is_too_long(self) -> np.ndarray:
        """Whether `max_length` truncates a text, bool `(N,)`."""
        return self.num_tokens > self._limit - self.is_target

    @property
    def lengths(self) -> np.ndarray:
        """Positions of each text, `max_length` at most, int32 `(N,)`."""
        added = self.max_length - self._limit + self.is_target
        return np.minimum(self.num_tokens.astype("int32") + added, self.max_length)

    def ids(self, indices: np.ndarray, length: int) -> np.ndarray:
        """Returns some texts as one padded array.

        Args:
            indices: int array `(B,)` of texts.
            length: int: S, or T + 1 of a target.

        Returns:
            int32 `(B, length)`, padded with 0.
        """
        start, end = [*self._prefix], [*self._suffix]
        if self.is_target:
            start = [self.vocabulary.start_id, *start]
            end = [*end, self.vocabulary.end_id]
        capacity = max(min(self._limit, length - len(start)), 0)
        ids = np.zeros((len(indices), length), "int32")
        ids[:, : len(start)] = start[:length]
        ids[:, len(start) :][:, :capacity] = self.tokens.rows(indices, capacity)
        position = len(start) + np.minimum(self.num_tokens[indices], self._limit)
        for token in end:
            fits = position < length
            ids[fits, position[fits]] = token
            position = position + 1
        return ids

    def resample(
        self, ids: np.ndarray, indices: np.ndarray, alpha: float, seed: int
    ) -> None:
        """Replaces rows, in place, by a random segmentation where it fits.

        Args:
            ids: int32 `(B, length)`, from `ids`.
            indices: int array `(B,)` of texts.
            alpha: float, as in `Vocabulary.encode_sampled`.
            seed: int.
        """
        texts = [self.texts[index] for index in indices]
        sampled = self.vocabulary.encode_sampled(texts, alpha, seed)
        for row, tokens in zip(ids, sampled, strict=True):
            tokens = [*self._prefix, *tokens, *self._suffix]
            if self.is_target:
                tokens = [self.vocabulary.start_id, *tokens, self.vocabulary.end_id]
            if len(tokens) <= len(row):
                row[:] = 0
                row[: len(tokens)] = tokens
