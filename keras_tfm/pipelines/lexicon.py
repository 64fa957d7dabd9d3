"""Corrects rare words of a translation by a bilingual lexicon."""

import os
import pathlib
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from keras_tfm.file_reading import reading
from keras_tfm.pipelines.alignment import Alignment
from keras_tfm.pipelines.names import find_words, key_of
from keras_tfm.pipelines.protection import Edit
from keras_tfm.text.csv_jsonl import iterate_table
from keras_tfm.text.files import is_unicode
from keras_tfm.text.reading import Fault

MIN_LENGTH = 3  # letters of a word that is replaced
# Words that share so many letters at their beginnings are forms of one word.
SHARED_LETTERS, SHARED_PART = 3, 0.65
PART_LETTERS = 4  # of a word that may be a part of a compound
GENITIVE = 2  # letters that a name may have more
_SEPARATORS = frozenset("\t\n\r\ufeff")  # of the file
_INVERTED = dict.fromkeys(map(ord, "\u00bf\u00a1"))  # marks of Spanish
_ENTRY = re.compile(r"[^\W_](?:.*[^\W_])?", re.DOTALL)  # without outer punctuation


class Word(NamedTuple):
    """A word of a text.

    Attributes:
        number: int, its index, as `split()` separates words.
        begin: int, the index of its first letter.
        text: str, without punctuation and elided words.
    """

    number: int
    begin: int
    text: str


class Lexicon:
    """Translations of words that a model knows badly.

    A small model that saw a word a few times often writes another word that
    begins alike, or one that does not exist: "Metzger" becomes "metrcy". A
    lexicon from the word alignment of the same corpus has its translation.
    If a target has no form of any translation of a source word, the target word
    that attends to the source word is replaced by the first translation.
    Articles and endings may not suit the new word.

    Args:
        translations: dict from words of the source language to a list of
            translations, the best first. An entry of several words, or whose
            first translation has several, is only found as a whole text.
        frequent: words of the target language that are never replaced, such
            as articles.

    Raises:
        ValueError: a word is blank, has no translation, or a character that
            its file cannot hold, such as a tab.
        TypeError: a word or a translation is not text.

    Source: Luong et al. 2015, https://arxiv.org/abs/1410.8206, section 3, who
    replace unknown words; here the word may be a wrong one, too.

    Example:
        ```python
        from keras_tfm.pipelines import Lexicon

        lexicon = Lexicon({"tip": ["mancia"], "ferry": ["traghetto"]})
        assert lexicon.whole("Ferry!", "Ferro!") == "Traghetto!"
        source, target = "Is the tip included?", "Il topo è incluso?"
        missing = lexicon.missing(source, target)
        links = [(1, 0), (2, 1), (0, 2), (3, 3)]
        [edit] = lexicon.corrections(missing, source, target, links)
        assert target[edit.begin : edit.end] == "topo" and edit.text == "mancia"
        ```
    """

    def __init__(
        self,
        translations: Mapping[str, Sequence[str]],
        frequent: Collection[str] = (),
    ):
        self.translations = {
            _checked(word): [_checked(text) for text in _checked_list(word, texts)]
            for word, texts in translations.items()
        }
        if isinstance(frequent, str):
            raise TypeError(f"`frequent` must be a list of str; got {frequent!r:.80}.")
        self.frequent = [_checked(word) for word in frequent]
        self._texts = {key_of(w): texts for w, texts in self.translations.items()}
        self._frequent_keys = frozenset(map(key_of, self.frequent))
        self._accepted = {
            word: keys
            for word, texts in self._texts.items()
            if (keys := self._accepted_keys(word, texts))
        }

    def _accepted_keys(self, word, texts):
        """The keys of words that translate a word inside a sentence; none where
        it is not replaced: by several words, or by a frequent one."""
        parts = [text.split() for text in texts]
        if " " in word or len(parts[0]) > 1:
            return ()
        single = {key_of(words[0]) for words in parts if len(words) == 1}
        if not self._frequent_keys.isdisjoint(single):
            return ()
        several = {key_of(w) for words in parts for w in words if len(words) > 1}
        return tuple(single | {key for key in several if len(key) >= PART_LETTERS})

    def __repr__(self) -> str:
        return f"<Lexicon: {len(self.translations):,} words>"

    def __eq__(self, value: object) -> bool:
        if not isinstance(value, Lexicon):
            return NotImplemented
        is_equal = self.translations == value.translations
        return is_equal and self.frequent == value.frequent

    def __hash__(self) -> int:
        return hash(frozenset(self.translations))

    @classmethod
    def load(cls, file: str | os.PathLike) -> "Lexicon":
        """Reads what `save` wrote.

        Args:
            file: path of a table with tabs between columns: a word and its
                translations. The row without a word lists frequent words.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: a row has no translation, a word has two rows, or the
                file is damaged.
        """
        translations: dict[str, list[str]] = {}
        frequent: list[str] = []
        fix = "Write a word and its translations in each row, with tabs, in UTF-8."
        with reading(file, "a lexicon", fix):
            for line, row in iterate_table(pathlib.Path(file), "tsv"):
                if isinstance(row, Fault):
                    raise row.error(os.fspath(file), line)
                word, *texts = row
                if word in translations:
                    raise ValueError(f"line {line} has the word {word!r:.80} again")
                if word:
                    translations[word] = texts
                else:
                    frequent += texts
            return cls(translations, frequent)

    def save(self, file: str | os.PathLike) -> None:
        """Writes the lexicon.

        Args:
            file: path.
        """
        rows = [["", *self.frequent]]
        rows += [[word, *texts] for word, texts in self.translations.items()]
        text = "".join("\t".join(row) + "\n" for row in rows)
        pathlib.Path(file).write_text(text, encoding="utf-8")

    def whole(self, source: str, target: str) -> str | None:
        """Returns the translation of a text that is one entry, or None.

        Args:
            source: str.
            target: str, the translation of a model.

        Returns:
            `target` if it is a translation of the entry, or one with an article
            before it; else the first translation, with the marks before the
            target, such as those of Spanish, or else before the source, and
            those after the source. None if there is no such entry.
        """
        match = _ENTRY.search(source)
        key = key_of(match[0]) if match else ""
        if key not in self._texts:
            return None
        words = _word_keys(target)
        for text in self._texts[key]:
            parts = _word_keys(text)
            has_article = len(words) == len(parts) + 1
            if words[has_article:] == parts:
                return target
        text = self._texts[key][0]
        leading = source[: match.start()].translate(_INVERTED)
        trailing = source[match.end() :]
        if target_match := _ENTRY.search(target):
            leading = target[: target_match.start()] or leading
            target_marks = target[target_match.end() :]
            if target_marks.split() == trailing.split():  # but for spaces
                trailing = target_marks
        return leading + _like(match[0], text) + trailing

    def missing(
        self,
        source: str,
        target: str,
        is_name: Callable[[str], bool] = lambda word: True,
    ) -> list[Word]:
        """Lists the words of a source whose translations a target lacks.

        Args:
            source, target: str.
            is_name: function that says of a word with a capital that the target
                copies whether it is a name. A name is not missing.

        Returns:
            list of `Word`, without those that may become a frequent word, which
            a translation may well leave out.
        """
        target_words = [word for _, word in find_words(target)]
        targets = {key_of(word) for word in target_words} - self._frequent_keys
        missing = []
        for word in words_of(source):
            keys = self._accepted.get(key_of(word.text), ())
            if not keys or any(_are_related(t, key) for t in targets for key in keys):
                continue
            is_copied = any(_is_copy(word.text, text) for text in target_words)
            if not (is_copied and is_name(word.text)):
                missing.append(word)
        return missing

    def corrections(
        self, missing: Sequence[Word], source: str, target: str, links: Alignment
    ) -> list[Edit]:
        """Returns the replacements of wrong words in a translation.

        Args:
            missing: list of `Word`, from `missing`.
            source, target: str.
            links: pairs of int, the index of a source word and that of a target
                word that attends to it, as `split()` separates words.

        Returns:
            list of `Edit` of the target. A word is not replaced if it is
            frequent, translates another word, or is a name that was copied.
        """
        translated = [word for word in words_of(source) if word not in missing]
        translations = {
            key
            for word in translated
            for key in self._accepted.get(key_of(word.text), ())
        }
        free = [
            word
            for word in words_of(target)
            if len(word.text) >= MIN_LENGTH
            and key_of(word.text) not in self._frequent_keys
            and not any(
                _is_copy(source_word.text, word.text) for source_word in translated
            )
            and not any(_are_related(key_of(word.text), key) for key in translations)
        ]
        edits: dict[int, Edit] = {}
        for word in missing:
            numbers = {target for source, target in links if source == word.number}
            candidates = [
                w for w in free if w.number in numbers and w.begin not in edits
            ]
            if not candidates:
                continue
            wrong = max(candidates, key=lambda w: len(w.text))
            text = self._texts[key_of(word.text)][0]
            if not wrong.number:
                text = _like(wrong.text, text)
            end = wrong.begin + len(wrong.text)
            edits[wrong.begin] = Edit(wrong.begin, end, text)
        return list(edits.values())


def words_of(text: str) -> list[Word]:
    """Lists the words of a text.

    Args:
        text: str.
    """
    words, number = [], 0
    begins = [match.start() for match in re.finditer(r"\S+", text)]
    for position, word in find_words(text):
        while number + 1 < len(begins) and begins[number + 1] <= position:
            number += 1
        words.append(Word(number, position, word))
    return words


def _word_keys(text):
    return [key_of(word) for _, word in find_words(text)]


def are_related(first: str, second: str) -> bool:
    """Returns whether two words may be forms of one word, or a compound of it.

    Args:
        first, second: str.

    Example:
        ```python
        from keras_tfm.pipelines import lexicon

        assert lexicon.are_related("ruhigen", "ruhig")
        assert lexicon.are_related("Kopfkissen", "Kissen")
        assert not lexicon.are_related("Ferien", "Fähre")
        ```
    """
    return _are_related(key_of(first), key_of(second))


def _are_related(first, second):
    """`are_related`, of the keys of two words."""
    if first == second:
        return True
    if first[:SHARED_LETTERS] == second[:SHARED_LETTERS]:
        shared = len(os.path.commonprefix([first, second]))
        if shared >= SHARED_PART * max(len(first), len(second)):
            return True
        # "Kirche" in "Kirchturm"
        if shared > PART_LETTERS and shared >= min(len(first), len(second)) - 1:
            return True
    if not len(first) >= PART_LETTERS <= len(second):
        return False
    shorter, longer = sorted((first, second), key=len)
    return longer.startswith(shorter) or longer.endswith(shorter)


def _is_copy(word, target_word):
    """Whether a target has a word with a capital, perhaps in the genitive."""
    if not word[0].isupper() or not target_word.startswith(word):
        return False
    return len(target_word) <= len(word) + GENITIVE


def _like(word, text):
    """A translation with a capital, if a word has one."""
    return text[:1].upper() + text[1:] if word[:1].isupper() else text


def _checked_list(word, texts):
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise TypeError(
            "A lexicon must have a list of translations for each word; got "
            f"{word!r:.80}: {texts!r:.80}."
        )
    if not texts:
        raise ValueError(
            f"A lexicon must have a translation of each word; got {word!r:.80} without "
            "one."
        )
    return texts


def _checked(text):
    if not isinstance(text, str):
        raise TypeError(f"A lexicon must hold str; got {text!r:.80}.")
    if not text.strip() or not is_unicode(text):
        raise ValueError(
            "A lexicon must have no blank words and no lone surrogates; got "
            f"{text!r:.80}."
        )
    text = unicodedata.normalize("NFC", text.strip())
    if not _SEPARATORS.isdisjoint(text):
        raise ValueError(
            "A lexicon must have no tabs, line breaks and byte order marks, which its "
            f"file cannot hold; got {text!r:.80}. Replace them by spaces."
        )
    return text
