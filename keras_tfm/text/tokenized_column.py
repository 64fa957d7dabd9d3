"""One column of a corpus as token ids."""

import itertools

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
        add_end: bool. True adds the end token alone, to sources.

    Attributes:
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
        add_end: bool = False,
    ):
        self.texts = texts
        self.vocabulary = vocabulary
        self.max_length = max_length
        self.is_target = is_target
        self.has_end = is_target or add_end
        chunks, lengths = [np.zeros(0, "int32")], []
        for first in range(0, len(texts), _CHUNK):
            rows = vocabulary.encode(texts[first : first + _CHUNK])
            chunks.append(np.fromiter(itertools.chain.from_iterable(rows), "int32"))
            lengths.extend(map(len, rows))
        self._ids = np.concatenate(chunks)
        self.num_tokens = np.array(lengths, "int32")
        self._starts = np.concatenate([[0], self.num_tokens.cumsum(dtype="int64")])
        self.is_too_long = self.num_tokens + self.has_end > max_length
        self.lengths = np.minimum(self.num_tokens + self.has_end, max_length)

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
        if self.has_end:
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
            start = [self.vocabulary.start_id] if self.is_target else []
            end = [self.vocabulary.end_id] if self.has_end else []
            tokens = [*start, *tokens, *end]
            if len(tokens) <= len(row):
                row[:] = 0
                row[: len(tokens)] = tokens
