"""One language of the corpus, and what kinds of phrases have in common."""

import dataclasses
import difflib
import functools
from collections.abc import Callable

from babel import Locale, UnknownLocaleError, lists, localedata


@dataclasses.dataclass(frozen=True)
class Side:
    """One language of the corpus.

    Attributes:
        locale: `babel.Locale`.
        data: CLDR data of the locale, for what Babel has no function for.
    """

    locale: Locale
    data: localedata.LocaleDataDict


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of phrase.

    Attributes:
        name: str.
        list_choices: `(english, foreign) -> lists`, what both sides have. The
            kind is left out if a list is empty.
        draw: `(rng, *lists) -> render`, where `render(side)` is the phrase, a
            str.
    """

    name: str
    list_choices: Callable
    draw: Callable


def find_locale(name: str) -> Locale:
    """Finds the locale of the target language.

    Args:
        name: str, a CLDR locale, its subtags separated by `_` or `-`.

    Returns:
        `babel.Locale`.

    Raises:
        ValueError: there is no such locale (the message lists the nearest), or
            it is English.
    """
    try:
        locale = Locale.parse(str(name).replace("-", "_"))
    except (UnknownLocaleError, ValueError):
        codes = {code.lower(): code for code in localedata.locale_identifiers()}
        for code, language in Locale("en").languages.items():
            if localedata.exists(code):
                codes.setdefault(language.lower(), code)
        nearest = difflib.get_close_matches(str(name).lower(), codes, n=4, cutoff=0.5)
        raise ValueError(
            f"`target` must be a locale of CLDR; got {name!r}. Nearest: "
            f"{', '.join(repr(codes[match]) for match in nearest) or 'none'}. Write a "
            "code such as 'de', 'pt_BR' or 'zh_Hant'."
        ) from None
    if locale.language == "en":
        raise ValueError(
            "`target` must be another language than English, the source; got "
            f"target={name!r}. Write a code such as 'de' or 'pt_BR'."
        )
    return locale


def open_side(locale: Locale) -> Side:
    """Loads the CLDR data of a locale, separate from those of other locales.

    Babel caches the values of aliases in dicts that many locales share, so that
    the months of one locale can appear in another (python-babel issue 1234).
    Here each locale has copies, made before any alias is resolved.

    Args:
        locale: `babel.Locale`.

    Returns:
        `Side`.
    """
    data = localedata.load(str(locale))
    data.update(_copy(data))
    return Side(locale, localedata.LocaleDataDict(data))


@functools.cache
def root_data() -> localedata.LocaleDataDict:
    """Returns the data that all locales inherit, in place of missing ones."""
    return localedata.LocaleDataDict(_copy(localedata.load("root")))


def _copy(table):
    return {k: _copy(v) if isinstance(v, dict) else v for k, v in table.items()}


def shared_keys(english: Side, foreign: Side, names: Callable) -> list:
    """Lists, sorted, the keys that have a unique name on both sides.

    Args:
        english: `Side`.
        foreign: `Side`.
        names: `side -> dict` from keys to names.

    Returns:
        list of keys. Of keys with the same name on a side the first stays, so
        that a name has one translation.
    """
    english_names, foreign_names = names(english), names(foreign)
    keys, used_english, used_foreign = [], set(), set()
    for key in sorted(set(english_names) & set(foreign_names)):
        name, translation = english_names[key], foreign_names[key]
        if name not in used_english and translation not in used_foreign:
            used_english.add(name)
            used_foreign.add(translation)
            keys.append(key)
    return keys


def list_joins(foreign: Side) -> list[str]:
    """Lists the conjunctions of lists that a language has words for.

    Args:
        foreign: `Side`.

    Returns:
        list of str: "standard" joins with "and"; "or" is left out if CLDR lacks
        a translation of it.
    """
    untranslated = root_data()["list_patterns"]["or"]["2"]
    translated = foreign.data["list_patterns"]["or"]["2"] != untranslated
    return ["standard", "or"] if translated else ["standard"]


def join_items(join: str, items: Callable) -> Callable:
    """Makes a function that writes a list.

    Args:
        join: str of `list_joins`.
        items: `side -> list of str`.

    Returns:
        `render(side) -> str`.
    """
    return lambda side: lists.format_list(items(side), join, side.locale)
