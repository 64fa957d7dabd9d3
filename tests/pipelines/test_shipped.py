"""The presets of the package and the examples on their cards."""

import re
import zlib

import pytest

import keras_tfm
from keras_tfm.pipelines import Classifier, Translator
from keras_tfm.pipelines.pretrained import SHIPPED

PRESETS = keras_tfm.presets()
TRANSLATORS = [item for item in PRESETS if item.task == "translation"]
CARDS = sorted({item.card for item in PRESETS}, key=str)  # presets may share a card
STATION = {
    "en": "Where is the station?",
    "de": "Wo ist der Bahnhof?",
    "fr": "O\u00f9 est la gare ?",
    "es": "\u00bfD\u00f3nde est\u00e1 la estaci\u00f3n?",
    "it": "Dov'\u00e8 la stazione?",
}
# The sentence of the lecture notes.
DIRECTOR = {
    "en": "Anthony Hopkins admired Michael Bay as a great director.",
    "de": "Anthony Hopkins hat Michael Bay als gro\u00dfen Regisseur bewundert.",
    "fr": "Anthony Hopkins admirait Michael Bay en tant que grand r\u00e9alisateur.",
    "es": "Anthony Hopkins admiraba a Michael Bay como un gran director.",
    "it": "Anthony Hopkins ammirava Michael Bay come un grande regista.",
}
every_preset = pytest.mark.parametrize(
    "preset", PRESETS, ids=lambda preset: preset.name
)


@pytest.mark.backend("torch")
def test_presets_are_small_and_cover_the_languages():
    names = {"en-de", "de-en", "en-fr", "en-es", "fr-en", "es-en"}
    names |= {"en-it", "it-en", "sentiment-en"}
    assert {item.name for item in PRESETS} == names
    assert max(item.megabytes for item in PRESETS) <= 12
    files = [path for path in SHIPPED.rglob("*") if path.is_file()]
    in_the_wheel = sum(len(zlib.compress(path.read_bytes())) for path in files)
    assert in_the_wheel <= 45e6


@pytest.mark.backend("torch")
def test_all_translators_have_the_steps_around_the_model():
    for item in PRESETS:
        if item.task == "translation":
            config = Translator.from_preset(item.name).config
            steps = (config.match_numbers, config.lower_capitals, config.add_final_mark)
            assert all(steps) and config.avoid_loops and config.protect == ("all",)
            assert len(config.known_words) > 10_000


@pytest.mark.backend("torch")
@every_preset
def test_each_card_has_scores_license_and_weaknesses(preset):
    card = preset.card.read_text(encoding="utf-8")
    for score in preset.scores.values():
        assert f"{score:.2f}" in card
    assert preset.license in " ".join(card.split())  # lines are wrapped
    assert "## Known weaknesses" in card
    assert preset.data and preset.parameters > 1e6


@pytest.mark.slow("tensorflow", "jax")
@pytest.mark.parametrize(
    "card",
    [
        pytest.param(
            card,
            # One card is enough to compare the backends.
            marks=[] if card.parent.name == "en-de" else pytest.mark.backend("torch"),
        )
        for card in CARDS
    ],
    ids=lambda card: card.parent.name,
)
def test_the_example_of_a_card_has_the_output_that_it_shows(card, capsys):
    text = card.read_text(encoding="utf-8")
    [code] = re.findall("```python\n(.+?)```", text, re.DOTALL)
    exec(code, {})  # code of a card of this repository
    expected = [line.split("  # ")[1] for line in code.splitlines() if "print(" in line]
    assert expected and capsys.readouterr().out.splitlines() == expected


@pytest.mark.backend("torch")
@pytest.mark.parametrize("preset", TRANSLATORS, ids=lambda preset: preset.name)
def test_each_name_translates_between_its_languages(preset):
    source, target = preset.languages
    assert preset.name == f"{source}-{target}"
    text = Translator.from_preset(preset.name)(STATION[source])
    for variant, expected in (
        ("Where's", "Where is"),
        ("train station", "station"),
        ("O\u00f9 se trouve", "O\u00f9 est"),
    ):
        text = text.replace(variant, expected)
    assert text == STATION[target]


@pytest.mark.backend("torch")
@pytest.mark.parametrize("preset", TRANSLATORS, ids=lambda preset: preset.name)
def test_names_of_people_are_kept(preset):
    translator = Translator.from_preset(preset.name)
    text = translator(DIRECTOR[preset.languages[0]])
    assert "Anthony Hopkins" in text and "Michael Bay" in text


@pytest.mark.backend("torch")
@pytest.mark.parametrize("preset", TRANSLATORS, ids=lambda preset: preset.name)
def test_no_sentence_of_a_long_line_is_omitted(preset):
    translator = Translator.from_preset(preset.name)
    text = STATION[preset.languages[0]]
    actual = translator(" ".join([text] * 20))
    assert actual.count("?") == 20


@pytest.mark.backend("torch")
def test_pipelines_say_what_they_are():
    translator = Translator.from_preset("en-de")
    kind = f"<Translator: Transformer, {translator.vocabulary!r}>"
    assert repr(translator) == kind
    classifier = Classifier.from_preset("sentiment-en")
    assert "classes ['negative', 'positive']" in repr(classifier)
