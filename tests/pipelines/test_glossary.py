"""Glossaries: terms of a text, files, constraints by sentence, unmet terms."""

import time
import types
import unicodedata

import pytest

from keras_tfm.pipelines import Glossary, GlossaryTranslator, Translator

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


def test_decomposed_accents_of_terms_and_texts_agree(preset):
    text, term = "He is in the Caf\u00e9.", "caf\u00e9"
    for form in ("NFC", "NFD"):
        glossary = Glossary({unicodedata.normalize(form, term): "Lokal"})
        for other_form in ("NFC", "NFD"):
            source = unicodedata.normalize(other_form, text)
            result = GlossaryTranslator(preset, glossary).translate(source)
            assert "Lokal" in result.text and not result.unmet_terms
            assert result.source == source


def test_files_have_two_columns(tmp_path):
    (tmp_path / "a.tsv").write_text('\ufeffbank\tdas "Ufer"\n\nan egg\tEi\n', "utf-8")
    expected = {"bank": 'das "Ufer"', "an egg": "Ei"}
    assert Glossary(tmp_path / "a.tsv").terms == expected
    (tmp_path / "a.csv").write_text('bank,"Ufer, Strand"\n', "utf-8")
    assert Glossary(str(tmp_path / "a.csv")).terms == {"bank": "Ufer, Strand"}
    # As spreadsheets write them, in Europe and as "Unicode text".
    content = b"\xef\xbb\xbfbank;Ufer, Strand\r\n\r\negg;Ei\r\n"
    (tmp_path / "c.csv").write_bytes(content)
    assert Glossary(tmp_path / "c.csv").terms == {"bank": "Ufer, Strand", "egg": "Ei"}
    (tmp_path / "c.tsv").write_bytes("bank\tUfer\r\n".encode("utf-16"))
    assert Glossary(tmp_path / "c.tsv").terms == {"bank": "Ufer"}
    (tmp_path / "b.tsv").write_bytes(b"bank\tUfer\negg\tK\xe4se\n")
    with pytest.raises(ValueError, match="b.tsv, line 2: byte 6.*iconv"):
        Glossary(tmp_path / "b.tsv")
    (tmp_path / "b.tsv").write_text("bank\tUfer\nbank Ufer\n", "utf-8")
    with pytest.raises(ValueError, match="b.tsv, line 2: a row must have a term"):
        Glossary(tmp_path / "b.tsv")
    with pytest.raises(ValueError, match=r"A glossary must be a .tsv or .csv file"):
        Glossary("terms.txt")
    with pytest.raises(ValueError, match="A glossary must have no blank terms"):
        Glossary({"bank": " "})
    with pytest.raises(TypeError, match="must map str to str; got 'bank': None"):
        Glossary({"bank": None})
    with pytest.raises(ValueError, match="no lone surrogates; got 'bank'"):
        Glossary({"bank": "\ud800"})


def test_terms_of_each_sentence_are_met(preset):
    translator = GlossaryTranslator(preset, TERMS)
    texts = [
        "Where is the station?",
        "It is late.",
        "Good morning! My dog is here.\n\n  I have a dog. ",
        "",
        "THE DOG IS BIG.",
    ]
    results = translator.translate(texts, return_attention=True)
    assert "Haltestelle" in results[0].text and results[0].source == texts[0]
    assert results[1].text == preset(texts[1])
    letter = results[2].text
    assert "Moin" in letter and letter.count("Köter") == 2
    assert letter.count("\n\n  ") == 1 and letter.endswith(" ")
    assert "KÖTER" in results[4].text and results[4].text.isupper()
    assert not any(result.unmet_terms for result in results)
    assert [str(r) for r in translator.bulk(iter(texts[:2]), 1)] == translator(
        texts[:2]
    )


def test_terms_of_several_words_and_characters_of_private_use(preset):
    terms = {"train station": "Haltestelle \u99c5", "cat": "so " * 9 + "so"}
    translator = GlossaryTranslator(preset.replace(protect="none"), terms)
    text = "I see the train station and a cat \U000f0000."
    result = translator.translate(text, return_attention=True)
    assert result.source == text and not result.unmet_terms
    assert all(t in result.text for t in (*terms.values(), "\U000f0000"))
    sources, targets = text.split(), result.text.split()
    pairs = {(sources[i], targets[j]) for i, j in result.hypotheses[0].alignment}
    assert {("train", "\u99c5"), ("cat", "so"), ("see", "sehe")} <= pairs
    greedy = translator.translate(text, beam_size=1)
    assert all(t in greedy.text for t in terms.values())


def test_terms_in_urls_placeholders_and_numbers_are_none(preset):
    translator = GlossaryTranslator(preset, {"bank": "Ufer", "42": "vierzig"})
    text = "See https://bank.com, {bank}, me@bank.org, 42.5 and 1.42."
    assert translator(text) == preset(text)
    assert translator.translate("The bank {bank}").text.count("Ufer") == 1


def test_a_language_model_has_no_glossary(preset):
    decoder = types.SimpleNamespace(continues_source=True)
    with pytest.raises(ValueError, match="`translator` must have a model with an enco"):
        GlossaryTranslator(types.SimpleNamespace(decoder=decoder), TERMS)


def test_terms_that_a_translation_lacks_are_reported(preset):
    translator = GlossaryTranslator(preset, TERMS)
    marked_text = translator._mark("The dog is at the station.")
    [_, station] = marked_text.terms
    result = preset.translate("The dog is at the station.")
    [hypothesis] = result.hypotheses
    partial = hypothesis._replace(text=f"Dort ist {station}.")
    unmarked = marked_text.unmark(result._replace(hypotheses=[partial]))
    assert unmarked.text == "Dort ist Haltestelle."
    assert unmarked.unmet_terms == {"dog": "Köter"}


def test_a_large_glossary_is_searched_in_a_moment():
    terms = {f"a x{n}": "b" for n in range(50_000)} | {"a": "c", "a X": "d"}
    places = Glossary(terms).places("A x7 a X, " * 1_000)
    assert [term for _, _, term in places] == ["a x7", "a X"] * 1_000


def test_terms_among_protected_spans_take_linear_time(preset):
    translator = GlossaryTranslator(preset, {".": "Punkt"})

    def seconds(count):
        text, begin = ".\U000f0000 " * count, time.process_time()
        assert translator._mark(text).text.count("\U000f0000") == count
        return time.process_time() - begin

    assert seconds(8_000) < 30 * max(seconds(1_000), 0.02)  # not 64 times


def test_terms_of_many_lengths_are_found_in_little_time():
    terms = ["a " * count + end for count in range(1, 100) for end in ("z", "zz")]
    glossary, begin = Glossary(dict.fromkeys(terms, "x")), time.process_time()
    assert glossary.find("a " * 3_000) == {}
    assert time.process_time() - begin < 0.5


def test_the_time_in_which_terms_are_found_counts(preset, monkeypatch):
    translator, timeouts = GlossaryTranslator(preset, TERMS), []
    places = translator.glossary.places

    def slow_places(text):
        time.sleep(0.2)
        return places(text)

    def translate(texts, timeout):
        timeouts.append(timeout)
        return texts

    monkeypatch.setattr(translator.glossary, "places", slow_places)
    monkeypatch.setattr(
        translator, "_marking", types.SimpleNamespace(translate=translate)
    )
    translator.translate(["a"], timeout=5)
    translator.translate(["a"], timeout=None)
    assert timeouts[0] < 4.9 and timeouts[1] is None
