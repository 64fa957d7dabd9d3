"""One language of the corpus, and what kinds of phrases have in common."""

import dataclasses
import difflib
import functools
from collections.abc import Callable

from babel import Locale, UnknownLocaleError, lists, localedata


@dataclasses.dataclass(frozen=True)
class Side:
    """One language of the corpus.

    Args:
        locale: `babel.Locale`.
        data: its CLDR data, for what Babel has no function for.
    """

    locale: Locale
    data: localedata.LocaleDataDict


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of phrase.

    Args:
        name: str.
        stock: `(english, other) -> lists`. What both sides have; if a list is
            empty, the kind is left out.
        draw: `(rng, *lists) -> say`, and `say(side) -> str`.
    """

    name: str
    stock: Callable
    draw: Callable


def find_locale(name: str) -> Locale:
    """Finds the locale of the target language.

    Args:
        name: str. A CLDR locale, its parts joined by `_` or `-`.

    Returns:
        `babel.Locale`.

    Raises:
        ValueError: no such locale, with the nearest names; or English.
    """
    try:
        locale = Locale.parse(str(name).replace("-", "_"))
    except (UnknownLocaleError, ValueError):
        codes = {code.lower(): code for code in localedata.locale_identifiers()}
        for code, language in Locale("en").languages.items():
            if localedata.exists(code):
                codes.setdefault(language.lower(), code)
        near = difflib.get_close_matches(str(name).lower(), codes, n=4, cutoff=0.5)
        raise ValueError(
            f"CLDR has no locale {name!r}. Nearest: "
            f"{', '.join(repr(codes[match]) for match in near) or 'none'}. Give a "
            "code such as 'de', 'pt_BR' or 'zh_Hant'."
        ) from None
    if locale.language == "en":
        raise ValueError(
            "The source is English, so the target must be another language. "
            f"Received: target={name!r}. Give a code such as 'de' or 'pt_BR'."
        )
    return locale


def open_side(locale: Locale) -> Side:
    """Opens the CLDR data of a locale, and keeps it apart from the others'.

    Babel caches what an alias stands for in tables that many locales share, so
    that one locale's months can turn up in another (python-babel issue 1234).
    Here each locale gets tables of its own, before any alias is looked up.

    Args:
        locale: `babel.Locale`.

    Returns:
        `Side`.
    """
    data = localedata.load(str(locale))
    data.update(_copy(data))
    return Side(locale, localedata.LocaleDataDict(data))


@functools.cache
def root() -> localedata.LocaleDataDict:
    """What every locale inherits: CLDR's names for a language that has none."""
    return localedata.LocaleDataDict(_copy(localedata.load("root")))


def _copy(table):
    return {k: _copy(v) if isinstance(v, dict) else v for k, v in table.items()}


def shared(english: Side, other: Side, names: Callable) -> list:
    """Sorts the keys of both whose names are unlike all others on each side.

    Args:
        english: `Side`.
        other: `Side`.
        names: `side -> dict`. The name of each key.

    Returns:
        list of keys, so that a name has one key and one translation.
    """
    kept, used = [], (set(), set())
    one, two = names(english), names(other)
    for key in sorted(set(one) & set(two)):
        if one[key] not in used[0] and two[key] not in used[1]:
            used[0].add(one[key])
            used[1].add(two[key])
            kept.append(key)
    return kept


def joins(other: Side) -> list:
    """Names the ways to join a list that a language has words for.

    Args:
        other: `Side`.

    Returns:
        list of str: with "and"; with "or" unless CLDR leaves it in English.
    """
    missing = root()["list_patterns"]["or"]["2"]
    translated = other.data["list_patterns"]["or"]["2"] != missing
    return ["standard", "or"] if translated else ["standard"]


def listing(join: str, items: Callable) -> Callable:
    """Joins what is said of each item into a list.

    Args:
        join: str, one of `joins`.
        items: `side -> list of str`.

    Returns:
        `say(side) -> str`.
    """
    return lambda one: lists.format_list(items(one), join, one.locale)
