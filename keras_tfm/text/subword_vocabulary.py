"""Base of vocabularies: files, batches of ids, words."""

import abc
import itertools
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, Self

import keras

from keras_tfm.file_reading import reading


class SubwordVocabulary(abc.ABC):
    """Subword tokens and their ids, whichever library segments the text.

    Attributes:
        model: bytes or str, the content of the vocabulary's file.
        size: int, V.
        pad_id, unknown_id, start_id, end_id: int.
        separator_ids: tuple of int, the tokens between two texts of a sequence.
        mask_id: int or None, the id that stands in for a token to predict.
    """

    model: bytes | str
    size: int
    is_text = False  # of the file

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Reads a vocabulary that `save` wrote.

        Args:
            path: string or path.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file holds no such vocabulary.
        """
        with reading(path, "a vocabulary"):
            content = pathlib.Path(path).read_bytes()
            return cls(content.decode() if cls.is_text else content)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the vocabulary to a file.

        The file appears whole or not at all: it is written under another name
        and then renamed.

        Args:
            path: string or path. Replaced if it exists; the folder must exist.
        """
        path = pathlib.Path(path)
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            partial.write_bytes(self.model.encode() if self.is_text else self.model)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)

    @property
    def special_ids(self) -> list[int]:
        """The ids of padding, start, end and separators."""
        return [self.pad_id, self.start_id, self.end_id, *self.separator_ids]

    def __len__(self) -> int:
        return self.size

    def __call__(self, texts: str | Sequence[str]) -> list[int] | list[list[int]]:
        """Tokenizes one text or several, without start and end.

        Args:
            texts: str, or list of str.

        Returns:
            list of ids of a str, or a list of such lists.
        """
        return self.encode([texts])[0] if isinstance(texts, str) else self.encode(texts)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.size:,} tokens>"

    @abc.abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenizes texts, without start and end.

        Args:
            texts: list of strings.

        Returns:
            list of the ids of each text.

        Raises:
            TypeError: `texts` is one string.
        """

    def decode(self, ids: Any) -> list[str]:
        """Joins tokens to text.

        Padding and special tokens are skipped, and so are ids outside the
        vocabulary, such as the spare rows of an embedding that was padded to a
        round size. A `Vocabulary` also ends at the first end token.

        Args:
            ids: int array or tensor `(B, T)`, or list of lists of ints.

        Returns:
            list of B strings.

        Raises:
            TypeError: `ids` is one sentence, not a batch.
        """
        if hasattr(ids, "shape"):
            ids = keras.ops.convert_to_numpy(ids)
        rows = list(ids)
        if rows and not hasattr(rows[0], "__len__"):
            raise TypeError(
                "`ids` must be a batch: an array (B, T) or a list of lists; got the "
                f"ids of one sentence: {rows[:8]}. Put it into a list."
            )
        return self._decode(
            [[int(i) for i in row if 0 <= i < self.size] for row in rows]
        )

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the tokens of one sentence as strings, to label a picture.

        Args:
            ids: list or array of ints `(T,)`.

        Returns:
            list of T strings; an id outside the vocabulary is `<id>`.
        """
        indices = [int(index) for index in ids]
        names = [self._token(i) if 0 <= i < self.size else None for i in indices]
        return [
            f"<{index}>" if name is None else name
            for index, name in zip(indices, names, strict=True)
        ]

    def word_indices(self, ids: Iterable[int]) -> list[int]:
        """Returns the index of the word that each token belongs to.

        Args:
            ids: list or array of ints `(T,)`, from `encode`.

        Returns:
            list of T ints from 0.
        """
        starts = [int(self._starts_word(token)) for token in self.tokens(ids)]
        starts[:1] = [0] * len(starts[:1])  # the first token starts word 0
        return list(itertools.accumulate(starts))

    def words(self, ids: Iterable[int]) -> list[str]:
        """Returns the words that tokens form.

        Args:
            ids: list or array of ints `(T,)`, from `encode`.

        Returns:
            list of str, one for each index of `word_indices`.
        """
        indices = self.word_indices(ids)
        groups = [[] for _ in range(max(indices, default=-1) + 1)]
        for index, token_id in zip(indices, ids, strict=True):
            groups[index].append(int(token_id))
        return [word.strip() for word in self._join(groups)]

    def _token(self, index):
        """Returns the token of an id below V; None where there is none."""
        raise NotImplementedError

    def _decode(self, rows):
        """Joins lists of ids below V to texts, special tokens left out."""
        raise NotImplementedError

    def _join(self, rows):
        """Joins lists of ids to texts, special tokens included."""
        raise NotImplementedError

    def _starts_word(self, token):
        """Returns whether a token starts a word."""
        raise NotImplementedError


def text_list(texts: Iterable[str]) -> list[str]:
    """Returns texts as a list.

    Raises:
        TypeError: `texts` is one string.
    """
    if isinstance(texts, str):
        raise TypeError(
            "`texts` must be a list of strings; got one string: "
            f"{texts[:40]!r}. Put it into a list."
        )
    return list(texts)
