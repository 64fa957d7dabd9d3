"""Splits texts into segments that a model reads one by one, and joins them."""

import copy
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tfm.pipelines.sentences import (
    SEPARATOR,
    SPACE,
    split_line,
    split_sentences,
)
from keras_tfm.pipelines.spelling import Spelling
from keras_tfm.pipelines.texts import AnyVocabulary
from keras_tfm.types import Tensor

_BLANK = r"[ \t\r\n\v\f]"
# Whitespace around and between lines, for Python and for TensorFlow's RE2.
LINE_BREAKS = rf"(\A{_BLANK}+|{_BLANK}*[\r\n]{_BLANK}*|{_BLANK}+\z)"
# Without the lookbehind Python's `re` tries at each space of a run: a long run
# would take quadratic time.
_LINE_BREAKS = re.compile(
    rf"(\A{_BLANK}+|(?<!{_BLANK})(?:{_BLANK}*[\r\n]{_BLANK}*|{_BLANK}+\Z))"
)
WORD_STARTS = ("\u2581", "\u0120")  # of SentencePiece, of byte-level BPE
_NOWHERE = np.iinfo("int32").max


class Segment(NamedTuple):
    """A piece of text that is translated as one sequence.

    Attributes:
        ids: list of int, token ids; never empty.
        separator: str between the previous segment and this one: whitespace,
            and protected spans that stand beside sentences.
        steps: `text_steps.Steps` that undo what was done to the text; or None.

    Example:
        ```python
        from keras_tfm.pipelines import Translator

        [source] = Translator.from_preset("en-de").encode(["Good morning!"])
        [segment] = source.segments
        assert segment.separator == ""
        ```
    """

    ids: list[int]
    separator: str
    steps: Any = None


def split_into_lines(text: str) -> list[str]:
    """Returns lines at even indices, and the whitespace between at odd ones.

    Args:
        text: str, without `SEPARATOR`.
    """
    return _LINE_BREAKS.split(text)


class SegmentedText(NamedTuple):
    """A text and its segments.

    Attributes:
        text: str.
        segments: list of `Segment`; empty if the text is blank.
        trailing: str after the last segment, with the same content as a
            separator.

    Example:
        ```python
        from keras_tfm.pipelines import Translator

        [source] = Translator.from_preset("en-de").encode(["One line.\\nTwo."])
        assert source.join(["Eine Zeile.", "Zwei."]) == "Eine Zeile.\\nZwei."
        ```
    """

    text: str
    segments: list[Segment]
    trailing: str

    def join(self, translations: Sequence[str], trailing: bool = True) -> str:
        """Joins the translations of the segments.

        Args:
            translations: list of str, one for each segment, or only for the
                first segments.
            trailing: bool. Append the whitespace after the last segment.
        """
        pairs = zip(self.segments, translations, strict=False)
        text = "".join(segment.separator + part for segment, part in pairs)
        return text + self.trailing if trailing else text


class ArrayFunctions(NamedTuple):
    """The functions of an array library that segmentation needs.

    Attributes:
        where, max, min: as NumPy's.
    """

    where: Callable
    max: Callable
    min: Callable


NUMPY = ArrayFunctions(np.where, np.max, np.min)


class Segmenter:
    """Splits texts into segments of token ids.

    Args:
        vocabulary: `Vocabulary` or `TokenizersVocabulary`.
        splitter: function from a line to the list of its sentences.

    Attributes:
        starts: bool `(V,)`, the tokens that begin a word.

    Example:
        ```python
        from keras_tfm.pipelines import Segmenter, Translator

        vocabulary = Translator.from_preset("en-de").vocabulary
        segmenter = Segmenter(vocabulary)
        [text] = segmenter.segment(["I am here. You are there."], 1, 100)
        ids = [segment.ids for segment in text.segments]
        assert vocabulary.decode(ids) == ["I am here.", "You are there."]
        ```
    """

    def __init__(self, vocabulary: AnyVocabulary, splitter: Callable = split_sentences):
        self.vocabulary, self.splitter = vocabulary, splitter
        self.spelling = Spelling(vocabulary)
        tokens = vocabulary.tokens(range(vocabulary.size))
        self.starts = np.array([token.startswith(WORD_STARTS) for token in tokens])
        if not self.starts.any():  # WordPiece tags the tokens that continue a word
            self.starts = np.array([not token.startswith("##") for token in tokens])

    def replace(self, splitter: Callable) -> "Segmenter":
        """Returns a segmenter of the same vocabulary with another splitter.

        Args:
            splitter: see `Segmenter`.
        """
        if splitter is self.splitter:
            return self
        segmenter = copy.copy(self)
        segmenter.splitter = splitter
        return segmenter

    def segment(
        self,
        texts: Sequence[str],
        split_tokens: int,
        max_tokens: int,
        unsplit: Collection[int] = (),
    ) -> list[SegmentedText]:
        """Splits texts into lines, and long lines after sentences.

        Args:
            texts: list of N str.
            split_tokens, max_tokens: see `split`.
            unsplit: ints, indices of texts that stay one segment.

        Returns:
            list of N `SegmentedText`.

        Raises:
            ValueError: `splitter` does not return the sentences of a line.
        """
        split_lines = [
            [text]
            if number in unsplit
            else split_into_lines(text.replace(SEPARATOR, "\ufffd"))
            for number, text in enumerate(texts)
        ]
        # Lines have even indices, the whitespace between them odd ones.
        lines = [line for parts in split_lines for line in parts[::2]]
        whole = [
            n in unsplit for n, parts in enumerate(split_lines) for _ in parts[::2]
        ]
        encoded = iter(self._encode_lines(lines, whole, split_tokens))
        segmented = []
        for number, (text, parts) in enumerate(zip(texts, split_lines, strict=True)):
            segments, separator = [], ""
            for index in range(0, len(parts), 2):
                sentences = next(encoded)
                ids = [token for _, row in sentences for token in row]
                limits = (split_tokens, max_tokens)
                if number in unsplit:
                    limits = (len(ids), len(ids))
                for begin, end, space in self.split(sentences, *limits):
                    separator += " " if space else ""
                    segments.append(Segment(ids[begin:end], separator))
                    separator = ""
                separator += "".join(parts[index + 1 : index + 2])
            segmented.append(SegmentedText(text, segments, separator))
        return segmented

    def _encode_lines(self, lines, whole, split_tokens):
        """The sentences of each line, with their ids; short lines have one."""
        rows = self.vocabulary.encode(lines)
        sentences = [
            [line]
            if is_whole or len(row) <= split_tokens
            else split_line(self.splitter, line)
            for line, row, is_whole in zip(lines, rows, whole, strict=True)
        ]
        # With the space before a sentence, which byte-level BPE encodes.
        encoded = iter(
            self.vocabulary.encode(
                [s for line in sentences for s in line[len(line) == 1 :]]
            )
        )
        return [
            [(line[0], row)] if len(line) == 1 else [(s, next(encoded)) for s in line]
            for line, row in zip(sentences, rows, strict=True)
        ]

    def split(
        self,
        sentences: Sequence[tuple[str, Sequence[int]]],
        split_tokens: int,
        max_tokens: int,
    ) -> list[tuple[int, int, bool]]:
        """Splits the tokens of a line after sentences.

        A segment ends after the last sentence within `split_tokens`. If there
        is none, the segment ends after its first sentence. If that sentence has
        more than `max_tokens`, the segment ends after the last whole word
        within `max_tokens`, or, without one, at `max_tokens`.

        Args:
            sentences: pairs of a sentence, with the space before it, and its
                ids.
            split_tokens: int >= 1. A line of at most this length stays whole.
            max_tokens: int >= `split_tokens`.

        Returns:
            list of (begin, end, space): tokens from `begin` to `end` are a
            segment; `space` is True if the segment begins after a space and is
            not the first.
        """
        lengths = [len(row) for _, row in sentences]
        count, begins = sum(lengths), np.cumsum([0, *lengths[:-1]])
        if count <= split_tokens:
            return [(0, count, False)] if count else []
        ids = [token for _, row in sentences for token in row]
        spaces = np.take(self.starts, ids)
        is_first = np.zeros_like(spaces)
        for begin, length, (text, _) in zip(begins, lengths, sentences, strict=True):
            if length:
                is_first[begin] = True
                spaces[begin] = bool(re.match(SPACE, text))
        cuts = [0]
        while cuts[-1] < count:
            [end] = next_end(
                np.array(cuts[-1:]),
                np.array([count]),
                np.arange(count)[None],
                ((spaces | is_first)[None], is_first[None]),
                (split_tokens, max_tokens),
            )
            cuts.append(int(end))
        return [
            (begin, end, begin > 0 and bool(spaces[begin]))
            for begin, end in zip(cuts[:-1], cuts[1:], strict=True)
        ]


def next_end(
    begin: Tensor,
    lengths: Tensor,
    positions: Tensor,
    boundaries: tuple[Tensor, Tensor],
    limits: tuple[int, int],
    functions: ArrayFunctions = NUMPY,
) -> Tensor:
    """Finds where the next segment of each row ends.

    Args:
        begin: integers `(R,)`, where it begins.
        lengths: integers `(R,)`, tokens of each row.
        positions: integers `(1, L)`, 0 to L - 1.
        boundaries: pair of bool `(R, L)`: the tokens that begin a word, and
            those that begin a sentence.
        limits: pair of int, `split_tokens` and `max_tokens`.
        functions: `ArrayFunctions` of the library of the tensors.

    Returns:
        integers `(R,)`.
    """
    where = functions.where
    (starts, sentences), (split_tokens, max_tokens) = boundaries, limits
    later = positions > begin[:, None]  # (R, L)
    near = later & (positions <= begin[:, None] + split_tokens)
    reachable = later & (positions <= begin[:, None] + max_tokens)
    word = functions.max(where(reachable & starts, positions, 0), axis=1)  # (R,)
    last = functions.max(where(near & sentences, positions, 0), axis=1)
    far = reachable & ~near & sentences
    first = functions.min(where(far, positions, _NOWHERE), axis=1)
    # In rising order of precedence.
    end = where(word > 0, word, begin + max_tokens)
    end = where(lengths - begin <= max_tokens, lengths, end)
    end = where(first < _NOWHERE, first, end)
    end = where(last > 0, last, end)
    return where(lengths - begin <= split_tokens, lengths, end)
