"""Dates, dates with a time, lists of days, intervals, relative times."""

import datetime

from babel import dates, numbers

from keras_tfm.recipes.cldr.side import Kind, joins, listing, root, shared

FIRST_DAY = datetime.date(1950, 1, 1).toordinal()
LAST_DAY = datetime.date(2049, 12, 31).toordinal()
BASIC = ("full", "long", "medium")
STYLES = (*BASIC, "yMMMM", "MMMMd", "yQQQQ", "yMMMEd", "MMMEd", "yMd")
INTERVALS = ("yMMMM", "yMMMd", "yMMMEd", "MMMd", "MMMEd")
SPANS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
FIELDS = (*SPANS, "mon", "tue", "wed", "thu", "fri", "sat", "sun")
WAYS = ("future", "past")


def _calendar(other):
    """True if the language has names, not just numbers, for the months."""
    unnamed = root()["months"]["format"]["wide"][1]
    return other.locale.months["format"]["wide"][1] != unnamed


def _in_both(english, other, wanted, known):
    both = [s for s in wanted if s in known(english) and s in known(other)]
    return both if _calendar(other) else []


def _styles(english, other):
    def known(one):
        return {*BASIC, *one.locale.datetime_skeletons}

    return [_in_both(english, other, STYLES, known)]


def _long_styles(_, other):
    return [["full", "long"] if _calendar(other) else []]


def _intervals(english, other):
    def known(one):
        return one.locale.interval_formats

    return [_in_both(english, other, INTERVALS, known)]


def _days(_, other):
    return [["days", "months", "dates"] if _calendar(other) else [], joins(other)]


def _fields(english, other):
    unnamed = root()["date_fields"]

    def names(one):
        found = {}
        for name in FIELDS:
            field = one.data["date_fields"].get(name, {})
            future, past = (field.get(way, {}).get("other") for way in WAYS)
            if future and past and future != unnamed[name]["future"]["other"]:
                found[name] = future
        return found

    return [shared(english, other, names)]


def _day(rng, short=False):
    while True:
        day = datetime.date.fromordinal(rng.randint(FIRST_DAY, LAST_DAY))
        # "May" is long and short in English alone: it would have two answers.
        if not (short and day.month == 5):
            return day


def _draw_date(rng, styles):
    style = rng.choice(styles)
    day = _day(rng, short=style in ("medium", "yMMMEd", "MMMEd"))

    def say(one):
        if style in BASIC:
            return dates.format_date(day, style, one.locale)
        return dates.format_skeleton(style, day, fuzzy=False, locale=one.locale)

    return say


def _draw_time(rng, styles):
    style, clock = rng.choice(styles), rng.choice(("short", "short", "medium"))
    day, second = _day(rng), rng.randrange(86_400)
    time = datetime.time(second // 3600, second // 60 % 60, second % 60)

    def say(one):
        joined = dates.get_datetime_format(style, one.locale).replace("'", "")
        spoken = dates.format_time(time, clock, locale=one.locale)
        joined = joined.replace("{0}", spoken)
        return joined.replace("{1}", dates.format_date(day, style, one.locale))

    return say


def _draw_days(rng, parts, ways):
    part, join, count = rng.choice(parts), rng.choice(ways), rng.randint(2, 3)
    if part == "dates":
        chosen = [_day(rng) for _ in range(count)]
    else:
        chosen = rng.sample(range(7) if part == "days" else range(1, 13), count)

    def items(one):
        if part == "dates":
            return [
                dates.format_skeleton("MMMMd", d, locale=one.locale) for d in chosen
            ]
        return [getattr(one.locale, part)["stand-alone"]["wide"][c] for c in chosen]

    return listing(join, items)


def _draw_interval(rng, styles):
    style = rng.choice(styles)
    wide = style == "yMMMM"
    while True:
        start = _day(rng, short=not wide)
        end = start + datetime.timedelta(rng.randint(1, 700 if wide else 90))
        # Two months, or no "May" beside an abbreviated month.
        if end.month != (start.month if wide else 5):
            break
    return lambda one: dates.format_interval(
        start, end, style, fuzzy=False, locale=one.locale
    )


def _draw_relative(rng, fields):
    field, way = rng.choice(fields), rng.choice(WAYS)
    number = rng.randint(1, 20) if rng.random() < 0.4 else rng.randint(21, 999)

    def say(one):
        forms = one.data["date_fields"][field][way]
        form = forms.get(one.locale.plural_form(number), forms["other"])
        return form.replace("{0}", numbers.format_decimal(number, locale=one.locale))

    return say


KINDS = (
    Kind("dates", _styles, _draw_date),
    Kind("dates with time", _long_styles, _draw_time),
    Kind("lists of days", _days, _draw_days),
    Kind("intervals", _intervals, _draw_interval),
    Kind("relative times", _fields, _draw_relative),
)
