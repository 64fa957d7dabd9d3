"""A trained model of CTranslate2, decoded here as CTranslate2 decodes it."""

import json
import os
import pathlib
import struct

import numpy as np
import pytest
from keras import ops

from keras_tfm import decode, layers, models

FOLDER = pathlib.Path(
    os.environ.get("KERAS_TFM_DATA", "nowhere"), "../golden/ctranslate2-aren"
)
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="KERAS_TFM_DATA names no folder beside golden/"
)
UNKNOWN, START, END = "<unk>", 1, 2
HEADS, WIDTH, DEPTH = 8, 32, 6


def read_variables(path):
    """Reads a `model.bin` of version 2: names, shapes, float32 data."""
    data, place, variables = path.read_bytes(), 0, {}

    def take(form):
        nonlocal place
        values = struct.unpack_from("<" + form, data, place)
        place += struct.calcsize("<" + form)
        return values

    def name():
        nonlocal place
        (size,) = take("H")
        place += size
        return data[place - size : place].rstrip(b"\0").decode()

    assert (take("I"), name(), take("I")) == ((2,), "TransformerBase", (2,))
    for _ in range(take("I")[0]):
        key = name()
        (rank,) = take("B")
        shape = take(f"{rank}I")
        item, count = take("BI")
        if item == 4:
            variables[key] = np.frombuffer(data, "<f4", count, place).reshape(shape)
        place += item * count
    assert place == len(data)
    return variables


class WithBias:
    """The model, and the bias on its logits that ours has no place for."""

    def __init__(self, model, bias):
        self.begin, self.bias, self.model = model.begin, bias, model
        self.variables = model.variables
        self.target_vocabulary_size = model.target_vocabulary_size

    def step(self, ids, index, cache):
        logits, cache = self.model.step(ids, index, cache)
        return ops.add(logits, self.bias), cache


def split(weight, bias, outputs):
    """Kernels (in, out) and biases of layers joined by their outputs."""
    for part, offset in zip(
        np.split(weight, outputs), np.split(bias, outputs), strict=True
    ):
        yield part.T, offset


def set_layer(layer, kernel, bias):
    layer.kernel.assign(kernel.reshape(layer.kernel.shape))
    layer.bias.assign(bias.reshape(layer.bias.shape))


def set_norm(norm, variables, name):
    norm.gamma.assign(variables[f"{name}/layer_norm/gamma"])
    norm.beta.assign(variables[f"{name}/layer_norm/beta"])


def set_attention(attention, variables, name, joint):
    """Sets query, key, value, output from matrices joined by `joint`."""
    dense = [attention.query_dense, attention.key_dense, attention.value_dense]
    parts = []
    for i, count in enumerate((*joint, 1)):
        linear = f"{name}/linear_{i}"
        weight, bias = variables[f"{linear}/weight"], variables[f"{linear}/bias"]
        parts += split(weight, bias, count)
    for layer, part in zip([*dense, attention.output_dense], parts, strict=True):
        set_layer(layer, *part)


def set_block(block, variables, name):
    set_attention(block.self_attention, variables, f"{name}/self_attention", (3,))
    set_norm(block.self_attention_norm, variables, f"{name}/self_attention")
    if f"{name}/attention/layer_norm/beta" in variables:
        set_attention(block.cross_attention, variables, f"{name}/attention", (1, 2))
        set_norm(block.cross_attention_norm, variables, f"{name}/attention")
    for part, layer in (
        ("linear_0", block.feed_forward.inner_dense),
        ("linear_1", block.feed_forward.output_dense),
    ):
        weight, bias = (variables[f"{name}/ffn/{part}/{x}"] for x in ("weight", "bias"))
        set_layer(layer, weight.T, bias)
    set_norm(block.feed_forward_norm, variables, f"{name}/ffn")


@pytest.fixture(scope="module")
def model():
    variables = read_variables(FOLDER / "model.bin")
    tables = [variables[f"{side}/embeddings/weight"] for side in ("encoder", "decoder")]
    model = models.Transformer(
        len(tables[0]),
        target_vocabulary_size=len(tables[1]),
        num_layers=DEPTH,
        embedding_dim=WIDTH,
        intermediate_dim=4 * WIDTH,
        num_heads=HEADS,
        tie=None,
        positions=layers.SinusoidalPositions("halves", first_position=1),
        normalize_first=True,
        dropout=0.0,
    )
    model.source_embedding.embeddings.assign(tables[0])
    model.target_embedding.embeddings.assign(tables[1])
    model.projection.kernel.assign(variables["decoder/projection/weight"].T)
    for side, blocks, norm in (
        ("encoder", model.encoder_blocks, model.encoder_norm),
        ("decoder", model.decoder_blocks, model.decoder_norm),
    ):
        for i, block in enumerate(blocks):
            set_block(block, variables, f"{side}/layer_{i}")
        set_norm(norm, variables, side)
    return WithBias(model, variables["decoder/projection/bias"])


@pytest.fixture(scope="module")
def golden():
    return json.loads((FOLDER / "golden_aren.json").read_text())


@pytest.fixture(scope="module")
def sources(golden):
    pieces = (FOLDER / "source_vocabulary.txt").read_text().split("\n")
    rows = [[pieces.index(p) for p in line.split()] for line in golden["src"]]
    ids = np.zeros((len(rows), max(map(len, rows))), "int32")
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = tokens
    return ids


def to_text(ids):
    pieces = (FOLDER / "target_vocabulary.txt").read_text().split("\n")
    return "".join(pieces[i] for i in ids if i not in (0, END))


@pytest.mark.parametrize("number", range(3))
def test_hypotheses_and_scores_are_those_of_ctranslate2(number, model, golden, sources):
    wanted = golden["out"]["float32"]["translate"][number]
    count = len(wanted["results"][0]["hypotheses"])
    search = decode.Search(
        model,
        beam_size=wanted["beam_size"],
        num_hypotheses=count,
        max_decoding_length=256,
        start_id=START,
        end_id=END,
        suppress_ids=(),
        disable_unk=False,
        jit_compile=False,
    )
    found = search(sources)
    for row, result in enumerate(wanted["results"]):
        assert [to_text(ids) for ids in found.ids[row]] == result["hypotheses"]
        np.testing.assert_allclose(found.scores[row], result["scores"], atol=1e-4)


def test_forced_tokens_have_the_scores_of_ctranslate2(model, golden, sources):
    pieces = (FOLDER / "target_vocabulary.txt").read_text().split("\n")
    wanted = golden["out"]["float32"]["score_batch"]
    prefixes = [[pieces.index(t) for t in one["tokens"][:-1]] for one in wanted]
    search = decode.Search(
        model,
        max_decoding_length=max(map(len, prefixes)) + 1,
        start_id=START,
        end_id=END,
        suppress_ids=(),
        disable_unk=False,
        return_token_scores=True,
        jit_compile=False,
    )
    found = search(sources[: len(prefixes)], target_prefix=prefixes)
    for row, one in enumerate(wanted):
        gains = found.token_scores[row, 0, : len(one["tokens"])]
        np.testing.assert_allclose(gains, one["log_probs"], atol=1e-4)
    assert model.bias.any()
