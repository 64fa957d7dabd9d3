"""Texts as parts that a model reads one at a time, and back."""

import re
from typing import NamedTuple

import numpy as np

BLANK = r"[ \t\r\n\v\f]"
# What stands between lines, and around them. TensorFlow's RE2 reads it alike.
BREAKS = rf"(\A{BLANK}+|{BLANK}*[\r\n]{BLANK}*|{BLANK}+\z)"
MARK = "\x00"  # no text has it
# Python's tries at each blank, unless it knows that a run of them begins there.
_BREAKS = re.compile(rf"(\A{BLANK}+|(?<!{BLANK})(?:{BLANK}*[\r\n]{BLANK}*|{BLANK}+\Z))")
_BYTE = re.compile("<0x[0-7][0-9A-F]>")  # a letter without a piece of its own
WORD_STARTS = ("\u2581", "\u0120")  # of SentencePiece, of byte-level BPE
ENDS = (".", "!", "?", "\u2026")
WIDE_ENDS = ("\u3002", "\uff01", "\uff1f", "\u0964", "\u06d4")  # no blank follows
# A dot behind one of these ends no sentence, nor behind a letter, two or three
# of which the first is a capital, or a number: "Dr. Doe", "z. B.", "St. John",
# "am 3. Mai". What ends with "TV" or "1990" stays with what comes after.
ABBREVIATIONS = {"Prof", "Mrs", "Mme", "Mlle", "Sra", "Srta", "Sig", "Gen", "Rev", "vs"}
CLOSERS = "\"')]}\u201d\u2019\u00bb\u203a\u300d\u300f"


class Part(NamedTuple):
    """What is translated at once.

    Attributes:
        ids: list of int, a part of a line; none where it is blank.
        before: str, what stands between it and the part before.
    """

    ids: list[int]
    before: str


class Pieces:
    """Which pieces of a vocabulary end a sentence, and which begin a word.

    Args:
        vocabulary: `Vocabulary` or `TokenizersVocabulary`.

    Attributes:
        starts, ends, wide, closes: bool `(V,)`: the piece begins a word; ends a
            sentence if a word follows; ends one whatever follows; stands after
            an end and belongs to it, as a quotation mark.
        dots, short, letter, begun: bool `(V,)`: the piece is a dot; a dot
            behind it ends no sentence; it is one letter inside a word; and a
            dot behind one or two such letters that follow it ends none.
    """

    def __init__(self, vocabulary):
        names = vocabulary.tokens(range(vocabulary.size))
        names = [chr(int(n[3:5], 16)) if _BYTE.fullmatch(n) else n for n in names]
        bare = [name.lstrip("".join(WORD_STARTS)) for name in names]
        inner = [name.rstrip(CLOSERS) for name in bare]
        self.starts = np.array([name.startswith(WORD_STARTS) for name in names])
        if not self.starts.any():  # WordPiece, which marks what goes on
            self.starts = np.array([not name.startswith("##") for name in names])
        short = [
            (name in ABBREVIATIONS or len(name) == 1 and name.isalpha() and name != "I")
            or (len(name) == 2 and name.isalpha() and name[0].isupper())
            for name in bare
        ]
        short = np.array(short) & self.starts
        one = [len(name) == 1 and name.isalpha() for name in bare]
        empty = np.array([not name for name in bare])
        self.dots = np.array([name == "." for name in inner])
        self.letter = np.array(one) & ~self.starts
        self.begun = short | (empty & self.starts)
        self.short = short | np.array([name.isdigit() for name in bare])
        self.ends = np.array(
            [name.endswith(ENDS) and name[:-1] not in ABBREVIATIONS for name in inner]
        )
        self.wide = np.array([name.endswith(WIDE_ENDS) for name in inner])
        self.closes = np.array(
            [bool(name) and not rest for name, rest in zip(bare, inner, strict=True)]
        )

    def cut(self, ids, least, most):
        """Cuts a line after sentences.

        A part ends after the last sentence within `least` tokens, else after
        the first one; where that has more than `most`, after the last whole
        word within so many, or there.

        Args:
            ids: list of int.
            least: int >= 1. A line of no more tokens stays whole.
            most: int >= `least`.

        Returns:
            list of pairs of first and last place, the latter not included; and
            a list of bool, whether a blank stands before each.
        """
        if len(ids) <= least:
            return [(0, len(ids))], [False]
        row, count = np.asarray(ids), len(ids)
        starts, closes = self.starts[row], self.closes[row]
        ends, wide = self.ends[row], self.wide[row]
        letter, short = self.letter[row], self.short[row]
        second = letter & _after(self.begun[row])
        short = short | second | (letter & _after(second))
        ends = ends & ~(self.dots[row] & _after(short))
        for _ in range(2):  # such as .")
            ends = ends | (closes & _after(ends))
            wide = wide | (closes & _after(wide))
        follows = ~closes | starts
        sentences = (_after(ends) & starts) | (_after(wide) & follows)
        places, cuts = np.arange(count), [0]
        while cuts[-1] < count:
            begun = cuts[-1]
            near = (places > begun) & (places <= begun + least)
            far = (places > begun + least) & (places <= begun + most)
            if count - begun <= least:
                end = count
            elif (near & sentences).any():
                end = places[near & sentences][-1]
            elif (far & sentences).any():
                end = places[far & sentences][0]
            elif count - begun <= most:
                end = count
            else:
                words = places[(near | far) & starts]
                end = words[-1] if len(words) else begun + most
            cuts.append(int(end))
        blanks = [False] + [bool(starts[cut]) for cut in cuts[1:-1]]
        return list(zip(cuts, cuts[1:], strict=False)), blanks


def _after(flags):
    """Of each place, what holds of the one before."""
    return np.concatenate([[False], flags[:-1]])


def parts_of(texts, vocabulary, pieces, least, most):
    """Cuts texts into lines, and long lines after sentences.

    Args:
        texts: list of N str.
        vocabulary: `Vocabulary` or `TokenizersVocabulary`.
        pieces: `Pieces` of it.
        least, most: int, of `Pieces.cut`.

    Returns:
        list of N pairs: a list of `Part`, and str, what stands after the last.
    """
    broken = [_BREAKS.split(text.replace(MARK, "\ufffd")) for text in texts]
    lines = [line for pieces_ in broken for line in pieces_[::2]]
    encoded = iter(vocabulary.encode(lines))
    found = []
    for some in broken:
        parts, before = [], ""
        for place in range(0, len(some), 2):
            ids = next(encoded)
            if ids:
                spans, blanks = pieces.cut(ids, least, most)
                for (begun, end), blank in zip(spans, blanks, strict=True):
                    parts.append(Part(ids[begun:end], before + " " * blank))
                    before = ""
            before += "".join(some[place + 1 : place + 2])
        found.append((parts, before))
    return found


def joined(translations, parts, after):
    """Puts what parts have become together.

    Args:
        translations: list of str, one for each part.
        parts: list of `Part`.
        after: str, what stands after the last.
    """
    pairs = zip(parts, translations, strict=True)
    return "".join(part.before + translation for part, translation in pairs) + after
