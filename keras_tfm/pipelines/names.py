"""Finds the names of a source that its translation has lost."""

import difflib
import re
import unicodedata
from collections.abc import Iterator, Sequence

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]{2,})*")
_REPETITION = re.compile(r"(.)\1{2,}")
# French and Italian words that lose their vowel before another word: l'hôtel
_ELISION = re.compile(
    r"(?:l|d|qu|j|n|s|c|m|t|jusqu|lorsqu|puisqu|un|all|dall|dell|nell|sull)['\u2019]",
    re.IGNORECASE,
)
# What may stand before a sentence: marks, quotes, brackets, dashes, bullets.
_STARTS = frozenset('.!?:;()\n"\u2026\u201c\u201e\u00ab\u2018\u201a\u2013\u2014\u2022-')
# Endings by which a form of a known word may differ from it
ENDINGS = ("s", "es", "e", "n", "en", "er")
LINKS = ("", "s", "es", "n", "en", "er", "e")  # between the parts of a compound
# How German nouns end, and hardly a name
_NOUN = re.compile(
    r"(?:ung|heit|keit|schaft|t\u00e4t|ion|nis|chen|ling|tum|ismus|erin)(?:e?n|e?s|e)?\Z"
)
MIN_LENGTH, MAX_LENGTH = 3, 60  # letters of a name
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
        composed = (unicodedata.normalize("NFC", word) for word in known_words)
        self._known_words = frozenset(map(key_of, composed))
        capitals = sum(word[0].isupper() for word in known_words)
        self._nouns_are_capitalized = capitals > MANY_CAPITALS * len(known_words)

    def lost(self, source: str, target: str) -> list[str]:
        """Lists the names of a source that its translation lacks.

        A form of a known word is no name; nor is a noun of known parts in a
        language that writes nouns with capitals. At the beginning of a sentence
        and for such nouns, a single word is a name if the translation has a
        similar word, which a model made of it; a run of several words is one
        anyway. A word in capitals is a name if the translation has a similar
        one, and any word with a capital if the translation has it with three
        equal letters, such as "Bonnn".

        Args:
            source: str.
            target: str.

        Returns:
            list of str, in their order; neighbors, such as a first and a last
            name, are one str if one of them is lost.
        """
        lost = []
        runs = self._runs(source)
        for begin, end in sorted({*runs, *self._damaged(source, target, runs)}):
            run = source[begin:end]
            missing = [word for word in run.split() if not _is_in(target, word)]
            is_certain = (
                " " in run
                or (begin, end) not in runs
                or not (_is_first(source[:begin]) or self._is_noun(run))
            )
            if missing and (is_certain or _has_similar(missing[0], source, target)):
                lost.append(run)
        return lost

    def _damaged(self, source, target, runs):
        """The places of words with a capital, outside the runs, of which a
        translation has a damaged form."""
        words = [word for _, word in find_words(target)]
        keys = {key_of(word) for word in words}
        forms = (r"\1", r"\1\1")
        tripled = {_REPETITION.sub(form, key) for form in forms for key in keys} - keys
        acronyms = " ".join(word for word in words if word.isupper())
        places = []
        for begin, word in find_words(source):
            if not word[0].isupper() or len(word) < MIN_LENGTH:
                continue
            is_damaged = key_of(word) in tripled
            if word.isupper() and not self.knows(word) and not _is_in(target, word):
                is_damaged |= _has_similar(word, source, acronyms)
            if is_damaged and not any(first <= begin < last for first, last in runs):
                places.append((begin, begin + len(word)))
        return places

    def knows(self, word: str) -> bool:
        """Returns whether a word is known, or a form of a known one.

        Args:
            word: str.
        """
        key = key_of(word)
        stems = [key[: -len(end)] for end in ENDINGS if key.endswith(end)]
        forms = [key, *(stem for stem in stems if len(stem) >= MIN_LENGTH)]
        return not self._known_words.isdisjoint(forms)

    def _is_noun(self, word):
        """Whether a word may be a noun that is made of known parts."""
        if not self._nouns_are_capitalized:
            return False
        return all(self._has_known_parts(key_of(part)) for part in word.split("-"))

    def _has_known_parts(self, key):
        if _NOUN.search(key) or len(key) > MAX_LENGTH:
            return True
        begins, reached = [0], {0}
        for begin in begins:  # grows
            for end in range(begin + MIN_LENGTH, len(key) + 1):
                if not self.knows(key[begin:end]):
                    continue
                for link in LINKS:
                    reach = end + len(link)
                    if key.startswith(link, end) and reach not in reached:
                        reached.add(reach)
                        begins.append(reach)
        return len(key) in reached

    def _runs(self, text):
        """The places of neighbors of unknown words with a capital.

        A known one that follows is a part, too: a last name such as "Bay".
        """
        runs: list[tuple[int, int]] = []
        for begin, word in find_words(text):
            may_be_name = word[0].isupper() and not word.isupper()
            if not may_be_name or len(word) < MIN_LENGTH:
                continue
            is_next = bool(runs) and text[runs[-1][1] : begin] == " "
            if self.knows(word) and (self._nouns_are_capitalized or not is_next):
                continue
            first = runs.pop()[0] if is_next else begin
            runs.append((first, begin + len(word)))
        return runs


def find_words(text: str) -> Iterator[tuple[int, str]]:
    """Yields the words of a text without elided ones: of "l'hôtel", "hôtel".

    Args:
        text: str.

    Yields:
        The index of the first letter, and the word.
    """
    for match in _WORD.finditer(text):
        elision = _ELISION.match(match[0])
        num_elided = elision.end() if elision else 0
        yield match.start() + num_elided, match[0][num_elided:]


def key_of(word: str) -> str:
    """Returns the form by which words are compared."""
    return word.casefold().replace("\u2019", "'")


def _is_first(beginning):
    """Whether a sentence begins after the beginning of a text."""
    gap = re.match(r"\W*", beginning[::-1])[0]
    return len(gap) == len(beginning) or not _STARTS.isdisjoint(gap)


def _is_in(text, name):
    """Whether a text has a name, perhaps in a genitive or a compound."""
    stem = name[:-1] if name.endswith("s") else name
    pattern = re.sub(r"['\u2019]", "['\u2019]", rf"{name}(?:e?s)?|{stem}")
    return re.search(rf"(?<!\w)(?:{pattern})(?!\w)", text) is not None


def _has_similar(name, source, target):
    """Whether a translation has a word that may be a damaged name."""
    source_words = {word for _, word in find_words(source)}
    return any(
        difflib.SequenceMatcher(None, name.lower(), word.lower()).ratio() >= SIMILAR
        for _, word in find_words(target)
        if word not in source_words
    )
