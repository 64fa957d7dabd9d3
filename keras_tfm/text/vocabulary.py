"""SentencePiece vocabularies with fixed ids of padding, unknown, start, end."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import sentencepiece

from keras_tfm.file_reading import reading
from keras_tfm.text.checks import check
from keras_tfm.text.learning import learn_model
from keras_tfm.text.subword_sampling import WORD_START, sampler
from keras_tfm.text.subword_vocabulary import SubwordVocabulary, text_list

# Of the characters of a text: the default of SentencePiece.
CHARACTER_COVERAGE = 0.9995
# Texts that are encoded one by one: for a list SentencePiece starts threads,
# which takes milliseconds on a busy machine.
MAX_SINGLE = 64
_LANGUAGE_TAG = re.compile(r"<2([A-Za-z0-9_-]+)>")


class Vocabulary(SubwordVocabulary):
    """Subword tokens of SentencePiece, and their ids.

    Token 0 is padding, 1 unknown, 2 start, 3 end; then come the language tags,
    if there are any, and the 256 bytes, which spell any character that has no
    token of its own, so that nothing is unknown; then the tokens learned from
    text. `Vocabulary.train` and `Vocabulary.load` make one.

    Args:
        model: bytes of a SentencePiece model with padding, unknown, start and
            end as tokens 0 to 3.

    Attributes:
        model: bytes.
        size: int, V.

    Raises:
        ValueError: `model` is no SentencePiece model, or its first four tokens
            are others.

    Source: Kudo and Richardson 2018. https://arxiv.org/abs/1808.06226

    Example:
        ```python
        from keras_tfm import text

        texts = ["a small house", "the small garden"] * 20
        vocabulary = text.Vocabulary.train(texts, size=275)
        [ids] = vocabulary.encode(["a small garden"])
        print(vocabulary.tokens(ids), vocabulary.decode([ids]))
        ```
    """

    pad_id = 0
    unknown_id = 1
    start_id = 2
    end_id = 3
    separator_ids = (3,)
    mask_id = 1  # free: no text has the unknown token

    def __init__(self, model: bytes):
        with reading(
            "`model`",
            "a SentencePiece model",
            "Pass bytes, or use `Vocabulary.load` for a file.",
        ):
            processor = sentencepiece.SentencePieceProcessor()
            processor.LoadFromSerializedProto(model)
            size = processor.get_piece_size()
            processor.id_to_piece(list(range(size)))  # raises if one is no UTF-8
        special_ids = [processor.pad_id(), processor.unk_id()]
        special_ids += [processor.bos_id(), processor.eos_id()]
        check(
            special_ids == [0, 1, 2, 3],
            "`model` must have padding, unknown, start and end at 0, 1, 2, 3",
            "An id of -1 means that the model has no such token. Train it with "
            "`Vocabulary.train`.",
            ids=special_ids,
        )
        self.model = model
        self.size = size
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
        character_coverage: float = CHARACTER_COVERAGE,
        seed: int = 0,
    ) -> "Vocabulary":
        """Learns a vocabulary from text.

        Lines of any length are used. The rarest characters have no token and
        are spelled in bytes, so that a model learns the tokens of bytes.

        Args:
            texts: strings (each a text) or `pathlib.Path`s (each a UTF-8 file,
                plain or `.gz`, one text per line); or one path. For a joint
                vocabulary pass both sides.
            size: int. Tokens in all, V: the 4 special ones, the 256 bytes,
                the covered characters, and those learned beyond.
            model_type: `"unigram"` or `"bpe"`.
            normalization: of text before it is tokenized: `"nmt_nfkc"`,
                `"nfkc"`, these two with `"_cf"` for lower case, or
                `"identity"`. Only the last decodes every text as it was: NFKC
                changes fractions and subscripts, "nmt" the zero width
                non-joiner of Persian.
            split_digits: bool. Each digit is a token of its own, so that a
                number never seen in training can be copied.
            max_texts: int or None. Learn from so many texts, drawn at random.
            exact: bool. False takes fewer tokens where the text has no more.
            languages: strings, such as `"de"`, each with a token for its tag,
                `"<2de>"`. Before a source it names the target language, so that
                one model has many (Johnson et al. 2017, section 3,
                https://arxiv.org/abs/1611.04558).
            character_coverage: float from 0.98 to 1. Fraction of the characters
                of the text that have a token of their own; less if `size` does
                not allow it, which is logged as a warning.
            seed: int, draws the `max_texts`.

        Raises:
            ValueError: `size` is larger than the text allows or less than 262
                and the languages (the message names the limit), another
                argument is out of its range, there is no text, or a language is
                no code.
            TypeError: `texts` is one string or holds something else.
        """
        tags = [language_tag(language) for language in text_list(languages)]
        check(
            len(set(tags)) == len(tags), "`languages` must differ", languages=languages
        )
        return cls(
            learn_model(
                texts,
                size=size,
                model_type=model_type,
                normalization=normalization,
                split_digits=split_digits,
                max_texts=max_texts,
                exact=exact,
                language_tags=tags,
                character_coverage=character_coverage,
                seed=seed,
            )
        )

    @property
    def languages(self) -> dict[str, list[int]]:
        """The languages that have a tag, each with the ids that encode it."""
        ids_of = {}
        for index in range(self.end_id + 1, self.size):
            tag = _LANGUAGE_TAG.fullmatch(self._processor.id_to_piece(index))
            if not tag:
                break
            ids_of[tag[1]] = self._processor.encode(tag[0])
        return ids_of

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenizes texts, without start and end.

        Args:
            texts: list of strings.

        Raises:
            TypeError: `texts` is one string.
        """
        texts = text_list(texts)
        if len(texts) <= MAX_SINGLE and all(isinstance(text, str) for text in texts):
            return [self._processor.encode(text) for text in texts]
        return self._processor.encode(texts, num_threads=-1)

    def encode_sampled(
        self, texts: Sequence[str], alpha: float, seed: int
    ) -> list[list[int]]:
        """Tokenizes each text at random, differently for each seed.

        The model learns from many segmentations of one sentence, which helps
        most where there is little text.

        Args:
            texts: list of strings.
            alpha: float. Unigram: 0.1 to 0.5 is usual, smaller is more random,
                and every segmentation can be drawn. BPE: the probability, from
                0 to 1, that a merge is left out, 0.1 is usual.
            seed: int. The same seed returns the same tokens in every process.

        Source: Kudo 2018, https://arxiv.org/abs/1804.10959; Provilkov et al.
        2020, https://arxiv.org/abs/1910.13267
        """
        units = tuple(language_tag(language) for language in self.languages)
        return sampler(self.model, alpha, units)(text_list(texts), seed)

    def _token(self, index):
        return self._processor.id_to_piece(index)

    def tensorflow_tokenizer(self) -> Any:
        """Returns the same tokenizer as a TensorFlow op, for graphs and export.

        It adds neither start nor end. All tokenizers of one model share one
        resource inside TensorFlow, and `add_bos` and `add_eos` belong to that
        resource: one tokenizer with them and one without, run at the same time,
        may take each other's.

        Returns:
            `tensorflow_text.SentencepieceTokenizer` with the same ids.

        Raises:
            ImportError: `tensorflow-text` is not installed.
        """
        try:
            import tensorflow_text
        except ImportError as error:
            raise ImportError(
                "Tokenizing inside TensorFlow needs tensorflow-text, whose import "
                f"failed ({error}). Install `keras-tfm[tensorflow]`. There is no "
                "wheel for Windows: use `Batches` there, which does without."
            ) from error
        # In a SavedModel resources are looked up by name: two vocabularies of
        # one name would become one.
        return tensorflow_text.SentencepieceTokenizer(
            model=self.model,
            name="vocabulary_" + hashlib.sha256(self.model).hexdigest()[:16],
        )

    def _decode(self, rows):
        ends = [[*row, self.end_id].index(self.end_id) for row in rows]
        skipped = (self.pad_id, self.start_id)
        return [
            self._processor.decode([i for i in row[:end] if i not in skipped])
            for row, end in zip(rows, ends, strict=True)
        ]

    _join = _decode

    def _starts_word(self, token):
        return token.startswith(WORD_START)


def language_tag(language: str) -> str:
    """Returns the tag before a source that names its target language.

    Args:
        language: str, a code such as `"de"`, `"zh_Hans"` or `"deu_Latn"`.

    Returns:
        str, such as `"<2de>"`.

    Raises:
        ValueError: `language` is no code.

    Example:
        ```python
        from keras_tfm import text

        print(f"{text.language_tag('de')} Where is the station?")
        ```
    """
    tag = f"<2{language}>"
    check(
        _LANGUAGE_TAG.fullmatch(tag),
        "`language` must be a code of letters, digits, '-' and '_', such as 'de'",
        language=language,
    )
    return tag
