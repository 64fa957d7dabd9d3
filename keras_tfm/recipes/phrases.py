"""Makes a parallel corpus from the locale data that Babel brings.

The Unicode Common Locale Data Repository (CLDR) has, for each language, formats
of dates, relative times, measures with plural forms, amounts of money and lists
of countries. Babel contains it, so English beside any other locale needs no
network: a small but real translation task with word order ("Friday, November
21, 2025", "Freitag, 21. November 2025"), plural forms ("vor 1 Tag", "vor 5
Tagen"), vocabulary, and numbers to copy.

The text is that of CLDR with one change: no-break, narrow and thin spaces are
plain, and the invisible direction marks of Arabic and Hebrew are removed.

License: CLDR data under the Unicode License v3, Babel under BSD-3-Clause.
Source: https://cldr.unicode.org, https://babel.pocoo.org
"""

import dataclasses
import random
import unicodedata

from babel import Locale

from keras_tfm.recipes import cldr
from keras_tfm.text import Pairs

# Soft hyphen and direction marks.
INVISIBLE = (0xAD, 0x61C, 0x200E, 0x200F)
INVISIBLE += (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
REMOVAL = dict.fromkeys(INVISIBLE)  # for `str.translate`
MAX_ATTEMPTS = 100  # draws of a kind in a row that are all in the corpus already


@dataclasses.dataclass
class Phrases:
    """A corpus of phrases and its composition.

    Attributes:
        train: `Pairs`.
        validation: `Pairs`; no source and no target is in `train`.
        test: `Pairs`; no source and no target is in the other two.
        kinds: dict from str to int, pairs of each kind in the whole corpus.
        skipped: tuple of str, kinds that the locale has no data for.
        notes: tuple of str, sentences to print: kinds that are missing, and the
            number of pairs if fewer than `size` could be made.
    """

    train: Pairs
    validation: Pairs
    test: Pairs
    kinds: dict[str, int]
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def phrases(
    target: str = "de",
    seed: int = 0,
    size: int = 64_000,
    validation: int = 1_000,
    test: int = 2_000,
) -> Phrases:
    """Draws distinct pairs of an English phrase and its translation.

    No source and no target occurs twice in the corpus, so each source has one
    right translation, nothing held out is in the training set, and the corpus
    serves both directions. Pairs with two equal sides are left out.

    Args:
        target: str, a CLDR locale such as `"de"`, `"pt_BR"` or `"zh-Hant"`.
        seed: int. The same seed, locale and release of Babel give the same
            pairs.
        size: int >= 2 * (validation + test), pairs of all splits; 64,000 take
            about 5 seconds.
        validation: int >= 1, pairs of the validation set.
        test: int >= 1, pairs of the test set.

    Returns:
        `Phrases`. All kinds are equally frequent as far as the data allow.

    Raises:
        ValueError: `target` is unknown or English, the sizes do not fit, or
            CLDR has too little data for the locale.
    """
    locale = cldr.find_locale(target)
    if min(validation, test) < 1 or size < 2 * (validation + test):
        raise ValueError(
            "`size` must be at least twice validation + test, which must be at least "
            f"1 each; got size={size}, validation={validation}, test={test}."
        )
    english, foreign = cldr.open_side(Locale("en")), cldr.open_side(locale)
    choices, skipped = _list_kinds(english, foreign)
    rng = random.Random(seed)
    pairs, kinds = _draw_pairs(rng, choices, english, foreign, size)
    if len(pairs) < 2 * (validation + test):
        raise ValueError(
            f"CLDR has only {len(pairs):,} phrases in {target!r}, too few for "
            f"validation={validation}, test={test} and as many to train on. Kinds "
            f"without data: {', '.join(skipped) or 'none'}. Choose smaller splits, or "
            "another locale."
        )
    rng.shuffle(pairs)
    splits = pairs[test + validation :], pairs[test : test + validation], pairs[:test]
    notes = []
    if skipped:
        notes.append(f"CLDR has too little in {target!r} for: {', '.join(skipped)}.")
    if len(pairs) < size:
        notes.append(f"Only {len(pairs):,} pairs could be made, not {size:,}.")
    return Phrases(
        *(Pairs(*map(list, zip(*rows, strict=True))) for rows in splits),
        kinds,
        tuple(skipped),
        tuple(notes),
    )


def _list_kinds(english, foreign):
    """Lists the kinds with data on both sides, and the names of the rest."""
    choices, skipped = [], []
    for kind in cldr.KINDS:
        lists = kind.list_choices(english, foreign)
        if all(lists):
            choices.append((kind, lists))
        else:
            skipped.append(kind.name)
    return choices, skipped


def _draw_pairs(rng, choices, english, foreign, size):
    """Draws one pair of each kind in turn, until a kind has no new pairs."""
    pairs, sources, targets = [], set(), set()
    counts = {kind.name: 0 for kind, _ in choices}
    while choices:
        for entry in list(choices):
            kind, lists = entry
            for _ in range(MAX_ATTEMPTS):
                render = kind.draw(rng, *lists)
                source, target = (
                    _normalize(render(english)),
                    _normalize(render(foreign)),
                )
                is_new = source not in sources and target not in targets
                if is_new and source != target:
                    break
            else:
                choices.remove(entry)
                continue
            pairs.append((source, target))
            sources.add(source)
            targets.add(target)
            counts[kind.name] += 1
            if len(pairs) == size:
                return pairs, counts
    return pairs, counts


def _normalize(text):
    # `split` splits at no-break, narrow and thin spaces too.
    return " ".join(unicodedata.normalize("NFC", text.translate(REMOVAL)).split())
