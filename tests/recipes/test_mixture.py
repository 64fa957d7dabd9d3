"""What a run adds to its training pairs: words, copies, phrases and more."""

import dataclasses
import random
import re

import pytest

from keras_tfm.recipes import corpora, downloads, everyday, mixture, multilingual
from keras_tfm.recipes.everyday import copies, fillers, words
from keras_tfm.text import Pairs
from tests.recipes.animals import flags_for, write_tsv

pytestmark = pytest.mark.backend("torch")
TABLES = ("words", "expressions", "chat", "templates", "cities")
RATES = dict.fromkeys(("phrase_rate", "everyday_rate", "copy_rate"), 0.5)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    monkeypatch.delitem(downloads.URLS, "cldr-annotations")


def corpus_of(pairs, source="en", target="de"):
    pairs = Pairs(*map(list, zip(*pairs, strict=True)))
    return corpora.Corpus("test", source, target, pairs, pairs, pairs, "", "", [])


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_complete(name):
    rows = everyday.read_table(name)
    sources = [(row.get("language"), row.get("source", row.get("en"))) for row in rows]
    assert len(set(sources)) == len(sources) > 40
    for row in rows:
        texts = [row[language] for language in everyday.LANGUAGES if row[language]]
        assert name == "chat" or len(texts) == 5
        assert all(text == " ".join(text.split()) for text in texts)


def test_templates_have_the_same_slots_in_all_languages():
    for row in everyday.read_table("templates"):
        slots = {
            tuple(sorted(match[0] for match in copies.SLOT.finditer(row[language])))
            for language in everyday.LANGUAGES
        }
        assert len(slots) == 1, row
        assert {slot.strip("{23}") for slot in slots.pop()} <= set(fillers.FILLERS)


def test_german_adjectives_change_without_their_article():
    pairs = list(words.list_pairs("en", "de")[0])
    assert ("the neural network", "das neuronale Netz") in pairs
    assert ("neural network", "neuronales Netz") in pairs
    assert ("artificial intelligence", "künstliche Intelligenz") in pairs


@pytest.mark.parametrize("languages", [("en", "de"), ("fr", "en"), ("it", "es")])
def test_both_sides_have_the_same_digits_names_and_stand_ins(languages):
    pairs = copies.draw(*languages, 300, seed=1)
    assert pairs == copies.draw(*languages, 300, seed=1)
    assert pairs != copies.draw(*languages, 300, seed=2)
    for source, target in pairs:
        # 5:00 is 5 h in French.
        digits = [
            re.findall(r"\d", re.sub("(:| ?h ?)00", "", s)) for s in (source, target)
        ]
        assert sorted(digits[0]) == sorted(digits[1])
        spans = re.findall(r"\{\w+\}|https?://\S+|\S+@\S+", source)
        assert all(span.rstrip(".,") in target for span in spans), (source, target)
    assert any("Tom" in source for source, _ in pairs)


@pytest.mark.parametrize(
    ("slot", "seed", "forms"),
    [
        ("price", 0, ("£4,243.39", "4.243,39 £", "4 243,39 £")),
        ("decimal", 3, ("9.3", "9,3", "9,3")),
        ("time", 25, ("14:00", "14:00", "14 h")),
        ("clock", 3, ("5 p.m.", "5 Uhr nachmittags", "5 heures de l'après-midi")),
    ],
)
def test_values_are_written_as_each_language_writes_them(slot, seed, forms):
    render = fillers.draw(slot, random.Random(seed))
    assert tuple(map(render, ("en", "de", "fr"))) == forms


def test_other_languages_copy_spans_without_sentences():
    pairs = copies.draw("en", "pt", 60, seed=0)
    assert len(pairs) == 60 and ("Eric", "Eric") not in pairs
    assert fillers.format_number(1_234, "pt") == "1.234"
    assert max(len(source.split()) for source, _ in pairs) <= 6


def test_words_have_forms_that_people_type():
    pairs, notes = words.list_pairs("en", "de")
    pairs = list(pairs)
    for pair in (
        ("the dog", "der Hund"),
        ("dog", "Hund"),
        ("eat", "essen"),
        ("Good morning!", "Guten Morgen!"),
        ("good morning", "Guten Morgen"),
        ("Monday", "Montag"),
        ("Italy", "Italien"),
        ("thx", "danke"),
    ):
        assert pair in pairs, pair
    letters = "".join(text for pair in pairs for text in pair)
    assert not re.search("[\u00a0\u200b\u202f]", letters)
    assert "thx" not in words.list_pairs("de", "en")[0].target
    assert "cldr-annotations" in notes[0]
    names, notes = words.list_pairs("en", "pt")
    assert ("Italy", "Itália") in list(names) and "only names" in notes[1]


def test_names_of_emoji_are_read_from_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_TFM_DATA", str(tmp_path))
    for language, name in (("en", "dog face"), ("de", "Hundegesicht")):
        folder = tmp_path / "cldr-annotations" / language
        folder.mkdir(parents=True)
        table = f'{{"🐶": {{"tts": ["{name}"]}}, "x": {{"default": []}}}}'
        text = f'{{"annotations": {{"annotations": {table}}}}}'
        (folder / "annotations.json").write_text(text, "utf-8")
    pairs, notes = words.list_pairs("en", "de")
    assert ("dog face", "Hundegesicht") in list(pairs) and notes == []


def test_pairs_that_share_a_side_with_a_held_out_pair_are_dropped():
    corpus = corpus_of([("I see it.", "Ich sehe es.")] * 40_000)
    flags = mixture.Mixture(everyday_rate=1.0)
    object.__setattr__(flags, "seed", 0)  # a flag of a run
    held_out = {"dog", "Guten Morgen!"}
    addition = mixture.make(flags, corpus, held_out)["everyday_rate"]
    rows = addition.rows
    assert held_out.isdisjoint(text for pair in rows for text in pair)
    assert ("good morning", "Guten Morgen") in rows and len(rows) < 40_000
    dropped = f"{40_000 - len(rows):,} more that share a side"
    assert dropped in addition.notes[-1]


def test_a_run_reports_and_adds_each_kind(tmp_path):
    flags = flags_for(write_tsv(tmp_path / "animals.tsv"), tmp_path / "run")
    plain = multilingual.load_corpus(flags)
    count = round(0.5 * len(plain.train))
    corpus = multilingual.load_corpus(dataclasses.replace(flags, **RATES))
    assert list(corpus.train)[: len(plain.train)] == list(plain.train)
    assert len(corpus.train) == len(plain.train) + 3 * count
    for description in ("phrases of CLDR", "words and expr", "copy names, numbers"):
        assert any(
            note.startswith(f"{count} pairs ") and description in note
            for note in corpus.notes
        )
    assert list(corpus.test) == list(plain.test)
    assert corpus.license == f"{plain.license}; {mixture.CLDR_LICENSE}"


def test_short_pairs_of_the_corpus_are_repeated():
    corpus = corpus_of([("Go!", "Geh!"), ("I like cats very much.", "Ich mag.")] * 4)
    flags = mixture.Mixture(short_rate=2.0)
    object.__setattr__(flags, "seed", 0)
    rows = mixture.make(flags, corpus, ())["short_rate"].rows
    assert rows == 16 * [("Go!", "Geh!")]


def test_phrases_need_english():
    flags = mixture.Mixture(phrase_rate=1.0)
    object.__setattr__(flags, "seed", 0)
    corpus = corpus_of([("Geh!", "Va !")], "de", "fr")
    with pytest.raises(ValueError, match="`phrase_rate` needs English.*'de'.*'fr'"):
        mixture.make(flags, corpus, ())
