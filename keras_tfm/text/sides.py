"""Names of the two sides of a corpus: columns, JSON keys, TMX languages."""

import re
from collections.abc import Iterable, Sequence

# A code of a language, its other codes, its English and its own name.
_LANGUAGES = """
af afr afrikaans
ar ara arb arabic العربية
bg bul bulgarian български
bn ben bengali bangla বাংলা
ca cat catalan català
cs ces cze czech čeština
cy cym wel welsh cymraeg
da dan danish dansk
de deu ger german deutsch
el ell gre greek ελληνικά
en eng english
eo epo esperanto
es spa spanish español
et est ekk estonian eesti
eu eus baq basque euskara
fa fas per pes persian farsi فارسی
fi fin finnish suomi
fr fra fre french français
ga gle irish gaeilge
gl glg galician galego
he heb hebrew עברית
hi hin hindi हिन्दी
hr hrv croatian hrvatski
hu hun hungarian magyar
hy hye arm armenian
id ind indonesian
is isl ice icelandic íslenska
it ita italian italiano
ja jpn japanese 日本語
ka kat geo georgian
kk kaz kazakh
kn kan kannada
ko kor korean 한국어
lt lit lithuanian lietuvių
lv lav lvs latvian latviešu
mk mkd mac macedonian
ml mal malayalam
mr mar marathi
ms msa may zsm malay
mt mlt maltese
nb nob bokmål
nl nld dut dutch nederlands
nn nno nynorsk
no nor norwegian norsk
pa pan punjabi
pl pol polish polski
pt por portuguese português
ro ron rum romanian română
ru rus russian русский
sk slk slo slovak slovenčina
sl slv slovenian slovene slovenščina
sq sqi alb albanian shqip
sr srp serbian српски
sv swe swedish svenska
sw swa swh swahili
ta tam tamil
te tel telugu
th tha thai ไทย
tr tur turkish türkçe
uk ukr ukrainian українська
ur urd urdu اردو
vi vie vietnamese
zh zho chi cmn chinese mandarin 中文
"""
_SHORTEST = {
    name: names[0]
    for names in map(str.split, _LANGUAGES.splitlines())
    for name in names
}
_CODES = set(_SHORTEST.values())
_CODE = re.compile(r"[^\W_]+([-_][^\W_]+)*")
_AMBIGUOUS = {"id", "no"}  # a column of numbers rather than a language
_ROLES = (
    {"source", "src", "source_text", "source_sentence", "original", "input", "text"}
    | {"sentence"},
    {"target", "tgt", "trg", "target_text", "target_sentence", "translation"}
    | {"translated", "output", "reference", "ref"},
)

Sides = tuple[str, str]  # of the source and of the target


def language_of(name: str) -> str:
    """Returns the shortest code of a language, without script and country.

    Args:
        name: str, a code or a name: `"deu_Latn"`, `"en-US"`, `"German"`.

    Returns:
        str: `"de"`, `"en"`; in lower case what is no known language.
    """
    name = name.strip().casefold()
    primary = re.split("[-_]", name)[0] if _CODE.fullmatch(name) else name
    return _SHORTEST.get(primary, primary)


def choose_sides(names: Iterable[str], languages: Sides | None) -> Sides | None:
    """Chooses the names of source and target among columns, keys or languages.

    Args:
        names: iterable of str.
        languages: codes of source and target; None if they are not known.

    Returns:
        pair of str; or None if no two of the names fit.
    """
    names = list(names)
    sides = [_matching(names, side, languages and languages[side]) for side in (0, 1)]
    if languages is None and None in sides:  # the order decides
        candidates = [name for name in names if language_of(name) in _CODES]
        if len(candidates) > 2:
            candidates = [n for n in candidates if n.casefold() not in _AMBIGUOUS]
        sides = [*candidates, None, None][:2]
    source, target = sides
    if source is None or target is None or source == target:
        return None
    return source, target


def is_header(cells: Sequence[str], languages: Sides | None) -> bool:
    """Returns whether two cells of a table name languages or sides.

    Short codes, such as "it", may be words: where the languages are known, one
    of the codes must be theirs.

    Args:
        cells: list of str, the first row.
        languages: codes of source and target; None if they are not known.
    """
    roles = {_role(cell) for cell in cells} - {None}
    expected = set(map(language_of, languages or ()))
    language_cells = [cell for cell in cells if language_of(cell) in _CODES | expected]
    codes = set(map(language_of, language_cells))
    only_short = all(len(cell.strip()) < 4 for cell in language_cells)
    if languages and only_short and not codes & expected:
        codes = set()
    return len(roles) + len(codes) > 1


def _matching(names, side, language):
    """Returns the name of a side: by its language, or by its role."""
    if language is not None:
        for match in (str.casefold, language_of):
            for name in names:
                if match(name.strip()) == match(language):
                    return name
    return next((name for name in names if _role(name) == side), None)


def _role(cell):
    word = re.sub("[ -]+", "_", cell.strip().casefold())
    return next((side for side, words in enumerate(_ROLES) if word in words), None)
