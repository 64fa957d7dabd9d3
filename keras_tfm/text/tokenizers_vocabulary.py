"""Vocabularies of the library `tokenizers`, as BERT's kin come with."""

import json
import os
import pathlib
from collections.abc import Iterable

import keras

from keras_tfm.text.learning import training_lines
from keras_tfm.text.vocabulary import Vocabulary, count_words, text_list, word_groups

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PADS = ("[PAD]", "<pad>")
MASKS = ("[MASK]", "<mask>")


class TokenizersVocabulary:
    """A vocabulary whose rules are the library `tokenizers`' own.

    It reads the `tokenizer.json` of published encoders, such as WordPiece of
    BERT, DistilBERT and MiniLM or byte-level BPE of RoBERTa, and trains
    WordPiece. Its ids are those of the file; what cuts or pads texts there is
    left out, since `LabelBatches` does both.

    Args:
        model: str, the JSON of a tokenizer.

    Attributes:
        model: str, as given.
        size: int, V.
        pad_id: int.
        unknown_id: int, or that of padding where nothing is unknown.
        mask_id: int or None, of what stands for a token to be guessed.
        start_id: int, before a text, such as that of `[CLS]`.
        end_id: int, after it, such as that of `[SEP]`.
        separator_ids: tuple of int, between two texts.

    Raises:
        ImportError: `tokenizers` is not installed.
        TypeError: `model` is not str.
        ValueError: it is no tokenizer, or does not set one token before and one
            after a text.

    Source: WordPiece: Wu et al. 2016, section 4.1.
    https://arxiv.org/abs/1609.08144
    """

    def __init__(self, model: str):
        if not isinstance(model, str):
            raise TypeError(
                "`model` must be the JSON of a tokenizer. Received: "
                f"{type(model).__name__}. To read a file use "
                "`TokenizersVocabulary.load`."
            )
        library = _tokenizers()
        try:
            tokenizer = library.Tokenizer.from_str(model)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(
                f"`model` is no tokenizer of the library `tokenizers` ({error}). Give "
                "the text of a `tokenizer.json`."
            ) from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.model = model
        self.size = tokenizer.get_vocab_size()
        self._tokenizer = tokenizer
        self.start_id, self.separator_ids, self.end_id = self._marks()
        self.pad_id = self._id_of(PADS)
        self.mask_id = self._id_of(MASKS)
        if self.pad_id is None:
            raise ValueError(
                f"A tokenizer of encoders has one of {PADS}. Received: one without. "
                "Add it to the tokenizer."
            )
        unknown = json.loads(model)["model"].get("unk_token")
        self.unknown_id = self._id_of([unknown]) if unknown else None
        if self.unknown_id is None:
            self.unknown_id = self.pad_id

    @classmethod
    def train(
        cls, texts: Iterable, size: int = 8000, lower_case: bool = True
    ) -> "TokenizersVocabulary":
        """Learns a WordPiece vocabulary, cut as BERT cuts words.

        Args:
            texts: strings (each a text) or `pathlib.Path`s (each a UTF-8 file,
                plain or `.gz`, one text a line); or one path.
            size: int. Pieces at most, V.
            lower_case: bool. Lower case without accents, as of BERT uncased.

        Raises:
            ValueError: there is no text.
            TypeError: `texts` is one string or holds something else.
        """
        library = _tokenizers()
        tokenizer = library.Tokenizer(library.models.WordPiece(unk_token=SPECIAL[1]))
        tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=lower_case)
        tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = library.decoders.WordPiece()
        trainer = library.trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=[*SPECIAL], show_progress=False
        )
        tokenizer.train_from_iterator(training_lines(texts), trainer)
        if tokenizer.get_vocab_size() <= len(SPECIAL):
            raise ValueError(
                "A vocabulary is learned from text. Received: none. Check the files."
            )
        tokenizer.post_processor = library.processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(t, tokenizer.token_to_id(t)) for t in SPECIAL[2:4]],
        )
        return cls(tokenizer.to_str())

    @classmethod
    def load(cls, path) -> "TokenizersVocabulary":
        """Reads a `tokenizer.json`.

        Args:
            path: string or path.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is no tokenizer.
        """
        try:
            return cls(pathlib.Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def save(self, path):
        """Writes the vocabulary, whole or not at all.

        Args:
            path: string or path. Replaced if it is there.
        """
        path = pathlib.Path(path)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            part.write_text(self.model, encoding="utf-8")
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Cuts texts into pieces and gives their ids, without marks.

        Args:
            texts: list of strings.

        Raises:
            TypeError: `texts` is one string.
        """
        encoded = self._tokenizer.encode_batch(
            text_list(texts), add_special_tokens=False
        )
        return [one.ids for one in encoded]

    def decode(self, ids) -> list[str]:
        """Joins pieces to text, without marks and padding.

        Args:
            ids: int array or tensor `(B, T)`, or list of lists of ints.

        Returns:
            list of B strings.
        """
        if hasattr(ids, "shape"):
            ids = keras.ops.convert_to_numpy(ids)
        rows = [
            [int(i) for i in row if 0 <= i < self.size and i != self.pad_id]
            for row in ids
        ]
        return self._tokenizer.decode_batch(rows, skip_special_tokens=True)

    def tokens(self, ids) -> list[str]:
        """Names the pieces of one sentence, as labels for a picture.

        Args:
            ids: list or array of ints `(T,)`.

        Returns:
            list of T strings; an id outside the vocabulary is named `<id>`.
        """
        names = [self._tokenizer.id_to_token(int(i)) for i in ids]
        return [f"<{i}>" if n is None else n for i, n in zip(ids, names, strict=True)]

    def word_indices(self, ids) -> list[int]:
        """Tells which word each piece belongs to.

        Args:
            ids: list or array of ints `(T,)`, of `encode`.

        Returns:
            list of T ints from 0.
        """
        # WordPiece marks what goes on, byte-level BPE a space before a word.
        pieces = self.tokens(ids)
        if json.loads(self.model)["model"]["type"] == "WordPiece":
            return count_words(not piece.startswith("##") for piece in pieces)
        return count_words(piece.startswith("\u0120") for piece in pieces)

    def words(self, ids) -> list[str]:
        """Gives the words that pieces make.

        Args:
            ids: list or array of ints `(T,)`, of `encode`.

        Returns:
            list of str, of as many words as `word_indices` counts.
        """
        groups = word_groups(ids, self.word_indices(ids))
        words = self._tokenizer.decode_batch(groups, skip_special_tokens=False)
        return [word.strip() for word in words]

    def _marks(self):
        """Reads off what stands before, between and after two texts."""
        pair = self._tokenizer.encode("a", "a")
        number = pair.sequence_ids
        if not {0, 1} <= set(number) or number[0] is not None:
            number = []
        first = number.index(0) if number else 0
        last = len(number) - number[::-1].index(1) if number else 0
        if first != 1 or last != len(number) - 1:
            raise ValueError(
                "One token is wanted before a text, and one after it, as [CLS] and "
                "[SEP] are. Received: a tokenizer that makes of two texts "
                f"{pair.tokens}. Set its post-processor."
            )
        between = [
            token
            for place, token in enumerate(pair.ids)
            if number[place] is None and first < place < last
        ]
        return pair.ids[0], tuple(between), pair.ids[-1]

    def _id_of(self, names):
        found = [self._tokenizer.token_to_id(name) for name in names]
        return next((index for index in found if index is not None), None)


def load_vocabulary(path):
    """Reads a vocabulary of either kind, told apart by its first byte.

    Args:
        path: string or path, of a SentencePiece model or a `tokenizer.json`.

    Returns:
        `Vocabulary` or `TokenizersVocabulary`.
    """
    with open(path, "rb") as file:
        is_json = file.read(1) == b"{"
    return (TokenizersVocabulary if is_json else Vocabulary).load(path)


def _tokenizers():
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "Vocabularies of published encoders, and WordPiece, need the library "
            f"tokenizers, which cannot be imported here ({error}). Install "
            "`keras-tfm[zoo]`."
        ) from error
    return tokenizers
