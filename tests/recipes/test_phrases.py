"""The built-in corpus follows CLDR, depends on its seed and has no leaks."""

import hashlib
import os
import pathlib
import re
import subprocess
import sys
import unicodedata

import pytest

from keras_tfm.recipes import cldr
from keras_tfm.recipes.phrases import phrases

pytestmark = pytest.mark.backend("tensorflow")  # data only: one backend is enough
ROOT = pathlib.Path(__file__).parents[2]
SMALL = {"size": 3_000, "validation": 100, "test": 200}
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August"),
    *("September", "October", "November", "December"),
)
MONATE = (
    *("Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August"),
    *("September", "Oktober", "November", "Dezember"),
)


@pytest.fixture(scope="module")
def german():
    """The corpus that `make translate` trains on."""
    return phrases("de")


def splits(corpus):
    return corpus.train, corpus.validation, corpus.test


def pairs(corpus):
    return [pair for split in splits(corpus) for pair in split]


def digest(corpus):
    text = "\n".join("\t".join(pair) for pair in pairs(corpus))
    return hashlib.sha256(text.encode()).hexdigest()


def test_there_are_at_least_60_000_pairs_to_train_on(german):
    assert [len(split) for split in splits(german)] == [61_000, 1_000, 2_000]
    assert german.notes == () and german.skipped == ()


def test_no_source_and_no_target_occurs_twice(german):
    sources, targets = zip(*pairs(german), strict=True)
    assert len(set(sources)) == len(set(targets)) == 64_000
    assert all(source != target for source, target in pairs(german))


def test_an_english_phrase_with_two_translations_keeps_one(monkeypatch):
    def draw(rng, sides):
        number, side = rng.randrange(4_000), rng.choice(sides)
        return lambda data: f"{number} {side if data.locale.language == 'de' else ''}"

    coin = cldr.Kind("coin", lambda english, target: [["Kopf", "Zahl"]], draw)
    monkeypatch.setattr(cldr, "KINDS", [coin])
    sources = [source for source, _ in pairs(phrases("de", **SMALL))]
    assert len(sources) == len(set(sources)) == SMALL["size"]


def test_all_kinds_are_equally_frequent(german):
    assert len(german.kinds) == 13 and sum(german.kinds.values()) == 64_000
    assert max(german.kinds.values()) - min(german.kinds.values()) <= 1


def test_phrases_are_short(german):
    lengths = [len(source.split()) for source in german.train.source]
    assert max(lengths) <= 25 and sum(lengths) / len(lengths) < 8


def test_a_seed_gives_the_same_pairs_in_another_process():
    code = (
        "import hashlib; from keras_tfm.recipes.phrases import phrases\n"
        f"c = phrases('fr', seed=3, **{SMALL})\n"
        "rows = [p for part in (c.train, c.validation, c.test) for p in part]\n"
        "text = '\\n'.join('\\t'.join(row) for row in rows)\n"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    # Another hash seed changes the order of sets of strings.
    environment = {"PYTHONHASHSEED": "7", "KERAS_BACKEND": "numpy"}
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == digest(phrases("fr", seed=3, **SMALL))
    assert digest(phrases("fr", seed=4, **SMALL)) != process.stdout.strip()


def test_german_dates_have_the_german_order(german):
    long_date = re.compile(r"(\w+) (\d+), (\d{4})")
    count = 0
    for source, target in pairs(german):
        match = long_date.fullmatch(source)
        if match and match[1] in MONTHS:
            month = MONATE[MONTHS.index(match[1])]
            assert target == f"{match[2]}. {month} {match[3]}"
            count += 1
    assert count > 100


def test_german_hours_run_from_0_to_23(german):
    count = 0
    for source, target in pairs(german):
        match = re.search(r", (\d+):(\d\d)(:\d\d)? ([AP]M)$", source)
        if match:
            hour = int(match[1]) % 12 + 12 * (match[4] == "PM")
            assert target.endswith(f", {hour:02}:{match[2]}{match[3] or ''}")
            count += 1
    assert count > 4_000


def test_german_relative_times_are_in_the_dative(german):
    nouns = {"days": "Tagen", "months": "Monaten", "years": "Jahren"}
    count = 0
    for source, target in pairs(german):
        match = re.fullmatch(r"(\d+) (days|months|years) ago", source)
        if match:
            assert target == f"vor {match[1]} {nouns[match[2]]}"
            count += 1
    assert count > 200


def test_polish_weeks_take_three_forms():
    polish = phrases("pl", **SMALL | {"size": 20_000})
    forms = set()
    for source, target in pairs(polish):
        match = re.fullmatch(r"(\d+) weeks? ago", source)
        if match:
            number = int(match[1])
            is_few = number % 10 in (2, 3, 4) and number % 100 not in (12, 13, 14)
            form = "tydzień" if number == 1 else "tygodnie" if is_few else "tygodni"
            assert target == f"{number} {form} temu"
            forms.add(form)
    assert {"tygodnie", "tygodni"} <= forms


def test_numbers_are_the_same_on_both_sides(german):
    # English clock hours and names of months have other numbers in German.
    excluded = re.compile(r"\d [AP]M$|^\w{3} \d+, \d{4}$")
    count = 0
    for source, target in pairs(german):
        if not excluded.search(source):
            count += any(letter.isdigit() for letter in source)
            assert sorted(filter(str.isdigit, source)) == sorted(
                filter(str.isdigit, target)
            ), (source, target)
    assert count > 30_000


@pytest.mark.parametrize("locale", ["it", "fr", "ja", "pl", "ar", "pt-BR", "zh_Hant"])
def test_other_locales_have_normalized_text(locale):
    corpus = phrases(locale, **SMALL)
    assert len(pairs(corpus)) == SMALL["size"]
    assert len(corpus.kinds) + len(corpus.skipped) == 13 and len(corpus.skipped) < 2
    for text in (text for pair in pairs(corpus) for text in pair):
        assert text == unicodedata.normalize("NFC", text) == " ".join(text.split(" "))
        assert text and not text.startswith(" ") and "{" not in text
        for letter in text:
            kind = unicodedata.category(letter)
            assert letter == " " or kind not in ("Zs", "Zl", "Zp", "Cf", "Cc"), text


def test_locales_do_not_affect_each_other():
    # Babel shares data that aliases of the root locale refer to: without a
    # copy, Arabic has Japanese months.
    phrases("ja", **SMALL)
    arabic = phrases("ar", **SMALL)
    assert not re.search(r"[\u3040-\u9fff]", "".join(t for _, t in pairs(arabic)))
    months = [t for s, t in pairs(arabic) if s.startswith(("April and", "June and"))]
    assert months and all(m.startswith(("أبريل و", "يونيو و")) for m in months)


def test_numbers_that_a_language_would_round_are_skipped():
    hindi = phrases("hi", **SMALL)  # a billion is 100 crore, rounded
    assert "large numbers" in hindi.skipped
    assert hindi.notes == ("CLDR has too little in 'hi' for: large numbers.",)


def test_a_locale_with_little_data_skips_some_kinds():
    corpus = phrases("rw", **SMALL)
    assert "units" in corpus.skipped and "dates" in corpus.kinds
    assert len(pairs(corpus)) == SMALL["size"]
    # CLDR falls back to English, but no list has an English conjunction.
    assert not any(" or " in source + target for source, target in pairs(corpus))


def test_a_unit_without_a_long_name_uses_its_short_name():
    weeks = re.compile(r"(\d+) weeks and (\d+) days?")
    actual = [(weeks.fullmatch(s), t) for s, t in pairs(phrases("ja", **SMALL))]
    actual = [(match, target) for match, target in actual if match]
    assert actual
    for match, target in actual:
        assert target == f"{match[1]} 週間、{match[2]} 日"


def test_inherited_unit_symbols_are_not_phrases():
    corpus = phrases("gsw", **SMALL)  # it has few patterns for "per"
    assert corpus.kinds["units"]
    inherited = re.compile(r"[0-9] \w+/(km|m²|l|kg|g|s|min|h|d|w|m|y)")
    assert not [pair for pair in pairs(corpus) if inherited.search(pair[1])]


def test_too_few_pairs_are_reported(monkeypatch):
    large = [kind for kind in cldr.KINDS if kind.name == "large numbers"]
    monkeypatch.setattr(cldr, "KINDS", large)
    corpus = phrases("de", size=9_000, validation=100, test=200)
    count = len(pairs(corpus))
    assert corpus.kinds == {"large numbers": count} and 4_000 < count < 9_000
    assert corpus.notes == (f"Only {count:,} pairs could be made, not 9,000.",)
    with pytest.raises(ValueError, match="only 5,[0-9]+ phrases in 'de', too few"):
        phrases("de")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("germn", r"must be a locale of CLDR; got 'germn'. Nearest: 'de', "),
        ("pt_BX", r"must be a locale of CLDR; got 'pt_BX'. Nearest: .*'pt_BR'"),
        ("", r"must be a locale of CLDR; got ''. Nearest: none"),
        ("en", r"must be another language .* got target='en'"),
        ("en-GB", r"must be another language .* got target='en-GB'"),
        ("wa", r"only 0 phrases in 'wa', too few for validation=100"),
    ],
)
def test_an_unsuitable_locale_is_rejected(target, message):
    with pytest.raises(ValueError, match=message):
        phrases(target, **SMALL)


def test_sizes_that_leave_too_few_training_pairs_are_rejected():
    with pytest.raises(ValueError, match="size=5999, validation=1000, test=2000"):
        phrases("de", size=5_999)
    with pytest.raises(ValueError, match="validation=0"):
        phrases("de", validation=0)
