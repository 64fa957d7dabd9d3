"""The classification recipe, on a corpus that trains in seconds."""

import dataclasses
import json
import pathlib

import keras
import numpy as np
import pytest

from keras_tfm import models, pipelines, text, training, zoo
from keras_tfm.recipes import (
    classification,
    classification_defaults,
    classification_scores,
    labeled_corpora,
    masked_pretraining,
    pretrained_encoder,
    runs,
)
from keras_tfm.recipes.labeled_corpora import LabeledCorpus
from keras_tfm.text import LabeledDataset, TokenizersVocabulary
from keras_tfm.text.tf_data import step_dataset
from tests.recipes.animals import OPINIONS, write_films

pytestmark = pytest.mark.backend("tensorflow", "torch")


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return classification.Flags(
        data=write_films(folder / "texts.tsv", 300),
        out=str(folder / "out"),
        size="tiny",
        batch_tokens=1024,
        epochs=6,
        learning_rate=2e-2,
        average_last=2,
    )


@pytest.fixture(scope="module")
def result(flags):
    return classification.main(flags)


@pytest.mark.slow("tensorflow")
def test_a_run_learns_and_writes_the_documented_files(flags, result):
    out = pathlib.Path(flags.out)
    assert {path.name for path in out.iterdir()} >= {
        "model",
        "result.json",
        "predictions.tsv",
        "confusion.png",
        "curves.png",
        "tensorboard",
        "vocabulary.model",
        "flags.json",
    }
    stored = json.loads((out / "result.json").read_text())
    assert stored == json.loads(json.dumps(result))
    assert result["accuracy"] > 90 and result["tf_idf"]["accuracy"] > 90
    assert result["test_texts"] == 30 and result["texts"] == 240


@pytest.mark.backend("torch")
def test_a_separator_that_occurs_in_no_label_is_rejected(tmp_path):
    file = tmp_path / "several.tsv"
    rows = [f"text {i} of many\t{'good|long' if i % 2 else 'bad'}" for i in range(60)]
    file.write_text("text\tlabel\n" + "\n".join(rows), encoding="utf-8")
    flags = classification.Flags(
        data=str(file), label_separator=";", out=str(tmp_path / "out")
    )
    with pytest.raises(
        ValueError, match="';' must occur .* 48 texts with one label each"
    ):
        classification.main(flags)
    assert not (tmp_path / "out").exists()
    none_or_one = text.LabeledDataset(["a", "b", "c"], [["x"], [], ["y"]])
    classification_defaults.check_labels(flags, none_or_one)


@pytest.mark.backend("torch")
def test_truncated_test_texts_are_counted(flags, result, tmp_path):
    corpus = classification.load_corpus(flags)
    folder = pathlib.Path(flags.out) / "model"
    for length, truncated in ((5, 30), (64, 0)):  # four words, start and end
        short = pipelines.Classifier.load(folder, max_length=length)
        scores, _ = classification_scores.evaluate(flags, short, corpus, tmp_path)
        assert scores["test_truncated"] == truncated


@pytest.mark.backend("torch")
def test_a_constant_prediction_is_reported(flags, result, tmp_path, capsys):
    corpus = classification.load_corpus(flags)
    classifier = pipelines.Classifier.load(pathlib.Path(flags.out) / "model")
    for is_constant in (False, True):
        if is_constant:
            classifier.model.set_weights(
                [0 * w for w in classifier.model.get_weights()]
            )
        classification_scores.evaluate(flags, classifier, corpus, tmp_path)
        message = "Every text got the same label: nothing was learned."
        assert (message in capsys.readouterr().out) == is_constant


def test_the_saved_classifier_repeats_the_predictions_of_the_run(flags, result):
    out = pathlib.Path(flags.out)
    lines = (out / "predictions.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines[1:]]
    classifier = pipelines.Classifier.load(out / "model")
    actual = classifier([row[3] for row in rows])
    assert [prediction.label for prediction in actual] == [row[1] for row in rows]
    accuracy = np.mean([row[0] == row[1] for row in rows])
    assert result["accuracy"] == round(100 * accuracy, 2)
    assert result["training_flops"] > 1e3 * result["tokens_seen"] > 0


@pytest.mark.backend("torch")
def test_a_finished_run_is_not_trained_again(flags, result, capsys):
    resumed = classification.main(dataclasses.replace(flags, average_last=1))
    printed = capsys.readouterr().out
    assert "Resuming the run" in printed and "Epoch 1/" not in printed
    assert resumed["training_minutes"] == result["training_minutes"]
    with pytest.raises(ValueError, match="dropout: 0.3 before, 0.25 now"):
        classification.main(dataclasses.replace(flags, dropout=0.25))


@pytest.mark.backend("torch")
def test_a_text_may_have_several_labels(flags, tmp_path, capsys):
    out = tmp_path / "out"
    multi_label_flags = dataclasses.replace(
        flags,
        data=write_films(tmp_path / "several.tsv", 300, multi_label=True),
        label_separator=",",
        batch_tokens=256,
        epochs=4,
        out=str(out),
        pretraining_epochs=1,
    )
    result = classification.main(multi_label_flags)
    pretraining = json.loads((out / "pretraining.json").read_text())
    assert pretraining["minutes"] == result["pretraining_minutes"] > 0
    # Accuracy of both labels at once, and of each label.
    assert 80 < result["exact_match"] <= result["label_accuracy"]
    assert "accuracy" not in result and "accuracy" not in result["tf_idf"]
    low, high = result["exact_match_interval_95"]
    assert low < result["exact_match"] <= high
    printed = capsys.readouterr().out
    assert "val_label_accuracy" in printed and " val_accuracy" not in printed
    assert f"Exact match {result['exact_match']:.2f}% ({low:.2f}% to" in printed
    assert f"regression: exact match {result['tf_idf']['exact_match']:.2f}%" in printed
    lines = (out / "predictions.tsv").read_text(encoding="utf-8").splitlines()
    assert {line.split("\t")[0] for line in lines[1:]} == {"good", "bad", "bad,good"}
    classifier = pipelines.Classifier.load(out / "model")
    assert sorted(classifier("superb film awful").label) == ["bad", "good"]


@pytest.mark.backend("torch")
def test_a_run_is_fine_tuned_from_a_pretrained_checkpoint(flags, tmp_path):
    import torch
    import transformers

    lines = pathlib.Path(flags.data).read_text(encoding="utf-8").splitlines()
    texts = [line.split("\t")[0] for line in lines]
    vocabulary = TokenizersVocabulary.train(texts, size=200)
    folder = tmp_path / "bert"
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=vocabulary.size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=40,
    )
    transformers.BertModel(config).save_pretrained(folder)
    vocabulary.save(folder / "tokenizer.json")
    changes = {"max_length": None, "word_dropout": 0.0, "epochs": 1}
    changes |= {
        "frozen_layers": 1,
        "init_from": str(folder),
        "out": str(tmp_path / "out"),
    }
    changes |= {"size": None, "vocabulary_size": None}
    run = dataclasses.replace(flags, **changes)
    result = classification.main(run)
    assert result["flags"]["init_from"] == str(folder)
    classifier = pipelines.Classifier.load(tmp_path / "out" / "model")
    assert isinstance(classifier.vocabulary, TokenizersVocabulary)
    pretrained = zoo.from_hugging_face(folder).model
    # The default length is the number of learned positions of the checkpoint.
    assert result["flags"]["max_length"] == 40
    assert classification.main(run)["flags"] == result["flags"]
    long = dataclasses.replace(run, max_length=41, out=str(tmp_path / "long"))
    with pytest.raises(ValueError, match="--max-length must be at most 40, .* got 41"):
        classification.main(long)
    for number, is_frozen in ((0, True), (1, False)):
        kernels = [
            np.array(encoder.blocks[number].feed_forward.inner_dense.kernel)
            for encoder in (pretrained, classifier.model.encoder)
        ]
        assert np.array_equal(*kernels) == is_frozen


class Steps:
    """Fake batches: three numbers a row, whose sum determines the class."""

    steps_per_epoch = 4

    def batch(self, step):
        x = np.random.default_rng(step).normal(size=(16, 3)).astype("float32")
        return x, (x.sum(1) > 0).astype("int32")

    def dataset(self, first_step=0, last=None, repeat=True):
        def signature(tf):
            return tf.TensorSpec((16, 3)), tf.TensorSpec((16,), "int32")

        return step_dataset(self.batch, signature, first_step, last)

    def ordered(self):
        return self.dataset(1000, 1004)


def fit_tiny_model(flags, out, rate=0.1, **changes):
    """Trains a tiny model with the training loop of the recipe."""
    options = {"epochs": 4, "patience": 4, "average_last": 1, **changes}
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    loss, accuracy = classification.make_loss(multi_label=False)
    model.compile(keras.optimizers.Adam(rate), loss, weighted_metrics=[accuracy])
    flags = dataclasses.replace(flags, **options)
    return model, *classification.fit(flags, model, Steps(), Steps(), out)


@pytest.mark.backend("torch")
def test_an_interrupted_run_ends_with_the_same_weights(flags, tmp_path, monkeypatch):
    whole, history, *_ = fit_tiny_model(flags, tmp_path / "whole")

    original = runs.Seconds

    class Seconds(original):  # the state has the names of the callbacks
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt
            original.on_epoch_end(self, epoch, logs)

    keras.utils.set_random_seed(1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(runs, "Seconds", Seconds)
        fit_tiny_model(flags, tmp_path / "cut")
    keras.utils.set_random_seed(2)  # the restored state does not depend on the seed
    resumed, resumed_history, *_ = fit_tiny_model(flags, tmp_path / "cut")
    assert len(resumed_history["loss"]) == len(history["loss"]) == 4
    np.testing.assert_allclose(resumed_history["loss"], history["loss"], rtol=1e-5)
    for actual, expected in zip(
        resumed.get_weights(), whole.get_weights(), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


def test_a_run_that_stopped_early_is_not_trained_again(flags, tmp_path):
    for _ in range(2):
        _, history, source, _ = fit_tiny_model(flags, tmp_path, rate=0.0, patience=1)
        assert len(history["loss"]) == 2
    assert source == "average of the last 1 epochs"  # equal to the first epoch


@pytest.mark.backend("torch")
def test_averaged_weights_are_used_only_if_they_score_higher(
    flags, tmp_path, monkeypatch
):
    kernels = {
        "epoch": np.array([[1, -1]] * 3, "float32"),  # always wrong
        "mean": np.array([[-1, 1]] * 3, "float32"),  # always right
    }
    for name, kernel in kernels.items():

        def apply(self, model, kernel=kernel):
            model.set_weights([kernel, np.zeros(2, "float32")])
            return ["one", "two"]

        monkeypatch.setattr(training.CheckpointAverage, "apply", apply)
        model, history, source, scores = fit_tiny_model(
            flags, tmp_path / name, rate=0.01
        )
        [(epoch_score, mean_score)] = [tuple(pair.values()) for pair in scores.values()]
        assert (epoch_score < mean_score) == (name == "mean")
        uses_mean = np.array_equal(model.get_weights()[0], kernel)
        assert uses_mean == (name == "mean")
        best = 1 + int(np.argmax(history["val_accuracy"]))
        assert (
            source
            == {"epoch": f"epoch {best}", "mean": "average of the last 2 epochs"}[name]
        )


@pytest.mark.backend("torch")
def test_vocabulary_and_class_weights_come_from_training_texts_only(
    flags, tmp_path, monkeypatch
):
    class Reached(Exception):
        """Everything before training has run."""

    class Batches(text.LabelBatches):
        def __init__(self, split, vocabulary, **options):
            batches.append((split, options))
            super().__init__(split, vocabulary, **options)

    def train(texts, **options):
        vocabulary_texts.append(list(texts))
        return original_train(texts, **options)

    def stop(*args):
        raise Reached

    batches, vocabulary_texts, original_train = [], [], text.Vocabulary.train
    monkeypatch.setattr(text, "LabelBatches", Batches)
    monkeypatch.setattr(text.Vocabulary, "train", train)
    monkeypatch.setattr(masked_pretraining, "pretrain", stop)
    run = dataclasses.replace(
        flags,
        out=str(tmp_path / "out"),
        class_weight="balanced",
        word_dropout=0.2,
        subword_sampling=0.3,
        seed=5,
    )
    with pytest.raises(Reached):
        classification.main(run)
    corpus = labeled_corpora.load(run.data, seed=5)
    assert vocabulary_texts == [corpus.train.texts]
    assert [split.texts for split, _ in batches] == [
        corpus.train.texts,
        corpus.validation.texts,
    ]
    assert [options["class_weight"] for _, options in batches] == ["balanced", None]
    for _, options in batches:
        names = ("word_dropout", "subword_sampling", "seed", "batch_tokens")
        assert [options[name] for name in names] == [0.2, 0.3, 5, 1024]


def test_a_run_is_not_resumed_with_other_texts(flags, result):
    file = pathlib.Path(flags.data)
    content = file.read_text(encoding="utf-8")
    file.write_text(content.replace(" film ", " play ", 40), encoding="utf-8")
    with pytest.raises(ValueError, match="text_sha256"):
        classification.main(flags)
    file.write_text(content, encoding="utf-8")


def test_defaults_depend_on_the_corpus_and_the_checkpoint():
    complete = classification_defaults.complete
    imdb = complete(classification.Flags())
    assert (imdb.max_length, imdb.learning_rate, imdb.word_dropout) == (
        1_000,
        2e-3,
        0.1,
    )
    assert imdb.out == "runs/imdb"
    assert (imdb.size, imdb.dropout, imdb.weight_decay) == ("tiny", 0.3, 0.5)
    sst2 = complete(classification.Flags(data="sst2"))
    assert (sst2.size, sst2.dropout, sst2.weight_decay) == ("small", 0.1, 0.1)
    imported = complete(classification.Flags(init_from="some/folder/minilm"))
    actual = {
        name: getattr(imported, name) for name in classification_defaults.FINE_TUNING
    }
    assert actual == classification_defaults.FINE_TUNING
    assert imported.max_length == 256 and imported.out == "runs/imdb-minilm"
    short = complete(classification.Flags(data="sst2", init_from="minilm"))
    assert short.max_length == 64
    explicit = complete(
        classification.Flags(data="x.tsv", learning_rate=0.5, init_from="w")
    )
    assert explicit.learning_rate == 0.5


@pytest.mark.parametrize("kind", ["name", "folder"])
def test_presets_of_keras_hub_are_imported(kind, tmp_path, monkeypatch):
    calls, encoder = [], models.encoder_small(20, embedding_dim=8, num_heads=2)

    def read(preset, head, **options):
        assert head == "encoder"
        calls.append((preset, options))
        return zoo.Imported(encoder, "its vocabulary", None)

    monkeypatch.setattr(zoo, "from_keras_hub", read)
    name = "bert_tiny_en_uncased"
    if kind == "folder":
        (tmp_path / "metadata.json").write_text("{}")
        name = str(tmp_path)
    flags = classification.Flags(init_from=name, dropout=0.3, max_length=9)
    actual = classification.make_encoder(flags, None, None)
    assert actual == (encoder, "its vocabulary")
    faster_flags = dataclasses.replace(
        flags, attention_dropout=0.0, precision="mixed_bfloat16"
    )
    classification.make_encoder(faster_flags, None, None)
    usual = {"dropout": 0.3, "dtype": "float32"}
    faster = {"dropout": 0.3, "dtype": "mixed_bfloat16", "attention_dropout": 0.0}
    assert calls == [(name, usual), (name, faster)]


@pytest.mark.backend("torch")
def test_a_run_in_bfloat16_keeps_weights_in_float32(flags, tmp_path):
    bfloat16_flags = dataclasses.replace(
        flags,
        out=str(tmp_path / "out"),
        epochs=1,
        precision="mixed_bfloat16",
        attention_dropout=0.1,
    )
    result = classification.main(bfloat16_flags)
    loaded = pipelines.Classifier.load(tmp_path / "out" / "model")
    assert loaded.model.encoder.config["attention_dropout"] == 0.1
    assert loaded.model.encoder.dtype_policy.name == "mixed_bfloat16"
    assert {weight.dtype for weight in loaded.model.weights} == {"float32"}
    assert 0 <= result["accuracy"] <= 100 and np.isfinite(
        result["expected_calibration_error"]
    )


def test_flags_freeze_imported_weights():
    def names(**options):
        encoder = models.encoder_small(
            20, embedding_dim=8, num_heads=2, num_layers=2, normalize_embedding=True
        )
        options = {"lora_rank": None, "frozen_layers": 0, **options}
        pretrained_encoder.freeze(encoder, **options)
        return {weight.path for weight in encoder.trainable_weights}

    all_names = names()
    low_rank = names(lora_rank=2)
    assert len(low_rank) == 2 * 2 * 2 and all("lora" in name for name in low_rank)
    one_frozen = names(frozen_layers=1)
    frozen = all_names - one_frozen
    assert {name.split("/")[0] for name in frozen} == {
        "embedding",
        "embedding_norm",
        "encoder_0",
    }
    assert len([name for name in one_frozen if "encoder_1" in name]) == 16
    assert not any("encoder_1" in name for name in names(frozen_layers=2))


def test_invalid_flags_are_rejected(flags):
    for name, value in (("epochs", 0), ("max_length", 0), ("patience", 0)):
        changed = dataclasses.replace(flags, **{name: value})
        with pytest.raises(ValueError, match="must be at least 1; got 0"):
            classification.main(changed)
    with pytest.raises(ValueError, match="need --from; got --lora-rank 4"):
        classification.main(dataclasses.replace(flags, lora_rank=4))
    for name, value in (("lora_rank", 0), ("frozen_layers", -1)):
        changed = dataclasses.replace(flags, init_from="x", **{name: value})
        with pytest.raises(ValueError, match=f"must be at least .; got {value}"):
            classification.main(changed)
    conflicting = {"hosts": "a:1,b:1", "host": 0, "model_devices": 2}
    with pytest.raises(ValueError, match="--model-devices must be 1 with --hosts"):
        classification.main(dataclasses.replace(flags, **conflicting))
    conflicting = {"init_from": "x", "lora_rank": 4, "pretraining_epochs": 1}
    with pytest.raises(ValueError, match="--pretraining-epochs trains all weights"):
        classification.main(dataclasses.replace(flags, **conflicting))
    conflicting = {"init_from": "x", "size": None, "normalization": "identity"}
    for changes, name in (
        ({"size": "small", "normalization": None}, "size"),
        ({}, "n"),
    ):
        with pytest.raises(ValueError, match=f"got {{'{name}\\w*': '\\w*'}} too"):
            classification.main(dataclasses.replace(flags, **conflicting | changes))


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("dropout", 1.0, "at least 0 and less than 1"),
        ("attention_dropout", -0.1, "at least 0 and less than 1"),
        ("word_dropout", 1.0, "at least 0 and less than 1"),
        ("learning_rate", -1.0, "greater than 0"),
        ("learning_rate", float("nan"), "greater than 0"),
        ("clip_norm", 0.0, "greater than 0"),
        ("clip_norm", float("inf"), "greater than 0"),
        ("weight_decay", -1.0, "at least 0"),
        ("subword_sampling", 0.0, "greater than 0 and at most 1"),
        ("subword_sampling", 1.5, "greater than 0 and at most 1"),
        ("seed", -1, "from 0 to 4,294,967,294"),
        ("seed", 2**32 - 1, "from 0 to 4,294,967,294"),
    ],
)
def test_rates_out_of_range_are_rejected(flags, tmp_path, name, value, expected):
    changes = {name: value, "out": str(tmp_path / "out")}
    flag = name.replace("_", "-")
    with pytest.raises(ValueError, match=f"--{flag} must be {expected}; got {value}"):
        classification.main(dataclasses.replace(flags, **changes))
    assert not (tmp_path / "out").exists()


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("subword_sampling", 0.1),
        ("normalization", "identity"),
        ("character_coverage", 1.0),
    ],
)
def test_options_of_sentencepiece_are_rejected_without_it(flags, name, value):
    changes = {name: value, "subword_model": "wordpiece"}
    message = f"--{name.replace('_', '-')} needs SentencePiece; got --subword-model "
    with pytest.raises(ValueError, match=message + "wordpiece"):
        classification_defaults.check(dataclasses.replace(flags, **changes))


def test_a_single_optional_label_is_rejected(flags, tmp_path):
    file = tmp_path / "one.tsv"
    lines = [f"film {n}\t{'spam' if n % 2 else ''}" for n in range(40)]
    file.write_text("\n".join(["text\tlabel", *lines]) + "\n")
    changes = {"data": str(file), "label_separator": ",", "out": str(tmp_path / "out")}
    with pytest.raises(ValueError, match=r"at least two different labels; got ..spam"):
        classification.main(dataclasses.replace(flags, **changes))


def test_columns_have_names_or_numbers():
    assert classification.parse_columns("title, body") == ["title", "body"]
    assert classification.parse_columns("1,2") == [1, 2]
    assert classification.parse_columns(None) is None


def test_texts_without_tokens_are_rejected_before_training(flags, tmp_path):
    rows = ["text\tlabel", "\u200b\tgood", *["a film\tgood", "a play\tbad"] * 3]
    file = tmp_path / "test.tsv"
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    run = dataclasses.replace(flags, test=str(file), out=str(tmp_path / "out"))
    with pytest.raises(ValueError, match="must have a token of the vocabulary"):
        classification.main(run)
    assert not (tmp_path / "out" / "restart").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["text\tkind", "a film\tgood"], "expected one column 'label'"),
        (["text\tlabel"] + ["a film\tgood"] * 9, "there must be 2 classes or more"),
        (["text\tlabel"] + [f"good\tfilm {i}" for i in range(9)], "swapped"),
        (
            ["text\tlabel", "a film\tgood", " \tbad"],
            "line 3: the text must be .* not empty",
        ),
    ],
)
def test_invalid_files_are_rejected_before_training(rows, message, flags, tmp_path):
    file = tmp_path / "bad.tsv"
    file.write_text("\n".join(rows) + "\n")
    run = dataclasses.replace(flags, data=str(file), out=str(tmp_path / "out"))
    with pytest.raises(ValueError, match=message):
        classification.main(run)
    assert not (tmp_path / "out").exists()


def test_matrices_decay_and_biases_do_not():
    """Without a gradient, only weight decay changes a weight."""
    encoder = models.encoder_small(20, embedding_dim=8, num_heads=2, num_layers=1)
    weights = {}
    for weight in encoder.trainable_variables:
        weight.assign(np.ones(weight.shape))
        weights[weight.path] = weight
    optimizer = runs.make_adamw(encoder, 0.1, 10, 1, 0.5, clip_norm=1.0)
    optimizer.build(encoder.trainable_variables)
    for _ in range(2):  # the first update's rate is 0
        optimizer.apply([0.0 * weight for weight in encoder.trainable_variables])
    decayed = {path for path, w in weights.items() if np.array(w).max() < 0.99}
    expected = {path for path in weights if path.endswith(("kernel", "embeddings"))}
    assert decayed == expected
    assert any(len(w.shape) == 2 for path, w in weights.items() if "bias" in path)


def test_scores_match_values_computed_by_hand():
    probabilities = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.4, 0.5, 0.1]])
    scores = classification_scores.scores(
        np.array([0, 1, 0]), probabilities, multi_label=False
    )
    # Class 0: precision 1, recall 1/2; class 1: precision 1/2, recall 1.
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["macro_f1"] == pytest.approx((2 / 3 + 2 / 3) / 2)
    expected = np.array([[1, 0, 0], [0, 1, 1], [0, 1, 0]])
    scores = classification_scores.scores(expected, probabilities, multi_label=True)
    assert scores["exact_match"] == pytest.approx(2 / 3)
    assert scores["label_accuracy"] == pytest.approx(8 / 9)
    assert "accuracy" not in scores
    assert scores["macro_f1"] == pytest.approx((1 + 1 + 0) / 3)
    # A class without texts is not counted, whether it is predicted or not.
    scores = classification_scores.scores(
        expected[[0, 2]], probabilities[[0, 1]], multi_label=True
    )
    assert scores["macro_f1"] == 1.0
    scores = classification_scores.scores(
        np.array([0, 0, 0]), probabilities, multi_label=False
    )
    assert scores["macro_f1"] == pytest.approx(1 / 2)


@pytest.mark.backend("torch")
def test_the_loss_selects_the_best_epoch_of_multi_label_runs(flags, tmp_path):
    """Predicting no label is mostly right, but must not stop training."""
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    y = (x > 1.5).astype("float32")

    class Rare:
        steps_per_epoch = 4

        def dataset(self, first_step=0, repeat=True):
            import tensorflow as tf

            return tf.data.Dataset.from_tensor_slices((x, y)).batch(16).repeat()

        def ordered(self):
            import tensorflow as tf

            return tf.data.Dataset.from_tensor_slices((x, y)).batch(16)

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    model.layers[-1].bias.assign([-9.0] * 3)
    loss, accuracy = classification.make_loss(multi_label=True)
    model.compile(keras.optimizers.Adam(0.02), loss, weighted_metrics=[accuracy])
    run_flags = dataclasses.replace(flags, epochs=8, patience=1, average_last=1)
    rows = Rare()
    history, _, scores = classification.fit(
        run_flags, model, rows, rows, tmp_path, multi_label=True
    )
    assert len(set(history["val_label_accuracy"])) == 1  # accuracy never improves
    assert len(history["loss"]) == 8 and history["loss"][-1] < history["loss"][0]
    assert set(scores) == {"loss"}


def test_the_tf_idf_baseline_does_not_use_the_test_set():
    """The validation set selects its regularization strength."""

    def split(texts, labels):
        return LabeledDataset(texts, labels, classes=["a", "b"], allow_missing=True)

    train = split(["x x x", "y y y", "x y x", "y x y"] * 3, ["a", "b", "a", "b"] * 3)
    test = split(["x z", "y z"], ["a", "b"])
    corpus = LabeledCorpus("c", train, test, test, "", "")
    actual = classification_scores.tf_idf_scores(corpus)
    assert (
        actual["accuracy"] == 1.0 and actual["c"] == classification_scores.STRENGTHS[0]
    )
    swapped_labels = split(["x z", "y z"], ["b", "a"])
    changed = dataclasses.replace(corpus, test=swapped_labels)
    assert classification_scores.tf_idf_scores(changed) == {
        "accuracy": 0.0,
        "macro_f1": 0.0,
        "c": actual["c"],
    }


def test_the_tf_idf_baseline_learns_from_training_texts_only():
    """Words that only the other splits contain do not help it."""

    def split(texts):
        return LabeledDataset(texts, ["a", "b"] * (len(texts) // 2))

    held_out = split(["q q", "r r"] * 4)
    corpus = LabeledCorpus("c", split(["x x", "y y"] * 6), held_out, held_out, "", "")
    assert classification_scores.tf_idf_scores(corpus)["accuracy"] == 0.5
    whole = split([*corpus.train.texts, "q q", "r r"])
    corpus = dataclasses.replace(corpus, whole=whole)
    assert classification_scores.tf_idf_scores(corpus)["accuracy"] == 1.0


@pytest.mark.backend("torch")
def test_the_tf_idf_baseline_can_learn_from_unique_words():
    """From 1,000 texts on they are ignored, unless there are no other words."""
    texts = [f"word{n}" for n in range(1_300)]
    train = LabeledDataset(texts, ["a", "b"] * 650)
    test = LabeledDataset(
        ["word0", "word2"], ["a", "a"], ["a", "b"], allow_missing=True
    )
    corpus = LabeledCorpus("c", train, test, test, "", "")
    assert classification_scores.tf_idf_scores(corpus)["accuracy"] == 1.0


@pytest.mark.backend("torch")
def test_texts_without_words_can_be_trained_on(flags, tmp_path, capsys):
    signs = {"good": "🙂🎉😀", "bad": "🙁!!💔"}
    rows = ["text\tlabel"]
    for n in range(120):
        label = list(signs)[n % 2]
        rows.append(f"{signs[label][n % 3]} {'?' * (n % 7)}\t{label}")
    file = tmp_path / "signs.tsv"
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    run = dataclasses.replace(
        flags, data=str(file), out=str(tmp_path / "out"), epochs=1
    )
    result = classification.main(run)
    assert result["tf_idf"] is None
    stored = (tmp_path / "out" / "result.json").read_text(encoding="utf-8")
    assert json.loads(stored)["tf_idf"] is None
    assert "TF-IDF baseline: none, since the training texts" in capsys.readouterr().out


@pytest.mark.backend("torch")
def test_the_defaults_learn_a_small_corpus(tmp_path, capsys):
    out = tmp_path / "out"
    file = write_films(tmp_path / "few.tsv", 60)
    result = classification.main(classification.Flags(data=file, out=str(out)))
    assert result["accuracy"] > 90
    run_flags, printed = result["flags"], capsys.readouterr().out
    steps = int(printed.split(" steps an epoch")[0].split("\n")[-1])
    assert steps >= 5 and run_flags["epochs"] * steps >= 300
    assert run_flags["patience"] * steps >= 100
    assert "Warning" not in printed


@pytest.mark.backend("torch")
def test_explicit_flags_and_named_corpora_keep_their_values(flags, result):
    corpus = classification.load_corpus(flags)
    vocabulary = text.load_vocabulary(
        pathlib.Path(flags.out) / "model" / "vocabulary.model"
    )

    def fitted_flags(**values):
        requested = classification.Flags(**{"data": flags.data, **values})
        complete = classification_defaults.complete(requested)
        actual = classification_defaults.fit_small_corpus(
            requested, complete, corpus, vocabulary
        )
        return actual.batch_tokens, actual.epochs, actual.patience

    batch, epochs, patience = fitted_flags()
    assert batch < 1_000 and 10 <= epochs <= 20
    assert (
        fitted_flags(batch_tokens=4_096)[0] == 4_096
        and fitted_flags(batch_tokens=4_096)[1] >= 300
    )
    assert fitted_flags(epochs=2) == (batch, 2, patience)
    assert fitted_flags(patience=1) == (batch, epochs, 1)
    assert fitted_flags(data="trec") == (1_024, 12, 3)


@pytest.mark.backend("torch")
def test_a_run_with_few_updates_prints_a_warning(capsys):
    classification_defaults.warn_of_few_updates(99)
    assert "Warning: the run has 99 updates" in capsys.readouterr().out
    classification_defaults.warn_of_few_updates(100)
    assert not capsys.readouterr().out


@pytest.mark.backend("torch")
def test_pairs_are_classified_by_both_texts(flags, tmp_path):
    """Each text has its own alphabet and determines half of the label."""
    sides = (OPINIONS, {"good": ["καλό", "ωραίο"], "bad": ["κακό", "φριχτό"]})
    draw = np.random.default_rng(0)
    rows = ["text\tother\tlabel"]
    for n in range(400):
        kinds = [("good", "bad")[n % 2], ("good", "bad")[n // 2 % 2]]
        words = [draw.choice(side[k]) for side, k in zip(sides, kinds, strict=True)]
        rows.append(
            f"{words[0]} film\t{words[1]} {draw.integers(999)}\t{' '.join(kinds)}"
        )
    file = tmp_path / "pairs.tsv"
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    out = tmp_path / "out"
    run = dataclasses.replace(
        flags,
        data=str(file),
        text_pair="other",
        out=str(out),
        epochs=6,
        batch_tokens=512,
    )
    result = classification.main(run)
    assert result["accuracy"] > 90  # one side alone gives 50
    classifier = pipelines.Classifier.load(out / "model")
    # Neither word is split into bytes: the vocabulary has both sides.
    for word in ("superb", "ωραίο"):
        assert len(classifier.vocabulary.encode([word])[0]) <= 1 + len(word)
    assert classifier.paired
    assert classifier.model.encoder.config["num_segments"] == 2
    assert classifier(("lovely film", "φριχτό 3")).label == "good bad"
    assert classifier(("dull film", "ωραίο 3")).label == "bad good"


@pytest.mark.backend("torch")
def test_a_run_can_use_a_wordpiece_vocabulary(flags, tmp_path):
    out = tmp_path / "out"
    run = dataclasses.replace(flags, subword_model="wordpiece", out=str(out), epochs=10)
    assert classification.main(run)["accuracy"] > 90
    classifier = pipelines.Classifier.load(out / "model")
    assert isinstance(classifier.vocabulary, TokenizersVocabulary)
    assert classifier("a superb film").label == "good"


@pytest.mark.backend("torch")
def test_scores_are_written_before_pictures(flags, tmp_path, monkeypatch):
    def fail(*args):
        raise RuntimeError("no picture")

    monkeypatch.setattr(classification_scores.plot, "training_curves", fail)
    monkeypatch.setattr(classification_scores.plot, "confusion_matrix", fail)
    out = tmp_path / "out"
    with pytest.raises(RuntimeError, match="no picture"):
        classification.main(dataclasses.replace(flags, out=str(out), epochs=1))
    assert json.loads((out / "result.json").read_text())["test_texts"] == 30


def test_an_interval_is_wide_for_few_texts():
    """Computed by hand for 6 of 6: 1 / (1 + 1.96^2 / 6)."""
    low, high = classification_scores.wilson_interval(1.0, 6)
    assert (low, high) == pytest.approx((0.6097, 1.0), abs=1e-4)
    assert classification_scores.wilson_interval(0.0, 6) == pytest.approx(
        (0.0, 1 - low)
    )
    low, high = classification_scores.wilson_interval(0.5, 10_000)
    assert (low, high) == pytest.approx((0.4902, 0.5098), abs=1e-4)


@pytest.mark.backend("torch")
def test_a_prediction_is_one_line_for_any_label(tmp_path):
    file = tmp_path / "predictions.tsv"
    test = LabeledDataset(
        ["a\tb", "c"], [["x\ty", "z"], ["u\nv"]], ["u\nv", "x\ty", "z"]
    )
    assert test.classes == ["u\nv", "x\ty", "z"]
    actual = np.array([[0, 1, 1], [1, 0, 0]])
    names = classification_scores.label_names(actual, test.classes, "; ")
    classification_scores.write_predictions(file, test, names, actual / 2, "; ")
    assert file.read_text(encoding="utf-8").splitlines()[1:] == [
        "x y; z\tx y; z\t0.5000\ta b",
        "u v\tu v\t0.5000\tc",
    ]
    assert classification_scores.label_names(np.array([1]), test.classes) == ["x y"]


@pytest.mark.backend("torch")
def test_pooling_without_weights_prints_no_words(flags, result, capsys):
    changed = dataclasses.replace(flags, pooling="mean")
    classification_scores.print_attended_words(changed, None, None, None)
    assert (
        "No words are printed: mean pooling has no weights" in capsys.readouterr().out
    )
