"""One column of a corpus as token ids."""

import itertools
from collections.abc import Sequence

import numpy as np

from keras_tfm.text.vocabulary import Vocabulary

_CHUNK = 100_000  # texts encoded at a time, which bounds the memory for lists


class TokenizedColumn:
    """The token ids of all texts of a column, concatenated in one array.

    Args:
        texts: list of N strings.
        vocabulary: `Vocabulary`.
        max_length: int, positions. Longer texts are truncated.
        is_target: bool. True adds the start and the end token. The length
            counts one of the two: the decoder reads the start and predicts the
            end.
        prefix: ints before each text, which a truncation keeps.
        suffix: ints after each text, before the end, which it keeps too.

    Attributes:
        is_empty: bool `(N,)`, True where a text has no token of its own.
        num_tokens: int32 `(N,)`, tokens of each text without start and end.
        lengths: int32 `(N,)`, positions of each text, `max_length` at most.
        is_too_long: bool `(N,)`, True where `max_length` truncates.
    """

    def __init__(
        self,
        texts: list[str],
        vocabulary: Vocabulary,
        max_length: int,
        is_target: bool = False,
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
    ):
        self.texts = texts
        self.vocabulary = vocabulary
        self.max_length = max_length
        self.is_target = is_target
        self._prefix, self._suffix = [*prefix], [*suffix]
        limit = max_length - len(self._prefix) - len(self._suffix)
        chunks, lengths = [np.zeros(0, "int32")], []
        for first in range(0, len(texts), _CHUNK):
            rows = vocabulary.encode(texts[first : first + _CHUNK])
            lengths.extend(map(len, rows))
            if prefix or suffix:
                rows = [[*self._prefix, *row[:limit], *self._suffix] for row in rows]
            chunks.append(np.fromiter(itertools.chain.from_iterable(rows), "int32"))
        self._ids = np.concatenate(chunks)
        text_tokens = np.array(lengths, "int32")
        self.is_empty = text_tokens == 0
        self.is_too_long = text_tokens + is_target > limit
        if prefix or suffix:
            text_tokens = np.minimum(text_tokens, limit) + max_length - limit
        self.num_tokens = text_tokens
        self._starts = np.concatenate([[0], self.num_tokens.cumsum(dtype="int64")])
        self.lengths = np.minimum(self.num_tokens + is_target, max_length)

    def ids(self, indices: np.ndarray, length: int) -> np.ndarray:
        """Returns some texts as one padded array.

        Args:
            indices: int array `(B,)` of texts.
            length: int: S, or T + 1 of a target.

        Returns:
            int32 `(B, length)`, padded with 0.
        """
        position = np.arange(length) - self.is_target  # -1 is the start token
        count = self.num_tokens[indices][:, None]  # (B, 1)
        flat = self._starts[indices][:, None] + position  # (B, length)
        ids = self._ids[np.clip(flat, 0, len(self._ids) - 1)]
        ids = np.where((position >= 0) & (position < count), ids, 0)
        if self.is_target:
            ids[:, 0] = self.vocabulary.start_id
            ids[position == count] = self.vocabulary.end_id
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
