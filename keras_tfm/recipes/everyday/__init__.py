"""Everyday text to train on: words, expressions, and pairs that copy.

`words`     single words and fixed expressions, chat spelling, names of emoji.
`copies`    templates whose names, numbers, prices, dates, URLs and emoji are
            drawn, so that a model learns to copy them.

Tables, written for this recipe under the licence of the package, with tabs
between columns and a header of languages:

`expressions.tsv`  greetings, questions of a tourist, signs, buttons.
`chat.tsv`         spellings of chats; only their translations are written out.
`words.tsv`        nouns with article, adjectives, verbs, adverbs, numerals;
                   also in the lexicons of the presets.
`templates.tsv`    sentences with slots such as `{name}`; `fillers` lists them.
`cities.tsv`       cities that have another name in another language.

`names.tsv`        first names, last names, and towns with one name everywhere.

German dictionaries of Debian (`trans-de-en`, FreeDict) are not used: they are
under the GPL.
"""

import pathlib

LANGUAGES = ("en", "de", "fr", "es", "it")  # of the tables
FOLDER = pathlib.Path(__file__).parent


def read_table(name: str) -> list[dict[str, str]]:
    """Reads a table of this package.

    Args:
        name: str, such as `"words"`.

    Returns:
        list of dict from the columns of the header to str.

    Example:
        ```python
        from keras_tfm.recipes import everyday

        assert everyday.read_table("words")[0]["de"] == "die Mutter"
        ```
    """
    lines = (FOLDER / f"{name}.tsv").read_text("utf-8").splitlines()
    header, *rows = [line.split("\t") for line in lines]
    return [dict(zip(header, row, strict=True)) for row in rows]


def base_language(code: str) -> str:
    """Returns the language of a code such as `"de_AT"`: `"de"`."""
    return code.replace("-", "_").split("_")[0].lower()


def has_tables(source: str, target: str) -> bool:
    """Returns whether the tables of this package have both languages."""
    return {base_language(source), base_language(target)} <= set(LANGUAGES)
