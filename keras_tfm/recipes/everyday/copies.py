"""Synthetic pairs whose names, numbers and other spans must be copied.

A model that has never copied changes or loses what it does not know: names,
numbers, URLs, placeholders. Here a template in both languages is filled with
drawn values, so that copying is the only choice.

Source: Currey et al. 2017, https://aclanthology.org/W17-4715, which copies
whole sentences of the target language; templates also give the translation.
"""

import random
import re

from keras_tfm.recipes.everyday import base_language, fillers, has_tables, read_table

SLOT = re.compile(r"\{([a-z]+)\d?\}")
# Elisions and forms of the word before a drawn name.
FIXES = {
    "en": [(r"([ap]\.m\.)\.(?!\.)", r"\1")],
    "fr": [(r"(?<![\w.@/-])([Dd]|[Ll]|[Qq]u)e (?=[AEIOUaeiouéÉî](?!\d))", r"\1'")],
    "es": [(r"\by (?=[Ii][^aeo])", "e ")],
    "it": [
        (r"\bil (?=[aeiou])", "l'"),
        (r"\bil (?=s[bcdfglmnpqrtvz]|z)", "lo "),
        (r"(?<![\w./@-])([Dd][ae]l|[Aa]l|[Nn]el|[Ss]ul) (?=8|11\b)", r"\1l'"),
        (r"\bil (?=8|11\b)", "l'"),
        (r"\bIl (?=8|11\b)", "L'"),
        (r"\bSono le 1:", "È l'1:"),
    ],
}


def draw(source: str, target: str, count: int, seed: int) -> list[tuple[str, str]]:
    """Draws pairs of templates and fills them with the same values.

    Args:
        source: str, source language such as `"en"`. Languages without
            templates have names, numbers and other spans alone.
        target: str, target language.
        count: int >= 0.
        seed: int.

    Returns:
        list of `count` pairs. Each template is as frequent as any other.

    Example:
        ```python
        from keras_tfm.recipes.everyday import copies

        assert len(copies.draw("en", "de", 3, seed=0)) == 3
        ```
    """
    # Other names in each language pair of a run.
    rng = random.Random(f"{seed} {source} {target}")
    if has_tables(source, target):
        sides = base_language(source), base_language(target)
        templates = [tuple(row[s] for s in sides) for row in read_table("templates")]
    else:
        texts = [row["en"] for row in read_table("templates")]
        templates = [(text, text) for text in texts if SLOT.fullmatch(text)]
    order, rows = [], []
    while len(rows) < count:
        order = order or rng.sample(templates, len(templates))
        rows.append(fill(order.pop(), (source, target), rng))
    return rows


def fill(
    template: tuple[str, str], languages: tuple[str, str], rng: random.Random
) -> tuple[str, str]:
    """Fills the slots of both sides of a template with the same values.

    Args:
        template: pair of str with slots such as `{person}`; a second one of a
            kind is `{person2}`.
        languages: pair of str.
        rng: `random.Random`.
    """
    slots = dict.fromkeys(match[0] for match in SLOT.finditer(template[0]))
    values = {
        slot: fillers.draw(SLOT.fullmatch(slot)[1], rng, number)
        for number, slot in enumerate(slots, start=1)
    }
    filled = []
    for text, language in zip(template, languages, strict=True):
        text = SLOT.sub(lambda match, code=language: values[match[0]](code), text)
        for pattern, replacement in FIXES.get(base_language(language), ()):
            text = re.sub(pattern, replacement, text)
        filled.append(text)
    return filled[0], filled[1]
