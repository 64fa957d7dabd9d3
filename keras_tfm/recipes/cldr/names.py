"""Lists of countries and of languages, and languages of countries."""

from keras_tfm.recipes.cldr.side import Kind, joins, listing, shared

FEWEST = 10  # names; a locale with fewer has no list of them worth the name


def _enough(names):
    return names if len(names) >= FEWEST else []


def _countries(english, other):
    def names(one):
        found = one.locale.territories.items()
        # Numbers are continents; XA, XB and ZZ are nowhere, XK is Kosovo.
        return {c: n for c, n in found if c == "XK" or c.isalpha() and c[0] not in "XZ"}

    return _enough(shared(english, other, names))


def _languages(english, other):
    def names(one):
        return {c: n for c, n in one.locale.languages.items() if len(c) == 2}

    return _enough(shared(english, other, names))


def _draw_countries(rng, codes, ways):
    chosen = rng.sample(codes, rng.randint(2, 4))
    return listing(
        rng.choice(ways), lambda one: [one.locale.territories[c] for c in chosen]
    )


def _draw_languages(rng, codes, ways):
    chosen = rng.sample(codes, rng.randint(2, 4))
    return listing(
        rng.choice(ways), lambda one: [one.locale.languages[c] for c in chosen]
    )


def _draw_place(rng, languages, countries):
    spoken, place = rng.choice(languages), rng.choice(countries)
    # As Babel's own Locale.get_display_name puts it.
    return lambda one: (
        f"{one.locale.languages[spoken]} ({one.locale.territories[place]})"
    )


KINDS = (
    Kind("countries", lambda e, o: [_countries(e, o), joins(o)], _draw_countries),
    Kind("languages", lambda e, o: [_languages(e, o), joins(o)], _draw_languages),
    Kind(
        "languages of places",
        lambda e, o: [_languages(e, o), _countries(e, o)],
        _draw_place,
    ),
)
