"""One side of a corpus as token ids."""

import itertools

import numpy as np

from keras_tfm.text.vocabulary import Vocabulary


class TokenizedColumn:
    """The token ids of one side of a corpus, one after another in one array.

    Args:
        texts: list of N strings.
        vocabulary: `Vocabulary`.
        longest: int. Length at most; what is over is cut off.
        marked: bool. True puts start before and end after the tokens, as a
            target needs. Its length is counted with one of the two, since one
            is read and the other said.

    Attributes:
        tokens: int32 `(N,)`, tokens of each text without start and end.
        length: int32 `(N,)`, positions that each text takes, `longest` at most.
        too_long: bool `(N,)`, True where `longest` cuts something off.
    """

    def __init__(
        self, texts: list[str], vocabulary: Vocabulary, longest: int, marked: bool
    ):
        self.texts = texts
        self.vocabulary = vocabulary
        self.longest = longest
        self.marked = marked
        self._ids, self.tokens = _encode(texts, vocabulary)
        self._offset = np.concatenate([[0], self.tokens.cumsum(dtype="int64")])
        self.too_long = self.tokens + marked > longest
        self.length = np.minimum(self.tokens + marked, longest)

    def rows(self, rows, width: int) -> np.ndarray:
        """Gives some texts as one padded array.

        Args:
            rows: int array `(B,)`, which texts.
            width: int, positions: S, or T + 1 if `marked`.

        Returns:
            int32 `(B, width)`, padded with 0.
        """
        place = np.arange(width) - self.marked  # -1 is the start token
        tokens = self.tokens[rows][:, None]
        flat = np.clip(self._offset[rows][:, None] + place, 0, len(self._ids) - 1)
        ids = np.where((place >= 0) & (place < tokens), self._ids[flat], 0)
        if self.marked:
            ids[:, 0] = self.vocabulary.start_id
            ids[place == tokens] = self.vocabulary.end_id
        return ids

    def resample(self, ids: np.ndarray, rows, alpha: float, seed: int):
        """Cuts texts in another way, in place, where the new cut fits.

        Args:
            ids: int32 `(B, width)`, from `rows`.
            rows: int array `(B,)`, which texts.
            alpha: float, as in `Vocabulary.encode_sampled`.
            seed: int.
        """
        texts = [self.texts[row] for row in rows]
        sampled = self.vocabulary.encode_sampled(texts, alpha, seed)
        for row, tokens in zip(ids, sampled, strict=True):
            if self.marked:
                tokens = [self.vocabulary.start_id, *tokens, self.vocabulary.end_id]
            if len(tokens) <= len(row):
                row[:] = 0
                row[: len(tokens)] = tokens


def _encode(texts: list[str], vocabulary: Vocabulary):
    """Encodes 100,000 texts at a time, which bounds the memory for lists."""
    parts, lengths = [np.zeros(0, "int32")], []
    for first in range(0, len(texts), 100_000):
        rows = vocabulary.encode(texts[first : first + 100_000])
        parts.append(np.fromiter(itertools.chain.from_iterable(rows), "int32"))
        lengths.extend(map(len, rows))
    return np.concatenate(parts), np.array(lengths, "int32")
