"""Models of CTranslate2, imported and exported, compared with its engine."""

import json
import os
import pathlib
import struct

import keras
import numpy as np
import pytest

from keras_tfm import decode, runtime, zoo
from keras_tfm.layers import SinusoidalPositions, gelu_tanh
from tests.decode.conftest import draw_transformer
from tests.layers.formulas import numpy
from tests.models.small import BATCH, V, small
from tests.zoo import checkpoints as marian

pytestmark = pytest.mark.backend("torch")  # test_backends.py compares the backends

FOLDER = pathlib.Path(
    os.environ.get("KERAS_TFM_DATA", "nowhere"), "../golden/ctranslate2-aren"
)
golden_test = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="KERAS_TFM_DATA names no folder beside golden/"
)
TOKENS = ["<pad>", "<unk>", "<s>", "</s>", *(f"t{i}" for i in range(4, V))]
KINDS = {
    "post-norm": {
        "positions": SinusoidalPositions("halves"),
        "normalize_first": False,
    },
    "gelu": {"positions": SinusoidalPositions("halves"), "activation": "gelu"},
    "gelu by tanh": {
        "positions": SinusoidalPositions("halves"),
        "activation": gelu_tanh,
    },
    "with everything": {
        "normalize_first": True,
        "normalization": "rms_norm",
        "gated": True,
        "activation": "silu",
        "use_bias": False,
        "tie": "inputs",
        "positions": "learned",
        "sequence_length": 30,
        "normalize_embedding": True,
        "scale_embedding": True,
        "logits_bias": True,
        "epsilon": 1e-3,
    },
}


@pytest.fixture(scope="module")
def imported():
    return zoo.from_ctranslate2(FOLDER)


@pytest.fixture(scope="module")
def golden():
    return json.loads((FOLDER / "golden_aren.json").read_text())


@pytest.fixture(scope="module")
def sources(golden, imported):
    """The sources as lists of ids."""
    numbers = {token: i for i, token in enumerate(imported.tokens[0])}
    return [[numbers[p] for p in line.split()] for line in golden["src"]]


def to_text(imported, ids):
    tokens = imported.tokens[1]
    return "".join(tokens[i] for i in ids if i not in (0, 3))


@golden_test
@pytest.mark.parametrize("number", range(3))
def test_hypotheses_and_scores_are_those_of_ctranslate2(
    number, imported, golden, sources
):
    expected = golden["out"]["float32"]["translate"][number]
    count = len(expected["results"][0]["hypotheses"])
    search = runtime.Decoder(
        imported.model,
        decode.Options(
            beam_size=expected["beam_size"],
            num_hypotheses=count,
            max_decoding_length=256,
            suppress_ids=(),
            disable_unk=False,
            jit_compile=False,
        ),
    )
    actual = search(sources)
    for row, result in enumerate(expected["results"]):
        assert [to_text(imported, ids) for ids in actual.ids[row]] == result[
            "hypotheses"
        ]
        np.testing.assert_allclose(actual.scores[row], result["scores"], atol=1e-4)


@golden_test
def test_forced_tokens_have_the_scores_of_ctranslate2(imported, golden, sources):
    tokens = imported.tokens[1]
    expected = golden["out"]["float32"]["score_batch"]
    prefixes = [[tokens.index(t) for t in result["tokens"][:-1]] for result in expected]
    search = runtime.Decoder(
        imported.model,
        decode.Options(
            max_decoding_length=max(map(len, prefixes)) + 1,
            suppress_ids=(),
            disable_unk=False,
            return_token_scores=True,
            jit_compile=False,
        ),
    )
    actual = search(sources[: len(prefixes)], target_prefix=prefixes)
    for row, result in enumerate(expected):
        log_probs = actual.token_scores[row, 0, : len(result["tokens"])]
        np.testing.assert_allclose(log_probs, result["log_probs"], atol=1e-5)
    assert numpy(imported.model.projection.bias)[4:].any()


def export(folder, kind, **options):
    seed = 2 if kind == "post-norm" else 0  # outputs differ
    model = draw_transformer(seed, vocabulary_size=V, **KINDS[kind])
    zoo.to_ctranslate2(model, TOKENS, folder, **options)
    return model


# Largest difference of the logits from those of float32.
TOLERANCES = {
    None: 1e-5,
    "int16": 2e-2,
    "float16": 2e-2,
    "int8": 0.2,
    "int8_float16": 0.2,
    "bfloat16": 0.2,
}


def logits_of(model):
    return numpy(model(BATCH))


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_translates_as_decoder_does(kind, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    model = export(tmp_path, kind)
    engine = ctranslate2.Translator(str(tmp_path), compute_type="float32")
    rows = [[5, 9, 4, 3], [7, 3], [8, 8, 6, 11, 12]]
    sources = [[TOKENS[i] for i in row] for row in rows]
    results = engine.translate_batch(
        sources, beam_size=3, max_decoding_length=12, length_penalty=1
    )
    options = {"suppress_ids": (), "disable_unk": False, "max_decoding_length": 12}
    search = runtime.Decoder(model, decode.Options(beam_size=3, **options))
    generated = [
        [TOKENS[i] for i in ids[0] if i not in (0, 3)] for ids in search(rows).ids
    ]
    assert generated == [result.hypotheses[0] for result in results]
    assert len({tuple(hypothesis) for hypothesis in generated}) == 3
    expected_scores = engine.score_batch(sources, generated)
    ids = [[TOKENS.index(token) for token in hypothesis] for hypothesis in generated]
    options |= {"return_token_scores": True, "max_decoding_length": 14}
    actual = (
        runtime.Decoder(model, decode.Options(**options)).score(rows, ids).token_scores
    )
    for row, hypothesis, result in zip(actual, generated, expected_scores, strict=True):
        expected = result.log_probs[: len(hypothesis)]
        np.testing.assert_allclose(row[0, : len(hypothesis)], expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["post-norm", "with everything"])
@pytest.mark.parametrize("quantization", TOLERANCES)
def test_an_exported_model_can_be_imported(kind, quantization, tmp_path):
    pytest.importorskip("ctranslate2")
    model = export(tmp_path, kind, quantization=quantization)
    imported = zoo.from_ctranslate2(tmp_path)
    assert imported.tokens == (TOKENS, TOKENS)
    assert imported.model.config["tie"] == model.config["tie"]
    actual, expected = logits_of(imported.model), logits_of(model)
    np.testing.assert_allclose(actual, expected, atol=TOLERANCES[quantization])


# "with everything" has learned positions.
@pytest.mark.parametrize("kind", ["post-norm", "with everything"])
def test_sequence_length_limits_the_positions(kind, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    if kind == "with everything":
        export(tmp_path, kind, sequence_length=99)
        assert zoo.from_ctranslate2(tmp_path).model.config["sequence_length"] == 30
    model = export(tmp_path, kind, sequence_length=6)
    imported = zoo.from_ctranslate2(tmp_path)
    assert imported.model.config["sequence_length"] == 6
    np.testing.assert_allclose(logits_of(imported.model), logits_of(model), atol=1e-5)
    engine = ctranslate2.Translator(str(tmp_path))
    engine.translate_batch([TOKENS[4:10]], max_decoding_length=6)
    with pytest.raises(RuntimeError, match="positions >= 6"):
        engine.translate_batch([TOKENS[4:11]], max_decoding_length=6)
    with pytest.raises(ValueError, match="sequence_length=0"):
        zoo.to_ctranslate2(model, TOKENS, tmp_path, sequence_length=0)


def test_files_of_another_model_are_deleted(tmp_path):
    pytest.importorskip("ctranslate2")
    export(tmp_path, "post-norm")
    model = draw_transformer(vocabulary_size=V, tie=None)
    target_tokens = [*TOKENS[:4], *TOKENS[:3:-1]]
    zoo.to_ctranslate2(model, TOKENS, tmp_path, target_vocabulary=target_tokens)
    assert zoo.from_ctranslate2(tmp_path).tokens == (TOKENS, target_tokens)
    names = {path.name.split(".")[0] for path in tmp_path.iterdir()}
    assert names == {"config", "model", "source_vocabulary", "target_vocabulary"}


def test_the_default_epsilon_is_that_of_the_engine(tmp_path):
    pytest.importorskip("ctranslate2")
    export(tmp_path, "with everything")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("layer_norm_epsilon") == 1e-3
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert zoo.from_ctranslate2(tmp_path).model.config["epsilon"] == 1e-6


def test_add_source_eos_becomes_a_source_suffix(tmp_path):
    pytest.importorskip("ctranslate2")
    export(tmp_path, "post-norm", add_source_eos=True)
    assert zoo.from_ctranslate2(tmp_path).options["source_suffix"] == [3]


def change(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_add_source_bos_becomes_a_source_prefix(tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    export(tmp_path, "post-norm")
    change(tmp_path, add_source_bos=True)
    assert zoo.from_ctranslate2(tmp_path).options["source_prefix"] == [2]
    change(tmp_path, bos_token="t7", add_source_eos=True)
    imported = zoo.from_ctranslate2(tmp_path)
    engine = ctranslate2.Translator(str(tmp_path), compute_type="float32")
    [result] = engine.translate_batch([["t5", "t9"]], beam_size=1, return_scores=True)
    ends = (imported.options["source_prefix"], imported.options["source_suffix"])
    assert ends == ([TOKENS.index("t7")], [3])
    options = {"suppress_ids": (), "disable_unk": False, "jit_compile": False}
    actual = runtime.Decoder(
        imported.model, decode.Options(max_decoding_length=256, **options)
    )([[*ends[0], *map(TOKENS.index, ("t5", "t9")), *ends[1]]])
    generated = [TOKENS[i] for i in actual.ids[0, 0] if i not in (0, 3)]
    assert generated == result.hypotheses[0]
    np.testing.assert_allclose(actual.scores[0], result.scores, atol=1e-5)
    change(tmp_path, bos_token="[CLS]")
    with pytest.raises(ValueError, match=r"`bos_token` '\[CLS\]' is not in the source"):
        zoo.from_ctranslate2(tmp_path)


def test_only_the_target_vocabulary_needs_a_start_token(tmp_path):
    pytest.importorskip("ctranslate2")
    model = draw_transformer(2, vocabulary_size=V, tie="target")
    source = ["<pad>", "<unk>", "first", "</s>", *(f"s{i}" for i in range(4, V))]
    zoo.to_ctranslate2(model, source, tmp_path, target_vocabulary=TOKENS)
    imported = zoo.from_ctranslate2(tmp_path)
    assert imported.tokens == (
        [*source[:2], "<s>", "</s>", "first", *source[4:]],
        TOKENS,
    )
    assert imported.permutations[0].tolist() == [0, 1, -1, 3, 2, *range(4, V)]
    assert imported.permutations[1].tolist() == list(range(V))
    ids = np.array([imported.tokens[0].index(name) for name in source[4:9]])
    source_ids = np.arange(4, 9)[None]
    target = BATCH["target_ids"][:1]
    imported_inputs = {"source_ids": ids[None].astype("int32"), "target_ids": target}
    inputs = {"source_ids": source_ids.astype("int32"), "target_ids": target}
    np.testing.assert_allclose(
        numpy(imported.model(imported_inputs)), numpy(model(inputs)), atol=1e-5
    )
    for tokens in (source, TOKENS):  # the engine starts with <s>, not with "first"
        (tmp_path / "source_vocabulary.json").write_text(json.dumps(tokens))
        (tmp_path / "target_vocabulary.json").write_text(json.dumps(source))
        with pytest.raises(ValueError, match="the start '<s>' is not in the target"):
            zoo.from_ctranslate2(tmp_path)


def test_target_language_tags_are_found(tmp_path):
    pytest.importorskip("ctranslate2")
    export(tmp_path, "post-norm")
    assert zoo.from_ctranslate2(tmp_path).languages is None
    file = tmp_path / "shared_vocabulary.json"
    names = json.loads(file.read_text())
    names[6] = ">>fra<<"
    file.write_text(json.dumps(names))
    imported = zoo.from_ctranslate2(tmp_path)
    assert imported.languages == {"fra": 6} and imported.tokens[0][6] == ">>fra<<"
    assert imported.options_for(None, "fra")["source_prefix"] == [6]


def encode_number(name, value):
    """Returns the bytes of a named one-byte number in a file."""
    name = name.encode() + b"\0"
    return struct.pack("<H", len(name)) + name + struct.pack("<BBIb", 0, 1, 1, value)


def test_decoding_may_start_with_zeros(tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    export(tmp_path, "post-norm")
    file, name = tmp_path / "model.bin", "decoder/start_from_zero_embedding"
    content = file.read_bytes()
    assert content.count(encode_number(name, 0)) == 1
    file.write_bytes(content.replace(encode_number(name, 0), encode_number(name, 1)))
    imported = zoo.from_ctranslate2(tmp_path)
    assert not numpy(imported.model.target_embedding.embeddings.value)[2].any()
    engine = ctranslate2.Translator(str(tmp_path), compute_type="float32")
    sources = [["t5", "t9", "t4", "</s>"], ["t7", "</s>"]]
    results = engine.translate_batch(sources, beam_size=1, return_scores=True)
    ids = [[imported.tokens[0].index(token) for token in row] for row in sources]
    options = {"suppress_ids": (2,), "disable_unk": False, "jit_compile": False}
    actual = runtime.Decoder(
        imported.model, decode.Options(max_decoding_length=256, **options)
    )(ids)
    for row, result in enumerate(results):
        generated = [
            imported.tokens[1][i] for i in actual.ids[row, 0] if i not in (0, 3)
        ]
        assert generated == result.hypotheses[0]
        np.testing.assert_allclose(actual.scores[row], result.scores, atol=1e-4)


def test_different_sides_and_unknown_weights_are_rejected(tmp_path):
    pytest.importorskip("ctranslate2")
    export(tmp_path, "post-norm")
    file = tmp_path / "model.bin"
    content = file.read_bytes()
    flag = encode_number("encoder/pre_norm", 0)
    assert content.count(flag) == 1
    file.write_bytes(content.replace(flag, encode_number("encoder/pre_norm", 1)))
    with pytest.raises(ValueError, match=r"'pre_norm' must be equal.*got \[0, 1\]"):
        zoo.from_ctranslate2(tmp_path)
    # A name that no Transformer of the paper has, of the same length.
    name, unknown_name = b"encoder/embeddings_merge\0", b"encoder/embeddings_other\0"
    assert content.count(name) == 1
    file.write_bytes(content.replace(name, unknown_name))
    with pytest.raises(ValueError, match="not supported: .'encoder/embeddings_oth"):
        zoo.from_ctranslate2(tmp_path)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("scaled", [False, True])
def test_scale_embeddings_has_the_meaning_of_the_engine(scaled, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    import transformers

    marian.write_marian(tmp_path, scale_embedding=scaled)
    files = ("source.spm", "target.spm", "vocab.json")
    tokenizer = transformers.MarianTokenizer(*(str(tmp_path / f) for f in files))
    tokenizer.save_pretrained(tmp_path)
    folder = tmp_path / "converted"
    converter = ctranslate2.converters.TransformersConverter(str(tmp_path))
    converter.convert(str(folder))
    imported = zoo.from_ctranslate2(folder)
    assert imported.model.config["scale_embedding"] is scaled
    engine = ctranslate2.Translator(str(folder), compute_type="float32")
    source, target = imported.tokens[0][5:10], imported.tokens[1][20:26]
    ends = imported.options["source_suffix"]
    [expected] = engine.score_batch([source], [target])
    options = {"suppress_ids": (), "disable_unk": False, "return_token_scores": True}
    search = runtime.Decoder(
        imported.model, decode.Options(max_decoding_length=9, **options)
    )
    actual = search.score([[*range(5, 10), *ends]], [[*range(20, 26), 3]]).token_scores
    np.testing.assert_allclose(actual[0, 0, :7], expected.log_probs, atol=1e-4)


def test_an_unsupported_scale_of_embeddings_is_rejected(tmp_path):
    pytest.importorskip("ctranslate2")
    export(tmp_path, "post-norm")
    file, name = tmp_path / "model.bin", "decoder/scale_embeddings"
    content = file.read_bytes()
    flag = encode_number(name, 1)
    assert content.count(flag) == 1
    for value in (2.0, float("nan")):
        factor = flag[:-7] + struct.pack("<BBIf", 0, 0, 4, value)
        file.write_bytes(content.replace(flag, factor))
        with pytest.raises(ValueError, match=rf"sqrt\(16\), .*\[1, {value}\]"):
            zoo.from_ctranslate2(tmp_path)


def test_padding_may_be_called_blank(tmp_path):
    pytest.importorskip("ctranslate2")
    model = export(tmp_path, "post-norm")
    file = tmp_path / "shared_vocabulary.json"
    file.write_text(json.dumps(["<blank>", *TOKENS[1:]]))
    imported = zoo.from_ctranslate2(tmp_path)
    assert imported.tokens[0] == ["<blank>", *TOKENS[1:]]
    np.testing.assert_allclose(logits_of(imported.model), logits_of(model), atol=1e-5)


def test_unsupported_architectures_are_rejected(tmp_path):
    pytest.importorskip("ctranslate2")
    for settings in (
        {"positions": "rotary"},
        {"score": "dot"},
        {"key_dim": 3},
        {"decoder_recurrence": "ssru"},
    ):
        [name] = settings
        with pytest.raises(
            ValueError, match=f"must have positions.*{{'{name}': [^,]*}}"
        ):
            zoo.to_ctranslate2(small(**settings), TOKENS, tmp_path)
    with pytest.raises(ValueError, match="must be a Transformer; got Dense"):
        zoo.to_ctranslate2(keras.layers.Dense(2), TOKENS, tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("ctranslate2")
    folder = tmp_path_factory.mktemp("written")
    export(folder, "post-norm")
    return folder


def damage(content, fault):
    """Returns the content with one fault."""
    name = b"decoder/embeddings/weight\0"
    offset = content.index(name) + len(name)  # where the rank is
    if fault == "short":
        return content[:-100]
    if fault == "empty":
        return b""
    if fault == "version":
        return struct.pack("<I", 99) + content[4:]
    if fault == "long shape":
        return content[: offset + 1] + struct.pack("<I", 2**31) + content[offset + 5 :]
    if fault == "many":
        count = content.index(b"Transformer") + len("TransformerSpec") + 1 + 4
        return content[:count] + struct.pack("<I", 2**31) + content[count + 4 :]
    if fault == "type":
        return content[: offset + 9] + b"\x63" + content[offset + 10 :]
    return content + b"more"


FAULTS = ["short", "empty", "version", "long shape", "many", "type", "more"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_file_is_rejected(fault, folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    file = tmp_path / "model.bin"
    file.write_bytes(damage(file.read_bytes(), fault))
    with pytest.raises(ValueError, match="model.bin cannot be read as a model of CTr"):
        zoo.from_ctranslate2(tmp_path)


def test_a_vocabulary_of_another_size_is_rejected(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for side in ("source", "target", "shared"):
        file = tmp_path / f"{side}_vocabulary.json"
        if file.is_file():
            file.write_text(json.dumps([*TOKENS, "more"]))
    with pytest.raises(ValueError, match=r"vocabulary.json must have 13 tok.*got 14"):
        zoo.from_ctranslate2(tmp_path)
    for file in tmp_path.glob("*vocabulary.json"):
        file.unlink()
    with pytest.raises(FileNotFoundError, match="must hold source_vocabulary or"):
        zoo.from_ctranslate2(tmp_path)
    (tmp_path / "model.bin").unlink()
    with pytest.raises(FileNotFoundError, match="must hold `model.bin`, a model that"):
        zoo.from_ctranslate2(tmp_path)
