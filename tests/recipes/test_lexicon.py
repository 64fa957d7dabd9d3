"""Lexicons of corpora, and of the recipe's lists."""

import dataclasses
import itertools

import pytest

from keras_tfm.pipelines import Lexicon
from keras_tfm.recipes import corpora, lexicon, multilingual, preset, translation
from keras_tfm.text import Pairs

pytestmark = pytest.mark.backend("torch")
NOUNS = {"dog": "Hund", "cat": "Katze", "house": "Haus", "Rome": "Rome"}
VERBS = {"sees": "sieht", "finds": "findet", "loves": "liebt"}


def corpus_of(rows):
    pairs = Pairs(*map(list, zip(*rows, strict=True)))
    held_out = Pairs(["bread"], ["das Brot"])
    return corpora.Corpus("toy", "en", "de", pairs, held_out, held_out, "", "", [])


@pytest.fixture(scope="module")
def corpus():
    rows = [
        (f"The {a} {verb} a {b}.", f"Das {NOUNS[a]} {VERBS[verb]} {NOUNS[b]}.")
        for a, verb, b in itertools.product(NOUNS, VERBS, NOUNS)
    ]
    return corpus_of(rows)


def test_rare_words_have_the_translations_of_the_corpus(corpus):
    words = lexicon.make(corpus)
    assert words.translations["cat"][0] == "Katze"
    assert words.translations["finds"] == ["findet"]
    # A name stays as it is; "the" and "a" are in more sentences than MAX_COUNT.
    assert not {"Rome", "the", "a", "The"} & set(words.translations)
    assert "das" in words.frequent
    assert "cat" not in lexicon.make(corpus, max_count=5).translations


def test_lists_come_first_and_have_no_held_out_texts(corpus):
    words = lexicon.make(corpus, everyday_words=True).translations
    assert words["mother"] == ["Mutter"] and words["January"] == ["Januar"]
    assert words["dog"][0] == "Hund" and "the mother" not in words
    assert words["see you soon"] == ["bis bald"]
    assert "bread" not in words and words["water"] == ["Wasser"]


def test_a_corpus_of_other_languages_has_no_lists(corpus):
    finnish = corpora.Corpus("toy", "en", "fi", *3 * [corpus.train], "", "", [])
    assert "mother" not in lexicon.make(finnish, everyday_words=True).translations


def test_the_command_writes_a_file(corpus, tmp_path, capsys):
    folder, out = tmp_path / "corpus", tmp_path / "lexicon.tsv"
    folder.mkdir()
    for name, pairs in (("train", corpus.train), ("val", corpus.test)):
        rows = [f"{source}\t{target}\n" for source, target in pairs]
        (folder / f"{name}.tsv").write_text("".join(rows), encoding="utf-8")
    (folder / "test.tsv").write_text("the sea\tdas Meer\n", encoding="utf-8")
    lexicon.main(lexicon.Flags(data=str(folder), out=str(out)))
    assert Lexicon.load(out).translations["house"][0] == "Haus"
    assert "words" in capsys.readouterr().out


def test_a_preset_has_a_lexicon_of_each_direction(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(multilingual, "load_corpus", lambda flags: corpus)
    flags = translation.Flags(data="tatoeba")
    preset.write_lexicons(
        dataclasses.replace(flags, init_from="en-de"), [flags], tmp_path
    )
    assert not list(tmp_path.iterdir())
    preset.write_lexicons(flags, [flags], tmp_path)
    assert Lexicon.load(tmp_path / "lexicon.tsv").translations["cat"][0] == "Katze"
    french = dataclasses.replace(flags, target="fr")
    preset.write_lexicons(flags, [flags, french], tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"lexicon.tsv", "lexicon.en-de.tsv", "lexicon.en-fr.tsv"}
