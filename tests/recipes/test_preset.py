"""Presets of runs: files, card and limits."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from keras import ops

from keras_tfm import pipelines, text
from keras_tfm.recipes import (
    classification,
    corpora,
    fine_tuning,
    known_words,
    preset,
    preset_cards,
    tokenization,
    translation,
)
from tests.recipes.animals import flags_for, write_films, write_tsv

pytestmark = pytest.mark.backend("torch")


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return flags_for(write_tsv(folder / "animals.tsv"), folder / "out")


@pytest.fixture(scope="module")
def result(flags):
    return translation.main(flags)


@pytest.fixture(scope="module")
def preset_flags(flags, result, tmp_path_factory):
    pytest.importorskip("ctranslate2")
    folder = tmp_path_factory.mktemp("preset")
    notes = folder / "notes.md"
    notes.write_text("It has seen animals only.")
    return preset.Flags(
        run=flags.out,
        out=str(folder / "en-de"),
        notes=str(notes),
        example="I have 12 dogs",
    )


@pytest.fixture(scope="module")
def description(preset_flags):
    return preset.main(preset_flags)


def test_a_preset_has_the_scores_and_arguments_of_its_run(
    flags, result, preset_flags, description
):
    out = pathlib.Path(preset_flags.out)
    assert description == json.loads((out / "preset.json").read_text())
    assert description["languages"] == ["en", "de"]
    assert description["arguments"]["beam_size"] == flags.beam_size
    suppressed = description["arguments"]["suppress_ids"]
    assert suppressed[:2] == [0, 2] and len(suppressed) == 2 + 256  # and all bytes
    # The scores of a preset are those of its 8-bit weights.
    assert abs(description["scores"]["BLEU"] - result["bleu"]) < 10
    translator = pipelines.Translator.from_preset(out)
    assert translator.model.config["sequence_length"] == 1024
    assert {"dogs", "have"} < set(translator.config.known_words)


def test_a_card_shows_scores_command_and_example(
    flags, result, preset_flags, description
):
    card = (pathlib.Path(preset_flags.out) / "README.md").read_text()
    assert 'from_preset("en-de")\nprint(translator("I have 12 dogs"))  # Ich' in card
    assert f"| float32, as trained | {result['bleu']:.2f} ±" in card
    assert "--num-layers 1 2 " in card and "--vocabulary-size 300 " in card
    assert "--out" not in card
    assert card.endswith("It has seen animals only.\n")
    assert flags.data not in card  # a path of this machine


def test_a_run_is_fine_tuned_from_a_preset(preset_flags, description):
    flags = translation.Flags(
        init_from=preset_flags.out, dropout=0.1, length_penalty=1.0
    )
    parent = fine_tuning.load_parent(flags)
    assert parent.vocabulary.size == 300
    # The steps around the model stay, and the words of the run are added.
    pairs = text.Pairs(["we have mice"] * 2, ["wir haben Mäuse"] * 2)
    corpus = corpora.Corpus("", "en", "de", pairs, pairs, pairs, "", "", [])
    model = translation.make_model(flags, parent.vocabulary, parent)
    tokens = tokenization.make(flags, corpus, pathlib.Path("unused"), parent)
    steps = fine_tuning.text_steps(flags, corpus, parent)
    config = translation.make_translator(flags, model, corpus, tokens, steps).config
    assert set(config.known_words) > {"mice", "we", "dogs"}
    for name in ("protect", "match_numbers", "add_final_mark", "final_mark_words"):
        assert getattr(config, name) == getattr(parent.config, name)
    assert config.match_numbers and config.final_mark_words == 3


def test_fine_tuning_learns_the_words_of_its_corpus_once(
    flags, preset_flags, description, tmp_path, monkeypatch
):
    out, counts, learn = tmp_path / "tuned", [], known_words.learned_words

    def counted(sources, targets):
        counts.append(len(sources))
        return learn(sources, targets)

    monkeypatch.setattr(known_words, "learned_words", counted)
    changes = dict.fromkeys(("size", "num_layers", "vocabulary_size"))
    result = translation.main(
        dataclasses.replace(
            flags, out=str(out), epochs=1, init_from=preset_flags.out, **changes
        )
    )
    assert counts == [result["pairs"]]
    assert "dogs" in (out / "model" / "known_words.txt").read_text().split()


def test_a_preset_without_steps_translates_text_as_it_is(
    preset_flags, description, tmp_path
):
    plain = dataclasses.replace(
        preset_flags, out=str(tmp_path / "plain"), text_steps=False, license="MIT"
    )
    stored = preset.main(plain)
    assert stored["license"] == "MIT"
    assert stored["arguments"]["suppress_ids"] == [0, 2]
    config = pipelines.Translator.from_preset(plain.out).config
    assert not config.has_steps and not config.known_words


def test_fewer_positions_shorten_the_longest_source(
    preset_flags, description, tmp_path
):
    out = tmp_path / "short"
    shorter = dataclasses.replace(preset_flags, out=str(out), positions=64)
    assert preset.main(shorter)["arguments"]["max_source_length"] == 64
    translator = pipelines.Translator.from_preset(out)
    assert translator.config.max_source_length == 64
    assert translator.model.config["sequence_length"] == 64
    [segmented] = translator.encode(["I have 12 dogs " * 40])
    lengths = [len(segment.ids) for segment in segmented.segments]
    assert max(lengths) <= 64 < sum(lengths)


def test_presets_beyond_their_limits_are_rejected(preset_flags, description, tmp_path):
    def changed(**changes):
        return dataclasses.replace(preset_flags, out=str(tmp_path / "out"), **changes)

    with pytest.raises(ValueError, match="--positions must be at least 1; got 0"):
        preset.main(changed(positions=0))
    with pytest.raises(ValueError, match="must have at most 0.1 MB; got "):
        preset.main(changed(max_megabytes=0.1))
    with pytest.raises(FileNotFoundError, match="--run must be .*a finished run"):
        preset.main(changed(run=str(tmp_path)))


def test_files_that_are_not_a_preset_are_never_deleted(tmp_path):
    preset.clear(tmp_path / "missing")
    (tmp_path / "model.bin").touch()
    with pytest.raises(FileExistsError, match=r"must be a new folder.*'model.bin'"):
        preset.clear(tmp_path)
    assert (tmp_path / "model.bin").exists()
    (tmp_path / "preset.json").touch()
    preset.clear(tmp_path)
    assert not tmp_path.exists()


def test_a_card_names_files_without_their_folders(flags):
    changed = dataclasses.replace(
        flags, data="/a/b.de,/a/b.en", additional_data="/c/d.tsv", jit_compile="on"
    )
    command = preset_cards.command_flags(changed)
    assert " --data b.de,b.en --additional-data d.tsv " in command
    assert "/" not in command
    assert command.count(" --jit-compile on") == 1
    stored = json.loads(json.dumps({"flags": dataclasses.asdict(changed)}))
    assert preset.stored_flags(translation, stored) == changed  # tuples, not lists


def test_cards_write_lists_and_missing_scores_in_words():
    assert preset_cards.enumerate_names(["a", "b", "c"]) == "a, b and c"
    assert preset_cards.enumerate_names(["a"]) == "a"
    columns = preset_cards.score_columns(None, "accuracy", "macro_f1")
    assert columns == "none | none"


def test_a_classifier_becomes_a_preset_in_16_bits(tmp_path):
    trained = classification.Flags(
        data=write_films(tmp_path / "texts.tsv", 300),
        out=str(tmp_path / "run"),
        size="tiny",
        batch_tokens=1024,
        epochs=5,
        learning_rate=2e-2,
        average_last=2,
    )
    result = classification.main(trained)
    run, out = tmp_path / "run" / "model", tmp_path / "films"
    flags = preset.Flags(
        run=trained.out, out=str(out), example="a lovely film", language="eo"
    )
    description = preset.main(flags)
    assert description == json.loads((out / "preset.json").read_text())
    assert description["languages"] == ["eo"]
    accuracy = description["scores"]["accuracy"]
    assert accuracy == pytest.approx(result["accuracy"], abs=5)
    card = (out / "README.md").read_text()
    assert 'from_preset("films")("a lovely film").label)  # good' in card
    low, high = result["accuracy_interval_95"]
    line = f"| float32, as trained | {result['accuracy']:.2f} ({low:.2f} to {high:.2f})"
    assert line in card
    assert trained.data not in card and "--size tiny" in card
    sizes = [(folder / "model.keras").stat().st_size for folder in (out, run)]
    assert sizes[0] < 0.7 * sizes[1]
    full, half = pipelines.Classifier.load(run), pipelines.Classifier.from_preset(out)
    for weight, half_weight in zip(full.model.weights, half.model.weights, strict=True):
        assert half_weight.dtype == weight.dtype == "float32"
        np.testing.assert_allclose(
            ops.convert_to_numpy(weight),
            ops.convert_to_numpy(half_weight),
            rtol=1e-3,
            atol=1e-6,
        )
    with pytest.raises(ValueError, match="must be float16 .*; got int8"):
        preset.main(dataclasses.replace(flags, quantization="int8"))
