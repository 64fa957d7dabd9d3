"""Transformers that CTranslate2 has converted."""

import math
import operator
import os
import pathlib

import keras
import numpy as np

from keras_tfm.layers import SinusoidalPositions, gelu_tanh
from keras_tfm.models import Transformer
from keras_tfm.zoo import pieces, plans
from keras_tfm.zoo.imported import Imported
from keras_tfm.zoo.json_file import check_kinds, read_json
from keras_tfm.zoo.model_bin import Variables

# Which settings are of which kind.
KINDS = (
    (("bos_token", "decoder_start_token", "eos_token", "unk_token"), str, "a token"),
    (("layer_norm_epsilon",), (int, float), "a number"),
)
# By the number of an activation.
ACTIVATIONS = {0: "relu", 1: gelu_tanh, 2: "silu", 3: "gelu"}
# Files of SentencePiece: one for each side, or one for both.
VOCABULARIES = ("source.spm", "target.spm")
SHARED = "sentencepiece.model"
HEADS = {"TransformerBase": 8, "TransformerBig": 16}
ROUNDED = 1e-4  # of a factor, what half precision takes from it
BLOCK = {
    "self_attention.output_dense": "self_attention/linear_1",
    "self_attention_norm": "self_attention/layer_norm",
    "feed_forward.inner_dense": "ffn/linear_0",
    "feed_forward.output_dense": "ffn/linear_1",
    "feed_forward_norm": "ffn/layer_norm",
}
CROSS = {
    "cross_attention.query_dense": "attention/linear_0",
    "cross_attention.output_dense": "attention/linear_2",
    "cross_attention_norm": "attention/layer_norm",
}


def from_ctranslate2(folder, **settings) -> Imported:
    """Loads a Transformer that CTranslate2 has converted.

    In float32, float16 or bfloat16 as it is; 8-bit and 16-bit matrices are
    turned back to float32. Ids are put into the order that `Vocabulary` has
    here, see `from_hugging_face`; `tokens` of the result names each.

    Args:
        folder: path with `model.bin` and vocabularies; with a SentencePiece
            model beside them (`source.spm` and `target.spm`, or
            `sentencepiece.model`) the result has its vocabularies too.
        **settings: of `Transformer`, such as `dropout`, over those of the file.

    Returns:
        `Imported`.

    Raises:
        FileNotFoundError: the folder lacks its model or a vocabulary.
        ValueError: a file is damaged, of an architecture that is not read, or
            does not fit the others.
    """
    folder = pathlib.Path(folder)
    variables = Variables(folder / "model.bin")
    config = read_json(folder / "config.json")
    config = {name: value for name, value in config.items() if value is not None}
    check_kinds(folder, config, KINDS)
    names = [_tokens(folder, side, config) for side in ("source", "target")]
    zero = bool(variables.number("decoder/start_from_zero_embedding", False))
    ids = [_ids(side, config, zero) for side in names]
    if ids[1].order[2] < 0 and not zero:
        raise ValueError(
            "What the decoder reads first is a token, or zeros. Received: "
            f"{_start(config)!r}, which is not in the vocabulary of the target."
        )
    with plans.Filling(folder) as filling:
        try:
            own = _settings(variables, config, names, ids)
        except (IndexError, KeyError, TypeError) as error:
            raise ValueError(
                f"{folder}: weights and configuration of a Transformer are wanted. "
                f"Received: {error!r}. Convert it again."
            ) from error
        model = Transformer(**{**own, **settings})
        plan = _plan(model, variables, ids)
        unread = variables.unread([name for _, each, _ in plan for name in each])
        if unread:
            raise ValueError(
                f"{folder}: a Transformer with no more than what the paper has is "
                f"read. Received also: {unread[:8]}."
            )
        filling.fill(plan, variables.array)
    tokens = tuple(_named(side, own) for side, own in zip(names, ids, strict=True))
    source, target = (
        _vocabulary(folder, short, each)
        for short, each in zip(VOCABULARIES, tokens, strict=True)
    )
    search = {
        "source_prefix": _bos(folder, names[0], config, ids[0]),
        "source_suffix": [3] if config.get("add_source_eos") else [],
        "disable_unk": False,
    }
    return Imported(
        model,
        source,
        None,
        search,
        target,
        tokens,
        pieces.targets_in(tokens[0][4:]),
        mark="target",
        orders=tuple(side.order for side in ids),
    )


def _bos(folder, tokens, config, ids):
    """What stands before a source."""
    if not config.get("add_source_bos"):
        return []
    token = config.get("bos_token", "<s>")
    if token not in tokens:
        raise ValueError(
            f"{folder}: what stands before a source is one of its tokens. Received: "
            f"bos_token={token!r}. Set it in `config.json`, or `add_source_bos` to "
            "false."
        )
    return [ids.ours(tokens.index(token))]


def _tokens(folder, side, config):
    """The tokens of one side, in their order; an unknown one is the last."""
    tokens, unknown = _listed(folder, side), config.get("unk_token", "<unk>")
    return tokens if unknown in tokens else [*tokens, unknown]


def _listed(folder, side):
    for name in (f"{side}_vocabulary", "shared_vocabulary"):
        file = folder / f"{name}.json"
        if file.is_file():
            tokens = read_json(file, list)
            if not all(isinstance(token, str) for token in tokens):
                raise ValueError(f"{file}: tokens are texts. Received: others too.")
            return tokens
        file = folder / f"{name}.txt"
        if file.is_file():
            lines = file.read_text(encoding="utf-8").split("\n")
            return lines if lines[-1] else lines[:-1]
    raise FileNotFoundError(
        f"No vocabulary of the {side} in {os.fspath(folder)!r}. Received: "
        f"{sorted(path.name for path in folder.iterdir())[:8]}."
    )


def _ids(tokens, config, starts_with_zero):
    place = {token: i for i, token in enumerate(tokens)}
    pads = [place[token] for token in ("<blank>", "<pad>") if token in place]
    return plans.Ids(
        len(tokens),
        pads[0] if pads else None,
        place.get(config.get("unk_token", "<unk>")),
        None if starts_with_zero else place.get(_start(config)),
        place.get(config.get("eos_token", "</s>")),
    )


def _start(config):
    return config.get("decoder_start_token", config.get("bos_token", "<s>"))


def _named(tokens, ids):
    """The token that each id here stands for."""
    named = [tokens[i] if i >= 0 else "" for i in ids.order]
    spare = [own or name for own, name in zip(named, pieces.SPECIAL, strict=False)]
    if 2 in ids.added:
        spare[2] = pieces.SPECIAL[2]
    return [*spare, *named[4:]]


def _vocabulary(folder, short, tokens):
    names = (short, SHARED, "sentencepiece.bpe.model", "spiece.model")
    for name in names:
        if (folder / name).is_file():
            return pieces.vocabulary(pieces.read(folder / name), tokens[4:], ())
    return None


def _tie(variables, names):
    """Which of the three tables are one."""

    def same(one, other):
        if variables.origin(one) == variables.origin(other):
            return True
        arrays = [variables.array(name) for name in (one, other)]
        return arrays[0].shape == arrays[1].shape and np.array_equal(*arrays)

    source, target, output = _tables(variables)
    inputs = names[0] == names[1] and same(source, target)
    if same(target, output):
        return "all" if inputs else "target"
    return "inputs" if inputs else None


def _tables(variables):
    source = "encoder/embeddings_0/weight"
    if source not in variables:
        source = "encoder/embeddings/weight"
    return source, "decoder/embeddings/weight", "decoder/projection/weight"


def _depth(variables, side):
    depth = 0
    while f"{side}/layer_{depth}/ffn/linear_0/weight" in variables:
        depth += 1
    return depth


def _settings(variables, config, names, ids):
    if variables.name not in (*HEADS, "TransformerSpec"):
        raise ValueError(
            "A Transformer of encoder and decoder is read. Received: "
            f"{variables.name!r}."
        )
    both = {}
    for setting, default in (
        ("num_heads", HEADS.get(variables.name, 8)),
        ("pre_norm", True),
        ("activation", 0),
    ):
        found = {
            variables.number(f"{side}/{setting}", default)
            for side in ("encoder", "decoder")
        }
        if len(found) > 1:
            raise ValueError(
                "Encoder and decoder of the same settings are read. Received: "
                f"{setting} of {sorted(found)}."
            )
        both[setting] = found.pop()
    if both["activation"] not in ACTIVATIONS:
        raise ValueError(
            "Activations that are read: relu, gelu, gelu by tanh, silu. Received: "
            f"{both}."
        )
    for name in ("alignment_layer", "alignment_heads"):  # of no meaning here
        variables.number(f"decoder/{name}", None)
    variables.number("encoder/embeddings_merge", None)
    for name in (
        "encoder/multi_query_attention",
        "decoder/multi_query_attention",
        "decoder/alibi",
        "decoder/alibi_use_positive_positions",
        "decoder/scale_alibi",
    ):
        if variables.number(name, False):
            raise ValueError(
                "Positions are read that are added to tokens, and as many heads of "
                f"keys as of queries. Received: {name}."
            )
    tables = _tables(variables)
    width = variables.shape(tables[0])[1]
    encodings = "decoder/position_encodings/encodings"
    positions, length = SinusoidalPositions("halves", first_position=1), None
    if encodings in variables:
        positions, length = "learned", variables.shape(encodings)[0]
    layer = "encoder/layer_0"
    norm = f"{layer}/ffn/layer_norm"
    bias = "decoder/projection/bias" in variables
    return {
        "vocabulary_size": ids[0].size,
        "target_vocabulary_size": ids[1].size,
        "num_layers": (_depth(variables, "encoder"), _depth(variables, "decoder")),
        "embedding_dim": width,
        "intermediate_dim": variables.shape(f"{layer}/ffn/linear_0/weight")[0],
        "num_heads": both["num_heads"],
        "tie": _tie(variables, names),
        "positions": positions,
        "sequence_length": length,
        "scale_embedding": _scales(variables, width),
        "normalize_embedding": "encoder/layernorm_embedding/gamma" in variables,
        "logits_bias": bias or bool(ids[1].added),
        "activation": ACTIVATIONS[both["activation"]],
        "gated": f"{layer}/ffn/linear_0_noact/weight" in variables,
        "normalize_first": bool(both["pre_norm"]),
        "normalization": "layer_norm" if f"{norm}/beta" in variables else "rms_norm",
        "epsilon": config.get("layer_norm_epsilon")
        or (1e-5 if f"{norm}/beta" in variables else 1e-6),
        "use_bias": f"{layer}/ffn/linear_0/bias" in variables,
    }


def _scales(variables, width):
    """Whether tokens are multiplied by sqrt(D)."""
    names = [f"{side}/scale_embeddings" for side in ("encoder", "decoder")]
    given, root = [variables.number(name, True) for name in names], math.sqrt(width)
    # Some converters write a flag, a whole number, and some the factor itself.
    factors = [
        value if isinstance(value, float) else (root if value else 1.0)
        for value in given
    ]
    for scales, wanted in ((False, 1.0), (True, root)):
        if all(math.isclose(f, wanted, rel_tol=ROUNDED) for f in factors):
            return scales
    raise ValueError(
        "Embeddings are multiplied by sqrt(D) on both sides, or on none. Received: "
        f"scale_embeddings={given}, and D = {width}."
    )


def _plan(model, variables, ids):
    source, target, output = _tables(variables)
    plan = [(model.target_embedding.embeddings, [target], ids[1].rows)]
    if model.source_embedding.embeddings is not model.target_embedding.embeddings:
        plan.append((model.source_embedding.embeddings, [source], ids[0].rows))
    bias = "decoder/projection/bias"
    bias = bias if bias in variables else None
    plan += plans.output_plan(model, ids[1], output, bias)
    for side, embedding, blocks, norm in (
        ("encoder", model.source_embedding, model.encoder_blocks, model.encoder_norm),
        ("decoder", model.target_embedding, model.decoder_blocks, model.decoder_norm),
    ):
        if model.config["positions"] == "learned":
            name = f"{side}/position_encodings/encodings"
            plan.append((embedding.position_layer.embeddings, [name], plans.same))
        if embedding.norm is not None:
            plan += _norm_plan(embedding.norm, f"{side}/layernorm_embedding")
        if norm is not None:
            plan += _norm_plan(norm, f"{side}/layer_norm")
        for number, block in enumerate(blocks):
            plan += _block_plan(block, f"{side}/layer_{number}/")
    return plan


def _block_plan(block, stem):
    names = dict(BLOCK)
    if block.feed_forward.gated:
        names["feed_forward.inner_dense"] = "ffn/linear_0_noact"
        names["feed_forward.gate_dense"] = "ffn/linear_0"
    plan = []
    if getattr(block, "cross_attention", None) is not None:
        names |= CROSS
        cross = (block.cross_attention.key_dense, block.cross_attention.value_dense)
        plan += _joined_plan(cross, f"{stem}attention/linear_1")
    own = block.self_attention
    joined = (own.query_dense, own.key_dense, own.value_dense)
    plan += _joined_plan(joined, f"{stem}self_attention/linear_0")
    for ours, theirs in names.items():
        layer = operator.attrgetter(ours)(block)
        if "norm" in ours:
            plan += _norm_plan(layer, stem + theirs)
        else:
            plan += _joined_plan([layer], stem + theirs)
    return plan


def _norm_plan(norm, name):
    if isinstance(norm, keras.layers.RMSNormalization):
        return [(norm.scale, [f"{name}/gamma"], plans.same)]
    return [
        (norm.gamma, [f"{name}/gamma"], plans.same),
        (norm.beta, [f"{name}/beta"], plans.same),
    ]


def _joined_plan(layers, name):
    """Plans projections whose matrices stand below one another."""
    plan, place, total = [], 0, sum(map(plans.width_of, layers))
    for layer in layers:
        width = plans.width_of(layer)
        rows = slice(place, place + width)
        place += width
        theirs = (width, math.prod(layer.kernel.shape) // width)
        kernel = plans.reshaped(theirs, layer.kernel.shape, transpose=True)
        plan.append((layer.kernel, [f"{name}/weight"], _part(rows, total, kernel)))
        if layer.bias is not None:
            bias = plans.reshaped((width,), layer.bias.shape)
            plan.append((layer.bias, [f"{name}/bias"], _part(rows, total, bias)))
    return plan


def _part(rows, total, make):
    # Another height is refused by its shape.
    return lambda array: make(array[rows]) if len(array) == total else array
