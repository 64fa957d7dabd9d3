"""Transformers that CTranslate2 has converted."""

import math
import os
import pathlib
from typing import Any

import keras
import numpy as np

from keras_tfm.file_reading import Config, read_json, reading
from keras_tfm.layers import LearnedPositions, SinusoidalPositions, gelu_tanh
from keras_tfm.models import Transformer
from keras_tfm.zoo import sentencepiece_models, weight_mapping
from keras_tfm.zoo.ctranslate2.model_bin import ModelBin
from keras_tfm.zoo.imported import END_ID, Imported
from keras_tfm.zoo.sentencepiece_models import SIDE_MODELS
from keras_tfm.zoo.token_permutation import TokenPermutation
from keras_tfm.zoo.weight_loader import WeightLoader

ACTIVATIONS = {0: "relu", 1: gelu_tanh, 2: "silu", 3: "gelu"}  # by number
SHARED_MODEL = "sentencepiece.model"
SHARED_MODELS = (SHARED_MODEL, "sentencepiece.bpe.model", "spiece.model")
NUM_HEADS = {"TransformerBase": 8, "TransformerBig": 16, "TransformerSpec": 8}
PROJECTION, PROJECTION_BIAS = "decoder/projection/weight", "decoder/projection/bias"
SIDES = ("source", "target")
ROUNDING = 1e-4  # relative error of a factor in half precision
# Numbers that must be zero: relative positions, and fewer key-value heads.
UNSUPPORTED = (
    "encoder/multi_query_attention",
    "decoder/multi_query_attention",
    "decoder/alibi",
    "decoder/alibi_use_positive_positions",
    "decoder/scale_alibi",
)
# Numbers that mean nothing here.
IGNORED = ("decoder/alignment_layer", "decoder/alignment_heads")
IGNORED += ("encoder/embeddings_merge",)
BLOCK = {
    weight_mapping.QUERY_KEY_VALUE: "self_attention/linear_0",
    "self_attention.output_dense": "self_attention/linear_1",
    "self_attention_norm": "self_attention/layer_norm",
    "cross_attention.query_dense": "attention/linear_0",
    "cross_attention.key_dense cross_attention.value_dense": "attention/linear_1",
    "cross_attention.output_dense": "attention/linear_2",
    "cross_attention_norm": "attention/layer_norm",
    "feed_forward.inner_dense": "ffn/linear_0",
    "feed_forward.output_dense": "ffn/linear_1",
    "feed_forward_norm": "ffn/layer_norm",
}
GATED_BLOCK = {
    **BLOCK,
    "feed_forward.inner_dense": "ffn/linear_0_noact",
    "feed_forward.gate_dense": "ffn/linear_0",
}


def from_ctranslate2(folder: str | os.PathLike, **arguments: Any) -> Imported:
    """Loads a Transformer that CTranslate2 has converted.

    float16 and bfloat16 become float32; 8-bit and 16-bit matrices are
    dequantized. Ids are renumbered, see `from_hugging_face`; `tokens` of the
    result names each.

    Args:
        folder: path with `model.bin` and vocabularies. With SentencePiece
            models beside them (`source.spm` and `target.spm`, or
            `sentencepiece.model`) the result has its vocabularies too.
        **arguments: of `Transformer`, such as `dropout`; they override the
            file's.

    Returns:
        `Imported`.

    Raises:
        FileNotFoundError: the folder lacks its model or a vocabulary.
        ValueError: a file is damaged, of an unsupported architecture, or does
            not fit the others.

    Example:
        ```python
        import pathlib
        import keras_tfm
        from keras_tfm import zoo

        presets = pathlib.Path(keras_tfm.__file__).parent / "presets"
        imported = zoo.from_ctranslate2(presets / "en-de")
        print(imported.vocabulary.tokens([0, 1, 2, 3]))
        ```
    """
    folder = pathlib.Path(folder)
    if not (folder / "model.bin").is_file():
        raise FileNotFoundError(
            "`folder` must hold `model.bin`, a model that CTranslate2 has converted; "
            f"got {os.fspath(folder)!r}."
        )
    file = ModelBin(folder / "model.bin")
    files = "model.bin", "config.json"
    with reading(folder, "a Transformer of CTranslate2", names=files):
        config = Config(read_json(folder / "config.json"), folder / "config.json")
        tokens = [_tokens(folder, side, config) for side in SIDES]
        for side, names, matrix in zip(
            SIDES, tokens, _embedding_names(file), strict=False
        ):
            _check_size(folder, side, names, file.shape(matrix)[0])
        from_zeros = bool(file.number("decoder/start_from_zero_embedding", False))
        permutations = [_permutation(names, config, from_zeros) for names in tokens]
        if permutations[1].order[2] < 0 and not from_zeros:
            start = _start_token(config)
            raise ValueError(f"the start {start!r} is not in the target vocabulary")
        with WeightLoader(folder) as loader:
            defaults = _arguments(file, config, tokens, permutations)
            model = Transformer(**{**defaults, **arguments})
            mapping = _weights(model, file, permutations)
            unread = file.unread([name for w in mapping for name in w.tensors])
            if unread:
                raise ValueError(f"these weights are not supported: {unread[:8]}")
            loader.load(mapping, file.array)
        names = tuple(map(_renamed, tokens, permutations))
        source, target = map(_vocabulary, [folder] * 2, SIDES, SIDE_MODELS, names)
        options = {
            "source_prefix": _source_prefix(tokens[0], config, permutations[0]),
            "source_suffix": [END_ID] if config.get("add_source_eos") else [],
            "disable_unk": False,
        }
        return Imported(
            model,
            source,
            classes=None,
            options=options,
            target_vocabulary=target,
            tokens=names,
            languages=sentencepiece_models.target_languages(names[0][4:]),
            tag_position="target",
            permutations=tuple(permutation.order for permutation in permutations),
        )


def _tokens(folder, side, config):
    """Returns the tokens of one side by id; an unknown one is the last."""
    tokens, unknown = _listed_tokens(folder, side), config.string("unk_token", "<unk>")
    return tokens if unknown in tokens else [*tokens, unknown]


def _check_size(folder, side, tokens, rows):
    if len(tokens) != rows:
        raise ValueError(
            f"{_vocabulary_file(folder, side)} must have {rows} tokens, one for each "
            f"row of the embedding in `model.bin`; got {len(tokens)}. Convert the "
            "model again."
        )


def _listed_tokens(folder, side):
    file = _vocabulary_file(folder, side)
    with reading(file, "a list of tokens"):
        if file.suffix == ".txt":
            return file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        tokens = read_json(file, list)
        wrong = [token for token in tokens if not isinstance(token, str)]
        if wrong:
            raise ValueError(f"a token must be a string; got {wrong[0]!r:.60}")
        return tokens


def _vocabulary_file(folder, side):
    for name in (f"{side}_vocabulary", "shared_vocabulary"):
        for suffix in (".json", ".txt"):
            if (file := folder / f"{name}{suffix}").is_file():
                return file
    raise FileNotFoundError(
        f"`folder` must hold {side}_vocabulary or shared_vocabulary, .json or .txt; "
        f"got none of them in {os.fspath(folder)!r}. Convert the model again."
    )


def _permutation(tokens, config, from_zeros):
    ids = {token: i for i, token in enumerate(tokens)}
    pads = [ids[token] for token in ("<blank>", "<pad>") if token in ids]
    return TokenPermutation(
        len(tokens),
        pads[0] if pads else None,
        ids.get(config.string("unk_token", "<unk>")),
        None if from_zeros else ids.get(_start_token(config)),
        ids.get(config.string("eos_token", "</s>")),
    )


def _start_token(config):
    return config.string("decoder_start_token", config.string("bos_token", "<s>"))


def _source_prefix(tokens, config, permutation):
    if not config.get("add_source_bos"):
        return []
    token = config.string("bos_token", "<s>")
    if token not in tokens:
        raise ValueError(f"`bos_token` {token!r} is not in the source vocabulary")
    return [permutation.to_ours(tokens.index(token))]


def _renamed(tokens, permutation):
    """Returns the token of each id here."""
    names = [tokens[i] if i >= 0 else "" for i in permutation.order]
    default = sentencepiece_models.SPECIAL_TOKENS
    special = [n or s for n, s in zip(names, default, strict=False)]
    if 2 in permutation.never_generated:
        special[2] = default[2]
    return [*special, *names[4:]]


def _vocabulary(folder, side, side_model, tokens):
    for name in (side_model, *SHARED_MODELS):
        if (folder / name).is_file():
            model = sentencepiece_models.read_model(folder / name)
            names = name, _vocabulary_file(folder, side).name
            with reading(folder, "a vocabulary of this model", names=names):
                return sentencepiece_models.renumbered(model, tokens[4:], ())
    return None


def _arguments(file, config, tokens, permutations):
    if file.name not in NUM_HEADS:
        raise ValueError(f"the model must be an encoder-decoder; got {file.name!r}")
    for name in IGNORED:
        file.number(name, None)
    for name in UNSUPPORTED:
        if file.number(name, False):
            raise ValueError(f"{name!r} is not supported")
    embedding_dim = file.shape(_embedding_names(file)[0])[1]
    encodings = "decoder/position_encodings/encodings"
    is_learned = encodings in file
    sinusoids = SinusoidalPositions("halves", first_position=1)
    layer = "encoder/layer_0/ffn"
    is_layer_norm = f"{layer}/layer_norm/beta" in file
    return {
        "vocabulary_size": permutations[0].size,
        "target_vocabulary_size": permutations[1].size,
        "num_layers": (_depth(file, "encoder"), _depth(file, "decoder")),
        "embedding_dim": embedding_dim,
        "intermediate_dim": file.shape(f"{layer}/linear_0/weight")[0],
        "num_heads": _common_number(file, "num_heads", NUM_HEADS[file.name]),
        "tie": _tie(file, tokens),
        "positions": "learned" if is_learned else sinusoids,
        "sequence_length": file.shape(encodings)[0] if is_learned else None,
        "scale_embedding": _scales_embedding(file, embedding_dim),
        "normalize_embedding": "encoder/layernorm_embedding/gamma" in file,
        "logits_bias": PROJECTION_BIAS in file or bool(permutations[1].never_generated),
        "activation": ACTIVATIONS[_common_number(file, "activation", 0)],
        "gated": f"{layer}/linear_0_noact/weight" in file,
        "normalize_first": bool(_common_number(file, "pre_norm", True)),
        "normalization": "layer_norm" if is_layer_norm else "rms_norm",
        "epsilon": config.number("layer_norm_epsilon", 1e-5 if is_layer_norm else 1e-6),
        "use_bias": f"{layer}/linear_0/bias" in file,
    }


def _common_number(file, name, default):
    """Returns a number that encoder and decoder must have in common."""
    sides = ("encoder", "decoder")
    numbers = {file.number(f"{side}/{name}", default) for side in sides}
    if len(numbers) > 1:
        raise ValueError(f"{name!r} must be equal on both sides; got {sorted(numbers)}")
    return numbers.pop()


def _embedding_names(file):
    source = "encoder/embeddings_0/weight"
    if source not in file:
        source = "encoder/embeddings/weight"
    return source, "decoder/embeddings/weight", PROJECTION


def _depth(file, side):
    depth = 0
    while f"{side}/layer_{depth}/ffn/linear_0/weight" in file:
        depth += 1
    return depth


def _tie(file, tokens):
    """Finds which of the three embedding matrices are one."""

    def _equal(*names):
        if len({file.origin(name) for name in names}) == 1:
            return True
        return np.array_equal(*(file.array(name) for name in names))

    source, target, output = _embedding_names(file)
    is_shared = tokens[0] == tokens[1] and _equal(source, target)
    if _equal(target, output):
        return "all" if is_shared else "target"
    return "inputs" if is_shared else None


def _scales_embedding(file, embedding_dim):
    """Returns whether embedded tokens are multiplied by sqrt(D)."""
    names = [f"{side}/scale_embeddings" for side in ("encoder", "decoder")]
    values, root = [file.number(name, True) for name in names], math.sqrt(embedding_dim)
    # Some converters write a flag, an integer, and some the factor itself.
    factors = [v if isinstance(v, float) else (root if v else 1.0) for v in values]
    for scales, expected in ((False, 1.0), (True, root)):
        if all(math.isclose(f, expected, rel_tol=ROUNDING) for f in factors):
            return scales
    raise ValueError(
        f"'scale_embeddings' must be a flag, 1 or sqrt({embedding_dim}), equal on both "
        f"sides; got {values}"
    )


def _weights(model, file, permutations):
    source, target, output = _embedding_names(file)
    bias = PROJECTION_BIAS if PROJECTION_BIAS in file else None
    return [
        *weight_mapping.embeddings(model, (source, target), permutations),
        *weight_mapping.logits(model, permutations[1], output, bias),
        *stack_weights(model),
    ]


def stack_weights(model: keras.Model) -> weight_mapping.WeightMapping:
    """Maps the weights of both stacks, apart from embedding matrices.

    Args:
        model: `Transformer`.

    Returns:
        list of `Weight`.
    """
    mapping, names = [], GATED_BLOCK if model.config["gated"] else BLOCK
    for side, embedding, layers, norm in weight_mapping.stacks_of(model):
        if isinstance(embedding.position_layer, LearnedPositions):
            matrix = embedding.position_layer.embeddings
            encodings = f"{side}/position_encodings/encodings"
            mapping.append(weight_mapping.Weight(matrix, [encodings]))
        if embedding.norm is not None:
            mapping += _layers([embedding.norm], f"{side}/layernorm_embedding")
        if norm is not None:
            mapping += _layers([norm], f"{side}/layer_norm")
        mapping += weight_mapping.blocks(layers, names, f"{side}/layer_{{}}/", _layers)
    return mapping


def _layers(layers, name):
    names = f"{name}/weight", f"{name}/bias"
    if hasattr(layers[0], "kernel"):
        return weight_mapping.projections(layers, *names, transposed=True)
    return weight_mapping.normalization(layers[0], f"{name}/gamma", f"{name}/beta")
