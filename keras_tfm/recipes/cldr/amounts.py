"""Units and durations, rates, money, large numbers, with their plurals."""

from decimal import Decimal

from babel import numbers

from keras_tfm.recipes.cldr.side import Kind, listing, root, shared

# Spans of time, and how many of one may follow the span before it.
SPANS = {
    "duration-year": 99,
    "duration-month": 11,
    "duration-week": 4,
    "duration-day": 6,
    "duration-hour": 23,
    "duration-minute": 59,
    "duration-second": 59,
}
# What may stand before and after "per".
AMOUNTS = (
    *("mass-milligram", "mass-gram", "mass-kilogram", "mass-tonne", "mass-pound"),
    *("volume-milliliter", "volume-liter", "volume-cubic-meter", "volume-gallon"),
    *("length-centimeter", "length-meter", "length-kilometer", "length-mile"),
    *("digital-kilobyte", "digital-megabyte", "digital-gigabyte", "digital-megabit"),
    *("energy-joule", "energy-kilojoule", "energy-kilocalorie", "concentr-mole"),
)
MEASURES = (
    *SPANS,
    *("length-meter", "length-kilometer", "area-square-meter"),
    *("mass-gram", "mass-kilogram", "volume-liter"),
)
# Both say the name of another unit: "3 days", "3 calories".
TWINS = ("-person", "-foodcalorie")
# Of what there is an amount: parts of other units ("inches of mercury").
PARTS = ("concentr-ofglucose", "pressure-ofhg")


def _forms(one, unit):
    """Patterns of a unit: the long ones, or short if CLDR has no long ones.

    Those that every language inherits are left out: they are symbols ("3 g",
    "3 l/m"), not words.
    """
    lengths = one.data["unit_patterns"].get(unit, {})
    symbols = root()["unit_patterns"].get(unit, {}).get("short", {})
    for length in ("long", "short"):
        forms = lengths.get(length, {})
        if "other" in forms:
            return {k: form for k, form in forms.items() if form != symbols.get(k)}
    return {}


def _units(english, other):
    """Units with a name of their own."""

    def names(one):
        found = {}
        for name in one.data["unit_patterns"]:
            form = _forms(one, name).get("other")
            if form and not name.endswith(TWINS) and name not in PARTS:
                found[name] = form
        return found

    return [shared(english, other, names)]


def _spans(english, other):
    known = _units(english, other)[0]
    found = [span for span in SPANS if span in known]
    return [found if len(found) > 1 else []]


def _rates(english, other):
    known = set(_units(english, other)[0])
    per = [m for m in MEASURES if all("per" in _forms(s, m) for s in (english, other))]
    pairs = [(amount, measure) for amount in AMOUNTS for measure in per]
    return [[p for p in pairs if known.issuperset(p) and p[0] != p[1]]]


def _currencies(english, other):
    """Money that somebody can pay with today."""
    territories = english.locale.territories
    codes = {c for t in territories for c in numbers.get_territory_currencies(t)}

    def names(one):
        known = [c for c in codes if c in one.locale.currencies]
        return {c: numbers.get_currency_name(c, 99, one.locale) for c in known}

    return [shared(english, other, names)]


def _powers(english, other):
    """Powers of ten that are words on both sides, with the same digits before.

    Left out: a language whose long form is its short one (12 M), or that counts
    in other steps (12 lakh, 1.2 oku), where rounding would lose digits, and
    patterns that Babel reads wrongly.
    """
    if not all(_has_words(side.locale) for side in (english, other)):
        return [[]]
    samples = (11, 999, 4560, 9990)
    return [
        [
            power
            for power in (6, 9, 12)
            if all(
                _digits(_say_large(english, n, power))
                == _digits(_say_large(other, n, power))
                for n in samples
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


def _say_large(one, tenths, power):
    return numbers.format_compact_decimal(
        tenths * 10 ** (power - 1),
        format_type="long",
        locale=one.locale,
        fraction_digits=1,
    )


def _amount(rng):
    """A number; small ones are frequent, since they decide the plural form."""
    way = rng.random()
    if way < 0.3:
        return rng.randint(1, 20)
    if way < 0.7:
        return rng.randint(21, 999)
    if way < 0.85:
        return Decimal(rng.randint(1, 999)) / 10
    return rng.randint(1_000, 99_999)


def _say_unit(one, unit, amount):
    forms = _forms(one, unit)
    form = forms.get(one.locale.plural_form(amount), forms["other"])
    return form.replace("{0}", numbers.format_decimal(amount, locale=one.locale))


def _draw_unit(rng, known):
    unit, amount = rng.choice(known), _amount(rng)
    return lambda one: _say_unit(one, unit, amount)


def _draw_duration(rng, known):
    first = rng.randrange(len(known) - 1)
    spans = [(known[first], rng.randint(1, 99))]
    for span in known[first + 1 : first + rng.randint(2, 3)]:
        spans.append((span, rng.randint(1, SPANS[span])))
    return listing("standard", lambda one: [_say_unit(one, *span) for span in spans])


def _draw_rate(rng, known):
    (unit, per), amount = rng.choice(known), _amount(rng)
    # "kilometers per hour", "liters per kilometer" are units of their own.
    name = f"{unit.partition('-')[2]}-per-{per.partition('-')[2]}"
    wholes = (f"speed-{name}", f"consumption-{name}")

    def say(one):
        for whole in wholes:
            if "other" in _forms(one, whole):
                return _say_unit(one, whole, amount)
        return _forms(one, per)["per"].replace("{0}", _say_unit(one, unit, amount))

    return say


def _draw_money(rng, currencies):
    code, amount = rng.choice(currencies), int(_amount(rng)) or 1
    cents = numbers.get_currency_precision(code) == 2 and rng.random() < 0.4
    if cents:
        amount = Decimal(rng.randint(101, 99_999)) / 100
    return lambda one: numbers.format_currency(
        amount, code, None, one.locale, currency_digits=cents, format_type="name"
    )


def _draw_large(rng, powers):
    tenths = rng.randint(11, 999) if rng.random() < 0.5 else 10 * rng.randint(1, 999)
    power = rng.choice(powers)
    return lambda one: _say_large(one, tenths, power)


KINDS = (
    Kind("units", _units, _draw_unit),
    Kind("durations", _spans, _draw_duration),
    Kind("rates", _rates, _draw_rate),
    Kind("money", _currencies, _draw_money),
    Kind("large numbers", _powers, _draw_large),
)
