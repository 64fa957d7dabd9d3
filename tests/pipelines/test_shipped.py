"""The models that come with the package, and what one of them shows."""

import gzip
import os
import re

import numpy as np
import pytest

import keras_tfm
from keras_tfm.pipelines import Translator
from tests.export.saved import serve
from tests.pipelines.test_translator import hostile

SHIPPED = keras_tfm.presets()
TRANSLATORS = [one for one in SHIPPED if one.task == "translation"]
CARDS = sorted({one.card for one in SHIPPED}, key=str)  # of one may be several
STATION = {
    "en": "Where is the station?",
    "de": "Wo ist der Bahnhof?",
    "fr": "O\u00f9 est la gare ?",
    "es": "\u00bfD\u00f3nde est\u00e1 la estaci\u00f3n?",
    "it": "Dov'\u00e8 la stazione?",
}
named = pytest.mark.parametrize("preset", SHIPPED, ids=lambda preset: preset.name)


@pytest.mark.backend("torch")
def test_they_are_small_and_the_languages_are_there():
    names = {"en-de", "de-en", "en-fr", "en-es", "fr-en", "es-en", "it-en"}
    names.add("sentiment-en")
    assert {one.name for one in SHIPPED} == names
    assert max(one.megabytes for one in SHIPPED) <= 12
    # Of one folder there may be several.
    assert sum({one.card: one.megabytes for one in SHIPPED}.values()) <= 40


@pytest.mark.backend("torch")
@named
def test_each_has_a_card_with_what_a_user_asks(preset):
    card = preset.card.read_text(encoding="utf-8")
    for score in preset.scores.values():
        assert f"{score:.2f}" in card
    assert preset.licence in card and "## Known weaknesses" in card
    assert preset.data and preset.parameters > 1e6


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.parent.name)
def test_what_a_card_shows_is_what_it_says(card, capsys):
    text = card.read_text(encoding="utf-8")
    [code] = re.findall("```python\n(.+?)```", text, re.DOTALL)
    exec(code, {})  # one of our own cards
    wanted = [line.split("  # ")[1] for line in code.splitlines() if "print(" in line]
    assert wanted and capsys.readouterr().out.splitlines() == wanted


@pytest.mark.backend("torch")  # the cards are run on all
@pytest.mark.parametrize("preset", TRANSLATORS, ids=lambda preset: preset.name)
def test_each_name_translates_between_its_languages(preset):
    source, target = preset.languages
    assert preset.name == f"{source}-{target}"
    said = Translator.from_preset(preset.name)(STATION[source])
    for other, same in (("Where's", "Where is"), ("O\u00f9 se trouve", "O\u00f9 est")):
        said = said.replace(other, same)
    assert said == STATION[target]


@pytest.mark.backend("torch")
@pytest.mark.parametrize("preset", TRANSLATORS, ids=lambda preset: preset.name)
def test_of_many_sentences_in_a_line_none_is_left_out(preset):
    translator = Translator.from_preset(preset.name)
    text = STATION[preset.languages[0]]
    found = translator(" ".join([text] * 20))
    assert found.count("?") == 20


@pytest.mark.backend("tensorflow")
def test_an_export_says_what_the_translator_says(data, tmp_path):
    folder = data / "multi30k" / "raw"
    file = next(iter(sorted(folder.glob("test*2016*.en*"))))
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8") as lines:
        sentences = [line.rstrip("\n") for line in lines]
    assert len(sentences) == 1000
    odd = hostile()
    draw = np.random.default_rng(1)
    letters = [
        *"aeinst ,.!",
        "\u00e4",
        "\u05d0",
        "\u0627",
        "\U0001f600",
        "\u4e2d",
        "\t",
    ]
    odd += ["".join(draw.choice(letters, size)) for size in range(1, 200 - len(odd))]
    odd.append(" ".join(sentences)[:30_000])
    assert len(odd) == 200 and len(odd[-1].split()) > 5_000
    # What is compiled is compared elsewhere; of so many lengths it takes
    # minutes, as tests do without optimisations. Nonsense goes on to its limit.
    settings = {"beam_size": 2, "max_decoding_length": 64}
    settings |= {"jit_compile": False, "few_programs": True}
    translator = Translator.from_preset("en-de", **settings)
    translator.export(tmp_path / "model")
    # Not a thousand parts beside one that is a thousand tokens long.
    odd.sort(key=len)
    short = sum(len(text) < 250 for text in odd)
    parts = [sentences[i : i + 250] for i in range(0, 1000, 250)]
    asked = [*parts, odd[:short], odd[short:-1], odd[-1:]]
    found = serve(tmp_path / "model", *(("serving_default", texts) for texts in asked))
    said = [text for one in found for text in one["translation"]]
    wanted = translator([*sentences, *odd])
    assert said == wanted
    import tensorflow as tf

    loaded = tf.saved_model.load(os.fspath(tmp_path / "model"))
    signature = loaded.signatures["serving_default"]
    found = signature(text=tf.constant([b"a \xff house"]))["translation"].numpy()
    assert found[0].decode() == translator("a \ufffd house")
