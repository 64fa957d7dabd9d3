"""Compares the numbers of a source and of its translation."""

import re
from collections import Counter

_SEPARATOR = r"[.,'\u2019\u00a0\u202f ]"
THOUSANDS = rf"(?<!\d)\d{{1,3}}(?:{_SEPARATOR}\d{{3}})+(?!\d)"
_NUMBER = re.compile(rf"{THOUSANDS}(?:[.,]\d+)?|\d+(?:[.,]\d+)?")
# Words that may stand for digits on the other side, by language: en, de, fr,
# es, it, pt.
_SMALL = (
    "zero null z\u00e9ro cero",
    "one once first ein eins eine einen einem einer eines erste un une premier "
    "uno una primero um uma primeiro",
    "two twice second zwei zweite deux dos due dois duas",
    "three third drei dritte trois tres tre tr\u00eas",
    "four vier quatre cuatro quattro quatro",
    "five f\u00fcnf cinq cinco cinque",
    "six sechs seis sei",
    "seven sieben sept siete sette sete",
    "eight acht huit ocho otto oito",
    "nine neun neuf nueve nove",
    "ten zehn dix diez dieci dez",
    "eleven elf onze once undici",
    "twelve zw\u00f6lf douze doce dodici doze",
)
_VALUES = [(word, str(n)) for n, words in enumerate(_SMALL) for word in words.split()]
_LARGE = re.compile(
    r"teen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand"
    r"|million|zehn|zwanzig|drei\u00dfig|[rfhnbt]zig|hundert|tausend"
    r"|(?:ein|zwei|drei|vier|f\u00fcnf|sechs|sieben|acht|neun)(?=und|hundert|tausend)"
    r"|treize|quatorze|quinze|seize|vingt|trente|quarante|cinquante|soixante|cent"
    r"|mille|trece|catorce|quince|diecis|veint|treint|cuarent|cincuent|sesent"
    r"|setent|ochent|novent|cien|tredici|dicia|vent|trent|quarant|cinquant"
    r"|sessant|settant|ottant|novant|treze|vinte|trint|quarent|cinquent|sassent",
    re.IGNORECASE,
)


def numbers_differ(source: str, target: str) -> bool:
    """Returns whether the digits of a text and of its translation disagree.

    Separators of thousands and decimals may differ, as may those of times and
    dates; but what is one number must not become two. Digits that a number word
    of the other side may stand for agree; from 100 on a translation needs the
    digits.

    Args:
        source, target: str.
    """
    return all(
        _unexplained(numbers(source), numbers(target), target, max_length=2)
        or _unexplained(numbers(target), numbers(source), source)
        for numbers in (_numbers, _digit_groups)
    )


def _numbers(text):
    """The numbers of a text, without separators of thousands."""
    numbers = (_join_thousands(match[0]) for match in _NUMBER.finditer(text))
    return Counter(number.replace(",", ".") for number in numbers)


def _digit_groups(text):
    """The digits between other characters, without separators of thousands."""
    return Counter(re.findall(r"\d+", _join_thousands(text)))


def _join_thousands(text):
    return re.sub(THOUSANDS, lambda match: re.sub(r"\D", "", match[0]), text)


def _unexplained(numbers, counterparts, text, max_length=99):
    """Whether numbers are neither among counterparts nor words of a text."""
    rest = numbers - counterparts
    if not rest or not text:
        return bool(rest)
    words = Counter(re.findall(r"\w+", text.lower()))
    for word, value in _VALUES:
        rest[value] -= words[word]
    rest = list((+rest).elements())
    # One digit and zeros, such as 200, are usual words.
    if any(len(n) > max_length and n.strip("0")[1:] for n in rest):
        return True
    small = sum(words[word] for word, _ in _VALUES)
    return sum(map(_num_words, rest)) > small + len(_LARGE.findall(text))


def _num_words(number):
    """About as many words as a number takes at least: 374 takes 3."""
    digits = re.sub(r"1[1-9](?!\d)", "1", number)
    return max(len(re.findall("[1-9]", digits)), 1)
