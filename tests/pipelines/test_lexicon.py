"""Rare words are corrected by a lexicon."""

import os

import numpy as np
import pytest

from keras_tfm.decode.hypotheses import Hypotheses
from keras_tfm.pipelines import Lexicon, Translator, presets
from keras_tfm.pipelines.alignment import token_words
from keras_tfm.pipelines.finishing import finish_segment
from keras_tfm.pipelines.lexicon import are_related, words_of
from keras_tfm.pipelines.saving import read_words

pytestmark = pytest.mark.backend("torch")  # text, which no backend changes
WORDS = {"tip": ["mancia", "punta"], "ferry": ["traghetto"], "small": ["piccolo"]}
LEXICON = Lexicon({**WORDS, "give up": ["arrendersi"]}, ["la", "nel"])


@pytest.mark.parametrize(
    ("word", "second", "related"),
    [
        ("ruhigen", "Ruhig", True),
        ("Kopfkissen", "Kissen", True),
        ("Kirchturm", "Kirche", True),
        ("gata", "gato", True),
        ("nonma", "nonna", False),
        ("nonnoma", "nonna", False),
        ("Ferien", "Fähre", False),
        ("an", "and", False),
    ],
)
def test_forms_and_compounds_are_related(word, second, related):
    assert are_related(word, second) == are_related(second, word) == related


def test_words_have_their_number_and_place():
    words = words_of("«L'hôtel, c'est là-bas: dix-sept.»")
    assert [tuple(word) for word in words] == [
        (0, 3, "hôtel"),
        (1, 12, "est"),
        (2, 16, "là-bas"),
        (3, 24, "dix-sept"),
    ]


def test_a_text_of_one_entry_has_its_translation():
    assert LEXICON.whole("tip", "topo") == "mancia"
    assert LEXICON.whole("¡Tip!", "Topo!") == "Mancia!"
    assert LEXICON.whole("Tip!", "¡Topo") == "¡Mancia!"
    assert LEXICON.whole("Tip", "...") == "Mancia"
    assert LEXICON.whole("\u201eTip\u201c", "Topo") == "\u201eMancia\u201c"
    assert LEXICON.whole("\u201eTip\u201c", "\u00abTopo") == "\u00abMancia\u201c"
    assert LEXICON.whole("Tip!", "Topo\u00a0!") == "Mancia\u00a0!"
    assert LEXICON.whole("tip", "la punta") == "la punta"
    assert LEXICON.whole("give up.", "dare su") == "arrendersi."
    assert LEXICON.whole("tip", "la punta del naso") == "mancia"
    assert LEXICON.whole("ferry", "traghetti") == "traghetto"
    assert LEXICON.whole("a tip", "topo") is None
    assert LEXICON.whole("...", "...") is None


def corrected(source, target, links):
    missing = LEXICON.missing(source, target)
    edits = LEXICON.corrections(missing, source, target, links)
    for edit in sorted(edits, reverse=True):
        target = target[: edit.begin] + edit.text + target[edit.end :]
    return target


def test_the_word_that_attends_to_a_missing_one_is_replaced():
    links = [(1, 0), (2, 1), (0, 2), (3, 3)]
    source = "Is the tip included?"
    assert corrected(source, "Il topo è incluso?", links) == "Il mancia è incluso?"
    assert corrected(source, "Il topo, è?", links) == "Il mancia, è?"
    assert corrected(source, "La punta è inclusa?", links) == "La punta è inclusa?"
    # A first word has a capital; nothing attends to what was left out.
    assert corrected("ferry boats", "Ferro, navi", [(0, 0)]) == "Traghetto, navi"
    assert corrected(source, "È incluso?", [(0, 0), (3, 1)]) == "È incluso?"


def test_some_words_are_never_replaced():
    assert corrected("the tip", "nel naso", [(1, 0)]) == "nel naso"  # frequent
    # A translation of another word, and a name that was copied
    text = corrected("the small tip", "il piccola", [(2, 1)])
    assert text == "il piccola"
    assert corrected("My tip: Rome", "Il mio: Rome", [(1, 2)]) == "Il mio: Rome"


def test_two_words_replace_two_words():
    links = [(0, 0), (1, 0), (1, 1)]
    assert corrected("ferry tip", "ferro topo", links) == "traghetto mancia"


def test_a_name_that_was_copied_is_not_missing():
    lexicon = Lexicon({"jack": ["Herzbube"], "butcher": ["Metzger"]})
    for target in ("Ich sah Jack.", "Jacks Auto ist rot."):
        assert lexicon.missing("I saw Jack.", target) == []
    assert lexicon.missing("I saw a jack.", "Ich sah Jack.")
    text = "I saw Butcher."
    assert lexicon.missing(text, "Ich sah Butcher.") == []
    assert lexicon.missing(text, "Ich sah Butcher.", lambda word: False)


def test_translations_of_several_words_are_for_whole_texts():
    lexicon = Lexicon({"aufstehen": ["get up"], "hemd": ["shirt", "polo neck"]})
    assert lexicon.missing("Ich will aufstehen.", "I want to go.") == []
    assert lexicon.whole("aufstehen", "to go") == "get up"
    assert lexicon.missing("Ein Hemd", "A polo") == []
    assert lexicon.missing("Ein Hemd", "A shoe")


def test_frequent_words_are_no_translations():
    lexicon = Lexicon({"bone": ["Knochen"], "out": ["aus", "heraus"]}, ["noch", "aus"])
    assert lexicon.missing("He has a bone.", "Er hat noch den Bon.")
    assert lexicon.missing("Get out!", "Geh!") == []


def test_a_lexicon_is_read_as_it_was_written(tmp_path):
    file = tmp_path / "lexicon.tsv"
    LEXICON.save(file)
    read = Lexicon.load(file)
    assert read == LEXICON and hash(read) == hash(LEXICON)
    reverse = Lexicon(dict(reversed(LEXICON.translations.items())), ["la", "nel"])
    assert reverse == LEXICON and hash(reverse) == hash(LEXICON)
    assert repr(read) == "<Lexicon: 4 words>" and read != Lexicon(WORDS)


@pytest.mark.parametrize("lexicon", [Lexicon({}), Lexicon({"BZh": ["x"]})])
def test_any_lexicon_can_be_read(lexicon, tmp_path):
    lexicon.save(tmp_path / "lexicon.tsv")
    assert Lexicon.load(tmp_path / "lexicon.tsv") == lexicon


@pytest.mark.parametrize("text", ["a\tb", "a\nb", "a\rb", "\ufeffa"])
def test_characters_that_a_file_cannot_hold_are_rejected(text):
    for arguments in (({text: ["x"]},), ({"x": [text]},), ({}, [text])):
        with pytest.raises(ValueError, match="no tabs, line breaks"):
            Lexicon(*arguments)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"tip\tmancia\ntip\tpunta\n", "line 2 has the word 'tip' again"),
        (b"tip\n", "must have a translation of each word; got 'tip'"),
        (b"tip\t \n", "no blank words"),
        (b"tip\t\xff\n", "lexicon.tsv"),
    ],
)
def test_a_damaged_lexicon_is_named(tmp_path, content, message):
    file = tmp_path / "lexicon.tsv"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="lexicon.tsv") as error:
        Lexicon.load(file)
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["lexicon.tsv", "known_words.txt"])
def test_what_is_no_file_is_not_taken_for_a_missing_one(name, tmp_path):
    (tmp_path / name).symlink_to(tmp_path / "no-such-file")
    with pytest.raises(FileNotFoundError, match=f"{name}.*which is no file"):
        read_words(tmp_path)
    (tmp_path / name).unlink()
    assert read_words(tmp_path) == {}
    os.mkfifo(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=f"{name}.*which is no file"):
        read_words(tmp_path)


def test_wrong_arguments_are_rejected():
    with pytest.raises(TypeError, match="a list of translations for each word"):
        Lexicon({"tip": "mancia"})
    with pytest.raises(TypeError, match="must hold str; got 3"):
        Lexicon({"tip": [3]})
    with pytest.raises(TypeError, match="`frequent` must be a list"):
        Lexicon({}, "la")
    with pytest.raises(ValueError, match="lone surrogates"):
        Lexicon({"tip": ["\ud800"]})
    with pytest.raises(ValueError, match="`lexicon` must be a `Lexicon` or None"):
        Translator.from_preset("en-de", lexicon={"tip": ["Trinkgeld"]})


@pytest.fixture(scope="module")
def translator():
    words = {"ferry": ["Fähre"], "grandma": ["Oma"], "station": ["Bahnhof"]}
    return Translator.from_preset("en-de", lexicon=Lexicon(words))


def test_a_translator_corrects_words(translator):
    assert translator("ferry") == "Fähre"
    assert translator("Ferry!") == "Fähre!"
    text = "Where can I buy tickets for the ferry?"
    plain = translator.replace(lexicon=None)
    assert "Fähre" in translator(text) and "Fähre" not in plain(text)
    assert translator("WHERE IS THE STATION?") == "WO IST DER BAHNHOF?"
    assert "OMA" in translator("HAPPY BIRTHDAY, GRANDMA!")
    # Around protected spans
    assert translator("ferry 🎉") == "Fähre 🎉"
    assert "https://a.example" in translator("The ferry is at https://a.example.")


def test_prefixes_and_constraints_take_precedence(translator):
    for text in ("ferry", "ferry\nThe ferry is late.", "Where is the ferry?"):
        best = translator.translate(text, target_prefix="Die rote")
        assert best.text.startswith("Die rote")
        assert list(translator.stream(text, "Die rote"))[-1].startswith("Die rote")
        best = translator.translate(text, constraints=["Apfel", "Torf"])
        assert "Apfel" in best.text and "Torf" in best.text
    texts = translator.translate(["ferry", "ferry"], target_prefix=["Die rote", None])
    assert texts[0].text.startswith("Die rote") and texts[1].text == "Fähre"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("Die {}-Torfe weint.", "Die https://a.example-Torfe weint."),
        ("Die Torfe-{} weint.", "Die Torfe-https://a.example weint."),
        ("Die Torfer {} weint.", "Die Fähre https://a.example weint."),
    ],
)
def test_a_protected_span_is_not_corrected(translator, target, expected):
    [source] = translator.encode(["The ferry https://a.example waits."])
    [segment] = source.segments
    [stand_in] = segment.steps.stand_ins.values()
    [ids] = translator.target_vocabulary.encode([target.format(stand_in)])
    attention = np.zeros((1, 1, len(ids), len(segment.ids)), "float32")
    row = translator.config.without_affixes(segment.ids)
    words = np.array(token_words(translator.vocabulary, row))
    begin = len(translator.config.source_prefix)
    attention[..., begin : begin + len(row)] = words == 1  # "ferry"
    hypotheses = Hypotheses(
        np.array(ids, "int32")[None, None],
        np.zeros((1, 1), "float32"),
        np.array([[len(ids)]]),
        attention=attention,
    )
    finished = finish_segment(translator, segment, hypotheses)
    assert finished.texts == [expected]


def test_a_corrected_translation_has_scores_and_alignments(translator):
    text = "Where can I buy tickets for the ferry?"
    result = translator.translate(text, return_attention=True, num_hypotheses=2)
    assert len(result.hypotheses) == 2 and result.score < 0
    best = result.hypotheses[0]
    words = best.text.split()
    place = next(n for n, word in enumerate(words) if "Fähre" in word)
    assert (7, place) in best.alignment
    texts = {h.text for h in translator.translate("ferry", num_hypotheses=3).hypotheses}
    assert len(texts) > 1 and "Fähre" in texts
    longer = translator.replace(lexicon=Lexicon({"ferry": ["die große Fähre"]}))
    result = longer.translate("ferry", return_attention=True)
    assert result.text == "die große Fähre"
    assert result.hypotheses[0].alignment == [(0, 0), (0, 1), (0, 2)]
    assert list(translator.stream(text))[-1] == translator.replace(beam_size=1)(text)


def test_a_lexicon_is_saved_with_its_translator(translator, tmp_path):
    translator.save(tmp_path)
    loaded = Translator.load(tmp_path)
    assert loaded.config.lexicon.translations == translator.config.lexicon.translations
    assert loaded("ferry") == "Fähre"
    loaded.replace(lexicon=None).save(tmp_path)
    assert Translator.load(tmp_path).config.lexicon is None


def test_a_lexicon_is_for_one_target_language(tmp_path):
    spanish = Translator.from_preset("en-fr", target_language="es")
    spanish.save(tmp_path)
    assert Translator.from_preset(tmp_path).config.lexicon == spanish.config.lexicon
    french = Translator.from_preset(tmp_path, target_language="fr")
    assert french.config.lexicon is None
    tag = french.config.source_prefix
    assert spanish.replace(source_prefix=tag).config.lexicon is None
    with pytest.raises(ValueError, match="`source_prefix` must be a list"):
        spanish.replace(source_prefix=3)
    same_tag = spanish.replace(source_prefix=spanish.config.source_prefix)
    assert same_tag.config.lexicon == spanish.config.lexicon


def test_samples_are_not_corrected(translator):
    options = {"beam_size": 1, "sampling_topk": 0, "num_hypotheses": 4}
    samples = translator.translate("ferry", seed=1, **options).hypotheses
    assert len({sample.text for sample in samples}) > 1


def test_each_preset_has_the_lexicon_of_its_direction():
    expected = {"en-de": "Kissen", "en-fr": "oreiller", "en-es": "almohada"}
    for item in presets():
        if item.task != "translation":
            continue
        lexicon = Translator.from_preset(item.name).config.lexicon
        assert len(lexicon.translations) > 5_000
        if item.name in expected:
            assert expected[item.name] in lexicon.translations["pillow"]
    spanish = Translator.from_preset("en-fr", target_language="es").config.lexicon
    assert "almohada" in spanish.translations["pillow"]
