"""Finds the names of a source that its translation has lost."""

import difflib
import re
from collections.abc import Sequence

WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]{2,})*")
_BEGINNING = re.compile(r"(?:\A|[.!?:;\u2026\n\"\u201c\u201e\u00ab(\u2013-])\W*\Z")
MIN_LENGTH = 3  # letters of a name
SIMILAR = 0.65  # ratio of `difflib` to a name that a model changed
MANY_CAPITALS = 0.3  # of the known words: the language writes nouns with capitals


class Names:
    """Recognizes names: words with a capital that a model was not trained on.

    Args:
        known_words: list of str, see `TextConfig.known_words`.

    Example:
        ```python
        from keras_tfm.pipelines.names import Names

        names = Names(["the", "mayor", "is", "called", "Cologne"])
        source = "The mayor of Cologne is called Drexler."
        translation = "Der Bürgermeister von Köln heißt Drexer."
        assert names.lost(source, translation) == ["Drexler"]
        ```
    """

    def __init__(self, known_words: Sequence[str]):
        self._learned = frozenset(word.casefold() for word in known_words)
        capitals = sum(word[0].isupper() for word in known_words)
        self._nouns_are_capitalized = capitals > MANY_CAPITALS * len(known_words)

    def lost(self, source: str, target: str) -> list[str]:
        """Lists the names of a source that its translation lacks.

        At the beginning of a sentence, and in a language that writes nouns with
        capitals, a single word is a name only if the translation has a similar
        word, which a model made of it.

        Args:
            source: str.
            target: str.

        Returns:
            list of str, in their order; neighbors, such as a first and a last
            name, are one str if one of them is lost.
        """
        lost = []
        for begin, end in self._runs(source):
            run = source[begin:end]
            missing = [word for word in WORD.findall(run) if not _has(target, word)]
            is_certain = " " in run or not (
                self._nouns_are_capitalized or _BEGINNING.search(source[:begin])
            )
            if missing and (is_certain or _has_similar(missing[0], source, target)):
                lost.append(run)
        return lost

    def _runs(self, text):
        """The places of neighbors of unknown words with a capital."""
        runs: list[tuple[int, int]] = []
        for match in WORD.finditer(text):
            word = match[0]
            is_name = len(word) >= MIN_LENGTH and word[0].isupper()
            if not is_name or word.casefold() in self._learned:
                continue
            begin, end = match.span()
            if runs and text[runs[-1][1] : begin] == " ":
                begin = runs.pop()[0]
            runs.append((begin, end))
        return runs


def _has(text, name):
    """Whether a text has a name, perhaps in the genitive or in a compound."""
    return re.search(rf"(?<!\w){name}(?:e?s)?(?!\w)", text) is not None


def _has_similar(name, source, target):
    """Whether a translation has a word that may be a damaged name."""
    source_words = set(WORD.findall(source))
    return any(
        difflib.SequenceMatcher(None, name.lower(), word.lower()).ratio() >= SIMILAR
        for word in WORD.findall(target)
        if word not in source_words
    )
