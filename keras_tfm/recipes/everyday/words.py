"""Pairs of single words and fixed expressions, and of names that CLDR has."""

import json
import re

from babel import Locale

from keras_tfm.recipes import downloads
from keras_tfm.recipes.everyday import base_language, has_tables, read_table
from keras_tfm.text import Pairs

ARTICLES = {
    "en": r"the ",
    "de": r"(der|die|das) ",
    "fr": r"(les |le |la |l')",
    "es": r"(el|la|los|las) ",
    "it": r"(il |lo |la |i |gli |le |l')",
}
FINAL_PUNCTUATION = re.compile(r"^[¡¿]+|\s*[.!?,:]+$")
MAX_WORDS = 3  # of the name of an emoji
PICTOGRAPHS = {*range(0x1F300, 0x1FB00)} - {*range(0x1F3FB, 0x1F400)}  # skin tones
COPIES = 2  # of an expression, for each other word: they are typed more often


def list_pairs(source: str, target: str) -> tuple[Pairs, list[str]]:
    """Lists all words and expressions of two languages.

    Args:
        source: str, source language such as `"en"`.
        target: str, target language.

    Returns:
        `Pairs`; expressions are listed twice, with their punctuation and
        without. And a list of sentences to print: what is missing.

    Raises:
        ValueError: there is nothing for these languages.

    Example:
        ```python
        from keras_tfm.recipes.everyday import words

        pairs, _ = words.list_pairs("en", "de")
        assert ("dog", "Hund") in list(pairs)
        ```
    """
    rows, notes = _names(source, target)
    emoji, problem = _emoji_names(source, target)
    rows += emoji
    if problem:
        notes.append(f"Names of emoji are left out: {problem}")
    sides = base_language(source), base_language(target)
    if has_tables(source, target):
        rows += _words(*sides)
        rows += COPIES * [*_expressions(*sides), *_chat(*sides)]
    else:
        notes.append(
            f"There are no everyday expressions for {source}-{target}, only names."
        )
    if not rows:
        raise ValueError(
            f"`everyday_rate` needs languages of CLDR; got source={source!r}, "
            f"target={target!r}. Leave it out."
        )
    # Names of CLDR have no-break and zero width spaces.
    rows = [[" ".join(x.replace("\u200b", "").split()) for x in row] for row in rows]
    return Pairs(*map(list, zip(*rows, strict=True))), notes


def _words(source, target):
    rows = []
    for row in read_table("words"):
        sides = row[source], row[target]
        rows.append(sides)
        if row["kind"] == "noun":
            languages = zip((source, target), sides, strict=True)
            rows.append(tuple(_without_article(*side) for side in languages))
        elif row["kind"] == "verb" and source == "en":
            rows.append((sides[0].removeprefix("to "), sides[1]))
    return rows


def _without_article(language, noun):
    """A noun alone: "maschinelles Lernen" of "das maschinelle Lernen"."""
    if language == "de":
        noun = re.sub(r"^(das \w+e)(?= )", r"\1s", noun)
        noun = re.sub(r"^(der \w+e)(?= )", r"\1r", noun)
    return re.sub(f"^{ARTICLES[language]}", "", noun)


def _expressions(source, target):
    rows = []
    for row in read_table("expressions"):
        sides = row[source], row[target]
        bare = tuple(FINAL_PUNCTUATION.sub("", side) for side in sides)
        rows.append(sides)
        if bare != sides and not sides[0].endswith(","):
            rows.append(bare)
            rows.append((bare[0][:1].lower() + bare[0][1:], bare[1]))
    return rows


def _chat(source, target):
    return [
        (row["source"], row[target])
        for row in read_table("chat")
        if row["language"] == source and row[target]
    ]


def _names(source, target):
    """Months, weekdays, countries and languages that Babel has names of."""
    try:
        locales = [Locale.parse(side.replace("-", "_")) for side in (source, target)]
    except ValueError as error:  # UnknownLocaleError is one
        return [], [f"Names of countries and months are left out: {error}"]
    tables = [
        {
            **{("month", k): v for k, v in x.months["stand-alone"]["wide"].items()},
            **{("day", k): v for k, v in x.days["stand-alone"]["wide"].items()},
            **{
                ("territory", k): v
                for k, v in x.territories.items()
                if k.isalpha() and k[0] not in "XZ"
            },
            **{("language", k): v for k, v in x.languages.items() if len(k) == 2},
        }
        for x in locales
    ]
    keys = [key for key in tables[0] if key in tables[1]]
    return [(tables[0][key], tables[1][key]) for key in keys], []


def _emoji_names(source, target):
    """Short names of emoji, and the problem if their files are missing."""
    try:
        tables = [_annotations(source), _annotations(target)]
    except (FileNotFoundError, ConnectionError) as error:
        return [], str(error)
    rows = [
        (tables[0][character], tables[1][character])
        for character in tables[0]
        if character in tables[1] and ord(character[0]) in PICTOGRAPHS
    ]
    short = [row for row in rows if max(len(x.split()) for x in row) <= MAX_WORDS]
    return [row for row in short if not re.search(r"[():]", "".join(row))], None


def _annotations(language):
    path = downloads.find("cldr-annotations", f"{language}/annotations.json")
    table = json.loads(path.read_text("utf-8"))["annotations"]["annotations"]
    return {k: v["tts"][0] for k, v in table.items() if "tts" in v and len(k) <= 2}
