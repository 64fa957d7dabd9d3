"""Subword vocabularies: SentencePiece with this project's four first pieces."""

import hashlib
import itertools
import os
import pathlib
import re
import threading
from collections.abc import Iterable, Sequence

import keras
import sentencepiece

from keras_tfm.text.learning import learn_model

WORD_START = "\u2581"  # SentencePiece's mark
_SAMPLING = threading.Lock()
_MARK = re.compile(r"<2([A-Za-z0-9_-]+)>")


class Vocabulary:
    """The pieces that text is cut into, and the ids that stand for them.

    Piece 0 is pad, 1 unknown, 2 start, 3 end; then come the marks of languages,
    if it has any, and the 256 bytes, which spell any character that has no
    piece of its own, so that nothing is unknown; then the pieces learned from
    text. `Vocabulary.train` and `Vocabulary.load` make one.

    Args:
        model: bytes of a SentencePiece model with pad, unknown, start and end
            as pieces 0 to 3.

    Attributes:
        model: bytes, as given.
        size: int, V.

    Raises:
        TypeError: `model` is not bytes.
        ValueError: `model` is no SentencePiece model, or its first four pieces
            are others.

    Source: Kudo and Richardson 2018. https://arxiv.org/abs/1808.06226
    """

    pad_id = 0
    unknown_id = 1
    start_id = 2
    end_id = 3
    separator_ids = (3,)  # what stands between two texts of a row
    mask_id = 1  # for a token to be guessed: no text has the unknown one

    def __init__(self, model: bytes):
        if not isinstance(model, bytes):
            raise TypeError(
                "`model` must be the bytes of a SentencePiece model. Received: "
                f"{type(model).__name__}. To read a file use `Vocabulary.load`."
            )
        try:
            processor = sentencepiece.SentencePieceProcessor()
            processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise ValueError(
                f"`model` is no SentencePiece model: {len(model):,} bytes that do "
                "not parse. Save the vocabulary again."
            ) from error
        first = [processor.pad_id(), processor.unk_id()]
        first += [processor.bos_id(), processor.eos_id()]
        if first != [0, 1, 2, 3]:
            raise ValueError(
                "Pad, unknown, start and end must be the pieces 0, 1, 2, 3. "
                f"Received a model that has them at {first} (-1: not at all). "
                "Train it with `Vocabulary.train`."
            )
        self.model = model
        self.size = processor.get_piece_size()
        self._processor = processor

    @classmethod
    def train(
        cls,
        texts: Iterable,
        size: int = 8000,
        model_type: str = "unigram",
        normalization: str = "nmt_nfkc",
        split_digits: bool = False,
        max_texts: int | None = None,
        exact: bool = True,
        languages: Sequence[str] = (),
    ) -> "Vocabulary":
        """Learns a vocabulary from text.

        Every character of the text becomes a piece, whatever its frequency, and
        lines of any length are used.

        Args:
            texts: strings (each a text) or `pathlib.Path`s (each a UTF-8 file,
                plain or `.gz`, one text a line); or one path. For a joint
                vocabulary give both sides.
            size: int. Pieces in all, V: the 4 special ones, the 256 bytes,
                every character of the text, and what is learned beyond.
            model_type: `"unigram"` or `"bpe"`.
            normalization: what is done to text before it is cut: `"nmt_nfkc"`,
                `"nfkc"`, these two with `"_cf"` for lower case, or
                `"identity"`.
            split_digits: bool. Each digit is a piece of its own, so that a
                number never seen in training can be copied.
            max_texts: int or None. Learn from the first so many texts only.
            exact: bool. False takes fewer pieces where the text has no more.
            languages: strings, such as `"de"`, each with a piece for its mark,
                `"<2de>"`. Before a source it says what to translate that into,
                so that one model has many targets (Johnson et al. 2017, section
                3, https://arxiv.org/abs/1611.04558).

        Raises:
            ValueError: `size` is larger or smaller than the text allows (the
                message names the limit), there is no text, or a language is no
                code.
            TypeError: `texts` is one string or holds something else.
        """
        marks = [language_tag(language) for language in text_list(languages)]
        if len(set(marks)) < len(marks):
            raise ValueError(
                f"Each language has one mark. Received: languages={languages!r}."
            )
        special = (cls.pad_id, cls.unknown_id, cls.start_id, cls.end_id)
        return cls(
            learn_model(
                texts,
                size,
                model_type,
                normalization,
                split_digits,
                max_texts,
                special,
                exact,
                marks,
            )
        )

    @classmethod
    def load(cls, path) -> "Vocabulary":
        """Reads a vocabulary that `save` wrote.

        Args:
            path: string or path.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is no SentencePiece model of the wanted form.
        """
        try:
            return cls(pathlib.Path(path).read_bytes())
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def save(self, path):
        """Writes the vocabulary as a SentencePiece model file.

        The file appears whole or not at all: it is written under another name
        and then renamed.

        Args:
            path: string or path, usually ending in `.model`. Replaced if it is
                there; the folder must exist.
        """
        path = pathlib.Path(path)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            part.write_bytes(self.model)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    @property
    def languages(self) -> dict[str, list[int]]:
        """The languages that have a mark, each with the ids that encode it."""
        found = {}
        for index in range(self.end_id + 1, self.size):
            mark = _MARK.fullmatch(self._processor.id_to_piece(index))
            if not mark:
                break
            found[mark[1]] = self._processor.encode(mark[0])
        return found

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Cuts texts into pieces and gives their ids, without start and end.

        Args:
            texts: list of strings.

        Raises:
            TypeError: `texts` is one string.
        """
        return self._processor.encode(text_list(texts), num_threads=-1)

    def encode_sampled(self, texts: list[str], alpha: float, seed: int):
        """Cuts each text in a random way, another one for each seed.

        The model learns from many cuts of one sentence, which helps most where
        there is little text.

        Args:
            texts: list of strings.
            alpha: float. Unigram: 0.1 to 0.5 is usual, smaller is wilder, every
                cut of the sentence can be drawn. BPE: the share of merges that
                are left out, from 0 to 1, 0.1 is usual.
            seed: int from 0. The same seed gives the same cuts.

        Returns:
            list of lists of ints.

        Source: Kudo 2018, https://arxiv.org/abs/1804.10959; Provilkov et al.
        2020, https://arxiv.org/abs/1910.13267
        """
        texts = text_list(texts)
        # The seed is one for the whole process, and each thread that
        # SentencePiece starts takes a generator of its own.
        with _SAMPLING:
            sentencepiece.set_random_generator_seed(seed % 2**32)
            return self._processor.encode(
                texts,
                enable_sampling=True,
                alpha=alpha,
                nbest_size=-1,
                num_threads=1,
            )

    def decode(self, ids) -> list[str]:
        """Joins pieces to text.

        A row ends at its first end token; pad and start are skipped, and so are
        ids outside the vocabulary, such as the spare rows of an embedding that
        was padded to a round size.

        Args:
            ids: int array or tensor `(B, T)`, or list of lists of ints.

        Returns:
            list of B strings.

        Raises:
            TypeError: `ids` is one sentence, not a batch.
        """
        if hasattr(ids, "shape"):
            ids = keras.ops.convert_to_numpy(ids)
        ids = list(ids)
        if ids and not hasattr(ids[0], "__len__"):
            raise TypeError(
                "`ids` must be a batch: an array (B, T) or a list of lists. "
                f"Received the ids of one sentence: {ids[:8]}. Put it into a list."
            )
        return self._processor.decode([self._real_ids(row) for row in ids])

    def tokens(self, ids) -> list[str]:
        """Names the pieces of one sentence, as labels for a picture.

        Args:
            ids: list or array of ints `(T,)`.

        Returns:
            list of T strings; an id outside the vocabulary is named `<id>`.
        """
        return [
            self._processor.id_to_piece(index)
            if 0 <= index < self.size
            else f"<{index}>"
            for index in map(int, ids)
        ]

    def word_indices(self, ids) -> list[int]:
        """Tells which word each piece belongs to.

        Args:
            ids: list or array of ints `(T,)`, of `encode`.

        Returns:
            list of T ints from 0.
        """
        return count_words(piece.startswith(WORD_START) for piece in self.tokens(ids))

    def words(self, ids) -> list[str]:
        """Gives the words that pieces make.

        Args:
            ids: list or array of ints `(T,)`, of `encode`.

        Returns:
            list of str, of as many words as `word_indices` counts.
        """
        groups = word_groups(ids, self.word_indices(ids))
        return [word.strip() for word in self.decode(groups)]

    def tensorflow_tokenizer(self):
        """Gives the same tokenizer as a TensorFlow op, for graphs and exports.

        It adds neither start nor end. All tokenizers of one model share one
        resource inside TensorFlow, and its `add_bos` and `add_eos` are settings
        of that resource: one tokenizer with them and one without, run at the
        same time, now and then take each other's.

        Returns:
            `tensorflow_text.SentencepieceTokenizer` with the same ids.

        Raises:
            ImportError: `tensorflow-text` is not installed.
        """
        try:
            import tensorflow_text
        except ImportError as error:
            raise ImportError(
                "Tokenising inside TensorFlow needs tensorflow-text, which cannot "
                f"be imported here ({error}). Install `keras-tfm[tensorflow]`. "
                "There is no wheel for Windows: use `Batches` there, which does "
                "without."
            ) from error
        # In a SavedModel resources are found by their names: two vocabularies
        # of one name would become one.
        return tensorflow_text.SentencepieceTokenizer(
            model=self.model,
            name="vocabulary_" + hashlib.sha256(self.model).hexdigest()[:16],
        )

    def _real_ids(self, row) -> list[int]:
        row = [int(index) for index in row]
        if self.end_id in row:
            row = row[: row.index(self.end_id)]
        skipped = (self.pad_id, self.start_id)
        return [i for i in row if 0 <= i < self.size and i not in skipped]


def language_tag(language: str) -> str:
    """Gives the mark that stands before a source to be put into a language.

    Args:
        language: str, a code such as `"de"`, `"zh_Hans"` or `"deu_Latn"`.

    Returns:
        str, such as `"<2de>"`.

    Raises:
        ValueError: it is no code.
    """
    mark = f"<2{language}>"
    if not _MARK.fullmatch(mark):
        raise ValueError(
            "A language is named by a code of letters, digits, '-' and '_', such as "
            f"'de'. Received: {language!r}."
        )
    return mark


def count_words(starts: Iterable[bool]) -> list[int]:
    """Numbers pieces by their words, given which pieces start one."""
    starts = list(map(int, starts))
    starts[:1] = [0] * len(starts[:1])  # a word in any case
    return list(itertools.accumulate(starts))


def word_groups(ids, numbers: list[int]) -> list[list[int]]:
    """Puts the pieces of each word together."""
    groups = [[] for _ in range(max(numbers, default=-1) + 1)]
    for number, index in zip(numbers, ids, strict=True):
        groups[number].append(int(index))
    return groups


def text_list(texts) -> list[str]:
    if isinstance(texts, str):
        raise TypeError(
            "`texts` must be a list of strings. Received one string: "
            f"{texts[:40]!r}. Put it into a list."
        )
    return list(texts)
