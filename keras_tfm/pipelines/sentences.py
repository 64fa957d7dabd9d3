"""Finds where the sentences of a line end, by rules for European languages."""

import functools
import re
from collections.abc import Callable, Sequence

SEPARATOR = "\x00"  # no text contains it
SPACES = " \\t\\v\\f\u00a0\u2009\u202f\u3000"
SPACE = f"[{SPACES}]"
ENDS = ".!?\u2026\u061f"  # and a space
WIDE_ENDS = "\u3002\uff01\uff1f\u0964\u06d4"  # no space follows
CLOSERS = "\"')\\]}\u201d\u201c\u2019\u00bb\u203a\u300d\u300f"
OPENERS = (
    "\"'(\\[{\u00a1\u00bf\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb\u2039\u2013\u2014/-"
)
_LETTERS = [chr(code) for code in range(0x530) if chr(code).isalpha()]
LOWER = "".join(letter for letter in _LETTERS if letter.islower())
UPPER = "".join(letter for letter in _LETTERS if letter.isupper())

# A dot after these ends no sentence. Written as they are:
TITLES = """
Dr Prof Profa Mr Mrs Ms Mme Mlle MM Me Mgr Sr Sra Srta Sres Dña Dra Exmo Sig Dott
Avv Ing Rag Geom Egr Spett Ud Uds Vd Vds EE Hr Fr Frl Dipl Gen Col Lt Sgt Capt
Cpl Maj Cmdr Adm Gov Sen Rep Pres Rev Supt St Ste Mt Ft Pr Av Eng Mio Mrd
"""
# In any case; a tilde stands for a space:
NEVER_LAST = """
vs cf viz e.g i.e z.b d.h u.a o.ä s.o s.u i.d.r ca approx aprox bzw bspw sog ggf
vgl inkl exkl zzgl abzgl evtl geb p.ej p.~ej p.ex p.~ex p.~es ad~es per~es por~ex
por~ej av env prof dott avv
"""
# In any case, where a number follows:
NUMBERED = """
no nos nr nrn núm núms fig figs abb s p pp pg pag pág págs vol vols ch chap cap
kap art arts abs bd tab eq sec sect sez séc jh al tel tél max min str apt jan feb
mar märz apr jun jul aug sep sept oct okt nov dec dez janv févr avr juil déc ene
abr dic genn giu lug ott
"""
# In any case, where a lower-case word follows. A line that begins with a
# capital needs no list for these: its sentences do, too.
SELDOM_LAST = "etc usw ecc inc ltd co corp jr sr bros dept est ave rd jh chr"


def _any_of(words):
    words = [word.replace(".", r"\.").replace("~", SPACE) for word in words.split()]
    return f"(?:{'|'.join(words)})"


def _rules():
    """Pairs of a pattern and its replacement, for Python's `re` and for RE2."""
    mark, begin = SEPARATOR, f"(^|[{SPACES}{OPENERS}])"
    letter, upper = f"[{LOWER}{UPPER}]", f"[{UPPER}]"
    numbered = f"{_any_of(NUMBERED)}|[a-zäöüß]+str"
    dotted = rf"(?:{letter}{{1,2}}\.)+{letter}{{1,2}}"  # such as p.m
    return [
        (f"([{ENDS}][{CLOSERS}]?[{CLOSERS}]?)({SPACE})", rf"\1{mark}\2"),
        (f"([{WIDE_ENDS}][{CLOSERS}]?[{CLOSERS}]?)", rf"\1{mark}"),
        (f"{mark}([{WIDE_ENDS}{CLOSERS}])", r"\1"),
        # A French quote has a space before its end.
        (f"{mark}({SPACE}»)({SPACE})", rf"\1{mark}\2"),
        (rf"{begin}({_any_of(TITLES)}\.){mark}", r"\1\2"),
        (rf"{begin}((?i:{_any_of(NEVER_LAST)})\.){mark}", r"\1\2"),
        (
            rf"{begin}((?i:{numbered})\.){mark}({SPACE}*[(\[#]?[0-9])",
            r"\1\2\3",
        ),
        (
            rf"{begin}((?:(?i:{_any_of(SELDOM_LAST)})|{dotted})\.){BEFORE_LOWER}",
            r"\1\2\3",
        ),
        # Acronyms and initials, but not "So do I."
        (rf"{begin}((?:{upper}\.)+{letter}\.){mark}", r"\1\2"),
        (rf"{begin}([{LOWER}{UPPER.replace('I', '')}]\.){mark}", r"\1\2"),
        # Ordinals, as in "am 3. Mai", but not "see Fig. 3. It".
        (
            rf"(^|[{OPENERS}]|[^.{mark}{SPACES}]{SPACE})([0-9][0-9]?\.){mark}",
            r"\1\2",
        ),
    ]


# An end of a sentence before a word in lower case, perhaps in quotes.
BEFORE_LOWER = f"{SEPARATOR}({SPACE}*(?:[{OPENERS}]+{SPACE}*)?[{LOWER}])"
BEGINS_WITH_CAPITAL = f"[{SPACES}{OPENERS}]*[{UPPER}]"
RULES = _rules()


@functools.cache
def _compiled():
    rules = [(re.compile(pattern), replacement) for pattern, replacement in RULES]
    return rules, re.compile(BEFORE_LOWER), re.compile(BEGINS_WITH_CAPITAL)


def split_sentences(line: str) -> list[str]:
    """Splits a line into sentences.

    A dot ends no sentence after a title, an initial or an abbreviation of
    English, French, German, Italian, Portuguese or Spanish, nor after an
    ordinal of at most two digits. In doubt sentences stay together.

    Args:
        line: str, without line breaks.

    Returns:
        list of str, without the whitespace between them.

    Example:
        ```python
        from keras_tfm.pipelines import split_sentences

        text = "We met Dr. Doe at 5 p.m. on Friday. It rained."
        assert split_sentences(text)[1:] == ["It rained."]
        ```
    """
    sentences = _split(line.replace(SEPARATOR, "\ufffd"))
    return [sentence.strip() for sentence in sentences if sentence.strip()]


def _split(line):
    """The sentences of a line, each with the space before it."""
    rules, before_lower, capital = _compiled()
    for pattern, replacement in rules:
        line = pattern.sub(replacement, line)
    if capital.match(line):
        line = before_lower.sub(r"\1", line)
    return line.split(SEPARATOR)


def split_line(splitter: Callable, line: str) -> list[str]:
    """Splits a line with a function, and checks what it returns.

    Args:
        splitter: see `TextConfig`.
        line: str, without `SEPARATOR`.

    Returns:
        list of str, each with the whitespace before it.

    Raises:
        ValueError: the function does not return the sentences of the line.
    """
    if splitter is split_sentences:
        return _split(line)
    sentences = splitter(line)
    parts, begin = [], 0
    for sentence in sentences if isinstance(sentences, Sequence) else [None]:
        stripped = sentence.strip() if isinstance(sentence, str) else None
        end = -1 if stripped is None else line.find(stripped, begin)
        if end < 0 or line[begin:end].strip():
            break
        if stripped:
            begin, end = end + len(stripped), begin
            parts.append(line[end:begin])
    if line[begin:].strip():
        raise ValueError(
            "`splitter` must return a list of the sentences of a text, unchanged and "
            f"in order; got {sentences!r:.200} for {line!r:.100}."
        )
    return parts
