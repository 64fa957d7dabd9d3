"""The recipe, on a corpus small enough to wait for."""

import dataclasses
import json
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import sacrebleu

from keras_tfm import layers, models, pipelines, text
from keras_tfm.recipes import preset, translation

pytestmark = pytest.mark.backend("tensorflow", "torch")


# All about as long: each length is compiled by itself.
ANIMALS = {"cats": "Katzen", "dogs": "Hunde", "birds": "Vögel", "fish": "Fische"}
VERBS = {"have": "habe", "see": "sehe", "like": "mag"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A TSV of 600 pairs."""
    rows = [
        f"I {verb} {n} {animal}\tIch {ihr} {n} {tier}\n"
        for n in range(10, 60)
        for verb, ihr in VERBS.items()
        for animal, tier in ANIMALS.items()
    ]
    file = tmp_path_factory.mktemp("corpus") / "animals.tsv"
    file.write_text("".join(rows), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def settings(corpus, tmp_path_factory):
    return translation.Settings(
        data=str(corpus),
        out=str(tmp_path_factory.mktemp("run") / "de"),
        preset="small",
        num_layers=(1, 2),
        vocabulary_size=300,
        held_out=40,
        batch=256,
        epochs=2,
        peak_rate=4e-3,
        warmup=20,  # enough to end a sentence: long ones are compiled in stretches
        average=2,
        score_every=2,
        beam_size=2,
    )


@pytest.fixture(scope="module")
def result(settings):
    return translation.main(settings)


def _weights(model):
    return [keras.ops.convert_to_numpy(weight) for weight in model.weights]


def test_a_run_leaves_what_the_page_says(settings, result):
    out = translation.pathlib.Path(settings.out)
    left = {path.name for path in out.iterdir()}
    assert left >= {
        "model",
        "result.json",
        "translations.tsv",
        "curves.png",
        "attention.png",
        "tensorboard",
        "vocabulary.model",
        "settings.json",
    }
    stored = json.loads((out / "result.json").read_text())
    assert stored == json.loads(json.dumps(result))
    assert stored["bleu_signature"].startswith("nrefs:1|")
    assert stored["settings"]["seed"] == 0 and stored["versions"]["keras"]
    lines = (out / "translations.tsv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + result["test_pairs"] == 41


def test_what_is_saved_translates_as_the_run_did(settings, result):
    out = translation.pathlib.Path(settings.out)
    lines = (out / "translations.tsv").read_text(encoding="utf-8").splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    translator = pipelines.Translator.load(out / "model")
    assert translator([row[0] for row in rows]) == [row[2] for row in rows]


@pytest.mark.backend("torch")
def test_a_preset_is_made_of_a_run(settings, result, tmp_path):
    pytest.importorskip("ctranslate2")
    notes = tmp_path / "notes.md"
    notes.write_text("It knows animals alone.")
    out = tmp_path / "en-de"
    given = preset.Settings(
        settings.out, str(out), str(notes), example="I have 12 dogs"
    )
    described = preset.main(given)
    assert described == json.loads((out / "preset.json").read_text())
    assert described["languages"] == ["en", "de"]
    assert described["settings"]["beam_size"] == settings.beam_size
    model = pipelines.Translator.from_preset(out).model
    assert model.config["sequence_length"] == 1024
    assert abs(described["scores"]["BLEU"] - result["bleu"]) < 10  # of 8 bits
    card = (out / "README.md").read_text()
    assert 'from_preset("en-de")\nprint(translator("I have 12 dogs"))  # Ich' in card
    assert f"| float32, as trained | {result['bleu']:.2f} ±" in card
    assert "--num-layers 1 2 --vocabulary-size 300" in card
    assert "--out" not in card
    assert card.endswith("It knows animals alone.\n")
    assert settings.data not in card  # a path of this machine
    assert preset.in_words(["a", "b", "c"]) == "a, b and c"
    again = dataclasses.replace(settings, weights=str(out), dropout=0.1)
    assert translation.get_start(again).vocabulary.size == 300
    # With fewer positions it is smaller, and says how much it takes.
    shorter = dataclasses.replace(given, out=str(tmp_path / "short"), positions=64)
    assert preset.main(shorter)["settings"]["max_source_length"] == 64
    short = pipelines.Translator.from_preset(tmp_path / "short")
    assert short.max_source_length == 64 == short.model.config["sequence_length"]
    rows, _ = short.rows_of(["I have 12 dogs " * 40])  # longer ones are cut
    assert max(map(len, rows)) <= 64 < sum(map(len, rows))
    with pytest.raises(ValueError, match="--positions must be 1 or more. .*: 0"):
        preset.main(dataclasses.replace(shorter, positions=0))
    with pytest.raises(ValueError, match="has 0.1 MB at most"):
        preset.main(dataclasses.replace(given, most_megabytes=0.1))
    with pytest.raises(FileNotFoundError, match="is no finished run"):
        preset.main(dataclasses.replace(given, run=str(tmp_path)))


@pytest.mark.backend("torch")
def test_nothing_is_left_of_an_earlier_preset(tmp_path):
    preset.clear(tmp_path / "none")
    (tmp_path / "model.bin").touch()
    with pytest.raises(FileExistsError, match="something else.*'model.bin'"):
        preset.clear(tmp_path)
    assert (tmp_path / "model.bin").exists()
    (tmp_path / "preset.json").touch()
    preset.clear(tmp_path)
    assert not tmp_path.exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Animals in three languages, with what is held out of them."""
    folder = tmp_path_factory.mktemp("animals")
    rows = [(v, n, a) for n in range(10, 40) for v in VERBS for a in ANIMALS]
    np.random.default_rng(0).shuffle(rows)
    texts = {
        "en": [f"I {v} {n} {a}" for v, n, a in rows],
        "de": [f"Ich {VERBS[v]} {n} {ANIMALS[a]}" for v, n, a in rows],
        "nl": [f"Ik {v}e {n} {a}en" for v, n, a in rows],
    }
    for language, lines in texts.items():
        parts = {"train": lines[40:], "val": lines[:20], "test": lines[20:40]}
        for part, some in parts.items():
            file = folder / f"{part}.{language}"
            file.write_text("".join(f"{line}\n" for line in some), encoding="utf-8")
    return folder


def several(settings, folder, out, **changes):
    return dataclasses.replace(
        settings,
        data=str(folder),
        out=str(out),
        epochs=6,
        average=1,
        score_every=6,
        vocabulary_size=310,
        **changes,
    )


@pytest.mark.backend("torch")
def test_one_model_has_several_targets(settings, folder, tmp_path):
    pytest.importorskip("ctranslate2")
    run, out = tmp_path / "run", tmp_path / "en-de"
    given = several(settings, folder, run, more_targets=("nl",), joined=0.1)
    corpus = translation.load_corpus(given)
    count, longer = 320, 32
    assert len(corpus.train) == 2 * (count + longer)
    first, second = corpus.train.source[0], corpus.train.source[count]
    assert first.startswith("<2de> I ") and second == first.replace("de", "nl")
    assert all(source.count("<2") == 1 for source in corpus.train.source)
    assert not any("<" in one for one in corpus.validation.source + corpus.test.source)
    result = translation.main(given)
    translator = pipelines.Translator.from_preset(run)
    said = translator(corpus.test.source)
    shown = (run / "translations.tsv").read_text(encoding="utf-8").splitlines()[1:]
    assert said == [line.split("\t")[2] for line in shown]
    dutch = pipelines.Translator.from_preset(run, target_language="nl")
    words = {"de": {"Ich"}, "nl": {"Ik"}}
    assert {text.split()[0] for text in said} == words["de"]
    assert {text.split()[0] for text in dutch(corpus.test.source)} == words["nl"]
    described = preset.main(
        preset.Settings(str(run), str(out), example="I see 12 cats")
    )
    assert set(described["directions"]) == {"en-nl"}
    scores = described["directions"]["en-nl"]["scores"]
    assert scores["BLEU"] > 5 < result["bleu"] and described["marks"]
    assert described["settings"].get("source_prefix") is None
    card = (out / "README.md").read_text()
    assert "from en to de and nl: " in card
    assert "\n| en-nl, int8_float16, as here | " in card
    call = '("en-de", target_language="nl")\nprint(translator("I see 12 cats"))'
    assert f"{call}  # Ik " in card
    assert ", and on those of the others" in card and " --more-targets nl " in card
    # A preset is called after any of its directions.
    other = preset.main(preset.Settings(str(run), str(tmp_path / "en-nl")))
    assert other["languages"] == ["en", "nl"]
    assert other["scores"] == scores and set(other["directions"]) == {"en-de"}
    first = {"languages": ["en", "de"], "scores": described["scores"]}
    assert other["directions"]["en-de"] == first
    found = pipelines.Translator.from_preset(tmp_path / "en-nl")(corpus.test.source)
    assert {text.split()[0] for text in found} == words["nl"]
    # Only a model with all the marks goes on.
    more = dataclasses.replace(given, weights=str(out), out=str(tmp_path / "more"))
    more = dataclasses.replace(more, num_layers=None, preset=None, vocabulary_size=None)
    vocabulary = translation.get_start(
        dataclasses.replace(more, dropout=0.0)
    ).vocabulary
    translation.check_marks(more, vocabulary)
    with pytest.raises(ValueError, match="those of de, nl, and no --more-targets"):
        translation.check_marks(dataclasses.replace(more, more_targets=()), vocabulary)
    more = dataclasses.replace(more, more_targets=("nl", "fr"))
    with pytest.raises(ValueError, match=r"of \['de', 'nl'\] and not of \['fr'\]"):
        translation.check_marks(more, vocabulary)


@pytest.mark.backend("torch")
def test_one_model_has_several_sources(settings, folder, tmp_path):
    pytest.importorskip("ctranslate2")
    run, out = tmp_path / "run", tmp_path / "de-en"
    names = {"source": "de", "target": "en"}
    given = several(settings, folder, run, more_sources=("nl",), **names)
    corpus = translation.load_corpus(given)
    assert len(corpus.train) == 640 and "<" not in " ".join(corpus.train.source)
    assert {one.split()[0] for one in corpus.train.source} == {"Ich", "Ik"}
    translation.main(given)
    described = preset.main(preset.Settings(str(run), str(out), example="Ich habe 9"))
    assert set(described["directions"]) == {"nl-en"}
    assert described["directions"]["nl-en"]["scores"]["BLEU"] > 5
    assert not described["marks"]
    card = (out / "README.md").read_text()
    assert "from de and nl to en: " in card and " --more-sources nl " in card


@pytest.mark.backend("torch")
@pytest.mark.parametrize(("targets", "most"), [((), 1_024), (("nl",), 1_022)])
def test_what_is_too_long_to_be_translated_is_refused(settings, folder, targets, most):
    """With its mark, which is two pieces."""
    given = dataclasses.replace(settings, data=str(folder), more_targets=targets)
    corpus = translation.load_corpus(given)
    vocabulary = text.Vocabulary.train(
        corpus.train.source, size=310, exact=False, languages=("de", "nl")
    )
    words = " ".join(corpus.train.source).split()
    word = next(word for word in words if len(vocabulary.encode([word])[0]) == 1)
    for words, refused in ((most, False), (most + 1, True)):
        corpus.test.source[3] = " ".join([word] * words)
        [row] = vocabulary.encode([corpus.test.source[3]])
        assert len(row) == words
        if refused:
            message = r"at most 1,024 tokens.*1,025 in pair 4 of the test part"
            with pytest.raises(ValueError, match=message):
                translation.check_lengths(given, corpus, vocabulary)
        else:
            translation.check_lengths(given, corpus, vocabulary)


@pytest.mark.backend("torch")
def test_languages_more_are_checked(settings, folder):
    for changes, message in (
        ({"more_targets": ("fr",)}, "of a corpus by name or of a folder.*animals.tsv"),
        ({"more_targets": ("fr",), "more_sources": ("it",)}, "Train two models"),
        (
            {"more_sources": ("de",), "data": "tatoeba"},
            "named once. Received: en, de, de",
        ),
        ({"more_targets": ("f r",), "data": "tatoeba"}, "named by a code.*'f r'"),
    ):
        with pytest.raises(ValueError, match=message):
            translation.check(dataclasses.replace(settings, **changes))


@pytest.mark.backend("torch")
def test_a_card_names_files_without_their_folders(settings):
    given = dataclasses.replace(settings, data="/a/b.de,/a/b.en", additional="/c/d.tsv")
    flags = preset.flags(given, translation.Settings())
    assert " --data b.de,b.en --additional d.tsv " in flags and "/" not in flags
    stored = json.loads(json.dumps({"settings": dataclasses.asdict(given)}))
    assert preset.settings_of(translation, stored) == given  # tuples, not lists


@pytest.mark.backend("torch")
def test_joined_pairs_are_trained_on_and_nothing_else_changes(settings):
    plain = translation.load_corpus(settings)
    more = translation.load_corpus(dataclasses.replace(settings, joined=0.1))
    count = round(0.1 * len(plain.train))
    assert list(more.train)[:-count] == list(plain.train)
    assert list(more.test) == list(plain.test)
    assert list(more.validation) == list(plain.validation)
    assert f"{count:,} pairs are two to four joined." in more.notes
    assert translation.spaceless("zh_Hans") and not translation.spaceless("de")


@pytest.mark.backend("torch")
def test_pairs_without_marks_are_none_of_those_held_out(settings, tmp_path):
    rows = [f"I have {n} cats.\tIch habe {n} Katzen.\n" for n in range(100, 180)]
    rows += [f"I have {n} cats\tIch habe {n} Katzen!\n" for n in range(140, 180)]
    file = tmp_path / "marks.tsv"
    file.write_text("".join(rows), encoding="utf-8")
    given = dataclasses.replace(settings, data=str(file), unpunctuated=1.0)
    plain = translation.load_corpus(dataclasses.replace(given, unpunctuated=0.0))
    corpus = translation.load_corpus(given)
    made = list(corpus.train)[len(plain.train) :]
    assert list(corpus.train)[: len(plain.train)] == list(plain.train)
    assert f"{len(made):,} pairs are without the mark at their end." in corpus.notes
    assert len(made) > 20 and not any("." in text for pair in made for text in pair)
    held_out = {*corpus.test.source, *corpus.validation.source}
    assert held_out.isdisjoint(source for source, _ in made)
    bare = {text.rstrip(".") for text in plain.train.source if text.endswith(".")}
    assert held_out & bare  # of which some would have been made


@pytest.mark.backend("torch")
def test_a_second_start_goes_on(settings, result, capsys):
    assert result["epochs_averaged"] == 2
    longer = dataclasses.replace(settings, epochs=3, cooldown=1, average=5)
    again = translation.main(longer)
    printed = capsys.readouterr().out
    assert "Continuing the run" in printed
    assert "Epoch 3/3" in printed and "Epoch 2/3" not in printed
    assert again["epochs_averaged"] == 3  # the first was still there
    with pytest.raises(ValueError, match="a run of 3 epochs already. .*--epochs 2"):
        translation.main(settings)


@pytest.mark.backend("torch")
def test_a_run_starts_from_another(settings, result, tmp_path, capsys):
    given = dataclasses.replace(
        settings,
        weights=settings.out,
        out=str(tmp_path / "finer"),
        preset=None,
        num_layers=None,
        vocabulary_size=None,
        epochs=1,
        average=1,
        dropout=0.3,
        precision="mixed_bfloat16",
    )
    start = translation.get_start(given)
    begun = translation.make_model(given, start.vocabulary, start)
    assert begun.config["dropout"] == 0.3
    assert begun.dtype_policy.name == "mixed_bfloat16"
    out = translation.pathlib.Path(settings.out)
    first = _weights(pipelines.Translator.load(out / "model").model)
    assert all(map(np.array_equal, _weights(begun), first))
    # At next to no rate it ends as what it started from, not as a new model.
    finer = translation.main(dataclasses.replace(given, peak_rate=1e-7))
    assert finer["settings"]["preset"] is None
    model = pipelines.Translator.load(tmp_path / "finer" / "model").model
    assert model.dtype_policy.name == "float32"
    saved = _weights(model)
    for mine, theirs in zip(saved, first, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)
    mine = (tmp_path / "finer" / "vocabulary.model").read_bytes()
    assert mine == (out / "vocabulary.model").read_bytes()
    # A second start goes on with its own weights.
    capsys.readouterr()
    translation.main(dataclasses.replace(given, peak_rate=1e-7, epochs=2))
    assert "Continuing the run" in capsys.readouterr().out


@pytest.mark.backend("torch")
def test_a_start_without_the_recipe_s_shape_is_refused(settings, corpus, tmp_path):
    lines = corpus.read_text(encoding="utf-8").splitlines()
    vocabulary = text.Vocabulary.train(lines, size=300)
    untied = models.transformer_tiny(300, num_layers=1, tie=None)
    pipelines.Translator(untied, vocabulary).save(tmp_path / "untied")
    given = dataclasses.replace(
        settings,
        weights=str(tmp_path / "untied"),
        preset=None,
        num_layers=None,
        vocabulary_size=None,
    )
    with pytest.raises(ValueError, match="embedding is also its projection.*untied"):
        translation.get_start(given)
    tied = models.transformer_tiny(300, num_layers=1)
    for number, marks in enumerate(
        ({"source_suffix": [3]}, {"source_prefix": [9]}, {"target_prefix": [9]})
    ):
        start = tmp_path / str(number)
        pipelines.Translator(tied, vocabulary, **marks).save(start)
        given = dataclasses.replace(given, weights=str(start))
        with pytest.raises(ValueError, match=f"no mark.*{[*marks][0]}': .[39]"):
            translation.get_start(given)


@pytest.mark.backend("torch")
def test_what_a_start_has_no_positions_for_is_left_out(settings, tmp_path, capsys):
    lines = [f"ab {i}\t{'ba ' * (2 + i % 3 * 10)}{i}\n" for i in range(80)]
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(lines))
    vocabulary = text.Vocabulary.train(lines, size=280, exact=False)

    def begin(name, **options):
        model = models.transformer_tiny(vocabulary.size, num_layers=1, **options)
        pipelines.Translator(model, vocabulary).save(tmp_path / name)

    begin("start", positions=layers.LearnedPositions(12))
    fresh = {"preset": None, "num_layers": None, "vocabulary_size": None}
    given = dataclasses.replace(
        settings,
        data=str(file),
        weights=str(tmp_path / "start"),
        out=str(tmp_path / "run"),
        held_out=10,
        epochs=1,
        average=1,
        **fresh,
    )
    result = translation.main(given)
    assert result["pairs"] == 60 and "drop" in capsys.readouterr().out
    file.write_text("".join(f"{'ab ' * 20}{i}\tba {i}\n" for i in range(80)))
    with pytest.raises(ValueError, match="Sources of at most 12 tokens"):
        translation.main(dataclasses.replace(given, out=str(tmp_path / "other")))
    begin("sinusoids", sequence_length=12)  # of which there are as many as one likes
    given = dataclasses.replace(given, weights=str(tmp_path / "sinusoids"))
    assert translation.positions(translation.get_start(given)) is None


@pytest.mark.backend("torch")
def test_a_cooldown_is_counted_in_epochs(settings, result):
    out = translation.pathlib.Path(settings.out)
    vocabulary = text.Vocabulary.load(out / "vocabulary.model")
    given = dataclasses.replace(settings, epochs=3, cooldown=1, dropout=0.1)
    model = translation.make_model(given, vocabulary)
    network = translation.compile_network(given, model, steps=10)
    schedule = network.optimizer.get_config()["learning_rate"]["config"]
    assert (schedule["end"], schedule["cooldown"]) == (30, 10)
    with pytest.raises(ValueError, match="--cooldown 4, --epochs 3"):
        translation.main(dataclasses.replace(given, cooldown=4))
    with pytest.raises(ValueError, match="--joined is from 0 to 10. Received: -0.1"):
        translation.check(dataclasses.replace(settings, joined=-0.1))
    with pytest.raises(ValueError, match="--unpunctuated is from 0 to 1. .*: 1.5"):
        translation.check(dataclasses.replace(settings, unpunctuated=1.5))
    with pytest.raises(ValueError, match="--cooldown is 0 or more. Received: -1"):
        translation.main(dataclasses.replace(given, cooldown=-1))


@pytest.mark.backend("torch")
def test_a_recurrent_model_goes_through_the_same_steps(settings):
    out = settings.out + "-recurrent"
    few = {"epochs": 1, "average": 1, "held_out": 8, "beam_size": 1}
    few["num_layers"] = None
    other = dataclasses.replace(settings, model="recurrent", out=out, **few)
    result = translation.main(other)
    assert result["settings"]["model"] == "recurrent"
    translator = pipelines.Translator.load(translation.pathlib.Path(out) / "model")
    assert isinstance(translator.model, models.RecurrentSeq2Seq)
    assert (translation.pathlib.Path(out) / "attention.png").exists()


def test_another_setting_is_refused_before_anything_is_lost(settings, result):
    dropout = settings.dropout or translation.BY_SIZE["small"]["dropout"]
    other = dataclasses.replace(settings, dropout=0.25)
    with pytest.raises(ValueError, match=f"dropout: {dropout} before, 0.25 now"):
        translation.main(other)


def test_other_text_under_the_same_name_is_refused(settings, result, corpus):
    before = corpus.read_bytes()
    corpus.write_bytes(before.replace(b"\t", b"!\t", 1))
    try:
        with pytest.raises(ValueError, match="text_sha256: .* before, .* now"):
            translation.main(settings)
    finally:
        corpus.write_bytes(before)


def test_a_test_sentence_too_long_to_translate_is_refused_first(settings, tmp_path):
    for part, count in (("train", 400), ("val", 2), ("test", 3)):
        for side in ("en", "de"):
            lines = [f"{side} {part} word {i} of {count}" for i in range(count)]
            if (part, side) == ("test", "en"):
                lines[1] += " again" * 2_000
            (tmp_path / f"{part}.{side}").write_text("\n".join(lines) + "\n")
    other = dataclasses.replace(
        settings, data=str(tmp_path), out=str(tmp_path / "run"), vocabulary_size=300
    )
    with pytest.raises(ValueError, match="in pair 2 of the test part, 'en test word 1"):
        translation.main(other)


@pytest.mark.parametrize("preset", ["small", "tiny", "medium"])
def test_a_recurrent_model_has_about_as_many_weights(preset):
    network = models.RecurrentSeq2Seq(500, **translation.RECURRENT[preset])
    table = 500 * network.config["embedding_dim"]
    wanted = translation.PRESETS[preset](500).count_params() - table
    assert abs((network.count_params() - table) / wanted - 1) < 0.03


def test_defaults_hang_on_the_corpus():
    own = translation.Settings(data="pairs.tsv")
    small, large = (translation.complete(own, n) for n in (49_999, 50_000))
    assert small.vocabulary_size < large.vocabulary_size
    assert (small.cooldown, large.cooldown) == (0, 3)
    short = dataclasses.replace(own, epochs=4)
    assert translation.complete(short, 50_000).cooldown == 1
    # Where each shape of a batch is compiled there are few.
    compiled = dataclasses.replace(own, jit_compile=True)
    assert translation.complete(compiled, 50_000).num_buckets < large.num_buckets
    japanese = dataclasses.replace(own, target="ja-JP", batch=512)
    assert translation.complete(japanese, 1).bleu_tokenize == "char"
    assert translation.complete(japanese, 1).batch == 512
    several = dataclasses.replace(own, more_targets=("fr", "es"))
    assert translation.complete(several, 1).out == "runs/pairs-en-de+fr+es"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"preset": "huge"}, "--preset is one of .* Received: 'huge'"),
        ({"model": "gru"}, "--model is transformer or recurrent. Received: 'gru'"),
        ({"epochs": 0}, "--epochs must be 1 or more. Received: 0"),
        ({"held_out": 0}, "--held-out must be 1 or more. Received: 0"),
        ({"warmup": 0}, "--warmup must be 1 or more. Received: 0"),
        ({"dropout": 1.0}, "--dropout must be 0 or more and below 1. Received: 1.0"),
        ({"label_smoothing": -0.1}, "--label-smoothing must be 0 or more and below"),
        ({"peak_rate": -1.0}, "--peak-rate must be above 0. Received: -1.0"),
        ({"clip_norm": 0.0}, "--clip-norm must be above 0. Received: 0.0"),
        ({"subword_sampling": 2.0}, "--subword-sampling must be above 0 and at"),
        ({"weights": "x"}, r"With --from .*besides: {'preset': 'small', 'num_l"),
        ({"num_layers": (0, 2)}, "--num-layers are .* 1 or more .*Received: .0, 2"),
        ({"model": "recurrent"}, "--num-layers are .*Received: .*--model recurrent"),
    ],
)
def test_a_wrong_setting_is_refused(settings, tmp_path, changed, message):
    wrong = dataclasses.replace(settings, out=str(tmp_path / "run"), **changed)
    with pytest.raises(ValueError, match=message):
        translation.main(wrong)
    assert not (tmp_path / "run").exists()


@pytest.mark.backend("torch")
def test_help_explains_every_setting():
    command = [sys.executable, "-m", "keras_tfm.recipes.translation", "--help"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for field in dataclasses.fields(translation.Settings):
        name = "from" if field.name == "weights" else field.name
        assert "--" + name.replace("_", "-") in printed
    assert "Target tokens in a batch" in printed
    # What stands in lines of its own is not joined to one.
    assert "\n* Needs    see the table" in printed


def test_a_translator_cuts_what_is_longer_than_what_was_trained_on():
    sources = ["a house"] * 96 + ["a house and a boat and a garden"] * 4
    vocabulary = text.Vocabulary.train(sources, size=275, exact=False)
    corpus = types.SimpleNamespace(train=text.Pairs(sources, sources))
    short, long = map(len, vocabulary.encode(sources[:1] + sources[-1:]))
    assert translation.usual_length(corpus, vocabulary) == short < long


def test_chrf_has_an_interval_where_most_sentences_match_nothing():
    """sacrebleu's own raises a TypeError here."""
    found = ["qq", "ww", "the cat sat"]
    references = [["aa", "bb", "the cat sat"]]
    score = translation.Chrf().corpus_score(found, references, n_bootstrap=1000)
    assert 0 < score._ci < 100
    plain = sacrebleu.CHRF().corpus_score(found, references)
    assert score.score == pytest.approx(plain.score)


def test_a_run_that_fails_early_leaves_its_folder_free(tmp_path):
    settings = translation.Settings(
        data=str(tmp_path / "nothing.tsv"), out=str(tmp_path / "run")
    )
    with pytest.raises(ValueError, match="there is no"):
        translation.main(settings)
    assert not (tmp_path / "run").exists()
