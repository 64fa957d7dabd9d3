"""Vocabularies of the library `tokenizers`, such as BERT's."""

import json
import os
from collections.abc import Iterable, Sequence

from keras_tfm.file_reading import reading
from keras_tfm.text import moses_vocabulary
from keras_tfm.text.checks import check
from keras_tfm.text.learning import training_lines
from keras_tfm.text.subword_sampling import WORD_START
from keras_tfm.text.subword_vocabulary import SubwordVocabulary, text_list
from keras_tfm.text.vocabulary import Vocabulary

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD_TOKENS = ("[PAD]", "<pad>")
MASK_TOKENS = ("[MASK]", "<mask>")


class TokenizersVocabulary(SubwordVocabulary):
    """A vocabulary with the rules of the library `tokenizers`.

    It reads the `tokenizer.json` of published encoders, such as WordPiece of
    BERT, DistilBERT and MiniLM or byte-level BPE of RoBERTa, and trains
    WordPiece. Its ids are those of the file; truncation and padding of the file
    are disabled, since `LabelBatches` does both. A text that spells a special
    token, such as `[SEP]`, is text and not that token.

    Args:
        model: str, the JSON of a tokenizer.

    Attributes:
        model: str.
        size: int, V.
        pad_id: int.
        unknown_id: int, or that of padding where nothing is unknown.
        mask_id: int or None, the id that stands in for a token to predict.
        start_id: int, before a text, such as that of `[CLS]`.
        end_id: int, after a text, such as that of `[SEP]`.
        separator_ids: tuple of int, between two texts.

    Raises:
        ImportError: `tokenizers` is not installed.
        ValueError: it is no tokenizer, or does not set one token before and one
            after a text.

    Source: WordPiece: Wu et al. 2016, section 4.1.
    https://arxiv.org/abs/1609.08144

    Example:
        ```python
        # requires: tokenizers
        from keras_tfm import text

        texts = ["The cat sat on the mat.", "Cats and mats!"]
        vocabulary = text.TokenizersVocabulary.train(texts, size=60)
        [ids] = vocabulary.encode(["A cat."])
        print(vocabulary.tokens(ids), vocabulary.decode([ids]))
        ```
    """

    is_text = True

    def __init__(self, model: str):
        library = _import_tokenizers()
        fix = "Pass the text of a `tokenizer.json`."
        with reading("`model`", "a tokenizer of the library tokenizers", fix):
            tokenizer = library.Tokenizer.from_str(model)
        padding = tokenizer.padding or {}
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # A text that spells a special token is text.
        tokenizer.encode_special_tokens = True
        self.model = model
        # More than the tokens, where ids are left out.
        self.size = 1 + max(tokenizer.get_vocab().values(), default=-1)
        self._tokenizer = tokenizer
        self.start_id, self.separator_ids, self.end_id = self._template_ids()
        self.pad_id = self._id_of([padding.get("pad_token", ""), *PAD_TOKENS])
        self.mask_id = self._id_of(MASK_TOKENS)
        check(
            self.pad_id is not None,
            f"`model` must have a padding token, one of {PAD_TOKENS}",
            size=self.size,
        )
        rules = json.loads(model)["model"]
        self._is_word_piece = rules["type"] == "WordPiece"
        unknown_id = self._id_of([rules.get("unk_token") or ""])
        self.unknown_id = self.pad_id if unknown_id is None else unknown_id

    @classmethod
    def train(
        cls, texts: Iterable, size: int = 8000, lower_case: bool = True
    ) -> "TokenizersVocabulary":
        """Learns a WordPiece vocabulary, which splits words as BERT's does.

        Args:
            texts: strings (each a text) or `pathlib.Path`s (each a UTF-8 file,
                plain or `.gz`, one text per line); or one path.
            size: int. Tokens at most, V.
            lower_case: bool. Lower case without accents, as BERT uncased.

        Raises:
            ValueError: there is no text.
            TypeError: `texts` is one string or holds something else.
        """
        library = _import_tokenizers()
        unknown = SPECIAL_TOKENS[1]
        tokenizer = library.Tokenizer(library.models.WordPiece(unk_token=unknown))
        tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=lower_case)
        tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = library.decoders.WordPiece()
        trainer = library.trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=[*SPECIAL_TOKENS], show_progress=False
        )
        tokenizer.train_from_iterator(training_lines(texts), trainer)
        size = tokenizer.get_vocab_size()
        check(size > len(SPECIAL_TOKENS), "`texts` must hold text", tokens=0)
        tokenizer.post_processor = library.processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(t, tokenizer.token_to_id(t)) for t in SPECIAL_TOKENS[2:4]],
        )
        return cls(tokenizer.to_str())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenizes texts, without start and end.

        Args:
            texts: list of strings.

        Raises:
            TypeError: `texts` is one string.
        """
        encodings = self._tokenizer.encode_batch(
            text_list(texts), add_special_tokens=False
        )
        return [encoding.ids for encoding in encodings]

    def _token(self, index):
        return self._tokenizer.id_to_token(index)

    def _decode(self, rows):
        rows = [[index for index in row if index != self.pad_id] for row in rows]
        return self._tokenizer.decode_batch(rows, skip_special_tokens=True)

    def _join(self, rows):
        return self._tokenizer.decode_batch(rows, skip_special_tokens=False)

    def _starts_word(self, token):
        # WordPiece marks the tokens that continue a word; byte-level BPE writes
        # the space before a word as U+0120, SentencePiece as U+2581.
        if self._is_word_piece:
            return not token.startswith("##")
        return token.startswith(("\u0120", WORD_START))

    def _template_ids(self):
        """Returns the ids before, between and after two texts."""
        pair = self._tokenizer.encode("a", "a")
        texts = pair.sequence_ids  # 0, 1, or None for a special token
        check(
            texts[:2] == [None, 0] and texts[-2:] == [1, None],
            "`model` must put one token before and one after a text, as [CLS], [SEP]",
            "Set its post-processor.",
            pair=pair.tokens,
        )
        first_end, second_start = len(texts) - texts[::-1].index(0), texts.index(1)
        return pair.ids[0], tuple(pair.ids[first_end:second_start]), pair.ids[-1]

    def _id_of(self, names):
        ids = (self._tokenizer.token_to_id(name) for name in names)
        return next((index for index in ids if index is not None), None)


def load_vocabulary(
    path: str | os.PathLike,
) -> "Vocabulary | TokenizersVocabulary | moses_vocabulary.MosesVocabulary":
    """Reads a vocabulary of any kind, recognized by its first bytes.

    Args:
        path: string or path, of a SentencePiece model, a `tokenizer.json`, or a
            file that `MosesVocabulary.save` wrote.

    Returns:
        `Vocabulary`, `TokenizersVocabulary` or `MosesVocabulary`.

    Example:
        ```python
        import pathlib
        import tempfile

        from keras_tfm import text

        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "vocabulary.model")
            text.Vocabulary.train(["a house"] * 9, 280, exact=False).save(file)
            print(text.load_vocabulary(file))
        ```
    """
    with open(path, "rb") as file:
        start = file.read(20)
    if start.startswith(f'{{"{moses_vocabulary.KEY}"'.encode()):
        return moses_vocabulary.MosesVocabulary.load(path)
    kind = TokenizersVocabulary if start.startswith(b"{") else Vocabulary
    return kind.load(path)


def _import_tokenizers():
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "`TokenizersVocabulary` needs the library tokenizers, whose import failed "
            f"({error}). Install `keras-tfm[zoo]`."
        ) from error
    return tokenizers
