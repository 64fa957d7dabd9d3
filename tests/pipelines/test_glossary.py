"""Glossaries: terms of a text, files, constraints by sentence, unmet terms."""

import pytest

from keras_tfm.pipelines import Glossary, GlossaryTranslator, Translator
from keras_tfm.pipelines.alignment import pharaoh

pytestmark = pytest.mark.backend("torch")
TERMS = {"station": "Haltestelle", "dog": "Köter", "good morning": "Moin"}


@pytest.fixture(scope="module")
def preset():
    return Translator.from_preset("en-de", beam_size=5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The bank account, the bank", ["bank account", "bank"]),
        ("THE BANK", ["bank"]),
        ("two banks, embankment, bank_a", []),
        ("us or US", ["US"]),
        ("C++ and .NET, C+", ["C++", ".NET"]),
        ("bankbank bank-bank", ["bank"]),
        ("", []),
    ],
)
def test_terms_are_found_by_case_and_word(text, expected):
    terms = ("bank", "bank account", "account", "US", "C++", ".NET")
    assert list(Glossary(dict.fromkeys(terms, "x")).find(text)) == expected


def test_files_have_two_columns(tmp_path):
    (tmp_path / "a.tsv").write_text('\ufeffbank\tdas "Ufer"\n\nan egg\tEi\n', "utf-8")
    expected = {"bank": 'das "Ufer"', "an egg": "Ei"}
    assert Glossary(tmp_path / "a.tsv").terms == expected
    (tmp_path / "a.csv").write_text('bank,"Ufer, Strand"\n', "utf-8")
    assert Glossary(str(tmp_path / "a.csv")).terms == {"bank": "Ufer, Strand"}
    (tmp_path / "b.tsv").write_text("bank\tUfer\nbank Ufer\n", "utf-8")
    with pytest.raises(ValueError, match="b.tsv, line 2: a row must have a term"):
        Glossary(tmp_path / "b.tsv")
    with pytest.raises(ValueError, match=r"`terms` must be a .tsv or .csv file"):
        Glossary("terms.txt")
    with pytest.raises(ValueError, match="`terms` must have no blank terms"):
        Glossary({"bank": " "})
    with pytest.raises(TypeError, match="`texts` must be a str"):
        Glossary({"bank": None})


def test_terms_of_each_sentence_are_met(preset):
    translator = GlossaryTranslator(preset, TERMS)
    texts = [
        "Where is the station?",
        "It is late.",
        "Good morning! It is raining every day now.\n\n  I have a dog. ",
        "",
    ]
    results = translator.translate(texts, return_attention=True)
    assert "Haltestelle" in results[0].text
    assert results[1].text == preset(texts[1])
    letter = results[2].text
    assert all(word in letter for word in ("Moin", "Köter"))
    assert letter.count("\n\n  ") == 1 and letter.endswith(" ")
    assert preset("It is raining every day now.") in letter
    assert not any(result.unmet_terms for result in results)
    assert pharaoh(results[0].hypotheses[0].alignment)
    assert [str(r) for r in translator.bulk(iter(texts[:2]), 1)] == translator(
        texts[:2]
    )


def test_terms_that_cannot_be_met_are_reported(preset):
    terms = {"station": "駅" * 3, "dog": "Köter", "cat": "so " * 200}
    translator = GlossaryTranslator(preset, terms)
    result = translator.translate("Where is the station of the dog?")
    assert result.unmet_terms.get("station", "駅駅駅") == "駅駅駅"
    assert result.text and ("駅駅駅" in result.text) != bool(result.unmet_terms)
    result = translator.translate("I have a cat.")
    assert set(result.unmet_terms) == {"cat"} and result.text == preset("I have a cat.")
    with pytest.raises(ValueError, match="`beam_size` must be at least 2 with a gloss"):
        translator.translate("a", beam_size=1)
