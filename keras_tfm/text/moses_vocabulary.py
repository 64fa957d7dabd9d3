"""Vocabularies of BPE over the words of Moses, as fairseq's WMT models have."""

import functools
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

from keras_tfm.file_reading import reading
from keras_tfm.text.subword_vocabulary import SubwordVocabulary, text_list

WORD_END = "</w>"  # after the last character of a word
KEY = "moses"  # of the JSON


class MosesVocabulary(SubwordVocabulary):
    """Subword tokens of BPE within the words that Moses separates.

    Punctuation is normalized before, and text is put together again as Moses
    does, both by the library sacremoses. Token 0 is padding, 1 unknown, 2
    start, 3 end.

    Args:
        model: str, JSON of a dict `"moses"` with `language`, str; `tokens`,
            list of str in the order of their ids, the last of a word with
            `"</w>"` behind; `merges`, list of pairs of str, the first merged
            first; and `lower_case`, bool.

    Attributes:
        model: str.
        size: int, V.
        language: str, by whose rules text is split into words.

    Raises:
        ImportError: `sacremoses` or `tokenizers` is not installed.
        ValueError: it is no such vocabulary.

    Source: Sennrich et al. 2016, section 3.2. https://arxiv.org/abs/1508.07909

    Example:
        ```python
        # requires: sacremoses
        import json
        from keras_tfm import text

        tokens = ["<pad>", "<unk>", "<s>", "</s>", "ca", "t</w>", "!</w>"]
        content = {"language": "en", "tokens": tokens, "merges": [["c", "a"]]}
        vocabulary = text.MosesVocabulary(
            json.dumps({"moses": {**content, "lower_case": False}})
        )
        [ids] = vocabulary.encode(["cat!"])
        print(vocabulary.tokens(ids), vocabulary.decode([ids]))
        ```
    """

    is_text = True
    pad_id, unknown_id, start_id, end_id = range(4)
    separator_ids = (3,)
    mask_id = None

    def __init__(self, model: str):
        moses, library = _import_libraries()
        with reading("`model`", "the JSON of a vocabulary of Moses"):
            content = json.loads(model)[KEY]
            self._tokens = [str(token) for token in content["tokens"]]
            merges = [(first, second) for first, second in content["merges"]]
            self.language, self._lower_case = content["language"], content["lower_case"]
            self._bpe = _bpe(library, self._tokens, merges)
        self.model, self.size = model, len(self._tokens)
        self._ids = {token: number for number, token in enumerate(self._tokens)}
        self._normalizer = moses.MosesPunctNormalizer(
            self.language,
            pre_replace_unicode_punct=True,
            post_remove_control_chars=True,
        )
        self._splitter = moses.MosesTokenizer(self.language)
        self._joiner = moses.MosesDetokenizer(self.language)
        self._word_ids = functools.lru_cache(1 << 16)(self._spell)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenizes texts, without start and end.

        Args:
            texts: list of strings.

        Raises:
            TypeError: `texts` is one string.
        """
        return [self._encode(text) for text in text_list(texts)]

    def _encode(self, text):
        text = self._normalizer.normalize(text.lower() if self._lower_case else text)
        words = self._splitter.tokenize(text, aggressive_dash_splits=True, escape=True)
        return [token_id for word in words for token_id in self._word_ids(word)]

    def _spell(self, word):
        tokens = [token.value for token in self._bpe.tokenize(word)]
        return [self._ids.get(token, self.unknown_id) for token in tokens]

    def _token(self, index):
        return self._tokens[index]

    def word_indices(self, ids: Iterable[int]) -> list[int]:
        """Returns the index of the word that each token belongs to.

        Args:
            ids: list or array of ints `(T,)`, from `encode`.

        Returns:
            list of T ints from 0.
        """
        ends = [token.endswith(WORD_END) for token in self.tokens(ids)]
        return list(itertools.accumulate([0, *map(int, ends[:-1])][: len(ends)]))

    def _decode(self, rows):
        return [self._text(itertools.takewhile(self._goes_on, row)) for row in rows]

    def _goes_on(self, token_id):
        return token_id != self.end_id

    def _text(self, ids):
        tokens = (self._tokens[index] for index in ids if index > self.end_id)
        words = "".join(tokens).replace(WORD_END, " ").split()
        return self._joiner.detokenize(words)

    _join = _decode


def _bpe(library: Any, tokens: list[str], merges: list[tuple[str, str]]) -> Any:
    """Makes a BPE that also knows what merges make and the vocabulary lacks."""
    pieces = dict.fromkeys(itertools.chain(tokens, *merges, map("".join, merges)))
    pieces |= dict.fromkeys(character for token in pieces for character in token)
    return library.models.BPE(
        {token: number for number, token in enumerate(pieces)},
        merges,
        unk_token=tokens[MosesVocabulary.unknown_id],
        end_of_word_suffix=WORD_END,
    )


def _import_libraries():
    try:
        import sacremoses
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "`MosesVocabulary` needs the libraries sacremoses and tokenizers, whose "
            f"import failed ({error}). Install `keras-tfm[zoo,moses]`."
        ) from error
    return sacremoses, tokenizers
