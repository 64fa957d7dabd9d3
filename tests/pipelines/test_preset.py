"""Models by name: presets of the package, runs, and imported folders."""

import json

import numpy as np
import pytest

import keras_tfm
from keras_tfm import zoo
from keras_tfm.models import Encoder, SequenceClassifier
from keras_tfm.pipelines import Classifier, Preset, Translator, load
from keras_tfm.pipelines import pretrained as preset
from keras_tfm.text import Vocabulary
from tests.decode.conftest import draw_transformer
from tests.layers.formulas import draw_weights

pytestmark = pytest.mark.backend("torch")  # test_backends.py compares the backends

TEXTS = [f"{a} {b}" for a in ("one", "two", "three", "four") for b in ("dogs", "cats")]
SEARCH = {
    "beam_size": 2,
    "max_decoding_length": 8,
    "jit_compile": False,
    "suppress_ids": [0, 1, 2, *range(4, 260)],
}
DESCRIPTION = {
    "task": "translation",
    "languages": ["en", "de"],
    "parameters": 10_000,
    "license": "CC-BY 2.0 FR",
    "data": "Tatoeba",
    "scores": {"BLEU": 34.5},
    "arguments": SEARCH,
}


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.train(TEXTS * 20, size=277)


@pytest.fixture(scope="module")
def model(vocabulary):
    return draw_transformer(3, vocabulary_size=vocabulary.size)


@pytest.fixture
def presets_folder(tmp_path, monkeypatch, model, vocabulary):
    """A package with one model for translation and one for classification."""
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr(preset, "SHIPPED", tmp_path)
    folder = tmp_path / "en-de"
    zoo.to_ctranslate2(model, vocabulary, folder, quantization="int8")
    (folder / "preset.json").write_text(json.dumps(DESCRIPTION))
    (folder / "README.md").write_text("# en-de\n")
    classifier(vocabulary).save(tmp_path / "mood")
    description = {**DESCRIPTION, "task": "classification", "languages": ["en"]}
    description["arguments"] = {"max_length": 20}
    (tmp_path / "mood" / "preset.json").write_text(json.dumps(description))
    return tmp_path


def classifier(vocabulary):
    encoder = Encoder(
        vocabulary.size,
        num_layers=1,
        embedding_dim=8,
        intermediate_dim=12,
        num_heads=2,
        dropout=0.0,
    )
    network = draw_weights(SequenceClassifier(encoder, 2))
    return Classifier(network, vocabulary, ["good", "bad"])


def test_presets_of_the_package_are_listed(presets_folder):
    actual = keras_tfm.presets()
    assert [item.name for item in actual] == ["en-de", "mood"]
    first = actual[0]
    assert isinstance(first, Preset)
    assert first.languages == ("en", "de") and first.scores == {"BLEU": 34.5}
    size = sum(file.stat().st_size for file in (presets_folder / "en-de").iterdir())
    assert abs(first.megabytes - size / 1e6) <= 0.05
    assert first.card.read_text() == "# en-de\n"


def test_a_model_of_several_languages_has_a_name_for_each(presets_folder):
    file = presets_folder / "en-de" / "preset.json"
    # A preset with the name "mood" exists and takes precedence.
    french = {"languages": ["fr", "de"], "scores": {"BLEU": 12.5}}
    directions = {"directions": {"fr-de": french, "mood": french}}
    file.write_text(json.dumps({**DESCRIPTION, **directions}))
    first, second, third = keras_tfm.presets()
    assert third.task == "classification"
    assert (first.name, second.name) == ("en-de", "fr-de")
    assert second.languages == ("fr", "de") and second.scores == {"BLEU": 12.5}
    assert second.card == first.card and second.license == first.license
    from_english, from_french = map(Translator.from_preset, ("en-de", "fr-de"))
    assert from_english.changes() == from_french.changes()
    assert from_english(TEXTS) == from_french(TEXTS)


def test_a_model_of_several_targets_has_their_tags(presets_folder, model, tmp_path):
    tagged = Vocabulary.train(TEXTS, size=model.vocabulary_size, languages=["de", "fr"])
    folder = tmp_path / "en-de"
    zoo.to_ctranslate2(model, tagged, folder, quantization="int8")
    file = folder / "preset.json"
    file.unlink()
    # Without preset.json a target language is required.
    with pytest.raises(ValueError, match=r"requires `target_language`.*\['de', 'fr'\]"):
        Translator.from_preset(folder)
    bare = Translator.from_preset(folder, target_language="fr", **SEARCH)
    assert bare.config.source_prefix == tuple(tagged.languages["fr"])
    assert Translator.from_preset(folder, source_prefix=[7]).config.source_prefix == (
        7,
    )
    french = {"languages": ["en", "fr"], "scores": {"BLEU": 1.5}}
    additions = {"directions": {"en-fr": french}, "language_tags": True}
    file.write_text(json.dumps({**DESCRIPTION, **additions}))
    expected = {"en-de": tagged.languages["de"], "en-fr": tagged.languages["fr"]}
    assert expected["en-fr"][-1] == 5
    translations = {}
    for name, tag in expected.items():
        translator = Translator.from_preset(name)
        assert translator.config.source_prefix == tuple(tag)
        translations[name] = translator(TEXTS)
        assert keras_tfm.presets()[name == "en-fr"].languages == tuple(name.split("-"))
        # The text itself may contain the tag.
        plain = Translator.from_preset(name, source_prefix=[])
        assert plain([f"<2{name[-2:]}> {text}" for text in TEXTS]) == translations[name]
    assert translations["en-de"] != translations["en-fr"]
    actual = Translator.from_preset("en-de", target_language="fr")
    assert actual(TEXTS) == translations["en-fr"] == bare(TEXTS)
    actual.save(tmp_path / "saved")
    reloaded = Translator.from_preset(tmp_path / "saved")
    assert reloaded(TEXTS) == translations["en-fr"]
    reloaded = Translator.from_preset(tmp_path / "saved", target_language="de")
    assert reloaded(TEXTS) == translations["en-de"]
    file = tmp_path / "saved" / "preset.json"
    file.write_text(json.dumps({**DESCRIPTION, "language_tags": True}))
    reloaded = Translator.from_preset(tmp_path / "saved")  # its own tag
    assert reloaded.config.source_prefix == tuple(tagged.languages["fr"])
    for name_or_path in ("en-de", tmp_path / "saved"):
        with pytest.raises(ValueError, match="translates to de, fr; got.*'it'"):
            Translator.from_preset(name_or_path, target_language="it")
        with pytest.raises(ValueError, match=r"only the target.*'en'.*\['de', 'fr'\]"):
            Translator.from_preset(name_or_path, "en", "fr")


def test_a_shipped_model_translates_as_its_float_weights(
    presets_folder, model, vocabulary
):
    translator = Translator.from_preset("en-de")
    assert translator.decoder.options.beam_size == 2
    expected = Translator(model, vocabulary).replace(**SEARCH)
    actual, texts = translator(TEXTS), expected(TEXTS)
    assert len(set(texts)) > 1  # it can fail
    assert sum(a == b for a, b in zip(actual, texts, strict=True)) >= 6
    assert Translator.from_preset("en-de", beam_size=1).decoder.options.beam_size == 1


def test_a_shipped_classifier_labels(presets_folder, vocabulary):
    actual = Classifier.from_preset("mood")
    assert actual.max_length == 20
    expected = classifier(vocabulary).probabilities(TEXTS)
    np.testing.assert_allclose(actual.probabilities(TEXTS), expected, atol=1e-5)


def test_names_of_another_task_and_unknown_names_are_rejected(presets_folder):
    with pytest.raises(ValueError, match="'mood', which is for classification"):
        Translator.from_preset("mood")
    with pytest.raises(ValueError, match="'en-de', which is for translation"):
        Classifier.from_preset("en-de")
    with pytest.raises(
        ValueError, match=r"got 'en-fi'. .*Shipped .*'en-de': 'translation'"
    ):
        Translator.from_preset("en-fi")
    for name in (None, "", 7):
        with pytest.raises(ValueError, match=f"a str or a path; got {name!r} of"):
            Translator.from_preset(name)


def test_a_preset_object_is_accepted_as_a_name(presets_folder):
    first, second = keras_tfm.presets()
    assert Translator.from_preset(first).decoder.options.beam_size == 2
    assert Classifier.from_preset(second).classes == ["good", "bad"]


def test_the_error_names_a_truncated_configuration(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mar')
    with pytest.raises(ValueError, match="config.json cannot be read as JSON"):
        Translator.from_preset(tmp_path)


@pytest.mark.parametrize("inside", ["", "model"])
def test_a_run_and_a_saved_translator_are_presets(inside, tmp_path, model, vocabulary):
    expected = Translator(model, vocabulary).replace(**SEARCH)
    expected.save(tmp_path / inside)
    actual = Translator.from_preset(tmp_path, length_penalty=0.5)
    assert actual.changes() == {**expected.changes(), "length_penalty": 0.5}
    assert actual(TEXTS[0]) == expected(TEXTS[0])


def test_a_model_exported_to_ctranslate2_can_be_loaded(tmp_path, model, vocabulary):
    pytest.importorskip("ctranslate2")
    target_vocabulary = Vocabulary.train(
        TEXTS[::-1] * 9, size=vocabulary.size, model_type="bpe"
    )
    for target in (None, target_vocabulary):
        zoo.to_ctranslate2(model, vocabulary, tmp_path, target_vocabulary=target)
        actual = Translator.from_preset(tmp_path, **SEARCH)
        expected = Translator(model, vocabulary, target).replace(**SEARCH)
        assert actual(TEXTS) == expected(TEXTS)
        assert (tmp_path / "sentencepiece.model").exists() == (target is None)
    with pytest.raises(ValueError, match="one pair of languages.*'de'. Leave both out"):
        Translator.from_preset(tmp_path, target_language="de")


def test_a_ctranslate2_folder_without_a_vocabulary_is_rejected(
    tmp_path, model, vocabulary
):
    pytest.importorskip("ctranslate2")
    tokens = vocabulary.tokens(range(vocabulary.size))
    zoo.to_ctranslate2(model, vocabulary, tmp_path)
    zoo.to_ctranslate2(model, tokens, tmp_path)  # no file of the first remains
    with pytest.raises(ValueError, match="no vocabulary that can be read"):
        Translator.from_preset(tmp_path)


def test_formats_of_other_programs_are_recognized_by_their_files(tmp_path, monkeypatch):
    calls = []
    readers = "from_hugging_face from_keras_hub from_ctranslate2 from_marian"
    for name in readers.split():
        monkeypatch.setattr(zoo, name, lambda at, name=name: calls.append((name, at)))
    monkeypatch.setattr(preset, "_with_vocabulary", lambda model, _: (model, {}))
    monkeypatch.setattr(preset, "download", lambda name, files: tmp_path / name[5:])
    for name, files in {
        "transformers": {"config.json": '{"model_type": "marian"}'},
        "keras_hub": {"config.json": '{"class_name": "T5Backbone"}'},
        "ctranslate2": {"model.bin": "", "source_vocabulary.txt": ""},
        "marian": {"model.npz": "", "decoder.yml": "", "vocab.spm": ""},
        "firefox": {"model.ende.intgemm.alphas.bin": "", "vocab.ende.spm": ""},
    }.items():
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file).write_text(content)
        preset.resolve(tmp_path / name, "translation")
    preset.resolve("hf://transformers", "translation")
    preset.resolve("hf://keras_hub", "translation")
    assert calls == [
        ("from_hugging_face", tmp_path / "transformers"),
        ("from_keras_hub", tmp_path / "keras_hub"),
        ("from_ctranslate2", tmp_path / "ctranslate2"),
        ("from_marian", tmp_path / "marian"),
        ("from_marian", tmp_path / "firefox"),
        ("from_hugging_face", "hf://transformers"),
        ("from_keras_hub", tmp_path / "keras_hub"),
    ]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="does not hold a model of a recipe"):
        preset.resolve(tmp_path / "empty", "translation")
    (tmp_path / "empty" / "saved_model.pb").touch()
    with pytest.raises(FileNotFoundError, match="holds a SavedModel"):
        preset.resolve(tmp_path / "empty", "translation")


@pytest.mark.parametrize("pipeline", [Translator, Classifier])
def test_an_unfinished_run_has_the_weights_of_its_last_epoch(
    pipeline, model, vocabulary, tmp_path, caplog
):
    saved = classifier(vocabulary)
    if pipeline is Translator:
        saved = Translator(model, vocabulary)
    (tmp_path / "flags.json").touch()
    with pytest.raises(FileNotFoundError, match="a run that has not begun to train"):
        pipeline.from_preset(tmp_path)
    saved.save(tmp_path / "unfinished")
    with pytest.raises(FileNotFoundError, match="has not finished an epoch yet"):
        pipeline.from_preset(tmp_path)
    (tmp_path / "averages").mkdir()
    network = type(saved.model).from_config(saved.model.get_config())
    for number in (9, 10):
        network.set_weights([array + number for array in saved.model.get_weights()])
        network.save_weights(tmp_path / "averages" / f"epoch_{number:04d}.weights.h5")
    read = pipeline.from_preset(tmp_path)
    assert "has not finished: its weights after epoch 10" in caplog.text
    for actual, expected in zip(
        read.model.get_weights(), network.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(actual, expected)
    assert type(load(tmp_path)) is pipeline
    saved.save(tmp_path / "model")  # the run has finished
    for actual, expected in zip(
        pipeline.from_preset(tmp_path).model.get_weights(),
        saved.model.get_weights(),
        strict=True,
    ):
        np.testing.assert_array_equal(actual, expected)


def test_a_model_of_another_task_is_rejected(tmp_path, monkeypatch, vocabulary):
    imported = zoo.Imported(classifier(vocabulary).model, vocabulary, None)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    monkeypatch.setattr(preset, "download", lambda name, files: tmp_path)
    monkeypatch.setattr(zoo, "from_hugging_face", lambda name: imported)
    with pytest.raises(ValueError, match="generates text; got .*SequenceClassifier"):
        Translator.from_preset("hf://owner/name")
    with pytest.raises(ValueError, match="a model with classes"):
        Classifier.from_preset("hf://owner/name")
