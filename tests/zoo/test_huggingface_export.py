"""Exported models give the same results in transformers."""

import json
import operator
import pathlib

import numpy as np
import pytest

from keras_tfm import zoo
from keras_tfm.decode import Options
from keras_tfm.layers import SinusoidalPositions
from keras_tfm.models import (
    CausalLM,
    Encoder,
    MaskedLM,
    SequenceClassifier,
    Transformer,
)
from keras_tfm.pipelines import Translator
from keras_tfm.runtime import Decoder
from keras_tfm.text import TokenizersVocabulary, Vocabulary
from keras_tfm.text.pair_packing import count_special_tokens, pack_texts
from tests.decode.conftest import draw_transformer
from tests.layers.formulas import draw_weights, numpy
from tests.models.small import BATCH, SOURCE, TARGET, V, small
from tests.zoo.checkpoints import TEXTS as MARIAN
from tests.zoo.checkpoints import write_marian

pytestmark = pytest.mark.backend("torch")  # test_backends.py compares the backends

KINDS = {
    "the paper's": {},
    "sines before cosines": {
        "positions": SinusoidalPositions("halves", reach_max_period=False)
    },
    "pre-norm": {"normalize_first": True, "activation": "gelu"},
    "tied target": {"tie": "target", "use_bias": False},
    "tied inputs": {"tie": "inputs", "logits_bias": True},
    "untied": {"tie": None, "logits_bias": True, "scale_embedding": False},
    "a bias": {"logits_bias": True, "activation": "silu"},
    "positions of tensor2tensor": {"positions": SinusoidalPositions("halves")},
    "learned positions": {"positions": "learned", "sequence_length": 20},
    "learned, pre-norm": {
        "positions": "learned",
        "sequence_length": 20,
        "normalize_first": True,
    },
}
UNSUPPORTED = {
    "normalization": ({"normalization": "rms_norm"}, "normalization='layer_norm'"),
    "gated": ({"gated": True}, "gated=False"),
    "epsilon": ({"epsilon": 1e-3}, "epsilon=1e-05"),
    "relative": ({"positions": "rotary"}, "positions='SinusoidalPositions'"),
    "none": ({"positions": None}, "positions='SinusoidalPositions'"),
    "normalized": ({"normalize_embedding": True}, "normalize_embedding=False"),
    "recurrent": ({"decoder_recurrence": "ssru"}, "decoder_recurrence=None"),
    "score": ({"score": "dot"}, "score='scaled_dot'"),
    "groups": ({"num_key_value_heads": 1}, "num_key_value_heads=None"),
    "key dimension": ({"key_dim": 6}, "key_dim=None"),
    "pre-norm, untied": ({"normalize_first": True, "tie": None}, "tie='all'"),
    "activation": ({"activation": "tanh"}, "gelu_new"),
    "other target": (
        {"tie": None, "target_vocabulary_size": 15},
        "target_vocabulary_size=13",
    ),
}
BERT = {
    "num_layers": 2,
    "embedding_dim": 8,
    "intermediate_dim": 12,
    "num_heads": 2,
    "num_segments": 2,
    "positions": "learned",
    "sequence_length": 20,
    "normalize_embedding": True,
    "activation": "gelu",
    "epsilon": 1e-6,
}
TEXTS = [
    "The source is a sentence, and the target is its translation.",
    "  Two  blanks\tand a tab ",
    "",
    " ",
    "Zażółć gęślą jaźń 日本語 \U0001f600 ﬁne ½ ａｂｃ",
    "<s> looks like a mark </s>, <pad> <unk> and <0x41> too",
    "e\u0301 cafe\u0301 \u200bzero width\u00a0hard",
]


def load_reference(folder):
    """Loads a model with transformers, which must know every tensor."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, config.architectures[0])
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(report[name] for name in ("unexpected_keys", "mismatched_keys"))
    missing = {n for n in report["missing_keys"] if "embed_positions" not in n}
    assert missing <= {"pooler.dense.weight", "pooler.dense.bias"}
    return model.eval()


def logits_of(reference, **inputs):
    import torch

    with torch.no_grad():
        outputs = reference(**{k: torch.tensor(v).long() for k, v in inputs.items()})
    logits = getattr(outputs, "logits", None)
    return (outputs.last_hidden_state if logits is None else logits).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_gives_the_logits_of_the_model(kind, tmp_path):
    model = small(**KINDS[kind])
    zoo.to_hugging_face(model, tmp_path, max_length=30)
    reference = load_reference(tmp_path)
    assert reference.config.model_type == (
        "pegasus" if KINDS[kind].get("normalize_first") else "marian"
    )
    expected = numpy(model(BATCH))
    actual = logits_of(
        reference,
        input_ids=SOURCE,
        attention_mask=SOURCE != 0,
        decoder_input_ids=TARGET,
    )
    real = TARGET != 0
    np.testing.assert_allclose(actual[real], expected[real], atol=1e-4)
    assert np.abs(expected).max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_model_can_be_imported(kind, tmp_path):
    model = small(**KINDS[kind])
    zoo.to_hugging_face(model, tmp_path, max_length=30)
    imported = zoo.from_hugging_face(tmp_path).model
    real = TARGET != 0
    np.testing.assert_allclose(
        numpy(imported(BATCH))[real], numpy(model(BATCH))[real], atol=1e-4
    )


def test_stale_files_are_deleted_and_others_stay(tmp_path):
    stale = ("model.safetensors.index.json", "generation_config.json", "note.txt")
    for name in stale:
        (tmp_path / name).write_text("{}")
    zoo.to_hugging_face(small(), tmp_path)
    remaining = {path.name for path in tmp_path.iterdir()}
    exported = {"config.json", "generation_config.json", "model.safetensors"}
    assert remaining == exported | {"note.txt"}
    assert (tmp_path / "generation_config.json").read_text() != "{}"


@pytest.mark.parametrize("kind", ["the paper's", "pre-norm", "tied inputs"])
def test_a_model_saved_by_transformers_can_be_imported(kind, tmp_path):
    model = small(**KINDS[kind])
    zoo.to_hugging_face(model, tmp_path / "a", max_length=30)
    load_reference(tmp_path / "a").save_pretrained(tmp_path / "b")
    imported = zoo.from_hugging_face(tmp_path / "b").model
    real = TARGET != 0
    np.testing.assert_allclose(
        numpy(imported(BATCH))[real], numpy(model(BATCH))[real], atol=1e-4
    )


def until_end(row):
    row = [int(i) for i in row]
    return row[: row.index(3)] if 3 in row else row


@pytest.mark.parametrize("beams", [1, 3])
def test_generate_gives_the_ids_of_decoder(beams, tmp_path):
    import torch

    model = draw_transformer(
        2, vocabulary_size=V, normalize_first=False, tie="all", num_heads=2
    )
    settings = {
        "beam_size": beams,
        "late_stopping": beams > 1,
        "max_decoding_length": 9,
        "min_decoding_length": 3,
        "suppress_sequences": [[5, 6]],
    }
    zoo.to_hugging_face(model, tmp_path, options={**settings, "batch_size": 4})
    with torch.no_grad():
        expected = (
            load_reference(tmp_path)
            .generate(
                torch.tensor(SOURCE).long(),
                attention_mask=torch.tensor(SOURCE != 0).long(),
            )
            .numpy()[:, 1:]
        )
    actual = Decoder(model, Options(**settings))(SOURCE).ids[:, 0]
    # transformers pads with the end token, since padding is 0.
    actual, expected = ([until_end(row) for row in rows] for rows in (actual, expected))
    assert actual == expected
    assert len({len(row) for row in actual} | {len(set(row)) for row in actual}) > 1


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_configuration_is_rejected(name, tmp_path):
    settings, message = UNSUPPORTED[name]
    with pytest.raises(ValueError, match=message):
        zoo.to_hugging_face(small(**settings), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_and_quantized_models_are_rejected(tmp_path):
    with pytest.raises(TypeError, match="got CausalLM"):
        zoo.to_hugging_face(CausalLM(V, 1, 8, 12, 2), tmp_path)
    quantized = small()
    quantized.quantize("int8")
    with pytest.raises(ValueError, match="quantized to int8"):
        zoo.to_hugging_face(quantized, tmp_path)
    pytest.importorskip("ctranslate2")
    with pytest.raises(ValueError, match="quantized to int8"):
        zoo.to_ctranslate2(quantized, [f"t{i}" for i in range(V)], tmp_path)


def test_unsupported_options_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="coverage_penalty"):
        zoo.to_hugging_face(small(), tmp_path, options={"coverage_penalty": 0.2})
    with pytest.raises(ValueError, match="target_prefix"):
        zoo.to_hugging_face(small(), tmp_path, options={"target_prefix": [4, 5]})
    search = {"target_prefix": [4], "beam_size": 4}
    with pytest.raises(ValueError, match="{'score_prefix': True}.*score_prefix=False"):
        zoo.to_hugging_face(small(), tmp_path, options=search)
    for options in ({**search, "score_prefix": False}, {**search, "beam_size": 1}):
        zoo.to_hugging_face(small(), tmp_path, options=options)
        actual = json.loads((tmp_path / "generation_config.json").read_text())
        assert actual["forced_bos_token_id"] == 4
    with pytest.raises(ValueError, match="`max_length` must be at least 1; got 0"):
        zoo.to_hugging_face(small(), tmp_path, max_length=0)


def encoder_inputs(encoder):
    ids = np.array([[2, 9, 4, 3, 7], [2, 3, 0, 0, 0]], "int32")
    inputs = {"token_ids": ids, "segment_ids": np.array([[0, 0, 0, 1, 1], [0] * 5])}
    mask_positions = np.tile(np.arange(5, dtype="int32"), (2, 1))
    reference = {"input_ids": ids, "attention_mask": ids != 0}
    if encoder.config["num_segments"]:
        reference["token_type_ids"] = inputs["segment_ids"]
    return {**inputs, "mask_positions": mask_positions}, reference


HEADS = {
    "encoder": lambda encoder: encoder,
    "masked": lambda encoder: MaskedLM(encoder, "gelu"),
    "tanh": lambda encoder: SequenceClassifier(
        encoder, 3, "first", 8, multi_label=True
    ),
    "relu": lambda encoder: SequenceClassifier(encoder, 3, "first", 8, "relu"),
}


@pytest.mark.parametrize("segments", [0, 2])
@pytest.mark.parametrize("head", HEADS)
def test_an_encoder_gives_the_same_logits(head, segments, tmp_path):
    distilled = head == "relu"
    if distilled and segments:
        pytest.skip("a DistilBERT has no segments")
    settings = {"num_segments": segments, **({"epsilon": 1e-12} if distilled else {})}
    model = draw_weights(HEADS[head](Encoder(V, **{**BERT, **settings})), 0)
    names = ["bad", "good", "so so"]
    options = {"classes": names} if "t" in head and head != "masked" else {}
    zoo.to_hugging_face(model, tmp_path, **(options if head != "encoder" else {}))
    reference = load_reference(tmp_path)
    inputs, reference_inputs = encoder_inputs(getattr(model, "encoder", model))
    inputs = {tensor.name: inputs[tensor.name] for tensor in model.inputs}
    expected, actual = numpy(model(inputs)), logits_of(reference, **reference_inputs)
    if actual.ndim == 3:
        real = reference_inputs["attention_mask"]
        expected, actual = expected[real], actual[real]
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    assert np.abs(expected).max() > 0.1
    imported = zoo.from_hugging_face(tmp_path)
    np.testing.assert_allclose(
        numpy(imported.model(inputs)), numpy(model(inputs)), atol=1e-5
    )
    if head == "tanh":
        assert imported.classes == names
        assert imported.model.multi_label


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"normalize_first": True}, "normalize_first=False"),
        ({"positions": "sinusoidal"}, "positions='learned'"),
        ({"normalize_embedding": False}, "normalize_embedding=True"),
    ],
)
def test_an_unsupported_encoder_is_rejected(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        zoo.to_hugging_face(Encoder(V, **{**BERT, **settings}), tmp_path)


def test_an_unsupported_head_is_rejected(tmp_path):
    encoder = Encoder(V, **BERT)
    for model, message in (
        (SequenceClassifier(encoder, 3), "pooling='first'"),
        (SequenceClassifier(encoder, 3, "first"), "hidden_dim=8"),
        (SequenceClassifier(encoder, 3, "first", 8, "relu"), "num_segments=0"),
        (MaskedLM(encoder, "relu"), "activation='gelu'"),
    ):
        with pytest.raises(ValueError, match=message):
            zoo.to_hugging_face(model, tmp_path)
    model = SequenceClassifier(encoder, 3, "first", 8)
    with pytest.raises(ValueError, match="2 names for 3 classes"):
        zoo.to_hugging_face(model, tmp_path, classes=["a", "b"])


@pytest.fixture(scope="module")
def lines():
    lines = pathlib.Path("README.md").read_text("utf-8").splitlines()
    lines += pathlib.Path("CONTRIBUTING.md").read_text("utf-8").splitlines()
    return [line for line in lines if line.strip()]


# The tokenizer uses no backend.
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("normalization", ["nmt_nfkc", "identity"])
def test_a_sentencepiece_vocabulary_gives_the_same_ids(
    kind, normalization, lines, tmp_path
):
    import transformers

    vocabulary = Vocabulary.train(
        lines,
        size=700,
        model_type=kind,
        normalization=normalization,
        languages=["fr", "es"],
    )
    model = Transformer(vocabulary.size, 1, 8, 12, 2)
    options = Translator(model, vocabulary).changes()
    zoo.to_hugging_face(model, tmp_path, vocabulary, options=options)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = [*TEXTS, *lines]
    for space in ("\u00a0", "\u3000", "\x0b", "\u2003", "  "):
        texts += [f"{space}The source", f"The source{space}", f"The{space}source"]
    if kind == "unigram":
        texts += ["<2fr> The source", "is a<2es> sentence", "<2fr>", "<2 fr> <2de>"]
    expected = vocabulary.encode(texts)
    actual = reference(texts)["input_ids"]
    # The same tokens in another order, as "0 00" and "00 0", have the same
    # score: each library takes another of them.
    differing = [
        text
        for text, a, b in zip(texts, actual, expected, strict=True)
        if sorted(a) != sorted(b)
    ]
    assert not differing
    assert sum(map(operator.ne, actual, expected)) <= 1
    for row in expected[: len(TEXTS)]:
        text = reference.decode([2, *row, 3, 0], skip_special_tokens=True)
        assert text == vocabulary.decode([row])[0]
    assert (reference.pad_token_id, reference.eos_token_id) == (0, 3)


@pytest.mark.parametrize("missing", ["<", ">", "/s", "unk", "0x", "4", "<>"])
def test_a_text_like_a_special_token_is_text_without_its_characters(
    missing, lines, tmp_path
):
    import transformers

    lines = [line.translate(dict.fromkeys(map(ord, missing))) for line in lines]
    vocabulary = Vocabulary.train(lines, size=700)
    model = Transformer(vocabulary.size, 1, 8, 12, 2)
    zoo.to_hugging_face(model, tmp_path, vocabulary)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["<s> a </s>, <pad> <unk> and <0x41>", "</s>", "see<s>it", "a > b"]
    assert reference(texts)["input_ids"] == vocabulary.encode(texts)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("normalize_first", [False, True])
@pytest.mark.parametrize("targets", [(), ("fr", "es")])
def test_an_exported_translator_translates_as_before(
    kind, normalize_first, targets, lines, tmp_path
):
    vocabulary = Vocabulary.train(
        lines, size=700, model_type=kind, languages=list(targets)
    )
    shape = {"normalize_first": normalize_first, "vocabulary_size": 700, "tie": "all"}
    model = draw_transformer(5, **shape)
    translator = Translator(model, vocabulary).replace(
        beam_size=2,
        max_decoding_length=9,
        source_prefix=vocabulary.languages["es"] if targets else [],
    )
    options = translator.changes()
    zoo.to_hugging_face(model, tmp_path, vocabulary, options=options)
    imported = Translator.from_preset(tmp_path)
    assert imported.vocabulary.encode(lines) == vocabulary.encode(lines)
    for name in ("source_prefix", "source_suffix"):
        assert getattr(imported.config, name) == getattr(translator.config, name)
    assert imported.changes()["beam_size"] == 2
    texts = [*TEXTS, *lines[:9]]
    assert imported(texts) == translator(texts)
    assert len(set(imported(texts))) > 3


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece"])
def test_the_tokenizer_of_an_encoder_gives_the_same_ids(kind, lines, tmp_path):
    import transformers

    kinds = {"sentencepiece": Vocabulary, "wordpiece": TokenizersVocabulary}
    vocabulary = kinds[kind].train(lines, size=700)
    model = Encoder(vocabulary.size, **{**BERT, "pad_id": vocabulary.pad_id})
    zoo.to_hugging_face(model, tmp_path, vocabulary)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    first, second = "The source is a sentence", "and the target another."
    for texts in ((first,), (first, second)):
        sides = tuple(vocabulary.encode(list(texts)))
        length = count_special_tokens(vocabulary, len(texts)) + sum(map(len, sides))
        expected = pack_texts([sides], length, vocabulary, True)
        actual = tokenizer(*texts)
        assert actual["input_ids"] == expected["token_ids"][0].tolist()
        assert actual["token_type_ids"] == expected["segment_ids"][0].tolist()
    assert tokenizer.pad_token_id == vocabulary.pad_id
    assert tokenizer.model_max_length == 20
    if kind == "wordpiece":
        assert tokenizer.mask_token_id == vocabulary.mask_id


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_a_marian_is_exported_with_two_vocabularies(tmp_path):
    import torch
    import transformers

    write_marian(tmp_path)
    imported = zoo.from_hugging_face(tmp_path)
    sides = (imported.vocabulary, imported.target_vocabulary)
    search = {**imported.options, "no_repeat_ngram_size": 2, "max_decoding_length": 19}
    zoo.to_hugging_face(imported.model, tmp_path / "back", *sides, options=search)
    options = {**search, "source_prefix": [imported.languages["de"]]}
    translator = Translator(imported.model, *sides).replace(**options)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    batch = tokenizer(
        [f">>de<<{text}" for text in MARIAN], return_tensors="pt", padding=True
    )
    with torch.no_grad():
        ids = load_reference(tmp_path / "back").generate(**batch)
    expected = tokenizer.batch_decode(
        ids, skip_special_tokens=True, use_source_tokenizer=False
    )
    assert translator(MARIAN) == expected
    assert len(set(expected)) > 1
    with pytest.raises(ValueError, match="the end token after a source"):
        zoo.to_hugging_face(imported.model, tmp_path / "out", *sides)


def test_a_vocabulary_of_another_model_is_rejected(lines, tmp_path):
    with pytest.raises(ValueError, match="at most 13 tokens.*got 700"):
        zoo.to_hugging_face(small(), tmp_path, Vocabulary.train(lines, size=700))
    with pytest.raises(ValueError, match="must be unigram or BPE"):
        vocabulary = words_of(lines)
        model = Transformer(vocabulary.size, 1, 8, 12, 2)
        zoo.to_hugging_face(model, tmp_path, vocabulary)


def words_of(lines):
    """Trains a vocabulary of whole words."""
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="word",
        vocab_size=60,
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        minloglevel=2,
    )
    return Vocabulary(model.getvalue())
