"""The translation recipe, on a corpus that trains in seconds."""

import dataclasses
import json
import pathlib
import re
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import sacrebleu

from keras_tfm import layers, models, pipelines, text
from keras_tfm.recipes import (
    fine_tuning,
    length_limits,
    multilingual,
    tokenization,
    translation,
    translation_defaults,
    translation_scores,
)
from tests.recipes.animals import flags_for, write_tsv

pytestmark = pytest.mark.backend("tensorflow", "torch")
FINE_TUNED = {"size": None, "num_layers": None, "vocabulary_size": None}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_tsv(tmp_path_factory.mktemp("corpus") / "animals.tsv")


@pytest.fixture(scope="module")
def flags(corpus, tmp_path_factory):
    return flags_for(corpus, tmp_path_factory.mktemp("run") / "de")


@pytest.fixture(scope="module")
def result(flags):
    return translation.main(flags)


def weights_of(model):
    return [keras.ops.convert_to_numpy(weight) for weight in model.weights]


def test_a_run_writes_the_documented_files(flags, result):
    out = pathlib.Path(flags.out)
    assert not (out / "unfinished").exists()
    assert {path.name for path in out.iterdir()} >= {
        "model",
        "result.json",
        "translations.tsv",
        "curves.png",
        "attention.png",
        "tensorboard",
        "vocabulary.model",
        "flags.json",
    }
    stored = json.loads((out / "result.json").read_text())
    assert stored == json.loads(json.dumps(result))
    assert stored["bleu_signature"].startswith("nrefs:1|")
    assert stored["flags"]["seed"] == 0 and stored["versions"]["keras"]
    assert stored["training_flops"] > 6 * 0.1e6 * stored["target_tokens_seen"] > 0
    assert 1 < stored["validation_perplexity"] < 300
    lines = (out / "translations.tsv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + result["test_pairs"] == 41


def test_the_saved_translator_translates_as_the_run_did(flags, result):
    out = pathlib.Path(flags.out)
    lines = (out / "translations.tsv").read_text(encoding="utf-8").splitlines()[1:]
    sources, _, translations = zip(*(line.split("\t") for line in lines), strict=True)
    translator = pipelines.Translator.load(out / "model")
    assert translator(list(sources)) == list(translations)


@pytest.mark.backend("torch")
def test_further_test_sets_are_scored(flags, result, tmp_path):
    pairs = text.Pairs(["the dog sleeps.", "a cat eats."], ["x y", "z"])
    corpus = multilingual.load_corpus(flags)
    corpus = dataclasses.replace(corpus, more_tests={"test_b": pairs})
    complete = translation_defaults.complete(flags, len(corpus.train))
    translator = pipelines.Translator.load(pathlib.Path(flags.out) / "model")
    scores = translation_scores.evaluate(complete, translator, corpus, tmp_path)
    assert scores["bleu"] == result["bleu"] and "more_tests" not in result
    assert scores["more_tests"]["test_b"]["test_pairs"] == 2
    assert scores["more_tests"]["test_b"]["bleu"] < result["bleu"]
    rows = (tmp_path / "translations_test_b.tsv").read_text("utf-8").splitlines()
    assert rows[1].startswith("the dog sleeps.\tx y\t")


@pytest.mark.backend("torch")
def test_a_finished_run_resumes_with_more_epochs(flags, result, capsys):
    assert result["epochs_averaged"] == 2
    longer = dataclasses.replace(flags, epochs=3, cooldown_epochs=1, average_last=5)
    resumed = translation.main(longer)
    printed = capsys.readouterr().out
    assert "Resuming the run" in printed
    assert "Epoch 3/3" in printed and "Epoch 2/3" not in printed
    assert resumed["epochs_averaged"] == 3  # the first one was still there
    with pytest.raises(ValueError, match="`epochs` must be at least 3.*got 2"):
        translation.main(flags)


@pytest.mark.slow
@pytest.mark.backend("torch")
def test_an_interrupted_run_translates_and_ends_as_an_uninterrupted_run(
    flags, tmp_path, monkeypatch
):
    out = tmp_path / "run"
    whole, stopped = (
        dataclasses.replace(flags, out=str(folder), subword_sampling=0.3, save_every=9)
        for folder in (tmp_path / "whole", out)
    )
    expected = translation.main(whole)
    with monkeypatch.context() as patch:
        patch.setattr(translation.Trainer, "translate", interrupt)  # in epoch 2
        message = "resumes the run in .* in epoch 2, after 36 steps"
        with pytest.raises(KeyboardInterrupt, match=message):
            translation.main(stopped)
    unfinished = pipelines.Translator.from_preset(out)
    last = translation.training.average_weights(
        unfinished.model, [out / "averages" / "epoch_0001.weights.h5"]
    )
    assert all(map(np.array_equal, weights_of(unfinished.model), last))
    assert isinstance(unfinished("I have 12 cats"), str)
    resumed = translation.main(stopped)
    assert resumed["bleu"] == expected["bleu"]
    models_of_runs = [
        pipelines.Translator.from_preset(path).model for path in (out, whole.out)
    ]
    assert all(map(np.array_equal, *map(weights_of, models_of_runs)))


def interrupt(trainer, sentences):
    """Is pressed Ctrl-C while a validation set is translated."""
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.backend("torch")
def test_fine_tuning_starts_with_the_weights_of_its_parent(
    flags, result, tmp_path, capsys
):
    tuned = dataclasses.replace(
        flags,
        init_from=flags.out,
        out=str(tmp_path / "tuned"),
        epochs=1,
        average_last=1,
        dropout=0.3,
        precision="mixed_bfloat16",
        learning_rate=1e-7,
        **FINE_TUNED,
    )
    parent = fine_tuning.load_parent(tuned)
    initial = translation.make_model(tuned, parent.vocabulary, parent)
    assert initial.config["dropout"] == 0.3
    assert initial.dtype_policy.name == "mixed_bfloat16"
    out = pathlib.Path(flags.out)
    parent_weights = weights_of(pipelines.Translator.load(out / "model").model)
    assert all(map(np.array_equal, weights_of(initial), parent_weights))
    # With a learning rate near 0 the weights hardly change.
    assert translation.main(tuned)["flags"]["size"] is None
    model = pipelines.Translator.load(tmp_path / "tuned" / "model").model
    assert model.dtype_policy.name == "float32"
    for weight, parent_weight in zip(weights_of(model), parent_weights, strict=True):
        np.testing.assert_allclose(weight, parent_weight, atol=1e-4)
    vocabulary = pipelines.Translator.load(tmp_path / "tuned" / "model").vocabulary
    assert vocabulary.model == (out / "vocabulary.model").read_bytes()
    # A resumed run uses its own weights, not those of the parent.
    capsys.readouterr()
    translation.main(dataclasses.replace(tuned, epochs=2))
    assert "Resuming the run" in capsys.readouterr().out


@pytest.mark.backend("torch")
def test_pairs_beyond_learned_positions_are_dropped(flags, tmp_path, capsys):
    lines = [f"ab {i}\t{'ba ' * (2 + i % 3 * 10)}{i}\n" for i in range(80)]
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(lines))
    vocabulary = text.Vocabulary.train(lines, size=280, exact=False)

    def save_parent(name, **config):
        model = models.transformer_tiny(vocabulary.size, num_layers=1, **config)
        pipelines.Translator(model, vocabulary).save(tmp_path / name)
        return str(tmp_path / name)

    tuned = dataclasses.replace(
        flags,
        data=str(file),
        init_from=save_parent("learned", positions=layers.LearnedPositions(12)),
        out=str(tmp_path / "run"),
        held_out=10,
        epochs=1,
        average_last=1,
        **FINE_TUNED,
    )
    assert translation.main(tuned)["pairs"] == 60
    assert "drop" in capsys.readouterr().out
    file.write_text("".join(f"{'ab ' * 20}{i}\tba {i}\n" for i in range(80)))
    with pytest.raises(ValueError, match="Sources must have at most 12 tokens"):
        translation.main(dataclasses.replace(tuned, out=str(tmp_path / "other")))
    # A sinusoidal model has no limit, whatever its `sequence_length`.
    parent = save_parent("sinusoids", sequence_length=12)
    sinusoidal = fine_tuning.load_parent(dataclasses.replace(tuned, init_from=parent))
    assert length_limits.max_positions(tuned, sinusoidal) is None


@pytest.mark.backend("torch")
def test_the_cooldown_is_counted_in_epochs(flags, result):
    vocabulary = text.Vocabulary.load(pathlib.Path(flags.out) / "vocabulary.model")
    longer = dataclasses.replace(flags, epochs=3, cooldown_epochs=1, dropout=0.1)
    model = translation.make_model(longer, vocabulary)
    network = translation.compile_network(longer, model, steps_per_epoch=10)
    schedule = network.optimizer.get_config()["learning_rate"]["config"]
    assert (schedule["total_steps"], schedule["cooldown_steps"]) == (30, 10)
    with pytest.raises(ValueError, match="--cooldown-epochs .* --epochs 3; got 4"):
        translation.main(dataclasses.replace(longer, cooldown_epochs=4))


@pytest.mark.backend("torch")
def test_a_recurrent_model_can_be_trained(flags):
    out = pathlib.Path(flags.out + "-recurrent")
    recurrent = dataclasses.replace(
        flags,
        architecture="recurrent",
        out=str(out),
        epochs=1,
        average_last=1,
        held_out=8,
        beam_size=1,
        num_layers=None,
    )
    assert translation.main(recurrent)["flags"]["architecture"] == "recurrent"
    translator = pipelines.Translator.load(out / "model")
    assert isinstance(translator.model, models.RecurrentSeq2Seq)
    assert (out / "attention.png").exists()


def test_other_flags_in_the_run_folder_are_rejected(flags, result):
    dropout = translation_defaults.SMALL_CORPUS["dropout"]
    changed = dataclasses.replace(flags, dropout=0.25)
    with pytest.raises(ValueError, match=f"dropout: {dropout} before, 0.25 now"):
        translation.main(changed)


def test_changed_text_in_the_run_folder_is_rejected(flags, result, corpus):
    content = corpus.read_bytes()
    corpus.write_bytes(content.replace(b"\t", b"!\t", 1))
    try:
        with pytest.raises(ValueError, match="text_sha256: .* before, .* now"):
            translation.main(flags)
    finally:
        corpus.write_bytes(content)


@pytest.mark.backend("torch")
def test_a_test_sentence_beyond_the_limit_is_rejected_before_training(flags, tmp_path):
    for split, count in (("train", 400), ("val", 2), ("test", 3)):
        for side in ("en", "de"):
            lines = [f"{side} {split} word {i} of {count}" for i in range(count)]
            if (split, side) == ("test", "en"):
                lines[1] += " again" * 2_000
            (tmp_path / f"{split}.{side}").write_text("\n".join(lines) + "\n")
    changed = dataclasses.replace(
        flags, data=str(tmp_path), out=str(tmp_path / "run"), vocabulary_size=300
    )
    with pytest.raises(ValueError, match="in pair 2 of the test set, 'en test word 1"):
        translation.main(changed)


@pytest.mark.backend("torch")
@pytest.mark.parametrize("size", ["small", "tiny", "medium"])
def test_a_recurrent_model_has_as_many_weights_as_a_transformer(size):
    recurrent = models.RecurrentSeq2Seq(
        500, **translation_defaults.RECURRENT_SIZES[size]
    )
    embeddings = 500 * recurrent.config["embedding_dim"]
    transformer = translation_defaults.SIZES[size](500).count_params() - embeddings
    assert abs((recurrent.count_params() - embeddings) / transformer - 1) < 0.03


@pytest.mark.backend("torch")
def test_sources_can_end_with_the_end_token(flags, tmp_path):
    flags = dataclasses.replace(flags, source_end=True, out=str(tmp_path))
    data = multilingual.load_corpus(flags)
    flags = translation_defaults.complete(flags, len(data.train))
    tokens = tokenization.make(flags, data, tmp_path)
    vocabulary = tokens.source
    batches, validation = translation.make_batches(flags, data, tokens)
    for split in (batches, validation):
        source_ids = split.batch(0)[0]["source_ids"]
        assert {row[row > 0][-1] for row in source_ids if row.any()} == {3}
    model = translation.make_model(flags, vocabulary)
    translator = translation.make_translator(flags, model, data, tokens)
    assert translator.config.source_suffix == (3,)
    [source] = translator.encode(["I have 5 cats"])
    assert source.segments[0].ids == [*vocabulary("I have 5 cats"), 3]
    translator.save(tmp_path / "model")  # which can be fine-tuned
    (tmp_path / "tuned").mkdir()
    tuned = dataclasses.replace(flags, source_end=False, init_from=str(tmp_path))
    for size in (None, 300):  # the parent's end stays
        tuned = dataclasses.replace(tuned, vocabulary_size=size)
        parent = fine_tuning.load_parent(tuned)
        tokens = tokenization.make(tuned, data, tmp_path / "tuned", parent)
        assert tokens.special_tokens.source_suffix == (3,)
    assert translation.Flags().source_end is False


@pytest.mark.parametrize("choice", ["auto", "on", "off"])
def test_compilation_is_left_to_keras_unless_a_flag_says_otherwise(choice, monkeypatch):
    arguments = {}
    monkeypatch.setattr(
        keras.Model, "compile", lambda self, **options: arguments.update(options)
    )
    flags = translation.Flags(jit_compile=choice, size="small", vocabulary_size=300)
    flags = translation_defaults.complete(flags, 99)
    model = translation_defaults.SIZES["small"](300)
    translation.compile_network(flags, model, steps_per_epoch=1)
    expected = {"auto": "auto", "on": True, "off": False}[choice]
    assert arguments["jit_compile"] == expected
    assert translation.Flags().jit_compile == "auto"


@pytest.mark.backend("torch")
def test_defaults_depend_on_the_corpus():
    complete = translation_defaults.complete
    flags = translation.Flags(data="pairs.tsv")
    small, large = (complete(flags, count) for count in (49_999, 50_000))
    assert small.vocabulary_size < large.vocabulary_size
    assert (small.cooldown_epochs, large.cooldown_epochs) == (0, 3)
    short = dataclasses.replace(flags, epochs=4)
    assert complete(short, 50_000).cooldown_epochs == 1
    # Each bucket costs a compilation, so compiled runs have fewer.
    compiled = dataclasses.replace(flags, jit_compile="on")
    assert complete(compiled, 50_000).num_buckets < large.num_buckets
    japanese = dataclasses.replace(flags, target="ja-JP", batch_tokens=512)
    assert complete(japanese, 1).bleu_tokenize == "char"
    assert complete(japanese, 1).batch_tokens == 512
    several = dataclasses.replace(flags, additional_targets=("fr", "es"))
    assert complete(several, 1).out == "runs/pairs-en-de+fr+es"


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": "huge"}, "--size must be one of .*; got 'huge'"),
        ({"architecture": "gru"}, "--architecture must be one of .*; got 'gru'"),
        ({"epochs": 0}, "--epochs must be at least 1; got 0"),
        ({"held_out": 0}, "--held-out must be at least 1; got 0"),
        ({"warmup_steps": 0}, "--warmup-steps must be at least 1; got 0"),
        ({"cooldown_epochs": -1}, "--cooldown-epochs must be at least 0; got -1"),
        ({"dropout": 1.0}, "--dropout must be at least 0 and less than 1; got 1.0"),
        ({"label_smoothing": -0.1}, "--label-smoothing must be at least 0"),
        ({"learning_rate": -1.0}, "--learning-rate must be greater than 0; got -1.0"),
        ({"clip_norm": 0.0}, "--clip-norm must be greater than 0; got 0.0"),
        ({"subword_sampling": 2.0}, "--subword-sampling must be .* at most 1"),
        ({"concatenation_rate": -0.1}, "--concatenation-rate must be from 0 to 10"),
        ({"unpunctuated_rate": 1.5}, "--unpunctuated-rate must be from 0 to 1; got"),
        ({"init_from": "x"}, r"--from keeps .*got {'size': 'small', 'num_l"),
        ({"num_layers": (0, 2)}, r"--num-layers must be at least 1 .*got \(0, 2\)"),
        ({"architecture": "recurrent"}, "--num-layers must .*--architecture recurrent"),
        (
            {"architecture": "recurrent", "num_layers": None, "key_dim": 8},
            "--key-dim must be left out with --architecture recurrent.*'key_dim': 8",
        ),
        ({"init_from": "x", "normalize_first": False}, "--from .*first': False"),
        ({"num_heads": 0}, "--num-heads must be at least 1; got 0"),
        ({"num_heads": 3}, "`num_heads` must divide .*got num_heads=3 for dim"),
        ({"sequence_length": 9}, "--sequence-length needs --positions learned"),
    ],
)
def test_invalid_flags_are_rejected(flags, tmp_path, changes, message):
    changed = dataclasses.replace(flags, out=str(tmp_path / "run"), **changes)
    with pytest.raises(ValueError, match=message):
        translation.main(changed)
    assert not (tmp_path / "run").exists()


@pytest.mark.backend("torch")
def test_flags_change_the_configuration_of_a_size():
    """Vaswani et al. 2017, table 3: rows B, C, E, and the flags of pre-norm."""
    changes = {
        "num_layers": (2, 1),
        "embedding_dim": 24,
        "intermediate_dim": 10,
        "num_heads": 3,
        "key_dim": 4,
        "value_dim": 5,
        "positions": "learned",
        "normalize_first": True,
    }
    flags = translation.Flags(**changes, size="tiny")
    flags = translation_defaults.complete(flags, 99)
    vocabulary = types.SimpleNamespace(size=50)
    model = translation.make_model(flags, vocabulary)
    assert {name: model.config[name] for name in changes} == changes
    assert model.max_positions == flags.sequence_length == 256
    attention = model.encoder_blocks[0].self_attention
    assert attention.query_dense.kernel.shape == (24, 3, 4)
    assert attention.value_dense.kernel.shape == (24, 3, 5)
    unset = translation_defaults.complete(translation.Flags(size="medium"), 99)
    assert translation.make_model(unset, vocabulary).config["normalize_first"]
    post_norm = dataclasses.replace(unset, normalize_first=False)
    assert not translation.make_model(post_norm, vocabulary).config["normalize_first"]


@pytest.mark.backend("torch")
def test_a_model_of_learned_positions_is_trained_and_translates(flags, tmp_path):
    changed = dataclasses.replace(
        flags,
        positions="learned",
        sequence_length=24,
        out=str(tmp_path / "run"),
        epochs=1,
        average_last=1,
    )
    translation.main(changed)
    translator = pipelines.Translator.load(tmp_path / "run" / "model")
    assert translator.decoder.max_positions == 24
    short = dataclasses.replace(changed, sequence_length=2, out=str(tmp_path / "short"))
    with pytest.raises(ValueError, match="Sources must have at most 2 tokens"):
        translation.main(short)


@pytest.mark.backend("torch")
def test_help_explains_every_flag_in_its_group():
    command = [sys.executable, "-m", "keras_tfm.recipes.translation", "--help"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for field in dataclasses.fields(translation.Flags):
        name = "from" if field.name == "init_from" else field.name
        assert "--" + name.replace("_", "-") in printed
    for group in ("data", "model", "optimization", "decoding", "run"):
        assert f"{group} options" in printed
    assert "NoneType" not in printed and "{None}" not in printed
    assert "usage: python -m keras_tfm.recipes.translation [-h]" in printed


@pytest.mark.backend("torch")
def test_texts_longer_than_usual_validation_sources_are_split():
    sources = ["a house"] * 96 + ["a house and a boat and a garden"] * 4
    vocabulary = text.Vocabulary.train(sources, size=275, exact=False)
    concatenated = text.Pairs(sources[-4:], sources[-4:])
    corpus = types.SimpleNamespace(
        train=concatenated, validation=text.Pairs(sources, sources)
    )
    short, long = map(len, vocabulary.encode(sources[:1] + sources[-1:]))
    assert tokenization.usual_length(corpus, vocabulary) == short < long


@pytest.mark.backend("torch")
def test_scores_of_segments_are_compared_by_paired_bootstrap(capsys):
    """Koehn 2004, section 3: systems are resampled on the same segments."""
    rng = np.random.default_rng(0)
    systems = {"a": [f"a{i}" for i in range(90)], "b": [f"b{i}" for i in range(90)]}
    first = rng.normal(0.8, 0.2, 90)
    values = {"a": first, "b": first + rng.normal(0.01, 0.02, 90)}
    metric = translation_scores.SegmentScores(
        "COMET", "m", [(systems[name], list(values[name])) for name in systems]
    )
    references = [["r"] * 90]
    [score] = translation_scores.print_scores({"C": metric}, systems["a"], references)
    assert score.score == pytest.approx(first.mean(), abs=1e-6)
    samples = first[np.random.default_rng(1).integers(0, 90, (4000, 90))].mean(1)
    half_width = np.subtract(*np.quantile(samples, [0.975, 0.025])) / 2
    assert score._ci == pytest.approx(half_width, rel=0.15)
    translation_scores.print_comparison({"C": metric}, systems, references)
    numbers = re.search(
        r"COMET (\S+) -> (\S+) \((\S+)\), p = (\S+)", capsys.readouterr().out
    )
    old, new, difference, p_value = map(float, numbers.groups())
    # Both share most of the noise: unpaired, it would hide the difference.
    assert p_value < 0.01 and new - old == pytest.approx(difference, abs=2e-4)
    assert difference < half_width


@pytest.mark.backend("torch")
def test_chrf_has_an_interval_if_most_sentences_match_nothing():
    """The bootstrap of sacrebleu raises a TypeError here."""
    translations = ["qq", "ww", "the cat sat"]
    references = [["aa", "bb", "the cat sat"]]
    score = translation_scores.CHRF().corpus_score(
        translations, references, n_bootstrap=1000
    )
    assert 0 < score._ci < 100
    plain = sacrebleu.CHRF().corpus_score(translations, references)
    assert score.score == pytest.approx(plain.score)


@pytest.mark.backend("torch")
def test_a_run_that_fails_early_leaves_no_folder(tmp_path):
    flags = translation.Flags(
        data=str(tmp_path / "nothing.tsv"), out=str(tmp_path / "run")
    )
    with pytest.raises(ValueError, match="missing: .*nothing.tsv"):
        translation.main(flags)
    assert not (tmp_path / "run").exists()


@pytest.mark.backend("torch")
@pytest.mark.parametrize(("targets", "limit"), [((), 1_024), (("nl",), 1_022)])
def test_the_language_tag_counts_towards_the_maximum_length(tmp_path, targets, limit):
    lines = ["Ich habe 12 Katzen", "Ich sehe 14 Hunde", "Ich mag 9 Fische"] * 9
    flags = translation.Flags(target="de", additional_targets=targets)
    vocabulary = text.Vocabulary.train(
        lines, size=310, exact=False, languages=("de", "nl")
    )
    tokens = tokenization.Tokenization(vocabulary, vocabulary)
    words = " ".join(lines).split()
    word = next(word for word in words if len(vocabulary.encode([word])[0]) == 1)
    for count, rejected in ((limit, False), (limit + 1, True)):
        pairs = text.Pairs([lines[0], " ".join([word] * count)], lines[:2])
        corpus = types.SimpleNamespace(validation=pairs, tests={"test": pairs})
        if rejected:
            message = r"at most 1,024 tokens.*1,025 in pair 2 of the validation set"
            with pytest.raises(ValueError, match=message):
                length_limits.check_sources(flags, corpus, tokens)
        else:
            length_limits.check_sources(flags, corpus, tokens)
    assert len(multilingual.tag_ids(flags, vocabulary)) == 1_024 - limit
