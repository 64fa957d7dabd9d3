"""Finds what a vocabulary cannot spell."""

import re
from collections.abc import Iterable

from keras_tfm.pipelines.span_patterns import MARKER
from keras_tfm.pipelines.texts import AnyVocabulary

NEEDED = ".,;:!?&"  # marks that split sentences, and a word
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_UNKNOWN = re.compile(rf"<unk>|\[UNK\]|{_BYTE.pattern}")


def byte_ids(vocabulary: AnyVocabulary) -> list[int]:
    """Returns the ids of byte tokens.

    Args:
        vocabulary: `Vocabulary` or `TokenizersVocabulary`.
    """
    tokens = vocabulary.tokens(range(vocabulary.size))
    return [index for index, token in enumerate(tokens) if _BYTE.fullmatch(token)]


class Spelling:
    """Which characters a vocabulary has tokens for.

    A byte token is none, since models hardly ever see one in training.

    Args:
        vocabulary: of the sources.

    Example:
        ```python
        from keras_tfm.pipelines import Translator
        from keras_tfm.pipelines.spelling import Spelling

        spelling = Spelling(Translator.from_preset("en-de").vocabulary)
        assert spelling.unknown(["A \u732b, \u263a"]) == ["\u263a", "\u732b"]
        ```
    """

    def __init__(self, vocabulary: AnyVocabulary):
        self.vocabulary = vocabulary
        self._is_unknown: dict[str, bool] = {}

    def unknown(self, texts: Iterable[str]) -> list[str]:
        """Lists the characters of texts that have no token.

        Args:
            texts: list of str. Whitespace, `NEEDED` and markers are left
                out.
        """
        chars = {char for text in texts for char in text if not char.isspace()}
        chars -= set(NEEDED)
        chars = sorted(char for char in chars if not re.fullmatch(MARKER, char))
        new = [char for char in chars if char not in self._is_unknown]
        for char, ids in zip(new, self.vocabulary.encode(new), strict=True):
            tokens = self.vocabulary.tokens(ids)
            self._is_unknown[char] = any(map(_UNKNOWN.fullmatch, tokens))
        return [char for char in chars if self._is_unknown[char]]

    def patterns(self, texts: Iterable[str]) -> list[tuple[str, re.Pattern]]:
        """Returns patterns of words and signs that a translation keeps.

        Args:
            texts: list of str.

        Returns:
            list of kinds of `protection.Span` and patterns: words with unknown
            letters are names, prices with unknown signs numbers, and other
            signs are left out, like markup.
        """
        chars = self.unknown(texts)
        letters = "".join(re.escape(char) for char in chars if char.isalnum())
        signs = "".join(re.escape(char) for char in chars if not char.isalnum())
        patterns = []
        if letters:
            # From the beginning of a word alone: else long words take quadratic
            # time.
            word = rf"(?<![^\W_])(?:(?![{letters}])[^\W_])*[{letters}][^\W_]*"
            patterns.append(("name", re.compile(word)))
        if signs:  # of a price or a formula, inside a word, or alone
            number = r"\d+(?:[.,]\d+)*"
            price = rf"(?:[{signs}] ?{number}|{number} ?[{signs}])(?: ?{number})?"
            price = rf"(?<!\w){price}(?:[-\u2013/]{price})*(?!\w)"
            patterns.append(("number", re.compile(price)))
        word = rf"(?<!\w)\w+(?:[&{signs}]+\w+)+"  # Q&A, snake_case
        patterns.append(("name", re.compile(word)))
        if signs:
            patterns.append(("markup", re.compile(f"[{signs}]")))
        return patterns
