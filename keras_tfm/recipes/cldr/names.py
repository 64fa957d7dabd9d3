"""Lists of countries and of languages, and languages of countries."""

from keras_tfm.recipes.cldr.side import Kind, join_items, list_joins, shared_keys

MIN_NAMES = 10  # a locale with fewer has no list of them


def _if_enough(codes):
    return codes if len(codes) >= MIN_NAMES else []


def _list_countries(english, foreign):
    def names(side):
        # Numbers are continents; XA, XB and ZZ are no countries, XK is Kosovo.
        return {
            code: name
            for code, name in side.locale.territories.items()
            if code == "XK" or code.isalpha() and code[0] not in "XZ"
        }

    return _if_enough(shared_keys(english, foreign, names))


def _list_languages(english, foreign):
    def names(side):
        languages = side.locale.languages.items()
        return {code: name for code, name in languages if len(code) == 2}

    return _if_enough(shared_keys(english, foreign, names))


def _draw_countries(rng, countries, joins):
    sample = rng.sample(countries, rng.randint(2, 4))
    return join_items(
        rng.choice(joins),
        lambda side: [side.locale.territories[code] for code in sample],
    )


def _draw_languages(rng, languages, joins):
    sample = rng.sample(languages, rng.randint(2, 4))
    return join_items(
        rng.choice(joins),
        lambda side: [side.locale.languages[code] for code in sample],
    )


def _draw_language_of_country(rng, languages, countries):
    language, country = rng.choice(languages), rng.choice(countries)
    # As Babel's Locale.get_display_name formats it.
    return lambda side: (
        f"{side.locale.languages[language]} ({side.locale.territories[country]})"
    )


KINDS = (
    Kind(
        "countries",
        lambda english, foreign: [
            _list_countries(english, foreign),
            list_joins(foreign),
        ],
        _draw_countries,
    ),
    Kind(
        "languages",
        lambda english, foreign: [
            _list_languages(english, foreign),
            list_joins(foreign),
        ],
        _draw_languages,
    ),
    Kind(
        "languages of places",
        lambda english, foreign: [
            _list_languages(english, foreign),
            _list_countries(english, foreign),
        ],
        _draw_language_of_country,
    ),
)
