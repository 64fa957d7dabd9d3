"""Capitals and missing final punctuation around a model."""

import re

from keras_tfm.pipelines.span_patterns import MARKER
from keras_tfm.pipelines.texts import AnyVocabulary

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
_LONG_WORD = re.compile(r"(?<!\w)[^\W\d_]{4,}(?!\w)")
_SENTENCE = re.compile(r"(?:\A|[.!?\u2026]\s)\W*[^\W\d_]")
_MARKS = ".!?\u2026\u3002"


def is_capitals(text: str, vocabulary: AnyVocabulary) -> bool:
    """Returns whether a text is written in capitals.

    Args:
        text: str. Two words are in capitals if each letter is upper-case; one
            word too if it has four letters and is no acronym: "OPEN",
            "NO ENTRY"; not "USA", nor "NATO".
        vocabulary: of the model.
    """
    letters = [char for char in text if char.isalpha() and char != "\u00df"]
    if not letters or not all(char.isupper() for char in letters):
        return False
    words = _WORD.findall(text)
    longest = max(map(len, words))
    if len(words) > 1:
        return longest > 1
    return longest >= 4 and not is_acronym(text, vocabulary)


def is_acronym(text: str, vocabulary: AnyVocabulary) -> bool:
    """Returns whether a text is one acronym, which is not translated.

    Args:
        text: str. An acronym has two to five letters, all upper-case, and its
            vocabulary has no token for it in lower case.
        vocabulary: of the model.
    """
    word = text.strip()
    if not (word.isalpha() and word.isupper() and 2 <= len(word) <= 5):
        return False
    rows = vocabulary.encode([word.lower(), word.capitalize()])
    return min(map(len, rows)) > 1


def lower_capitals(text: str, vocabulary: AnyVocabulary) -> str:
    """Lowers a text in capitals as its vocabulary writes its words.

    Args:
        text: str, in capitals.
        vocabulary: of the model. A word is written in the way that takes the
            fewest tokens, in doubt lower-case: so names and nouns keep their
            capital and acronyms their capitals.
    """
    words = list(dict.fromkeys(_WORD.findall(text)))
    forms = [(w.lower(), w.lower().capitalize(), w) for w in words]
    rows = iter(vocabulary.encode([form for three in forms for form in three]))
    cases = {
        word: min(three, key=lambda form: (len(next(rows)), form != three[0]))
        for word, three in zip(words, forms, strict=True)
    }
    cases["I"] = "I"
    lowered = _WORD.sub(lambda match: cases[match[0]], text)
    return _SENTENCE.sub(lambda match: match[0].upper(), lowered)


def lower_emphasis(text: str, vocabulary: AnyVocabulary) -> str:
    """Lowers single words in capitals: "I NEVER said so".

    Args:
        text: str.
        vocabulary: of the model. A word of four letters or more is lowered if
            that takes less than half as many tokens, as it does not for most
            acronyms.
    """
    words = {word for word in _LONG_WORD.findall(text) if word.isupper()}
    if not words:
        return text
    forms = [form for word in words for form in (word.lower(), word)]
    rows = iter(vocabulary.encode(forms))
    lowered = {
        word: word.lower() for word in words if 2 * len(next(rows)) < len(next(rows))
    }
    result = _LONG_WORD.sub(lambda match: lowered.get(match[0], match[0]), text)
    return text[:1] + result[1:]  # the first word keeps its capital


def missing_mark(text: str) -> str:
    """Returns the final mark that a text lacks, or an empty str.

    Args:
        text: str, with markers of protected spans.
    """
    last = re.sub(MARKER, "a", text.rstrip())[-1:]
    if not last.isalnum() or not any(char.isalpha() for char in text):
        return ""
    return "\u3002" if "\u3040" <= last <= "\u9fff" else "."


def without_final_mark(text: str) -> str:
    """Removes the marks at the end of a translation.

    Args:
        text: str, with markers of protected spans. With a mark at its
            beginning, as in Spanish, it keeps both.
    """
    if re.search("[\u00bf\u00a1]", text):
        return text
    # From the end: a search for the marks takes quadratic time.
    end = len(text) - len(re.match(rf"(?:\s|{MARKER})*", text[::-1])[0])
    sentence = text[:end]
    bare = sentence.rstrip(_MARKS)
    return text if bare == sentence else bare.rstrip() + text[end:]
