"""Checkpoints of COMET: the published formula, and files that are rejected."""

import collections
import json
import os
import pathlib
import subprocess

import numpy as np
import pytest
import torch

from keras_tfm import zoo
from keras_tfm.pipelines import Comet
from keras_tfm.zoo import comet as zoo_comet
from tests.zoo import comet_checkpoints
from tests.zoo.comet_checkpoints import HPARAMS, draw, write_checkpoint
from tests.zoo.test_pytorch_file import Call, touch

ROOT = pathlib.Path(__file__).parents[2]
# The Python of an environment with unbabel-comet, which cannot be installed
# beside this library: it needs NumPy 1 and transformers 4.
PYTHON = "KERAS_TFM_COMET_PYTHON"
torch_only = pytest.mark.backend("torch")
SOFTMAX = {
    **HPARAMS,
    "layer_transformation": "softmax",
    "layer_norm": True,
    "pool": "avg",
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return comet_checkpoints.write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def drawn(encoder):
    return draw(encoder)


@pytest.fixture
def folder(drawn, tmp_path):
    return write_checkpoint(tmp_path / "comet", drawn[1])


@pytest.mark.parametrize("hparams", [HPARAMS, SOFTMAX], ids=["wmt22", "softmax"])
def test_scores_are_those_of_the_published_formula(hparams, encoder, drawn, tmp_path):
    """Rei et al. 2020, sections 2.2 and 2.3, in float64, each text alone."""
    model, tensors = drawn
    scorer = Comet.load(write_checkpoint(tmp_path, tensors, hparams), encoder)
    sides = [side[3:8] for side in comet_checkpoints.texts()]
    result = scorer.score(*sides)
    rows = [scorer.vocabulary.encode(side) for side in sides]
    rows = [[[0, *ids[:78], 2] for ids in side] for side in rows]
    names = hparams["layer_transformation"], hparams["layer_norm"]
    expected = [
        comet_checkpoints.estimate(model, tensors, ids, *names)
        for ids in zip(*rows, strict=True)
    ]
    np.testing.assert_allclose(result.scores, expected, atol=1e-5)
    assert np.std(expected) > 0.01
    assert result.truncated == [False, False, False, False, True]
    assert result.mean == pytest.approx(np.mean(expected), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"layer_transformation": "sparsemax", "layer_norm": False},
        {"layer_norm": True, "final_activation": "Sigmoid", "pool": "max"},
        {"layer_transformation": "sparsemax", "pool": "cls"},
    ],
    ids=["wmt22", "max", "cls"],
)
def test_scores_are_those_of_unbabel_comet(options, encoder, tmp_path):
    """Its own classes make the checkpoint, save it, load it and score."""
    if not os.environ.get(PYTHON):
        pytest.skip(f"{PYTHON} is unset: it names the Python of unbabel-comet")
    sides = comet_checkpoints.texts()
    (tmp_path / "texts.json").write_text(json.dumps(sides))
    script = [os.environ[PYTHON], str(ROOT / "tests/zoo/score_with_comet.py")]
    arguments = [encoder, tmp_path, tmp_path / "texts.json", json.dumps(options)]
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    process = subprocess.run(
        [*script, *map(str, arguments)], capture_output=True, text=True, env=variables
    )
    assert process.returncode == 0, process.stderr
    expected = json.loads((tmp_path / "scores.json").read_text())
    result = Comet.load(tmp_path, encoder).score(*sides)
    difference = np.abs(np.subtract(result.scores, expected["scores"])).max()
    assert difference < 1e-5, expected["versions"]
    assert np.std(expected["scores"]) > 1e-3
    assert result.mean == pytest.approx(expected["system_score"], abs=1e-5)


@torch_only
def test_options_of_the_checkpoint_come_before_those_of_the_file(folder, encoder):
    file = folder / "hparams.yaml"
    text = file.read_text()
    file.write_text(text.replace('"sparsemax"', '"softmax"'))
    assert zoo.from_comet(folder, encoder).model.config["transformation"] == "sparsemax"
    # The published code ignored the option when this model was trained.
    file.write_text(text.replace('"sparsemax"', '"sparsemax_patch"'))
    assert zoo.from_comet(folder, encoder).model.config["transformation"] == "softmax"


@torch_only
def test_objects_beside_the_tensors_are_skipped(drawn, encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    entries = {
        "callbacks": {Call: Call(touch), "ModelCheckpoint": Call(touch)},
        "optimizer_states": [collections.defaultdict(list, {"a": [1]}), {(1, 2): {3}}],
        "loops": torch.optim.lr_scheduler.LambdaLR,
        "path": tmp_path,
    }
    folder = write_checkpoint(tmp_path / "comet", drawn[1], entries=entries)
    plain = write_checkpoint(tmp_path / "plain", drawn[1])
    scores = [
        Comet.load(f, encoder).score(["a"], ["b"], ["c"]) for f in (folder, plain)
    ]
    assert scores[0] == scores[1]
    assert not (tmp_path / "touched").exists()


def changed(**values):
    return {**HPARAMS, **values}


@torch_only
@pytest.mark.parametrize(
    ("hparams", "message"),
    [
        (changed(class_identifier="unified_metric"), "`class_identifier` must be 'reg"),
        (changed(encoder_model="BERT"), "`encoder_model` must be 'XLM-RoBERTa'"),
        (changed(layer=7), "`layer` must be 'mix'"),
        (changed(pool="default"), r"`pool` must be one of \['avg', 'cls', 'max'\]"),
        (changed(activations="Relu"), r"`activations` must be one of"),
        (changed(layer_norm="no"), "`layer_norm` must be true or false"),
        (changed(layer_transformation="entmax"), "`layer_transformation` must be one"),
        (changed(dropout="a"), "`dropout` must be a number"),
        (changed(hyper={"a": 1}), "expected a mapping to plain values"),
    ],
)
def test_another_kind_of_comet_is_rejected(hparams, message, drawn, encoder, tmp_path):
    write_checkpoint(tmp_path, drawn[1], hparams)
    with pytest.raises(ValueError, match=message):
        zoo.from_comet(tmp_path, encoder)


@torch_only
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("estimator.ff.0.weight", Call(touch), "must hold a dict of tensors"),
        ("estimator.ff.0.weight", 3, "is int"),
        ("estimator.ff.0.weight", torch.ones(12, 3), "does not fit"),
        ("estimator.ff.0.weight", None, "must have 'estimator.ff.0.weight'"),
        ("estimator.ff.6.weight", torch.ones(1, 8).long(), "weights must be of F64"),
        ("estimator.ff.9.weight", torch.ones(1, 1), "1 missing"),
        ("layerwise_attention.gamma", None, "1 missing"),
        ("hidden2tag.weight", torch.ones(1), "1 unknown"),
    ],
)
def test_a_hostile_checkpoint_is_rejected(
    name, value, message, drawn, encoder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    tensors = {**drawn[1], name: value}
    if value is None:
        del tensors[name]
    write_checkpoint(tmp_path, tensors)
    with pytest.raises(ValueError, match=message) as error:
        zoo.from_comet(tmp_path, encoder)
    assert "model.ckpt" in str(error.value)
    assert not (tmp_path / "touched").exists()


@torch_only
def test_missing_files_are_named(folder, encoder, tmp_path):
    file = folder / "checkpoints" / "model.ckpt"
    (encoder / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    with pytest.raises(FileNotFoundError, match="`encoder` must have a `tokenizer"):
        zoo.from_comet(folder, encoder)
    (tmp_path / "tokenizer.json").rename(encoder / "tokenizer.json")
    with pytest.raises(FileNotFoundError, match="`encoder` must be a folder, or"):
        zoo.from_comet(folder, "nowhere")
    file.with_name("last.ckpt").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"got \['last.ckpt', 'model.ckpt'\]"):
        zoo.from_comet(folder, encoder)
    file.unlink()
    with pytest.raises(ValueError, match="last.ckpt cannot be read as a checkpoint"):
        zoo.from_comet(folder, encoder)
    (folder / "hparams.yaml").unlink()
    with pytest.raises(FileNotFoundError, match="must hold 'hparams.yaml'"):
        zoo.from_comet(folder, encoder)


@torch_only
def test_the_encoder_is_the_repository_that_the_checkpoint_names(
    drawn, encoder, tmp_path, monkeypatch
):
    names = []

    def _download(source, patterns, argument):
        names.append((source, argument))
        return folder if argument == "source" else encoder

    monkeypatch.setattr(zoo_comet, "download", _download)
    folder = write_checkpoint(tmp_path, drawn[1])
    zoo.from_comet("hf://Unbabel/wmt22-comet-da")
    assert names == [
        ("hf://Unbabel/wmt22-comet-da", "source"),
        ("hf://FacebookAI/xlm-roberta-large", "encoder"),
    ]
    write_checkpoint(tmp_path, drawn[1], changed(pretrained_model="/a/b"))
    with pytest.raises(ValueError, match="`encoder` must be a folder or repository"):
        zoo.from_comet("hf://Unbabel/wmt22-comet-da")


@torch_only
def test_scores_do_not_depend_on_the_batch(folder, encoder):
    scorer = Comet.load(folder, encoder)
    sides = [side[:8] for side in comet_checkpoints.texts()]
    whole = scorer.score(*sides)
    small = Comet.load(folder, encoder, max_length=30, batch_tokens=64)
    short = [[text[:20] for text in side] for side in sides]
    np.testing.assert_allclose(
        small.score(*short).scores, scorer.score(*short).scores, atol=1e-6
    )
    order = np.random.default_rng(0).permutation(len(sides[0]))
    mixed = scorer.score(*([side[i] for i in order] for side in sides))
    np.testing.assert_allclose(mixed.scores, np.array(whole.scores)[order], atol=1e-6)
    assert scorer.score([], [], []).scores == []
    assert sum(small.score(*sides).truncated) > sum(whole.truncated) == 1


@torch_only
def test_each_different_text_is_encoded_once(folder, encoder, monkeypatch):
    scorer = Comet.load(folder, encoder)
    texts = []
    encode = scorer.vocabulary.encode

    def _encode(batch):
        texts.extend(batch)
        return encode(batch)

    monkeypatch.setattr(scorer.vocabulary, "encode", _encode)
    scorer.score(["a", "b", "a"], ["c", "", "c"], ["c", "d", "e"])
    assert sorted(texts) == ["", "a", "b", "c", "d", "e"]


@torch_only
@pytest.mark.parametrize(
    ("sides", "message"),
    [
        ((["a"], ["b"], []), "`translations` must be as many as `sources`"),
        (("a", ["b"], ["c"]), "`sources` must be a list of str; got str"),
        ((["a"], [None], ["c"]), "`translations` must be .* NoneType at index 0"),
        ((["a"], ["b"], [b"c"]), "`references` must be .* bytes at index 0"),
        ((["a"], ["b"], ["\ud800"]), "lone surrogate"),
    ],
)
def test_wrong_texts_are_named(sides, message, folder, encoder):
    with pytest.raises((ValueError, TypeError), match=message):
        Comet.load(folder, encoder).score(*sides)


@torch_only
@pytest.mark.parametrize("settings", [{"max_length": 2}, {"max_length": 83}])
def test_wrong_lengths_are_named(settings, folder, encoder):
    with pytest.raises(ValueError, match="`max_length` must exceed the 2 special"):
        Comet.load(folder, encoder, **settings)
