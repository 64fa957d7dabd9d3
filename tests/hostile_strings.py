"""Strings that break programs: of every Unicode category, by a seed."""

import functools
import random
import sys
import unicodedata

LITERALS = [
    *("<s>", "</s>", "<pad>", "<unk>", "<0x00>", ">>de<<", "<2fr>", "\u2581"),
    *("\x00", "\ufeff", "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"),
    *("{", "{name", "{}}", "%", "%(x)s", "${x}", "```", "`a", "[[a](b)", "***a***"),
    *("<b>", "</b>", "<b", "<!--", "<a href='x'>b", "&amp", "&#0;", "&#x110000;"),
    *("http://", "a@b", "@", "#", "1e400", "1,000.00,1", "\u0661\u0662", "\xb2"),
    *("\u202eabc\u202c", "\U0001f468\u200d\U0001f469", "\u200b", "\xad", "\t"),
    *("AB" * 20, "a" * 300, "\U0001f600" * 100, "e" + "\u0301" * 100, "NULL", "-"),
]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SURROGATE = "Cs"  # no text has them


@functools.cache
def characters():
    """Returns the characters of each Unicode category."""
    categories = {}
    for code in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        if category != SURROGATE:
            categories.setdefault(category, []).append(chr(code))
    return categories


def draw(count, seed=0):
    """Returns strings, some with line endings and some empty."""
    random_state = random.Random(seed)
    return [_draw_string(random_state, number) for number in range(count)]


def _draw_string(random_state, number):
    categories = sorted(characters())
    if number < len(categories):  # each category at least once
        return _of(random_state, categories[number], 20)
    kind = random_state.choice(["category", "mixed", "word", "literal", "long"])
    if kind == "category":
        return _of(random_state, random_state.choice(categories), 60)
    if kind == "mixed":
        length = random_state.randrange(60)
        drawn = random_state.choices(categories, k=length)
        return "".join(_of(random_state, name, 1) for name in drawn)
    if kind == "long":
        return _of(random_state, random_state.choice(categories), 1) * (
            random_state.randrange(200, 2_000)
        )
    words = ["".join(random_state.choices(LETTERS, k=4)) for _ in range(5)]
    place = random_state.randrange(5)
    strange = random_state.choice(LITERALS)
    if kind == "word":
        strange = _of(random_state, random_state.choice(categories), 3)
    words[place] = random_state.choice(["", words[place]]) + strange
    return random_state.choice([" ", "", "\n", "\r\n"]).join(words)


def _of(random_state, category, length):
    return "".join(random_state.choices(characters()[category], k=length))
