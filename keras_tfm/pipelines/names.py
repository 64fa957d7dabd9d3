"""Finds the names of a source that its translation has lost."""

import difflib
import re
from collections.abc import Sequence

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]{2,})*")
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
        self._known = frozenset(word.casefold() for word in known_words)
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
            missing = [word for word in _WORD.findall(run) if word not in target]
            is_certain = " " in run or not (
                self._nouns_are_capitalized or _BEGINNING.search(source[:begin])
            )
            if missing and (is_certain or _has_similar(missing[0], source, target)):
                lost.append(run)
        return lost

    def _runs(self, text):
        """The places of neighbors of unknown words with a capital."""
        runs: list[tuple[int, int]] = []
        for match in _WORD.finditer(text):
            word = match[0]
            is_name = len(word) >= MIN_LENGTH and word[0].isupper()
            if not is_name or word.casefold() in self._known:
                continue
            begin, end = match.span()
            if runs and text[runs[-1][1] : begin] == " ":
                begin = runs.pop()[0]
            runs.append((begin, end))
        return runs


def _has_similar(name, source, target):
    """Whether a translation has a word that may be a damaged name."""
    own = set(_WORD.findall(source))
    return any(
        difflib.SequenceMatcher(None, name.lower(), word.lower()).ratio() >= SIMILAR
        for word in _WORD.findall(target)
        if word not in own
    )


def known_words(sources: Sequence[str], targets: Sequence[str]) -> list[str]:
    """Lists the words that a model has learned to translate.

    Args:
        sources: list of str, of the training pairs.
        targets: list of str, as many.

    Returns:
        list of str, sorted: the words that at least two sources have, unless
        most of their translations have the same word, as they have of a name.
        Each is written as it is most often inside sentences.
    """
    counts: dict[str, list[int]] = {}  # sources, copies, capitals inside a sentence
    inside: dict[str, int] = {}
    for source, target in zip(sources, targets, strict=True):
        words = set(_WORD.findall(target))
        first = _WORD.search(source)
        for match in _WORD.finditer(source):
            word = match[0]
            count = counts.setdefault(word.casefold(), [0, 0, 0])
            count[0] += 1
            count[1] += word in words
            if match.start() != (first and first.start()):
                inside[word] = inside.get(word, 0) + 1
                count[2] += word[0].isupper()
    results = []
    for key, (number, copies, capitals) in counts.items():
        if number >= 2 and 2 * copies < number:
            lower = inside.get(key, 0)
            results.append(key.capitalize() if capitals > lower else key)
    return sorted(results)
