"""Builds a parallel corpus from the locale data that Babel carries.

The Unicode Common Locale Data Repository (CLDR) says how each language writes
a date, a relative time, a measure with its plural form, a sum of money, a list
of countries. Babel ships it, so English beside any other locale is there
without a network: a small, honest translation task with word order ("Friday,
November 21, 2025", "Freitag, 21. November 2025"), plural forms ("vor 1 Tag",
"vor 5 Tagen"), vocabulary, and numbers to carry over.

The text is CLDR's, with one repair: no-break, narrow and thin spaces become
plain ones, and the invisible direction marks of Arabic and Hebrew are removed.

Licence: CLDR data under the Unicode License v3, Babel under BSD-3-Clause.
Source: https://cldr.unicode.org, https://babel.pocoo.org
"""

import dataclasses
import random
import unicodedata

from babel import Locale

from keras_tfm.recipes import cldr
from keras_tfm.text import Pairs

# Soft hyphen and direction marks, to be removed.
MARKS = (0xAD, 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
UNSEEN = dict.fromkeys(MARKS)


@dataclasses.dataclass
class Phrases:
    """A corpus of phrases and an account of what it is made of.

    Args:
        train: `Pairs`.
        validation: `Pairs`; no source and no target of it is in `train`.
        test: `Pairs`; no source and no target of it is in the other two.
        kinds: dict of str to int. Pairs of each kind in the whole corpus.
        skipped: tuple of str. Kinds that the locale has no data for.
        notes: tuple of str. Sentences for the user: what is missing, and how
            many pairs there are where fewer could be made than were asked for.
    """

    train: Pairs
    validation: Pairs
    test: Pairs
    kinds: dict
    skipped: tuple = ()
    notes: tuple = ()


def phrases(
    target: str = "de",
    seed: int = 0,
    size: int = 64_000,
    validation: int = 1_000,
    test: int = 2_000,
) -> Phrases:
    """Draws distinct pairs of an English phrase and its translation.

    Neither side of a pair occurs twice in the corpus, so each source has one
    right answer, nothing held out can be known from training, and the corpus
    serves in both directions. Pairs whose two sides are alike are left out.

    Args:
        target: str. A CLDR locale, such as `"de"`, `"pt_BR"` or `"zh-Hant"`.
        seed: int. The same seed, locale and release of Babel give the same
            pairs.
        size: int >= 2 * (validation + test). Pairs in all; 64,000 take about 5
            seconds.
        validation: int >= 1. Pairs kept for validation.
        test: int >= 1. Pairs kept for the test.

    Returns:
        `Phrases`. The kinds have equal shares as far as the data allow.

    Raises:
        ValueError: `target` is unknown or English, the sizes do not fit, or
            CLDR has too little for this locale to train on.
    """
    locale = cldr.find_locale(target)
    if min(validation, test) < 1 or size < 2 * (validation + test):
        raise ValueError(
            "At least half of the pairs must be left for training, and one for "
            f"validation and test each. Received: size={size}, "
            f"validation={validation}, test={test}."
        )
    english, other = cldr.open_side(Locale("en")), cldr.open_side(locale)
    ready, skipped = _ready(english, other)
    rng = random.Random(seed)
    pairs, kinds = _draw(rng, ready, english, other, size)
    if len(pairs) < 2 * (validation + test):
        raise ValueError(
            f"CLDR gives only {len(pairs):,} phrases in {target!r}, too few for "
            f"validation={validation}, test={test} and as many to train on. Kinds it "
            f"has nothing for: {', '.join(skipped) or 'none'}. Choose smaller parts, "
            "or another locale."
        )
    rng.shuffle(pairs)
    parts = pairs[:test], pairs[test : test + validation], pairs[test + validation :]
    held_out, checked, trained = (
        Pairs(*map(list, zip(*p, strict=True))) for p in parts
    )
    notes = []
    if skipped:
        notes.append(f"CLDR has too little in {target!r} for: {', '.join(skipped)}.")
    if len(pairs) < size:
        notes.append(f"Only {len(pairs):,} pairs could be made, not {size:,}.")
    return Phrases(trained, checked, held_out, kinds, tuple(skipped), tuple(notes))


def _ready(english, other):
    """Sorts the kinds into those both sides have data for, and the rest."""
    ready, skipped = [], []
    for kind in cldr.KINDS:
        stock = kind.stock(english, other)
        if all(stock):
            ready.append((kind, stock))
        else:
            skipped.append(kind.name)
    return ready, skipped


def _draw(rng, ready, english, other, size):
    """Draws one pair of each kind in turn; a kind that runs dry drops out."""
    pairs, sources, targets = [], set(), set()
    counts = {kind.name: 0 for kind, _ in ready}
    while ready:
        for entry in list(ready):
            kind, stock = entry
            for _ in range(100):
                say = kind.draw(rng, *stock)
                source, target = _plain(say(english)), _plain(say(other))
                known = source in sources or target in targets
                if not known and source != target:
                    break
            else:
                ready.remove(entry)
                continue
            pairs.append((source, target))
            sources.add(source)
            targets.add(target)
            counts[kind.name] += 1
            if len(pairs) == size:
                return pairs, counts
    return pairs, counts


def _plain(text):
    # `split` knows no-break, narrow and thin spaces.
    return " ".join(unicodedata.normalize("NFC", text.translate(UNSEEN)).split())
