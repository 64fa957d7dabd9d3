"""What fills the slots of templates: names, numbers, dates, URLs, emoji.

`draw(slot, rng)` returns `render(language)`, which writes the same value in any
language, so that both sides of a pair agree.
"""

import datetime
import random
import string
import unicodedata
from collections.abc import Callable
from decimal import Decimal

from babel import Locale, dates, numbers, units

from keras_tfm.pipelines.text_config import STAND_INS
from keras_tfm.recipes.everyday import base_language, read_table

Render = Callable[[str], str]  # a language to text

# How often a slot has what a model reads in place of protected text.
STAND_IN_RATE = 0.4  # of URLs, addresses and placeholders

PLACEHOLDERS = ("{name}", "{count}", "{0}", "{user_name}", "{{title}}", "${total}")
PLACEHOLDERS += ("%s", "%d", "%1$s", "%(name)s", "%@", "$HOME", "<b>", "&nbsp;")
EXTENSIONS = ("txt", "pdf", "py", "csv", "jpg", "docx", "json", "html")
DOMAINS = ("com", "org", "net", "de", "fr", "es", "it", "io", "co.uk", "eu")
CURRENCIES = ("€", "€", "$", "£")
# Subset of CLDR's units that people buy, and those of time.
MEASURES = ("mass-kilogram", "mass-gram", "volume-liter", "volume-milliliter")
MEASURES += ("length-meter", "length-centimeter", "length-kilometer")
DURATIONS = ("duration-second", "duration-minute", "duration-hour", "duration-day")
DURATIONS += ("duration-week", "duration-month", "duration-year")
SPOKEN = ("en", "de", "fr", "es", "it", "pt", "nl", "pl", "ru", "tr", "ar", "zh")
SPOKEN += ("ja", "ko", "sv", "da", "no", "fi", "el", "cs", "hu", "ro", "uk", "hi")
EMOJI_BLOCKS = (
    range(0x1F600, 0x1F645),
    range(0x1F300, 0x1F3FB),
    range(0x1F400, 0x1F530),
)
EMOJI = [
    chr(c) for block in EMOJI_BLOCKS for c in block if unicodedata.name(chr(c), "")
]
EMOJI += ["❤️", "☀️", "✈️", "⭐", "✅", "👍🏽", "👩‍💻", "🇩🇪", "🇫🇷", "🇮🇹"]
NAMES = {
    kind: [row["name"] for row in read_table("names") if row["kind"] == kind]
    for kind in ("first", "last", "town")
}
CITIES = read_table("cities")
LETTERS = {"V": "aeiou", "C": "bcdfghjklmnprstvwz"}
SHAPES = ("CVC", "CVCV", "CVCCV", "VCCV", "CVCVC", "VCVC", "CVVC", "CCVC")


def draw(slot: str, rng: random.Random, number: int = 1) -> Render:
    """Draws the value of a slot.

    Args:
        slot: str, a key of `FILLERS`, such as `"person"`.
        rng: `random.Random`.
        number: int >= 1, of a stand-in in its sentence.

    Returns:
        A function from a language such as `"de"` to the text of the value.

    Raises:
        ValueError: there is no such slot.

    Example:
        ```python
        import random

        from keras_tfm.recipes.everyday import fillers

        price = fillers.draw("decimal", random.Random(0))
        assert price("en").replace(".", ",") == price("de")
        ```
    """
    if slot not in FILLERS:
        raise ValueError(f"`slot` must be one of {', '.join(FILLERS)}; got {slot!r}.")
    if slot in PROTECTED and rng.random() < STAND_IN_RATE:
        stand_in = STAND_INS[(number - 1) % len(STAND_INS)]
        return lambda language: stand_in
    return FILLERS[slot](rng)


def _copied(choose):
    """Makes a filler whose text is the same in every language."""

    def filler(rng):
        text = choose(rng)
        return lambda language: text

    return filler


def _invented(rng):
    """A name that no list has, so that copying is the only choice."""
    if rng.random() < 0.5:
        letters = "".join(rng.choice(SHAPES) for _ in range(rng.randint(1, 3)))
        return "".join(rng.choice(LETTERS[letter]) for letter in letters).capitalize()
    first, second = (rng.choice(NAMES[rng.choice(tuple(NAMES))]) for _ in range(2))
    return first[: rng.randint(2, 4)] + second[-rng.randint(2, 4) :].lower()


def _name(kind):
    return lambda rng: _invented(rng) if rng.random() < 0.6 else rng.choice(NAMES[kind])


_first, _last, _town = map(_name, NAMES)


def _person(rng):
    return _first(rng) if rng.random() < 0.3 else f"{_first(rng)} {_last(rng)}"


def _city(rng):
    if rng.random() < 0.4:
        return _copied(_town)(rng)
    row = rng.choice(CITIES)
    return lambda language: row.get(base_language(language), row["en"])


def _locale(language):
    return Locale.parse(language.replace("-", "_"))


def _plain(text):
    return text.replace("\u00a0", " ").replace("\u202f", " ")


def format_number(value: int | Decimal, language: str, grouped: bool = True) -> str:
    """Writes a number with the separators of a language.

    Args:
        value: int or `Decimal`.
        language: str.
        grouped: bool. Separate thousands.
    """
    locale = _locale(language)
    text = f"{value:,}" if grouped else str(value)
    separators = numbers.get_group_symbol(locale), numbers.get_decimal_symbol(locale)
    return _plain(
        text.translate(str.maketrans(dict(zip(",.", separators, strict=True))))
    )


def _number(low, high, places=0):
    def filler(rng):
        # As many short numbers as long ones.
        digits = rng.randint(len(str(low)), len(str(high)))
        smallest, largest = 10 ** (digits - 1), 10**digits - 1
        value = rng.randint(max(low, smallest), min(high, largest))
        if places:
            value += Decimal(rng.randint(1, 10**places - 1)) / 10**places
        grouped = rng.random() < 0.7
        return lambda language: format_number(value, language, grouped)

    return filler


def _price(rng):
    symbol = rng.choice(CURRENCIES)
    value = rng.choice((rng.randint(1, 20), rng.randint(1, 999), rng.randint(1, 9_999)))
    if rng.random() < 0.5:
        value = Decimal(100 * value + rng.randint(1, 99)) / 100
        value = value.quantize(Decimal("0.01"))

    def render(language):
        amount = format_number(value, language)
        pattern = _locale(language).currency_formats["standard"].pattern
        return f"{symbol}{amount}" if pattern.startswith("¤") else f"{amount} {symbol}"

    return render


def _percent(rng):
    value = rng.randint(1, 100)
    if rng.random() < 0.3:
        value = Decimal(rng.randint(1, 999)) / 10

    def render(language):
        pattern = _plain(_locale(language).percent_formats[None].pattern)
        space = " " if pattern.endswith(" %") else ""
        return f"{format_number(value, language)}{space}%"

    return render


def _time(rng):
    hour, minute = rng.randint(2, 23), rng.choice((0, 15, 30, 45, rng.randint(0, 59)))
    french = f"{hour} h {minute:02d}"
    if not minute and rng.random() < 0.7:
        french = f"{hour} h"
    if rng.random() < 0.2:
        french = french.replace(" ", "")
    forms = [f"{hour}:{minute:02d}", french]
    return lambda language: forms[base_language(language) == "fr"]


def _clock(rng):
    hour, is_morning = rng.randint(2, 11), rng.random() < 0.4
    late = hour >= 6
    forms = {
        "en": f"{hour} {'a.m.' if is_morning else 'p.m.'}",
        "de": f"{hour} Uhr {'morgens' if is_morning else 'nachmittags'}",
        "fr": f"{hour} heures {'du matin' if is_morning else 'de l’après-midi'}",
        "es": f"las {hour} de la {'mañana' if is_morning else 'tarde'}",
        "it": f"alle {hour} {'del mattino' if is_morning else 'del pomeriggio'}",
    }
    if is_morning and hour >= 10:
        forms["de"] = f"{hour} Uhr vormittags"
    if late and not is_morning:
        forms["de"] = f"{hour} Uhr abends"
        forms["fr"] = f"{hour} heures du soir"
        if hour >= 9:
            forms["es"] = f"las {hour} de la noche"
        forms["it"] = f"alle {hour} di sera"
    forms["fr"] = forms["fr"].replace("’", "'")
    return lambda language: forms[base_language(language)]


def _date(rng):
    day = datetime.date(rng.randint(1900, 2040), rng.randint(1, 12), rng.randint(1, 28))
    return lambda language: _plain(dates.format_date(day, "long", _locale(language)))


def _day(rng):
    day = datetime.date(2024, rng.randint(1, 12), rng.randint(1, 28))
    return lambda language: _plain(
        dates.format_skeleton("MMMMd", day, locale=_locale(language))
    )


def _of_calendar(table, keys):
    def filler(rng):
        key = rng.choice(keys)
        return lambda language: getattr(_locale(language), table)["format"]["wide"][key]

    return filler


def _unit(choices):
    def filler(rng):
        unit, value = rng.choice(choices), rng.randint(2, 60)
        return lambda language: _plain(
            units.format_unit(value, unit, "long", locale=_locale(language))
        )

    return filler


def _language(rng):
    code = rng.choice(SPOKEN)
    return lambda language: _locale(language).languages[code]


def _code(rng):
    if rng.random() < 0.6:
        return "".join(rng.choices(string.digits, k=rng.randint(3, 10)))
    letters = "".join(rng.choices(string.ascii_uppercase, k=rng.randint(1, 3)))
    digits = "".join(rng.choices(string.digits, k=rng.randint(1, 6)))
    return letters + rng.choice(("", "-")) + digits


def _phone(rng):
    groups = [
        "".join(rng.choices(string.digits, k=rng.randint(2, 4)))
        for _ in range(rng.randint(2, 4))
    ]
    prefix = rng.choice(("", "", f"+{rng.randint(1, 99)} ", "0"))
    return prefix + rng.choice((" ", "-", " ", "")).join(groups)


def _flight(rng):
    return (
        "".join(rng.choices(string.ascii_uppercase, k=2)) + f"{rng.randint(10, 9999)}"
    )


def _word(rng):
    return _invented(rng).lower()


def _url(rng):
    host = f"{_word(rng)}.{rng.choice(DOMAINS)}"
    start = rng.choice(("https://", "https://www.", "http://", "www.", ""))
    end = rng.choice(
        ("", "", f"/{_word(rng)}", f"/{_word(rng)}?id={rng.randint(1, 999)}")
    )
    return start + host + end


def _email(rng):
    user = rng.choice(
        (_word(rng), f"{_word(rng)}.{_word(rng)}", f"{_word(rng)}{rng.randint(1, 99)}")
    )
    return f"{user}@{_word(rng)}.{rng.choice(DOMAINS)}"


def _span(rng):
    return rng.choice(
        (
            rng.choice(PLACEHOLDERS),
            rng.choice(PLACEHOLDERS),
            f"{{{_word(rng)}}}",
            f"{_word(rng)}.{rng.choice(EXTENSIONS)}",
            f"#{_word(rng)}",
            f"@{_word(rng)}",
            f"`{_word(rng)}()`",
        )
    )


FILLERS = {
    "person": _copied(_person),
    "first": _copied(_first),
    "last": _copied(_last),
    "town": _copied(_town),
    "city": _city,
    "age": _number(2, 99),
    "small": _number(2, 999),
    "count": _number(2, 9_999),
    "big": _number(1_000, 9_999_999),
    "decimal": _number(1, 99, places=1),
    "percent": _percent,
    "price": _price,
    "time": _time,
    "clock": _clock,
    "date": _date,
    "day": _day,
    "weekday": _of_calendar("days", range(7)),
    "month": _of_calendar("months", range(1, 13)),
    "year": _copied(lambda rng: str(rng.randint(1100, 2060))),
    "duration": _unit(DURATIONS),
    "measure": _unit(MEASURES),
    "language": _language,
    "code": _copied(_code),
    "phone": _copied(_phone),
    "flight": _copied(_flight),
    "url": _copied(_url),
    "email": _copied(_email),
    "emoji": _copied(lambda rng: rng.choice(EMOJI)),
    "span": _copied(_span),
}
PROTECTED = ("url", "email", "span")
