"""Presets of KerasHub are compared with KerasHub itself."""

import io
import json
import sys

import keras
import numpy as np
import pytest
import sentencepiece

from keras_tfm import zoo
from keras_tfm.pipelines import Classifier, Translator
from tests.layers.formulas import numpy

pytestmark = [
    pytest.mark.backend("torch"),  # test_backends.py compares the backends
    # T5 of KerasHub passes explicit masks, and is warned of implicit ones.
    pytest.mark.filterwarnings("ignore:.*does not support masking"),
]
keras_hub = pytest.importorskip("keras_hub")
models = keras_hub.models

V, S, T = 40, 9, 6
WORD_PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORD_PIECES += ["the", "cat", "##s", "sat", ".", "3"]
WORDS = ["c", "a", "t", "\u0120", "ca", "cat", "\u0120cat"]
BYTE_LEVEL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *WORDS]
GPT2 = [*WORDS, "<|endoftext|>"]
MERGES = ["c a", "ca t", "\u0120 cat"]
SENTENCES = ["the cat sat on the mat", "a cat and a dog sat there", "dogs sat"] * 9
T5_SIZES = {
    "vocabulary_size": V,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 24,
}
SIZES = {**T5_SIZES, "max_sequence_length": 12}
UNGATED = {"use_gated_activation": False, "key_value_dim": 6}
UNTIED = {"tie_embedding_weights": False, "activation": "gelu"}
ENCODERS = ["Bert", "DistilBert", "Roberta", "XLMRoberta"]
TEXTS = {"Bert": "The cats sat.", "DistilBert": "The cats sat."}


def random_weights(model, seed=0):
    draw = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(draw.normal(0, 0.3, weight.shape))
    return model


def sentencepiece_model(**ids):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=out,
        vocab_size=30,
        hard_vocab_limit=False,
        minloglevel=2,
        **ids,
    )
    return out.getvalue()


def make_tokenizer(family):
    tokenizer_class = getattr(models, f"{family}Tokenizer")
    if family in ("Bert", "DistilBert"):
        return tokenizer_class(WORD_PIECES, lowercase=True)
    if family == "T5":
        return tokenizer_class(
            sentencepiece_model(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
        )
    if family == "XLMRoberta":
        return tokenizer_class(sentencepiece_model())
    tokens = GPT2 if family == "GPT2" else BYTE_LEVEL
    return tokenizer_class({token: i for i, token in enumerate(tokens)}, MERGES)


def write(folder, family, **changes):
    """Writes a preset of random weights, with a tokenizer."""
    sizes = T5_SIZES if family == "T5" else SIZES
    backbone = getattr(models, f"{family}Backbone")(**{**sizes, **changes})
    random_weights(backbone).save_to_preset(folder)
    tokenizer = make_tokenizer(family)
    tokenizer.save_to_preset(folder)
    return backbone, tokenizer


def encoder_inputs(family, pad_id):
    """Ids with padding: theirs, ours, and where the tokens are real."""
    ids = np.random.default_rng(1).integers(5, V, (2, S)).astype("int32")
    ids[1, 5:] = pad_id
    real = ids != pad_id
    reference = {"token_ids": ids, "padding_mask": real.astype("int32")}
    inputs = {"token_ids": ids}
    if family == "Bert":
        inputs["segment_ids"] = reference["segment_ids"] = (np.arange(S) > 3) * real
    return reference, inputs, real


def to_ours(imported, ids):
    """Renumbers ids of a preset."""
    order = imported.permutations[0]
    numbers = {int(order[2]): 2}  # the second choice of a token with two ids
    numbers |= {int(token): i for i, token in enumerate(order) if i != 2}
    return np.vectorize(numbers.get)(ids).astype("int32")


def language_model_inputs(family, first=4):
    draw = np.random.default_rng(2)
    if family == "GPT2":
        ids = draw.integers(first, V - 1, (2, S)).astype("int32")
        return {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    source = draw.integers(first, V, (2, S)).astype("int32")
    source[1, 5:] = 1 if family == "Bart" else 0
    target = draw.integers(first, V, (2, T)).astype("int32")
    return {
        "encoder_token_ids": source,
        "encoder_padding_mask": (source > 1).astype("int32"),
        "decoder_token_ids": target,
        "decoder_padding_mask": np.ones_like(target),
    }


def our_inputs(inputs, renumber):
    if "token_ids" in inputs:
        return {"token_ids": renumber(inputs["token_ids"])}
    source, target = inputs["encoder_token_ids"], inputs["decoder_token_ids"]
    return {"source_ids": renumber(source), "target_ids": renumber(target)}


def language_model(family, backbone, **options):
    kind = "GPT2CausalLM" if family == "GPT2" else f"{family}Seq2SeqLM"
    return getattr(models, kind)(backbone, **options)


@pytest.mark.parametrize("family", ENCODERS)
def test_vectors_and_ids_are_those_of_keras_hub(family, tmp_path):
    backbone, tokenizer = write(tmp_path, family)
    imported = zoo.from_keras_hub(tmp_path, dropout=0.0)
    encoder, vocabulary = imported.model, imported.vocabulary
    assert imported.classes is None
    assert encoder.pad_id == vocabulary.pad_id == tokenizer.pad_token_id
    reference, inputs, real = encoder_inputs(family, encoder.pad_id)
    expected = backbone(reference)
    expected = expected["sequence_output"] if family == "Bert" else expected
    actual, expected = numpy(encoder(inputs))[real], numpy(expected)[real]
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert np.abs(expected).max() > 0.3
    text = TEXTS.get(family, "cat cat")
    ids = [int(token_id) for token_id in tokenizer(text)]
    assert vocabulary.encode([text]) == [ids] and len(ids) > 1
    start, end = tokenizer.start_token_id, tokenizer.end_token_id
    assert (vocabulary.start_id, vocabulary.end_id) == (start, end)
    assert vocabulary.mask_id == tokenizer.mask_token_id
    assert vocabulary.separator_ids == (end,) * (2 if "Roberta" in family else 1)
    encoder.save(tmp_path / "encoder.keras")
    reloaded = keras.models.load_model(tmp_path / "encoder.keras")
    np.testing.assert_allclose(numpy(reloaded(inputs))[real], actual, atol=1e-6)


@pytest.mark.parametrize("options", [{"strip_accents": True}, {}])
def test_accents_are_treated_as_by_keras_hub(options, tmp_path):
    write(tmp_path, "Bert")
    tokens = [*WORD_PIECES, "cafe", "caf\u00e9"]
    tokenizer = models.BertTokenizer(tokens, lowercase=True, **options)
    tokenizer.save_to_preset(tmp_path)
    vocabulary = zoo.from_keras_hub(tmp_path).vocabulary
    expected = [int(token_id) for token_id in tokenizer("Caf\u00e9")]
    assert vocabulary.encode(["Caf\u00e9"]) == [expected]
    assert expected == [tokens.index("cafe" if options else "caf\u00e9")]


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("GPT2", {}),
        ("Bart", {}),
        ("T5", {}),
        pytest.param("T5", UNGATED, marks=pytest.mark.slow),
        pytest.param("T5", UNTIED, marks=pytest.mark.slow),
    ],
)
def test_logits_are_those_of_keras_hub(family, changes, tmp_path):
    backbone, tokenizer = write(tmp_path, family, **changes)
    imported = zoo.from_keras_hub(tmp_path)
    inputs = language_model_inputs(family)
    expected = numpy(language_model(family, backbone)(inputs))
    model_inputs = our_inputs(inputs, lambda ids: to_ours(imported, ids))
    actual = numpy(imported.model(model_inputs))[..., 3:]  # from the end token on
    order = imported.permutations[0][3:]
    np.testing.assert_allclose(actual, expected[..., order], atol=1e-5)
    assert np.abs(expected).max() > 0.1
    text = "cat cat" if family != "T5" else "the cat sat there"
    ids = [int(token_id) for token_id in tokenizer(text)]
    assert imported.vocabulary.encode([text]) == [to_ours(imported, ids).tolist()]
    assert len(ids) > 1


@pytest.mark.parametrize(
    "family", ["GPT2", "Bart", pytest.param("T5", marks=pytest.mark.slow)]
)
def test_greedy_ids_are_those_of_keras_hub(family, tmp_path):
    backbone, tokenizer = write(tmp_path, family)
    lengths = {"encoder_sequence_length": 12, "decoder_sequence_length": 9}
    kind, ids, num_read = "Seq2SeqLM", "decoder_token_ids", 1
    if family == "GPT2":
        kind, ids, num_read, lengths = "CausalLM", "token_ids", 3, {}
    preprocessor = getattr(models, f"{family}{kind}Preprocessor")(tokenizer, **lengths)
    peer = language_model(family, backbone)
    peer.compile(sampler="greedy")
    text = "cat cat" if family != "T5" else "the cat sat there"
    inputs = preprocessor.generate_preprocess([text], sequence_length=9)
    inputs = {name: numpy(value) for name, value in inputs.items()}
    generated = peer.generate(inputs, stop_token_ids=[tokenizer.end_token_id])
    expected = numpy(generated[ids])[0, num_read:]
    translator = Translator.from_preset(tmp_path, beam_size=1, max_decoding_length=9)
    config = translator.config
    source = translator.vocabulary.encode([text])[0]
    source = [*config.source_prefix, *source, *config.source_suffix]
    actual = translator.decoder([source], [list(config.target_prefix)])
    length = min(len(expected), int(actual.lengths[0, 0]))
    expected = to_ours(zoo.from_keras_hub(tmp_path), expected)
    assert actual.ids[0, 0, :length].tolist() == expected[:length].tolist()
    assert length > 4 and len(set(expected[:length])) > 1
    assert isinstance(translator(text), str)


CLASSIFIERS = [
    *("Bert", "Roberta"),
    pytest.param("DistilBert", marks=pytest.mark.slow),
    pytest.param("XLMRoberta", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_a_classifier_is_that_of_keras_hub(family, tmp_path):
    backbone, tokenizer = write(tmp_path, family)
    peer = getattr(models, f"{family}TextClassifier")(backbone, num_classes=3)
    random_weights(peer, seed=3).save_to_preset(tmp_path)
    imported = zoo.from_keras_hub(tmp_path)
    reference, inputs, _ = encoder_inputs(family, tokenizer.pad_token_id)
    expected = numpy(peer(reference))
    np.testing.assert_allclose(numpy(imported.model(inputs)), expected, atol=1e-5)
    classifier = Classifier.from_preset(tmp_path, max_length=12)
    assert classifier.classes == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert classifier("cat cat").label in classifier.classes
    encoder = zoo.from_keras_hub(tmp_path, head="encoder").model
    assert type(encoder).__name__ == "Encoder"


def test_weights_in_several_files_and_in_bfloat16_are_read(tmp_path):
    backbone = random_weights(models.T5Backbone(**T5_SIZES, dtype="bfloat16"))
    backbone.save_to_preset(tmp_path, max_shard_size=1e-5)
    assert len(list(tmp_path.glob("*.h5"))) > 1
    imported = zoo.from_keras_hub(tmp_path)
    expected = numpy(keras.ops.cast(backbone.token_embedding.embeddings, "float32"))
    actual = numpy(imported.model.target_embedding.embeddings)
    np.testing.assert_array_equal(actual, expected[imported.permutations[0]])


def test_an_unsupported_backbone_is_rejected(tmp_path):
    models.AlbertBackbone(**SIZES, embedding_dim=8).save_to_preset(tmp_path)
    with pytest.raises(ValueError, match="`class_name` must be.*got 'AlbertBackbone'"):
        zoo.from_keras_hub(tmp_path)


@pytest.mark.parametrize("change", ["vocabulary_size", "num_layers", "hidden_dim"])
def test_a_config_of_another_model_is_rejected(change, tmp_path):
    write(tmp_path, "Roberta")
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    config["config"][change] *= 1000
    file.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="must fit the weights|does not fit the conf"):
        zoo.from_keras_hub(tmp_path)


def test_a_damaged_preset_is_rejected(tmp_path):
    write(tmp_path, "Roberta")
    with pytest.raises(ValueError, match="'classifier' needs a preset of a TextClas"):
        zoo.from_keras_hub(tmp_path, head="classifier")
    file = tmp_path / "model.weights.h5"
    file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(ValueError, match="cannot be read as HDF5"):
        zoo.from_keras_hub(tmp_path)
    file.unlink()
    with pytest.raises(FileNotFoundError, match="model.weights.h5.* missing"):
        zoo.from_keras_hub(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="No `config.json`"):
        zoo.from_keras_hub(tmp_path)


def test_a_preset_is_read_without_keras_hub(tmp_path, monkeypatch):
    write(tmp_path, "Roberta")
    monkeypatch.setitem(sys.modules, "keras_hub", None)  # cannot be imported
    assert zoo.from_keras_hub(tmp_path).vocabulary.size == len(BYTE_LEVEL)
    with pytest.raises(ImportError, match="'bert_tiny_en_uncased' needs the packages"):
        zoo.from_keras_hub("bert_tiny_en_uncased")


def test_a_weight_that_is_not_stored_is_rejected(tmp_path):
    h5py = pytest.importorskip("h5py")
    write(tmp_path, "Roberta")
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        file.create_dataset("layers/large", (10**6, 10**6), chunks=True)
    with pytest.raises(ValueError, match="'layers/large' is not stored in full"):
        zoo.from_keras_hub(tmp_path)


@pytest.mark.parametrize("family", ENCODERS)
def test_heads_of_masked_tokens_give_the_logits_of_keras_hub(family, tmp_path):
    backbone, tokenizer = write(tmp_path, family)
    task = getattr(models, f"{family}MaskedLM")(backbone=backbone, preprocessor=None)
    random_weights(task).save_to_preset(tmp_path)
    imported = zoo.from_keras_hub(tmp_path)
    reference, inputs, _ = encoder_inputs(family, imported.model.encoder.pad_id)
    positions = np.array([[1, 3], [0, 4]], "int32")
    expected = numpy(task({**reference, "mask_positions": positions}))
    actual = numpy(imported.model({**inputs, "mask_positions": positions}))
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert np.abs(expected).max() > 0.1
    encoder = zoo.from_keras_hub(tmp_path, "encoder").model
    assert type(encoder) is type(imported.model.encoder)
    with pytest.raises(ValueError, match="'masked_lm'.* for .*; got 'classifier'"):
        zoo.from_keras_hub(tmp_path, "classifier")
