"""The models that come with the package, and what one of them shows."""

import gzip
import os

import numpy as np
import pytest

import keras_tfm
from keras_tfm.serving import Classifier, Translator
from tests.serving.saved import serve
from tests.serving.test_translator import hostile

SHIPPED = keras_tfm.presets()
TRANSLATORS = [one for one in SHIPPED if one.task == "translation"]
CLASSIFIERS = [one for one in SHIPPED if one.task == "classification"]
named = pytest.mark.parametrize("preset", SHIPPED, ids=lambda preset: preset.name)


@pytest.mark.backend("torch")
def test_they_are_small_and_the_languages_are_there():
    names = {"en-de", "de-en", "fr-en", "es-en", "it-en", "sentiment-en"}
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


@pytest.mark.parametrize("preset", TRANSLATORS, ids=lambda preset: preset.name)
def test_a_translator_says_what_its_card_says(preset):
    card = preset.card.read_text(encoding="utf-8")
    [line] = [line for line in card.splitlines() if "print(Translator" in line]
    example, said = line.split('("')[-1].split('"))  # ')
    assert Translator.from_preset(preset.name)(example) == said


@pytest.mark.parametrize("preset", CLASSIFIERS, ids=lambda preset: preset.name)
def test_a_classifier_says_what_its_card_says(preset):
    card = preset.card.read_text(encoding="utf-8")
    [line] = [line for line in card.splitlines() if "print(Classifier" in line]
    example, said = line.split(')("')[-1].split('").label)  # ')
    assert Classifier.from_preset(preset.name)(example).label == said


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
    # So many lengths take minutes to compile, unless they share programs.
    translator = Translator.from_preset("en-de", few_programs=True)
    translator.export(tmp_path / "model")
    asked = [sentences[i : i + 250] for i in range(0, 1000, 250)] + [odd]
    found = serve(tmp_path / "model", *(("serving_default", texts) for texts in asked))
    said = [text for one in found for text in one["translation"]]
    wanted = translator([*sentences, *odd])
    assert said == wanted
    import tensorflow as tf

    loaded = tf.saved_model.load(os.fspath(tmp_path / "model"))
    signature = loaded.signatures["serving_default"]
    found = signature(text=tf.constant([b"a \xff house"]))["translation"].numpy()
    assert found[0].decode() == translator("a \ufffd house")
