"""Units and durations, rates, money, large numbers, with their plurals."""

from decimal import Decimal

from babel import numbers

from keras_tfm.recipes.cldr.side import Kind, join_items, root_data, shared_keys

# Units of time, and the largest number of each after a larger unit.
TIME_UNITS = {
    "duration-year": 99,
    "duration-month": 11,
    "duration-week": 4,
    "duration-day": 6,
    "duration-hour": 23,
    "duration-minute": 59,
    "duration-second": 59,
}
# Units before "per" (AMOUNTS) and after it (MEASURES).
AMOUNTS = (
    *("mass-milligram", "mass-gram", "mass-kilogram", "mass-tonne", "mass-pound"),
    *("volume-milliliter", "volume-liter", "volume-cubic-meter", "volume-gallon"),
    *("length-centimeter", "length-meter", "length-kilometer", "length-mile"),
    *("digital-kilobyte", "digital-megabyte", "digital-gigabyte", "digital-megabit"),
    *("energy-joule", "energy-kilojoule", "energy-kilocalorie", "concentr-mole"),
)
MEASURES = (
    *TIME_UNITS,
    *("length-meter", "length-kilometer", "area-square-meter"),
    *("mass-gram", "mass-kilogram", "volume-liter"),
)
# Named as another unit: "3 days", "3 calories".
HOMONYMS = ("-person", "-foodcalorie")
# Fragments of other units ("inches of mercury").
FRAGMENTS = ("concentr-ofglucose", "pressure-ofhg")


def _unit_forms(side, unit):
    """Returns the long patterns of a unit, or short ones if CLDR has no long.

    Patterns that all languages inherit are left out: they are symbols ("3 g",
    "3 l/m"), not words.
    """
    lengths = side.data["unit_patterns"].get(unit, {})
    symbols = root_data()["unit_patterns"].get(unit, {}).get("short", {})
    for length in ("long", "short"):
        forms = lengths.get(length, {})
        if "other" in forms:
            return {k: form for k, form in forms.items() if form != symbols.get(k)}
    return {}


def _list_units(english, foreign):
    """Lists the units that have a name."""

    def names(side):
        forms = {}
        for unit in side.data["unit_patterns"]:
            form = _unit_forms(side, unit).get("other")
            if form and not unit.endswith(HOMONYMS) and unit not in FRAGMENTS:
                forms[unit] = form
        return forms

    return [shared_keys(english, foreign, names)]


def _list_time_units(english, foreign):
    units = _list_units(english, foreign)[0]
    time_units = [unit for unit in TIME_UNITS if unit in units]
    return [time_units if len(time_units) > 1 else []]


def _list_rates(english, foreign):
    units = set(_list_units(english, foreign)[0])
    measures = [
        measure
        for measure in MEASURES
        if all("per" in _unit_forms(side, measure) for side in (english, foreign))
    ]
    rates = [(amount, measure) for amount in AMOUNTS for measure in measures]
    return [[rate for rate in rates if units.issuperset(rate) and rate[0] != rate[1]]]


def _list_currencies(english, foreign):
    """Lists the currencies that are legal tender somewhere today."""
    territories = english.locale.territories
    codes = {c for t in territories for c in numbers.get_territory_currencies(t)}

    def names(side):
        return {
            code: numbers.get_currency_name(code, 99, side.locale)
            for code in codes
            if code in side.locale.currencies
        }

    return [shared_keys(english, foreign, names)]


def _list_powers(english, foreign):
    """Lists powers of ten that are words on both sides, after the same digits.

    Left out are languages whose long form is the short one (12 M), or that
    count in other steps (12 lakh, 1.2 oku), where rounding loses digits, and
    patterns that Babel reads wrongly.
    """
    if not all(_has_words(side.locale) for side in (english, foreign)):
        return [[]]
    samples = (11, 999, 4560, 9990)
    return [
        [
            power
            for power in (6, 9, 12)
            if all(
                _digits(_format_large(english, tenths, power))
                == _digits(_format_large(foreign, tenths, power))
                for tenths in samples
            )
        ]
    ]


def _has_words(locale):
    def patterns(length):
        forms = locale.compact_decimal_formats.get(length, {}).get("other", {})
        return {power: form.pattern for power, form in forms.items()}

    return patterns("long") not in ({}, patterns("short"))


def _digits(text):
    return [character for character in text if character.isdigit()]


def _format_large(side, tenths, power):
    return numbers.format_compact_decimal(
        tenths * 10 ** (power - 1),
        format_type="long",
        locale=side.locale,
        fraction_digits=1,
    )


def _draw_amount(rng):
    """Draws a number, often a small one, since these have more plural forms."""
    threshold = rng.random()
    if threshold < 0.3:
        return rng.randint(1, 20)
    if threshold < 0.7:
        return rng.randint(21, 999)
    if threshold < 0.85:
        return Decimal(rng.randint(1, 999)) / 10
    return rng.randint(1_000, 99_999)


def _format_unit(side, unit, amount):
    forms = _unit_forms(side, unit)
    form = forms.get(side.locale.plural_form(amount), forms["other"])
    digits = numbers.format_decimal(amount, locale=side.locale)
    return form.replace("{0}", digits)


def _draw_unit(rng, units):
    unit, amount = rng.choice(units), _draw_amount(rng)
    return lambda side: _format_unit(side, unit, amount)


def _draw_duration(rng, units):
    first = rng.randrange(len(units) - 1)
    spans = [(units[first], rng.randint(1, 99))]
    for unit in units[first + 1 : first + rng.randint(2, 3)]:
        spans.append((unit, rng.randint(1, TIME_UNITS[unit])))
    return join_items(
        "standard", lambda side: [_format_unit(side, *span) for span in spans]
    )


def _draw_rate(rng, rates):
    (unit, measure), amount = rng.choice(rates), _draw_amount(rng)
    # CLDR has "kilometers per hour" and "liters per kilometer" as one unit.
    name = f"{unit.partition('-')[2]}-per-{measure.partition('-')[2]}"
    compounds = (f"speed-{name}", f"consumption-{name}")

    def render(side):
        for compound in compounds:
            if "other" in _unit_forms(side, compound):
                return _format_unit(side, compound, amount)
        pattern = _unit_forms(side, measure)["per"]
        return pattern.replace("{0}", _format_unit(side, unit, amount))

    return render


def _draw_money(rng, currencies):
    code, amount = rng.choice(currencies), int(_draw_amount(rng)) or 1
    cents = numbers.get_currency_precision(code) == 2 and rng.random() < 0.4
    if cents:
        amount = Decimal(rng.randint(101, 99_999)) / 100
    return lambda side: numbers.format_currency(
        amount, code, None, side.locale, currency_digits=cents, format_type="name"
    )


def _draw_large(rng, powers):
    tenths = rng.randint(11, 999) if rng.random() < 0.5 else 10 * rng.randint(1, 999)
    power = rng.choice(powers)
    return lambda side: _format_large(side, tenths, power)


KINDS = (
    Kind("units", _list_units, _draw_unit),
    Kind("durations", _list_time_units, _draw_duration),
    Kind("rates", _list_rates, _draw_rate),
    Kind("money", _list_currencies, _draw_money),
    Kind("large numbers", _list_powers, _draw_large),
)
