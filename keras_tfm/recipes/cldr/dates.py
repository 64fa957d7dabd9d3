"""Dates, dates with a time, lists of days, intervals, relative times."""

import datetime

from babel import dates, numbers

from keras_tfm.recipes.cldr.side import (
    Kind,
    join_items,
    list_joins,
    root_data,
    shared_keys,
)

FIRST_DAY = datetime.date(1950, 1, 1).toordinal()
LAST_DAY = datetime.date(2049, 12, 31).toordinal()
BASIC = ("full", "long", "medium")
STYLES = (*BASIC, "yMMMM", "MMMMd", "yQQQQ", "yMMMEd", "MMMEd", "yMd")
INTERVALS = ("yMMMM", "yMMMd", "yMMMEd", "MMMd", "MMMEd")
SPANS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
FIELDS = (*SPANS, "mon", "tue", "wed", "thu", "fri", "sat", "sun")
TENSES = ("future", "past")


def _names_months(foreign):
    """Returns whether a language has names, not only numbers, of months."""
    number = root_data()["months"]["format"]["wide"][1]
    return foreign.locale.months["format"]["wide"][1] != number


def _select_shared(english, foreign, styles, formats):
    """Selects the styles that both sides have formats for."""
    if not _names_months(foreign):
        return []
    return [
        style
        for style in styles
        if all(style in formats(side) for side in (english, foreign))
    ]


def _list_styles(english, foreign):
    def formats(side):
        return {*BASIC, *side.locale.datetime_skeletons}

    return [_select_shared(english, foreign, STYLES, formats)]


def _list_long_styles(_, foreign):
    return [["full", "long"] if _names_months(foreign) else []]


def _list_intervals(english, foreign):
    def formats(side):
        return side.locale.interval_formats

    return [_select_shared(english, foreign, INTERVALS, formats)]


def _list_days(_, foreign):
    units = ["days", "months", "dates"] if _names_months(foreign) else []
    return [units, list_joins(foreign)]


def _list_fields(english, foreign):
    inherited = root_data()["date_fields"]

    def names(side):
        patterns = {}
        for name in FIELDS:
            field = side.data["date_fields"].get(name, {})
            future, past = (field.get(tense, {}).get("other") for tense in TENSES)
            if future and past and future != inherited[name]["future"]["other"]:
                patterns[name] = future
        return patterns

    return [shared_keys(english, foreign, names)]


def _draw_day(rng, short=False):
    while True:
        day = datetime.date.fromordinal(rng.randint(FIRST_DAY, LAST_DAY))
        # English abbreviates "May" as "May": it would have two translations.
        if not (short and day.month == 5):
            return day


def _draw_date(rng, styles):
    style = rng.choice(styles)
    day = _draw_day(rng, short=style in ("medium", "yMMMEd", "MMMEd"))

    def render(side):
        if style in BASIC:
            return dates.format_date(day, style, side.locale)
        return dates.format_skeleton(style, day, fuzzy=False, locale=side.locale)

    return render


def _draw_time(rng, styles):
    style, clock = rng.choice(styles), rng.choice(("short", "short", "medium"))
    day, second = _draw_day(rng), rng.randrange(86_400)
    time = datetime.time(second // 3600, second // 60 % 60, second % 60)

    def render(side):
        pattern = dates.get_datetime_format(style, side.locale).replace("'", "")
        time_text = dates.format_time(time, clock, locale=side.locale)
        date_text = dates.format_date(day, style, side.locale)
        return pattern.replace("{0}", time_text).replace("{1}", date_text)

    return render


def _draw_days(rng, units, joins):
    unit, join, count = rng.choice(units), rng.choice(joins), rng.randint(2, 3)
    if unit == "dates":
        sample = [_draw_day(rng) for _ in range(count)]
    else:
        sample = rng.sample(range(7) if unit == "days" else range(1, 13), count)

    def items(side):
        if unit == "dates":
            return [
                dates.format_skeleton("MMMMd", day, locale=side.locale)
                for day in sample
            ]
        names = getattr(side.locale, unit)["stand-alone"]["wide"]
        return [names[index] for index in sample]

    return join_items(join, items)


def _draw_interval(rng, styles):
    style = rng.choice(styles)
    wide = style == "yMMMM"
    while True:
        start = _draw_day(rng, short=not wide)
        end = start + datetime.timedelta(rng.randint(1, 700 if wide else 90))
        # Two different months; an abbreviated style has no "May".
        if end.month != (start.month if wide else 5):
            break
    return lambda side: dates.format_interval(
        start, end, style, fuzzy=False, locale=side.locale
    )


def _draw_relative(rng, fields):
    field, tense = rng.choice(fields), rng.choice(TENSES)
    number = rng.randint(1, 20) if rng.random() < 0.4 else rng.randint(21, 999)

    def render(side):
        forms = side.data["date_fields"][field][tense]
        form = forms.get(side.locale.plural_form(number), forms["other"])
        digits = numbers.format_decimal(number, locale=side.locale)
        return form.replace("{0}", digits)

    return render


KINDS = (
    Kind("dates", _list_styles, _draw_date),
    Kind("dates with time", _list_long_styles, _draw_time),
    Kind("lists of days", _list_days, _draw_days),
    Kind("intervals", _list_intervals, _draw_interval),
    Kind("relative times", _list_fields, _draw_relative),
)
