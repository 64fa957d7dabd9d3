"""Finds what a vocabulary cannot spell."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from keras_tfm.pipelines.span_patterns import ALL, MARKER, UNKNOWN, patterns_of
from keras_tfm.pipelines.texts import AnyVocabulary

NEEDED = ".,;:!?&"  # marks that split sentences, and a word
# Characters beyond U+FFFF in one pattern: Python's `re` compares each character
# of a text with each of them.
MAX_RARE = 2_000
_SIGNS = ("<super", "<sub", "<circle", "<square", "<fraction", "<font")
_POWERS = "\u00b2\u00b3"
_TRADEMARKS = "\u2122\u00ae\u2120\u00a9"
_AMOUNT = r"\d+(?:[.,]\d+)*"
_LETTERS = re.compile(r"[^\W\d_]+")
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

    A byte token is none, since models hardly ever see one in training; nor are
    the tokens of other characters, such as TM for a trademark sign. A capital
    without a token is written small, if the small letter has one.

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
        forms = {form for char in chars for form in (char, char.lower())}
        # Without a copy of those that are known, which may be a million.
        new = sorted(form for form in forms if form not in self._is_unknown)
        for char, ids in zip(new, self.vocabulary.encode(new), strict=True):
            tokens = self.vocabulary.tokens(ids)
            is_unknown = any(map(_UNKNOWN.fullmatch, tokens))
            self._is_unknown[char] = is_unknown or self._is_replaced(char, ids)
        return [char for char in chars if self._is_unknown[char.lower()]]

    def lower_unknown(self, text: str) -> str:
        """Lowers the words with capitals that have no token, if the small
        letters have one: "MAÑANA", of a vocabulary without "Ñ".

        Args:
            text: str.
        """
        unknown = {*self.unknown([text])}
        capitals = {
            char for char in {*text} - unknown if self._is_unknown.get(char, False)
        }
        if not capitals:
            return text
        return _LETTERS.sub(
            lambda match: (
                match[0] if capitals.isdisjoint(match[0]) else match[0].lower()
            ),
            text,
        )

    def _is_replaced(self, char, ids):
        """Whether the vocabulary writes a sign, such as a superscript, as other
        characters; it may do so with forms of letters and with punctuation."""
        tag = unicodedata.decomposition(char).partition(">")[0]
        is_sign = tag in _SIGNS or (tag and unicodedata.category(char)[0] == "S")
        return bool(is_sign) and self.vocabulary.decode([ids]) != [char]

    def patterns_of(
        self, protect: Sequence[str], texts: Iterable[str]
    ) -> list[tuple[str, re.Pattern]]:
        """Returns patterns of what translations of texts keep.

        Args:
            protect: of `TextConfig`.
            texts: list of str.

        Returns:
            list of kinds of `protection.Span` and patterns: those of
            `span_patterns`, then, with `"unknown"`, of words and signs that
            cannot be spelled.
        """
        patterns = patterns_of(protect)
        if {ALL, UNKNOWN} & set(protect):
            patterns += self._patterns(texts)
        return patterns

    def _patterns(self, texts):
        """Words with unknown letters are names, prices with unknown signs
        numbers, and other signs are left out, like markup."""
        chars = self.unknown(texts)  # in the order of their codes
        rare = [char for char in chars if char > "\uffff"]
        chars = [*chars[: len(chars) - len(rare)], *rare[:MAX_RARE]]
        letters = "".join(re.escape(char) for char in chars if char.isalnum())
        signs = "".join(re.escape(char) for char in chars if not char.isalnum())
        patterns = []
        if letters:
            # From the beginning of a word alone: else long words take quadratic
            # time.
            word = rf"(?<![^\W_])(?:(?![{letters}])[^\W_])*[{letters}][^\W_]*"
            patterns.append(("name", re.compile(word)))
        if powers := "".join(char for char in chars if char in _POWERS):  # 20 m²
            unit = rf"(?<![\w.,]){_AMOUNT} ?[^\W\d_]{{1,3}}[{powers}](?!\w)"
            patterns.insert(0, ("number", re.compile(unit)))
        if signs:  # of a price or a formula, inside a word, or alone
            price = rf"(?:[{signs}] ?{_AMOUNT}|{_AMOUNT} ?[{signs}])(?: ?{_AMOUNT})?"
            price = rf"(?<!\w)(?<!\d[.,]){price}(?:[-\u2013/]{price})*(?!\w)"
            patterns.append(("number", re.compile(price)))
        word = rf"(?<!\w)\w+(?:[&{signs}]+\w+)+"  # Q&A, snake_case
        patterns.append(("name", re.compile(word)))
        if trademarks := "".join(char for char in signs if char in _TRADEMARKS):
            word = rf"(?<![\w-])[\w-]+[{trademarks}]+(?!\w)"
            patterns.append(("name", re.compile(word)))
        if signs:
            patterns.append(("markup", re.compile(f"[{signs}]")))
        return patterns
