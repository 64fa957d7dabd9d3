"""KerasHub loads the presets that are written here."""

import json

import keras
import numpy as np
import pytest

from keras_tfm import models as our_models
from keras_tfm import zoo
from keras_tfm.layers import gelu_tanh
from tests.layers.formulas import numpy
from tests.test_docs import ROOT, blocks
from tests.zoo import test_keras_hub as presets

pytestmark = [
    *presets.pytestmark,
    # KerasHub leaves the file of a SentencePiece model open.
    pytest.mark.filterwarnings("ignore:unclosed file <_io.BufferedReader"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO"),
]
keras_hub = pytest.importorskip("keras_hub")
GELU = "keras_hub>gelu_approximate"
ENCODER = {
    "num_layers": 1,
    "embedding_dim": 8,
    "intermediate_dim": 8,
    "num_heads": 2,
    "positions": "learned",
    "sequence_length": 12,
    "normalize_embedding": True,
    "activation": "gelu",
    "epsilon": 1e-12,
}


@pytest.mark.parametrize("family", presets.ENCODERS)
def test_an_encoder_is_read_by_keras_hub(family, tmp_path):
    presets.write(tmp_path / "read", family)
    imported = zoo.from_keras_hub(tmp_path / "read")
    zoo.to_keras_hub(imported.model, tmp_path / "written", imported.vocabulary)
    folder = str(tmp_path / "written")
    backbone = keras_hub.models.Backbone.from_preset(folder)
    assert type(backbone).__name__ == f"{family}Backbone"
    reference, inputs, real = presets.encoder_inputs(family, imported.model.pad_id)
    actual = backbone(reference)
    actual = actual["sequence_output"] if family == "Bert" else actual
    expected = numpy(imported.model(inputs))
    np.testing.assert_allclose(numpy(actual)[real], expected[real], atol=1e-5)
    text = presets.TEXTS.get(family, "cat cat")
    tokenizer = keras_hub.models.Tokenizer.from_preset(folder)
    assert [int(i) for i in tokenizer(text)] == imported.vocabulary.encode([text])[0]


@pytest.mark.parametrize("family", presets.CLASSIFIERS)
def test_a_classifier_is_read_by_keras_hub(family, tmp_path):
    backbone, tokenizer = presets.write(tmp_path, family)
    peer = getattr(keras_hub.models, f"{family}TextClassifier")(backbone, 3)
    presets.random_weights(peer, seed=3).save_to_preset(tmp_path)
    imported = zoo.from_keras_hub(tmp_path)
    zoo.to_keras_hub(imported.model, tmp_path / "written", imported.vocabulary)
    peer_copy = keras_hub.models.TextClassifier.from_preset(str(tmp_path / "written"))
    reference, inputs, _ = presets.encoder_inputs(family, tokenizer.pad_token_id)
    expected = numpy(imported.model(inputs))
    np.testing.assert_allclose(numpy(peer_copy(reference)), expected, atol=1e-5)
    assert peer_copy.preprocessor.sequence_length == 12
    text = presets.TEXTS.get(family, "cat cat")
    ids = [int(i) for i in peer_copy.preprocessor.tokenizer(text)]
    assert ids == imported.vocabulary.encode([text])[0]


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("GPT2", {}),
        ("Bart", {}),
        ("T5", {"activation": keras.saving.get_registered_object(GELU)}),
        pytest.param("T5", presets.UNGATED, marks=pytest.mark.slow),
        pytest.param("T5", presets.UNTIED, marks=pytest.mark.slow),
    ],
)
def test_a_model_that_generates_is_read_by_keras_hub(family, changes, tmp_path):
    presets.write(tmp_path / "read", family, **changes)
    imported = zoo.from_keras_hub(tmp_path / "read")
    zoo.to_keras_hub(imported.model, tmp_path / "written", imported.vocabulary)
    folder = str(tmp_path / "written")
    backbone = keras_hub.models.Backbone.from_preset(folder)
    assert backbone.vocabulary_size == presets.V  # tokens of two ids are left out
    second_import = zoo.from_keras_hub(folder)
    inputs = presets.language_model_inputs(family)
    if family == "Bart":  # whose padding is the first token in this order
        inputs["encoder_token_ids"][inputs["encoder_padding_mask"] == 0] = 0
    actual = numpy(presets.language_model(family, backbone)(inputs))
    model_inputs = presets.our_inputs(
        inputs, lambda ids: presets.to_ours(second_import, ids)
    )
    expected = numpy(imported.model(model_inputs))[..., 3:]
    order = second_import.permutations[0][3:]
    np.testing.assert_allclose(actual[..., order], expected, atol=1e-5)
    text = "cat cat" if family != "T5" else "the cat sat there"
    tokenizer = keras_hub.models.Tokenizer.from_preset(folder)
    ids = presets.to_ours(second_import, [int(i) for i in tokenizer(text)]).tolist()
    assert (
        [ids]
        == imported.vocabulary.encode([text])
        == second_import.vocabulary.encode([text])
    )


def test_the_example_of_the_page_runs(capsys):
    page = (ROOT / "docs" / "keras_hub.md").read_text("utf-8")
    [(_, _, code)] = blocks(page, "python")
    exec(code, {})
    assert capsys.readouterr().out == "(1, 3, 8) (1, 3, 8)\n"


def test_a_model_from_scratch_is_read_by_keras_hub(tmp_path):
    model = our_models.CausalLM(
        30,
        num_layers=1,
        embedding_dim=8,
        intermediate_dim=8,
        num_heads=2,
        positions="learned",
        sequence_length=12,
        activation=gelu_tanh,
        epsilon=1e-5,
    )
    zoo.to_keras_hub(model, tmp_path)
    peer = keras_hub.models.GPT2CausalLM.from_preset(str(tmp_path), preprocessor=None)
    ids = np.random.default_rng(0).integers(4, 30, (2, 9)).astype("int32")
    actual = numpy(peer({"token_ids": ids, "padding_mask": np.ones_like(ids)}))
    np.testing.assert_allclose(actual, numpy(model({"token_ids": ids})), atol=1e-5)


def test_a_written_preset_replaces_the_files_of_another(tmp_path):
    presets.write(tmp_path, "Bert")
    (tmp_path / "task.json").write_text("{}")
    zoo.to_keras_hub(our_models.Encoder(20, **ENCODER), tmp_path)
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {"config.json", "metadata.json", "model.weights.h5"}
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["class_name"] == "DistilBertBackbone"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "sinusoidal", "sequence_length": None}, "learned positions"),
        ({"activation": "relu"}, "'activation': 'gelu'.*DistilBert.*'relu'"),
        ({"epsilon": 1e-3}, "'epsilon': 1e-05.* Roberta of KerasHub; got .*0.001"),
        ({"gated": True}, "'gated': False"),
        ({"normalize_first": True}, "'normalize_first': False"),
        ({"num_segments": 2}, "'activation': 'gelu_tanh'|gelu_tanh"),
        ({"num_key_value_heads": 1}, "'num_key_value_heads': 2"),
        ({"key_dim": 3}, "'key_dim': None"),
    ],
)
def test_what_keras_hub_cannot_hold_is_rejected(changes, message, tmp_path):
    encoder = our_models.Encoder(20, **{**ENCODER, **changes})
    with pytest.raises(ValueError, match=message):
        zoo.to_keras_hub(encoder, tmp_path)
    assert not any(tmp_path.iterdir())


def test_other_kinds_of_models_and_vocabularies_are_rejected(tmp_path):
    encoder = our_models.Encoder(20, **ENCODER)
    with pytest.raises(TypeError, match="got MaskedLM. Of a MaskedLM, pass"):
        zoo.to_keras_hub(our_models.MaskedLM(encoder), tmp_path)
    classifier = our_models.SequenceClassifier(encoder, 3)
    with pytest.raises(ValueError, match="'pooling': 'first'.*got .*attention"):
        zoo.to_keras_hub(classifier, tmp_path)
    presets.write(tmp_path / "T5", "T5")
    vocabulary = zoo.from_keras_hub(tmp_path / "T5").vocabulary
    encoder = our_models.Encoder(60, **ENCODER)
    with pytest.raises(ValueError, match="WordPiece for a DistilBert .*SentencePiece"):
        zoo.to_keras_hub(encoder, tmp_path, vocabulary)
    lopsided = our_models.Transformer(20, num_layers=(1, 2), embedding_dim=8)
    with pytest.raises(ValueError, match="as many layers.*num_layers=.1, 2."):
        zoo.to_keras_hub(lopsided, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["T5"]
