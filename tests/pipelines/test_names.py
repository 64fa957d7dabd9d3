"""Names that a translation has lost are recognized, and copied."""

import numpy as np
import pytest

from keras_tfm.decode import Hypotheses
from keras_tfm.pipelines import Translator
from keras_tfm.pipelines.names import Names
from keras_tfm.recipes import known_words

pytestmark = pytest.mark.backend("torch")  # text, which no backend changes
ENGLISH = Names(["the", "mayor", "is", "called", "and", "in", "Cologne", "class"])
GERMAN = Names(["Haus", "Hund", "Karte", "das", "ist"])


@pytest.mark.parametrize(
    ("source", "target", "lost"),
    [
        ("The mayor is called Drexler.", "Er heißt Drexer.", ["Drexler"]),
        ("The mayor is called Drexler.", "Er heißt Drexler.", []),
        ("The mayor is called Drexler.", "Das ist Drexlers Haus.", []),
        ("The mayor is called Martin.", "Er heißt Martintint.", ["Martin"]),
        ("He is in Cologne.", "Er ist in Köln.", []),
        ("He saw Michael Mayor.", "Er sah Michael Bürger.", ["Michael Mayor"]),
        ("He saw Mayor Michael.", "Er sah den Bürgermeister Michael.", []),
        ("He saw Ana Kirchhoff, too.", "Er sah Ana Kirche.", ["Ana Kirchhoff"]),
        ("It is O'Brien's.", "Es gehört OBrien.", ["O'Brien"]),
        # At the beginning, only with a similar word in the translation.
        ("Bananas are in the class.", "Das Obst ist da.", []),
        ("Ulrike is in. Ulrike!", "Ulike ist da. Ulike!", ["Ulrike", "Ulrike"]),
        ("Xenia Hargreaves is in.", "Sie ist da.", ["Xenia Hargreaves"]),
        ("We saw Al.", "Wir sahen ihn.", []),  # too short
        ("I’ll go, I think.", "Ich gehe wohl.", []),
        ("He gave O’Brien the class.", "Er gab O'Brien die Klasse.", []),
        ("He saw l’amie d’Oksana.", "Er sah Oksanas Freundin.", []),
        ("He saw l’amie d’Oksana.", "Er sah die Freundin.", ["Oksana"]),
        ("He saw the Mayors.", "Er sah die Bürgermeister.", []),
        ("He likes the NATO.", "Il aime bien l'OTAN.", []),
        ("He likes the NASA.", "Er mag die NASAA.", ["NASA"]),
        ("He likes HTML, not XML.", "Er mag HMML, nicht XML.", ["HTML"]),
        ("He likes HTML.", "Er mag Webseiten der EU.", []),
        ("He is in Cologne.", "Er ist in Cologneee.", ["Cologne"]),
        ("Is the class called Ann?", "Heißt die Klassse Ann?", []),
        ("We saw Benediktas class.", "Wir sahen Benedikta's Klasse.", []),
        ("He left — Xenons stayed.", "Er ging, sie blieben.", []),
    ],
)
def test_lost_names_are_listed(source, target, lost):
    assert ENGLISH.lost(source, target) == lost


def test_nouns_with_capitals_are_no_names():
    for noun in ("Hundehaus", "Kartenhaus", "Meinung", "Hunde-Karte"):
        assert GERMAN.lost(f"Das ist {noun}.", "That is good.") == []
    assert GERMAN.lost("Das ist der Bludenz.", "That is good.") == ["Bludenz"]
    assert GERMAN.lost("Das ist Benedikta.", "That is Bendikta.") == ["Benedikta"]
    lost = GERMAN.lost("Das ist Rosalind Rademacher.", "That is Rosalind wheel.")
    assert lost == ["Rosalind Rademacher"]


def test_words_that_are_translated_are_known():
    sources = ["I saw Tom.", "A dog saw Tom", "The dog is in Rome.", "Rome is big."]
    targets = ["Ich sah Tom.", "Ein Hund sah Tom", "Der Hund ist in Rom.", "Rom ist."]
    assert known_words.learned_words(sources, targets) == ["Rome", "dog", "is", "saw"]
    german = ["Die Straße ist da.", "Eine Straße, keine Stadt!", "Rot rot rot"]
    english = ["The street is there.", "A street, no city!", "Red red red"]
    assert known_words.learned_words(german, english) == ["Straße"]


@pytest.fixture(scope="module")
def checked():
    translator = Translator.from_preset("en-de", beam_size=2)
    words = ["my", "teacher", "was", "the", "mayor", "of", "is", "called", "talked"]
    return translator.replace(known_words=words)


def test_a_hypothesis_with_the_names_is_taken(checked):
    text, name = "My teacher was Halima Fleischmann.", "Halima Fleischmann"
    sources = checked.encode([text])
    [ids] = checked.target_vocabulary.encode(["Mein Lehrer war Halima Feuermann."])
    wrong = Hypotheses(np.array([[ids]]), np.zeros((1, 1)), np.array([[len(ids)]]))
    assert name not in checked.assemble(sources, [wrong], fixed=[0])[0].text
    assert name in checked.assemble(sources, [wrong])[0].text
    assert name in checked(text)
    assert checked.translate(text).hypotheses[0].score < 0
    assert "MY TEACHER" not in checked("MY TEACHER WAS HALIMA.")


def test_known_words_are_saved_in_a_file(checked, tmp_path):
    checked.save(tmp_path)
    assert (tmp_path / "known_words.txt").read_text().splitlines()[:2] == [
        "my",
        "teacher",
    ]
    assert Translator.load(tmp_path).config == checked.config
    words = "\r\n".join(["\ufeffmy", "teacher", "", ""])
    (tmp_path / "known_words.txt").write_bytes(words.encode())
    config = Translator.from_preset(tmp_path).config
    assert config.known_words == ("my", "teacher")
    checked.replace(known_words=()).save(tmp_path)
    assert not (tmp_path / "known_words.txt").exists()


def test_the_words_of_a_parent_are_known(tmp_path):
    assert known_words.words_of_parent(None) == []
    assert known_words.words_of_parent(str(tmp_path)) is None
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "known_words.txt").write_text("one\ntwo\n")
    assert known_words.words_of_parent(str(tmp_path)) == ["one", "two"]
