"""Words and their translations by word alignment."""

import itertools
import os
import pathlib
import random

import pytest

from keras_tfm.recipes import corpora, mixture, word_pairs
from keras_tfm.text import Pairs

pytestmark = pytest.mark.backend("torch")
NOUNS = {"dog": "Hund", "cat": "Katze", "house": "Haus", "tree": "Baum", "sea": "Meer"}
VERBS = {"sees": "sieht", "finds": "findet", "loves": "liebt", "draws": "malt"}
TIMES = {"now": "jetzt", "often": "oft", "again": "wieder", "today": "heute"}


def flags_of(**rates):
    flags = mixture.Mixture(**rates)
    object.__setattr__(flags, "seed", 0)  # a flag of a run
    return flags


def sentences():
    """Sentences of a language whose word order differs from English."""
    rows = []
    for noun, verb, time, goal in itertools.product(NOUNS, VERBS, TIMES, NOUNS):
        words = [TIMES[time].capitalize(), VERBS[verb], NOUNS[noun], NOUNS[goal]]
        rows.append((f"The {noun} {verb} a {goal} {time}.", " ".join(words)))
    rows = random.Random(0).sample(rows, 150)
    return Pairs(*map(list, zip(*rows, strict=True)))


def test_all_words_of_a_regular_language_are_found():
    translations = dict(word_pairs.find(sentences(), seed=0))
    expected = {**NOUNS, **VERBS, **TIMES}  # in the forms inside sentences
    assert {word: translations.get(word) for word in expected} == expected
    assert set(translations) <= {*expected, "the"}


def test_rare_words_and_empty_corpora_have_no_pairs():
    assert word_pairs.find(Pairs(["!", "1, 2"], ["?", "3"]), seed=0) == []
    rows = [("red fox", "roter Fuchs"), ("a b", "c d"), ("red car", "rotes Auto")]
    pairs = Pairs(*map(list, zip(*rows, strict=True)))
    assert all(source == "red" for source, _ in word_pairs.find(pairs, seed=0))


def test_a_corpus_in_a_language_without_spaces_is_rejected():
    pairs = Pairs(["Good morning"], ["おはよう"])
    corpus = corpora.Corpus("test", "en", "ja", pairs, pairs, pairs, "", "", [])
    with pytest.raises(ValueError, match="`word_rate` needs languages with spaces"):
        mixture.make(flags_of(word_rate=1.0), corpus, ())
    pairs = Pairs(["Hi!"], ["Hallo!"])
    corpus = corpora.Corpus("test", "en", "de", pairs, pairs, pairs, "", "", [])
    addition = mixture.make(flags_of(word_rate=1.0), corpus, ())["word_rate"]
    assert addition.rows == []
    assert addition.notes[1] == "No words of test have a likely translation."


def test_rare_words_of_a_real_corpus_are_right():
    folder = pathlib.Path(os.environ.get("KERAS_TFM_DATA", ""), "tatoeba")
    if not (folder / "eng-ita.tsv.gz").is_file():
        pytest.skip("Tatoeba is not in KERAS_TFM_DATA.")
    corpus = corpora.load("tatoeba", "it", "en")
    addition = mixture.make(flags_of(word_rate=0.5), corpus, ())["word_rate"]
    assert len(addition.rows) == round(0.5 * len(corpus.train))
    translations = dict(addition.rows)
    assert len(translations) > 2_000
    expected = {"ombrello": "umbrella", "colazione": "breakfast", "lago": "lake"}
    assert {word: translations[word] for word in expected} == expected
