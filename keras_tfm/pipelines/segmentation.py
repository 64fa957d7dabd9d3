"""Splits texts into segments that a model reads one by one, and joins them."""

import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from keras_tfm.pipelines.texts import AnyVocabulary
from keras_tfm.types import Tensor

SPACE = r"[ \t\r\n\v\f]"
# Whitespace around and between lines, for Python and for TensorFlow's RE2.
LINE_BREAKS = rf"(\A{SPACE}+|{SPACE}*[\r\n]{SPACE}*|{SPACE}+\z)"
SEPARATOR = "\x00"  # no text contains it
# Without the lookbehind Python's `re` tries at each space of a run: a long run
# would take quadratic time.
_LINE_BREAKS = re.compile(
    rf"(\A{SPACE}+|(?<!{SPACE})(?:{SPACE}*[\r\n]{SPACE}*|{SPACE}+\Z))"
)
_BYTE = re.compile("<0x[0-7][0-9A-F]>")  # an ASCII letter without its own token
WORD_STARTS = ("\u2581", "\u0120")  # of SentencePiece, of byte-level BPE
ENDS = (".", "!", "?", "\u2026")
WIDE_ENDS = ("\u3002", "\uff01", "\uff1f", "\u0964", "\u06d4")  # no space follows
# A dot after one of these does not end a sentence, nor after one letter, two
# letters of which the first is a capital, or a number: "Dr. Doe", "z. B.",
# "St. John", "am 3. Mai". So a sentence that ends with "TV" or "1990" stays
# together with the next.
ABBREVIATIONS = {"Prof", "Mrs", "Mme", "Mlle", "Sra", "Srta", "Sig", "Gen", "Rev", "vs"}
CLOSERS = "\"')]}\u201d\u2019\u00bb\u203a\u300d\u300f"
_NOWHERE = np.iinfo("int32").max


class Segment(NamedTuple):
    """A piece of text that is translated as one sequence.

    Attributes:
        ids: list of int, token ids; never empty.
        separator: str, whitespace between it and the segment before.

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


class SegmentedText(NamedTuple):
    """A text and its segments.

    Attributes:
        text: str.
        segments: list of `Segment`; empty if the text is blank.
        trailing: str, whitespace after the last segment.

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
            translations: str, one for each segment, or for the first of them.
            trailing: bool. Append the whitespace after the last segment.
        """
        pairs = zip(self.segments, translations, strict=False)
        text = "".join(segment.separator + part for segment, part in pairs)
        return text + self.trailing if trailing else text


class ArrayFunctions(NamedTuple):
    """The functions of an array library that segmentation needs.

    Attributes:
        where, max, min: as NumPy's.
        take: `(flags (V,), ids (R, L)) -> (R, L)`.
        shift: `(flags (R, L)) -> (R, L)`, the flags of the token before, False
            at first.
    """

    where: Callable
    max: Callable
    min: Callable
    take: Callable
    shift: Callable


def _shift(flags):
    return np.concatenate([np.zeros_like(flags[:, :1]), flags[:, :-1]], axis=1)


NUMPY = ArrayFunctions(np.where, np.max, np.min, np.take, _shift)


class SentenceSplitter:
    """Splits token ids after sentences, by the tokens of a vocabulary.

    The same code runs in NumPy and, for a SavedModel, in a TensorFlow graph.

    Args:
        vocabulary: `Vocabulary` or `TokenizersVocabulary`.

    Example:
        ```python
        from keras_tfm.pipelines import SentenceSplitter, Translator

        vocabulary = Translator.from_preset("en-de").vocabulary
        splitter = SentenceSplitter(vocabulary)
        [text] = splitter.segment(["I am here. You are there."], 1, 100)
        ids = [segment.ids for segment in text.segments]
        assert vocabulary.decode(ids) == ["I am here.", "You are there."]
        ```
    """

    def __init__(self, vocabulary: AnyVocabulary):
        self.vocabulary = vocabulary
        tokens = vocabulary.tokens(range(vocabulary.size))
        tokens = [chr(int(t[3:5], 16)) if _BYTE.fullmatch(t) else t for t in tokens]
        bare = [token.lstrip("".join(WORD_STARTS)) for token in tokens]
        inner = [token.rstrip(CLOSERS) for token in bare]
        starts = np.array([token.startswith(WORD_STARTS) for token in tokens])
        if not starts.any():  # WordPiece tags the tokens that continue a word
            starts = np.array([not token.startswith("##") for token in tokens])
        letters = np.array([len(token) == 1 and token.isalpha() for token in bare])
        short = starts & np.array(
            [
                token in ABBREVIATIONS
                or (len(token) == 1 and token.isalpha() and token != "I")
                or (len(token) == 2 and token.isalpha() and token[0].isupper())
                for token in bare
            ]
        )
        spaces = starts & np.array([not token for token in bare])
        # Bool (V,) each. `initials`: after such a token up to two letters and a
        # dot are an abbreviation. `short`: a dot after it ends no sentence.
        self.starts = starts
        self.initials = short | spaces
        self.short = short | np.array([token.isdigit() for token in bare])
        self.letters = letters & ~starts
        self.dots = np.array([token == "." for token in inner])
        self.ends = np.array(
            [t.endswith(ENDS) and t[:-1] not in ABBREVIATIONS for t in inner]
        )
        self.wide_ends = np.array([token.endswith(WIDE_ENDS) for token in inner])
        self.closers = np.array(
            [bool(t) and not rest for t, rest in zip(bare, inner, strict=True)]
        )

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
        """
        split_lines = [
            [text]
            if number in unsplit
            else _LINE_BREAKS.split(text.replace(SEPARATOR, "\ufffd"))
            for number, text in enumerate(texts)
        ]
        lines = [line for parts in split_lines for line in parts[::2]]
        encoded = iter(self.vocabulary.encode(lines))
        segmented = []
        for number, (text, parts) in enumerate(zip(texts, split_lines, strict=True)):
            segments, separator = [], ""
            # Lines have even indices, the whitespace between them odd ones.
            for index in range(0, len(parts), 2):
                ids = next(encoded)
                if ids:
                    limits = (split_tokens, max_tokens)
                    if number in unsplit:
                        limits = (len(ids), len(ids))
                    for begin, end, space in self.split(ids, *limits):
                        separator += " " if space else ""
                        segments.append(Segment(ids[begin:end], separator))
                        separator = ""
                separator += "".join(parts[index + 1 : index + 2])
            segmented.append(SegmentedText(text, segments, separator))
        return segmented

    def split(
        self, ids: Sequence[int], split_tokens: int, max_tokens: int
    ) -> list[tuple[int, int, bool]]:
        """Splits a line after sentences.

        A segment ends after the last sentence within `split_tokens`, else after
        the first one; if that has more than `max_tokens`, after the last whole
        word within `max_tokens`, or there.

        Args:
            ids: list of int.
            split_tokens: int >= 1. A line of no more tokens stays whole.
            max_tokens: int >= `split_tokens`.

        Returns:
            list of (begin, end, space): `ids[begin:end]` is a segment; `space`
            is True if it begins with a word and is not the first.
        """
        count = len(ids)
        if count <= split_tokens:
            return [(0, count, False)]
        starts, sentences = self.boundaries(np.asarray(ids)[None])  # (1, L)
        positions, lengths = np.arange(count)[None], np.array([count])
        cuts = [0]
        while cuts[-1] < count:
            [end] = next_end(
                np.array(cuts[-1:]),
                lengths,
                positions,
                (starts, sentences),
                (split_tokens, max_tokens),
            )
            cuts.append(int(end))
        return [
            (begin, end, begin > 0 and bool(starts[0, begin]))
            for begin, end in zip(cuts[:-1], cuts[1:], strict=True)
        ]

    def boundaries(
        self, ids: Tensor, functions: ArrayFunctions = NUMPY
    ) -> tuple[Tensor, Tensor]:
        """Finds the tokens that begin a word, and those that begin a sentence.

        Args:
            ids: integers `(R, L)`.
            functions: `ArrayFunctions` of the library of `ids`.

        Returns:
            bool `(R, L)` and bool `(R, L)`.
        """
        shift = functions.shift
        starts, initials, short, letters, dots, ends, wide_ends, closers = (
            functions.take(getattr(self, name), ids)
            for name in (
                *("starts", "initials", "short", "letters"),
                *("dots", "ends", "wide_ends", "closers"),
            )
        )
        second = letters & shift(initials)
        third = letters & shift(second)
        ends = ends & ~(dots & shift(short | second | third))
        for _ in range(2):  # up to two closers, as in .")
            ends = ends | (closers & shift(ends))
            wide_ends = wide_ends | (closers & shift(wide_ends))
        after_wide = shift(wide_ends) & (~closers | starts)
        return starts, (shift(ends) & starts) | after_wide


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
        boundaries: of `SentenceSplitter.boundaries`.
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
