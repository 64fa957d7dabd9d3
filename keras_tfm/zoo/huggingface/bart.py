"""BART and its relatives: Marian, Pegasus, M2M100 and NLLB, mBART, FSMT."""

import dataclasses

import numpy as np
from keras import ops

from keras_tfm.layers import SinusoidalPositions
from keras_tfm.models import Transformer
from keras_tfm.zoo import weight_mapping
from keras_tfm.zoo.huggingface import vocabularies
from keras_tfm.zoo.huggingface.family import Family, activation
from keras_tfm.zoo.token_permutation import TokenPermutation
from keras_tfm.zoo.weight_mapping import (
    Weight,
    attention_names,
    blocks,
    pytorch_layers,
)


@dataclasses.dataclass(frozen=True)
class Variant:
    """What tells one of these architectures from the others.

    Attributes:
        normalize_first: bool. Pre-norm blocks.
        learned_positions: bool. Learned positions, counted from row 2, and a
            normalization of the embedded tokens.
        fairseq_positions: bool. Sinusoids count from the row after that of
            padding, as in fairseq.
        has_bias: bool. The logits have a bias.
        keeps_sentences: bool. Texts are translated whole, not by sentence.
    """

    normalize_first: bool = False
    learned_positions: bool = False
    fairseq_positions: bool = False
    has_bias: bool = True
    keeps_sentences: bool = False


VARIANTS = {
    "bart": Variant(learned_positions=True, keeps_sentences=True),
    "fsmt": Variant(fairseq_positions=True, has_bias=False),
    "m2m_100": Variant(normalize_first=True, fairseq_positions=True, has_bias=False),
    "marian": Variant(),
    "mbart": Variant(normalize_first=True, learned_positions=True),
    "pegasus": Variant(normalize_first=True, keeps_sentences=True),
}
BLOCK = {
    **attention_names("self_attention", "self_attn.{}_proj", "q k v out"),
    "self_attention_norm": "self_attn_layer_norm",
    **attention_names("cross_attention", "encoder_attn.{}_proj", "q k v out"),
    "cross_attention_norm": "encoder_attn_layer_norm",
    "feed_forward.inner_dense": "fc1",
    "feed_forward.output_dense": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
SIDES = ("encoder", "decoder")
IGNORED = (  # copies of the embedding matrix, and sinusoids
    r"lm_head\.weight",
    r"(model\.)?shared\.weight",
    r"(model\.)?(en|de)coder\.embed_(tokens\.weight|positions\.weights?)",
    r"(model\.)?decoder\.output_projection\.weight",
)
LEARNED_START = 2  # first row of learned positions
ROUNDING = 2e-3  # error of a sine in half precision, and some more


def _permutations(config, tokenizer):
    # Models trained on a shifted target, as mBART, start with the end token.
    end = config.integer("eos_token_id", None)
    start = config.integer("decoder_start_token_id", end)
    source = TokenPermutation(
        config.integer("vocab_size"),
        config.integer("pad_token_id", None),
        config.integer("unk_token_id", None),
        start,
        end,
    )
    if config.get("share_encoder_decoder_embeddings", True):
        return source, source
    ids = tokenizer.target_ids or {}
    size = config.integer("decoder_vocab_size", config["vocab_size"])
    target = TokenPermutation(
        size,
        ids.get("<pad>", config.integer("pad_token_id", None)),
        ids.get("<unk>", config.integer("unk_token_id", None)),
        start,
        ids.get("</s>", end),
    )
    return source, target


def _prefix(checkpoint):
    """Empty where the model was saved without its head."""
    names = checkpoint.tensors.shapes
    return "model." if any(name.startswith("model.") for name in names) else ""


def _tie(checkpoint):
    config, shapes = checkpoint.config, checkpoint.tensors.shapes
    is_shared = config.get("share_encoder_decoder_embeddings", True)
    if checkpoint.model_type == "fsmt":
        output, target = _output_name(checkpoint), _embedding_names(checkpoint)[1]
        untied = output in shapes and not checkpoint.tensors.are_equal(output, target)
        return None if untied else "target"
    if config.get("tie_word_embeddings", True):
        return "all" if is_shared else "target"
    # transformers 5 then ties no matrix to another.
    names = _embedding_names(checkpoint)
    return None if not is_shared or all(n in shapes for n in names) else "inputs"


def _embedding_names(checkpoint):
    prefix = _prefix(checkpoint)
    return [f"{prefix}{side}.embed_tokens.weight" for side in SIDES]


def _output_name(checkpoint):
    if checkpoint.model_type == "fsmt":
        return f"{_prefix(checkpoint)}decoder.output_projection.weight"
    return "lm_head.weight"


def _position_names(checkpoint):
    prefix = _prefix(checkpoint)
    return [f"{prefix}{side}.embed_positions.weight" for side in SIDES]


def _arguments(checkpoint):
    config, variant = checkpoint.config, VARIANTS[checkpoint.model_type]
    never_generated = checkpoint.target_permutation.never_generated
    return {
        "vocabulary_size": checkpoint.permutation.size,
        "target_vocabulary_size": checkpoint.target_permutation.size,
        "num_layers": tuple(config.integer(f"{side}_layers") for side in SIDES),
        "embedding_dim": config.integer("d_model"),
        "intermediate_dim": _common(config, "ffn_dim"),
        "num_heads": _common(config, "attention_heads"),
        "tie": _tie(checkpoint),
        "scale_embedding": bool(
            config.get(
                "scale_embedding", VARIANTS[checkpoint.model_type].fairseq_positions
            )
        ),
        "normalize_embedding": variant.learned_positions,
        "logits_bias": variant.has_bias or bool(never_generated),
        "dropout": config.number("dropout"),
        "attention_dropout": config.number("attention_dropout"),
        "activation_dropout": config.number("activation_dropout"),
        "activation": activation(config, "activation_function"),
        "normalize_first": variant.normalize_first,
        **_positions(checkpoint),
    }


def _common(config, name):
    values = {side: config.integer(f"{side}_{name}") for side in SIDES}
    if len(set(values.values())) > 1:
        raise ValueError(f"`{name}` must be equal on both sides; got {values}")
    return values["encoder"]


def _positions(checkpoint):
    config, tensors = checkpoint.config, checkpoint.tensors
    variant = VARIANTS[checkpoint.model_type]
    if variant.learned_positions:
        length = config.integer("max_position_embeddings")
        return {"positions": "learned", "sequence_length": length}
    is_fairseq = variant.fairseq_positions
    waves = SinusoidalPositions(
        "halves",
        first_position=config.integer("pad_token_id") + 1 if is_fairseq else 0,
        reach_max_period=is_fairseq,
    )
    # Some checkpoints store the sinusoids, and some another matrix instead.
    for name in () if is_fairseq else _position_names(checkpoint):
        if name not in tensors.shapes:
            continue
        matrix = tensors.array(name).astype("float32")  # (T, D)
        signal = waves.signal(len(matrix), 0, config.integer("d_model"))
        sinusoids = ops.convert_to_numpy(signal)
        if np.abs(matrix - sinusoids).max(initial=0) > ROUNDING:
            return {"positions": "learned", "sequence_length": len(matrix)}
    return {"positions": waves, "sequence_length": None}


def _weights(model, checkpoint):
    prefix, target = _prefix(checkpoint), checkpoint.target_permutation
    variant, names = VARIANTS[checkpoint.model_type], _shared_names(checkpoint)
    mapping = weight_mapping.embeddings(model, names, (checkpoint.permutation, target))
    bias = "final_logits_bias"
    has_bias = variant.has_bias and bias in checkpoint.tensors.shapes
    bias = bias if has_bias else None
    mapping += weight_mapping.logits(model, target, _output_name(checkpoint), bias)
    is_learned = model.config["positions"] == "learned"
    for (side, embedding, layers, norm), positions in zip(
        weight_mapping.stacks_of(model), _position_names(checkpoint), strict=True
    ):
        if is_learned:
            matrix = embedding.position_layer.embeddings
            first = LEARNED_START if variant.learned_positions else 0
            part = slice(first, first + matrix.shape[0])
            mapping.append(Weight(matrix, [positions], lambda a, part=part: a[part]))
        mapping += blocks(layers, BLOCK, f"{prefix}{side}.layers.{{}}.")
        if norm is not None:
            mapping += pytorch_layers([norm], f"{prefix}{side}.layer_norm")
        if variant.learned_positions:
            name = f"{prefix}{side}.layernorm_embedding"
            mapping += pytorch_layers([embedding.norm], name)
    return mapping


def _shared_names(checkpoint):
    """Names of the embedding matrices; a tied one may have any of several."""
    source, target = _embedding_names(checkpoint)
    tie, first_of = _tie(checkpoint), checkpoint.tensors.first_of
    output = [_output_name(checkpoint)] if tie in ("all", "target") else []
    if tie in ("all", "inputs"):
        shared = f"{_prefix(checkpoint)}shared.weight"
        return [first_of([shared, source, target, *output])] * 2
    return [source, first_of([target, *output])]


def _vocabulary(checkpoint, model):
    folder = checkpoint.folder
    if checkpoint.model_type == "fsmt":
        return vocabularies.moses_vocabularies(checkpoint)
    if checkpoint.model_type == "bart":
        return vocabularies.byte_level_vocabulary(checkpoint)
    # What `to_hugging_face` writes may have one vocabulary for both sides.
    has_sides = (folder / "vocab.json").is_file() or any(folder.glob("*.spm"))
    if checkpoint.model_type == "marian" and has_sides:
        return vocabularies.marian_vocabulary(checkpoint)
    return vocabularies.multilingual_vocabulary(checkpoint)


def _decoding(checkpoint):
    options = {}
    if checkpoint.model_type == "bart":
        start = checkpoint.config.integer("bos_token_id")
        options["source_prefix"] = [checkpoint.permutation.to_ours(start)]
    if VARIANTS[checkpoint.model_type].keeps_sentences:
        options["split_tokens"] = 1024
    return options


FAMILY = Family(
    model_types=tuple(VARIANTS),
    heads=("seq2seq",),
    permutations=_permutations,
    arguments=_arguments,
    build=lambda checkpoint, arguments: Transformer(**arguments),
    weights=_weights,
    ignored=IGNORED,
    vocabulary=_vocabulary,
    decoding=_decoding,
)
