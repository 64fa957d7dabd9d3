"""Translates with the terms of a glossary, by lexical constraints."""

import csv
import os
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from keras_tfm.decode.protocol import Decodable
from keras_tfm.pipelines.base_translator import BaseTranslator
from keras_tfm.pipelines.segmentation import split_into_lines
from keras_tfm.pipelines.sentences import SEPARATOR, split_line
from keras_tfm.pipelines.text_config import TextConfig
from keras_tfm.pipelines.texts import check_texts
from keras_tfm.pipelines.translation import Translation, join_translations
from keras_tfm.pipelines.translator import Translator

Terms = dict[str, str]
_FIRST_WORD = re.compile(r"\w+|[^\w\s]")
_SEPARATORS = {".tsv": "\t", ".csv": ","}


class Glossary:
    """Terms and their translations.

    A term in lower case is found in any case, another as it is written; both
    between word boundaries, the longest first. Inflected forms are not found.

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
        if not isinstance(terms, Mapping):
            terms = _read(pathlib.Path(terms))
        self.terms: Terms = {}
        self._by_first_word: dict[str, list[str]] = {}
        for term, translation in terms.items():
            for text in check_texts([term, translation]):
                if not text.strip():
                    raise ValueError(
                        "`terms` must have no blank terms and translations; got "
                        f"{term!r}: {translation!r}."
                    )
            term = term.strip()
            self.terms[term] = translation.strip()
            first = _FIRST_WORD.match(term)[0].lower()
            self._by_first_word.setdefault(first, []).append(term)
        for candidates in self._by_first_word.values():
            candidates.sort(key=len, reverse=True)

    def __repr__(self) -> str:
        return f"<Glossary: {len(self.terms):,} terms>"

    def find(self, text: str) -> Terms:
        """Returns the terms that a text has, with their translations.

        Args:
            text: str.
        """
        result, position = {}, 0
        for match in _FIRST_WORD.finditer(text):
            if match.start() < position:  # inside a longer term
                continue
            for term in self._by_first_word.get(match[0].lower(), ()):
                end = match.start() + len(term)
                if _is_term(term, text[match.start() : end], text[end : end + 1]):
                    result[term], position = self.terms[term], end
                    break
        return result


def _is_term(term, words, following):
    """Whether words of a text, and the character after them, are a term."""
    words = words.lower() if term.islower() else words
    inside_word = re.fullmatch(r"\w\w", term[-1] + following) is not None
    return words == term and not inside_word


def _read(file):
    separator = _SEPARATORS.get(file.suffix.lower())
    if separator is None:
        raise ValueError(
            f"`terms` must be a .tsv or .csv file; got {os.fspath(file)!r}. Rename it."
        )
    terms: Terms = {}
    quoting = csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE
    with open(file, encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, delimiter=separator, quoting=quoting)
        for row in reader:
            if len(row) not in (0, 2):
                raise ValueError(
                    f"{os.fspath(file)}, line {reader.line_num}: a row must have a "
                    f"term and its translation; got {row!r:.100}."
                )
            terms |= {row[0]: row[1]} if row else {}
    return terms


class GlossaryTranslator(BaseTranslator):
    """Translates with the terms of a glossary.

    The translation of a sentence must contain the translations of the terms
    that the sentence has. It is searched with lexical constraints, one sentence
    at a time. What could not be met is in `Translation.unmet_terms`.

    Args:
        translator: `Translator` with a beam, best of 5 or more.
        glossary: `Glossary`, or its `terms`.

    Call arguments:
        texts: str, or list of str.
        progress: bool. Show a progress bar.

    Returns:
        str, or list of str in the same order.

    Raises:
        ValueError: the translator has no beam.

    Source: Post and Vilar 2018. https://arxiv.org/abs/1804.06609

    Example:
        ```python
        from keras_tfm.pipelines import GlossaryTranslator, Translator

        translator = Translator.from_preset("en-de", beam_size=5)
        with_terms = GlossaryTranslator(translator, {"station": "Haltestelle"})
        assert "Haltestelle" in with_terms("Where is the station?")
        ```
    """

    def __init__(
        self,
        translator: Translator,
        glossary: Glossary | Mapping[str, str] | str | os.PathLike,
    ):
        if not isinstance(glossary, Glossary):
            glossary = Glossary(glossary)
        self.translator, self.glossary = translator, glossary

    @property
    def config(self) -> TextConfig:
        """That of the translator."""
        return self.translator.config

    @property
    def model(self) -> Decodable:
        """That of the translator."""
        return self.translator.model

    def __repr__(self) -> str:
        return f"<GlossaryTranslator: {self.translator!r}, {self.glossary!r}>"

    def translate(
        self, texts: str | Iterable[str], **options: Any
    ) -> Translation | list[Translation]:
        """Translates, and returns scores, n-best lists and unmet terms.

        Args:
            texts: str, or list of str.
            **options: see `Translator.translate`, without `constraints` and
                `target_prefix`.

        Returns:
            `Translation`, or a list of them in the order of the texts.

        Raises:
            ValueError: there is no beam; or as `Translator.translate`.
            TypeError: `texts` is not text, or there is no such option.
        """
        if isinstance(texts, str):
            results: Any = self.translate([texts], **options)
            return results[0]
        texts = check_texts(texts)
        changes = {
            k: v for k, v in options.items() if k in ("beam_size", "sampling_topk")
        }
        search = self.translator.decoder.options.replace(**changes)
        if search.beam_size == 1 or search.samples:
            raise ValueError(
                "`beam_size` must be at least 2 with a glossary, best 5 or more, and "
                f"sampling_topk 1; got beam_size={search.beam_size}, "
                f"sampling_topk={search.sampling_topk}."
            )
        # A text is pieces, between which whitespace stands.
        texts_in_pieces = [self._pieces(text) for text in texts]
        pieces = [piece for parts in texts_in_pieces for piece in parts[::2]]
        results = iter(self._translate_pieces(pieces, options))
        return [
            join_translations(text, [next(results) for _ in parts[::2]], parts[1::2])
            for text, parts in zip(texts, texts_in_pieces, strict=True)
        ]

    def _pieces(self, text):
        """The text, or its sentences if it has terms and is long."""
        config = self.translator.config
        if not self.glossary.find(text):
            return [text]
        parts = split_into_lines(text.replace(SEPARATOR, "\ufffd"))
        rows = self.translator.vocabulary.encode(parts[::2])
        pieces: list[str] = []
        for index, row in enumerate(rows):
            line = parts[2 * index]
            sentences = [line]
            if len(row) > config.segment_tokens[0]:
                sentences = split_line(config.splitter, line)
            for number, sentence in enumerate(sentences):
                stripped = sentence.lstrip()
                pieces += [sentence[: len(sentence) - len(stripped)]] if number else []
                pieces.append(stripped if number else sentence)
            pieces += parts[2 * index + 1 : 2 * index + 2]
        return pieces

    def _translate_pieces(self, pieces, options):
        results: list = [None] * len(pieces)
        terms = [self.glossary.find(piece) for piece in pieces]
        free = [n for n, piece_terms in enumerate(terms) if not piece_terms]
        for number, result in zip(
            free,
            self.translator.translate([pieces[n] for n in free], **options),
            strict=True,
        ):
            results[number] = result
        for number, piece_terms in enumerate(terms):
            if piece_terms:
                results[number] = self._constrained(
                    pieces[number], piece_terms, options
                )
        return results

    def _constrained(self, piece, terms, options):
        phrases = list(dict.fromkeys(terms.values()))
        try:
            result = self.translator.translate(piece, constraints=phrases, **options)
        except ValueError:  # a term that the vocabulary lacks, or a long one
            result = None
        if result is None or not result.text:
            result = self.translator.translate(piece, **options)
        unmet = {term: t for term, t in terms.items() if t not in result.text}
        return result._replace(unmet_terms=unmet)
