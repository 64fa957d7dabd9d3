"""Translates with the terms of a glossary."""

import bisect
import os
import pathlib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from keras_tfm.decode.protocol import Decodable
from keras_tfm.file_reading import reading
from keras_tfm.pipelines.alignment import realign, word_ranges
from keras_tfm.pipelines.base_translator import BaseTranslator
from keras_tfm.pipelines.finishing import time_left
from keras_tfm.pipelines.protection import find_spans
from keras_tfm.pipelines.span_patterns import FIRST_MARKER, LAST_MARKER, patterns_of
from keras_tfm.pipelines.text_config import TextConfig
from keras_tfm.pipelines.texts import check_texts, compose
from keras_tfm.pipelines.translation import Translation
from keras_tfm.pipelines.translator import Translator
from keras_tfm.text.csv_jsonl import iterate_table
from keras_tfm.text.files import is_unicode
from keras_tfm.text.reading import Fault

Terms = dict[str, str]
_FIRST_WORD = re.compile(r"\w+|[^\w\s]")
_MARKERS_ALONE = r"(?!)"  # a pattern that matches nothing else


class Glossary:
    """Terms and their translations.

    A term in lower case is found in any case, any other term only as it is
    written. Terms are found between word boundaries, the longest first.
    Inflected forms are not found.

    Args:
        terms: dict from terms to translations; or the path of a .tsv or .csv
            file with two columns and no header.

    Raises:
        ValueError: a term or a translation is blank, or a row has not two
            columns.
        TypeError: a term or a translation is not text.
        FileNotFoundError: there is no such file.

    Example:
        ```python
        from keras_tfm.pipelines import Glossary

        glossary = Glossary({"bank": "Ufer", "bank account": "Konto"})
        assert glossary.find("The bank") == {"bank": "Ufer"}
        assert glossary.find("A bank account") == {"bank account": "Konto"}
        assert glossary.find("Two banks") == {}
        ```
    """

    def __init__(self, terms: Mapping[str, str] | str | os.PathLike):
        self.terms: Terms = {}
        self._lengths: dict[str, list[int]] = {}  # of terms, by first word
        if isinstance(terms, Mapping):
            self._add(terms)
            return
        fix = "Write a term and its translation in each row, in UTF-8."
        with reading(terms, "a glossary", fix):
            self._add(_read(pathlib.Path(terms)))

    def __repr__(self) -> str:
        return f"<Glossary: {len(self.terms):,} terms>"

    def _add(self, terms):
        for term, translation in terms.items():
            for text in (term, translation):
                if not isinstance(text, str):
                    raise TypeError(
                        "A glossary must map str to str; got "
                        f"{term!r:.80}: {translation!r:.80}."
                    )
                if not text.strip() or not is_unicode(text):
                    raise ValueError(
                        "A glossary must have no blank terms and translations, and no "
                        f"lone surrogates; got {term!r:.80}: {translation!r:.80}."
                    )
            term = unicodedata.normalize("NFC", term.strip())
            self.terms[term] = translation.strip()
            first = _FIRST_WORD.match(term)[0].lower()
            lengths = self._lengths.setdefault(first, [])
            if len(term) not in lengths:
                bisect.insort(lengths, len(term), key=lambda length: -length)

    def find(self, text: str) -> Terms:
        """Returns the terms that a text contains, with their translations.

        Args:
            text: str.
        """
        return {term: self.terms[term] for _, _, term in self.places(text)}

    def places(self, text: str) -> list[tuple[int, int, str]]:
        """Lists where each term begins and ends in a text, and the term.

        Args:
            text: str. Its accents may be decomposed.
        """
        places, position = [], 0
        text, indices = compose(text)
        for match in _FIRST_WORD.finditer(text):
            begin = match.start()
            is_decimal = (
                re.search(r"\d[.,]\Z", text[:begin][-2:]) and match[0].isdigit()
            )
            if begin < position or is_decimal:  # inside a longer term, or a number
                continue
            for length in self._lengths.get(match[0].lower(), ()):  # longest first
                end = begin + length
                if end > len(text):
                    continue
                term = self._term(text[begin:end], text[end : end + 2])
                if term is not None:
                    places.append((indices[begin], indices[end], term))
                    position = end
                    break
        return places

    def _term(self, words, following):
        """The term that words of a text are, or None; `following` are the two
        characters after them."""
        term = words
        if term not in self.terms:  # those in lower case stand for all cases
            term = words.lower()
            if term not in self.terms or not term.islower():
                return None
        is_inside_word = re.match(r"\w\w|\d[.,]\d", words[-1] + following)
        return None if is_inside_word else term


def _read(file):
    suffix = file.suffix.lower()
    if suffix not in (".tsv", ".csv"):
        raise ValueError(
            "A glossary must be a .tsv or .csv file; got "
            f"{os.fspath(file)!r}. Rename it."
        )
    terms: Terms = {}
    with open(file, "rb") as content:
        for line, row in iterate_table(content, suffix.removeprefix(".")):
            if isinstance(row, Fault):
                raise row.error(os.fspath(file), line)
            if row != [""] and len(row) != 2:
                raise ValueError(
                    f"{os.fspath(file)}, line {line}: a row must have a term and its "
                    f"translation; got {row!r:.100}."
                )
            terms |= [row] if row != [""] else []
    return terms


class GlossaryTranslator(BaseTranslator):
    """Translates with the terms of a glossary.

    Each term of a text is protected, see `TextConfig.protect`: the model reads
    a name in place of the term. Where the model writes this name, the
    translation gets the term's translation in the glossary. So articles and
    endings may not suit the term. `Translation.unmet_terms` holds the terms
    whose translation is missing.

    Args:
        translator: `Translator`.
        glossary: `Glossary`, or its `terms`.

    Call arguments:
        texts: str, or list of str.
        progress: bool. Show a progress bar.

    Returns:
        str, or list of str in the same order.

    Raises:
        ValueError: the model continues texts rather than translates them.

    Example:
        ```python
        from keras_tfm.pipelines import GlossaryTranslator, Translator

        translator = Translator.from_preset("en-de")
        with_terms = GlossaryTranslator(translator, {"station": "Haltestelle"})
        assert "Haltestelle" in with_terms("Where is the station?")
        ```
    """

    def __init__(
        self,
        translator: Translator,
        glossary: Glossary | Mapping[str, str] | str | os.PathLike,
    ):
        if translator.decoder.continues_source:
            raise ValueError(
                "`translator` must have a model with an encoder; got "
                f"{translator!r}, which continues its texts."
            )
        if not isinstance(glossary, Glossary):
            glossary = Glossary(glossary)
        self.translator, self.glossary = translator, glossary
        self._marking = translator
        if not translator.config.protect:
            self._marking = translator.replace(protect=[_MARKERS_ALONE])

    @property
    def config(self) -> TextConfig:
        """The `TextConfig` of the translator."""
        return self.translator.config

    @property
    def model(self) -> Decodable:
        """The model of the translator."""
        return self.translator.model

    def __repr__(self) -> str:
        return f"<GlossaryTranslator: {self.translator!r}, {self.glossary!r}>"

    def translate(
        self, texts: str | Iterable[str], **options: Any
    ) -> Translation | list[Translation]:
        """Translates, and returns scores, n-best lists and unmet terms.

        Args:
            texts: str, or list of str.
            **options: see `Translator.translate`.

        Returns:
            `Translation`, or a list of them in the order of the texts.

        Raises:
            ValueError, TypeError: see `Translator.translate`.
        """
        if isinstance(texts, str):
            results: Any = self.translate([texts], **options)
            return results[0]
        left = time_left(options.pop("timeout", None))
        prepared = [self._mark(text) for text in check_texts(texts)]
        options["timeout"] = left()
        results = self._marking.translate([item.text for item in prepared], **options)
        return [
            item.unmark(result) for item, result in zip(prepared, results, strict=True)
        ]

    def _mark(self, text):
        free = (
            chr(c) for c in range(FIRST_MARKER, LAST_MARKER + 1) if chr(c) not in text
        )
        parts, terms, position = [], {}, 0
        places = self.glossary.places(text)
        spans = find_spans(text, patterns_of(self.config.protect)) if places else []
        is_protected = bytearray(len(text))
        for begin, end, _ in spans:
            is_protected[begin:end] = b"\1" * (end - begin)
        for begin, end, term in places:
            marker, translation = next(free, ""), self.glossary.terms[term]
            if not marker or any(is_protected[begin:end]):
                continue  # a term in a URL is no word
            words = text[begin:end]
            if words.isupper() and not term.isupper():
                translation = translation.upper()
            terms[marker] = _Term(term, words, translation)
            parts += [text[position:begin], marker]
            position = end
        return _MarkedText("".join([*parts, text[position:]]), terms, text)


class _Term(NamedTuple):
    term: str
    words: str
    translation: str


class _MarkedText(NamedTuple):
    """A text with a character of private use for each term, those, and the
    text as it was."""

    text: str
    terms: dict[str, _Term]
    source: str

    def unmark(self, result):
        """The translation with the terms."""
        if not self.terms:
            return result
        sources, targets = (
            str.maketrans({marker: term[n] for marker, term in self.terms.items()})
            for n in (1, 2)
        )
        source_words = word_ranges(self.text, lambda word: word.translate(sources))
        hypotheses = [
            hypothesis._replace(
                text=hypothesis.text.translate(targets),
                alignment=hypothesis.alignment
                and realign(
                    hypothesis.alignment,
                    source_words,
                    word_ranges(hypothesis.text, lambda word: word.translate(targets)),
                ),
            )
            for hypothesis in result.hypotheses
        ]
        unmet = {
            item.term: item.translation
            for marker, item in self.terms.items()
            if marker not in result.text
        }
        return result._replace(
            source=self.source,
            hypotheses=hypotheses,
            unmet_terms=unmet,
        )
