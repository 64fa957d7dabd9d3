"""T5, versions 1.0 and 1.1, mT5 and umT5."""

from keras_tfm.layers import T5Positions
from keras_tfm.models import Transformer
from keras_tfm.zoo.huggingface.family import Family, activation
from keras_tfm.zoo.huggingface.vocabularies import vocabulary_of
from keras_tfm.zoo.token_permutation import TokenPermutation
from keras_tfm.zoo.weight_mapping import (
    Weight,
    attention_names,
    blocks,
    logits,
    pytorch_layers,
)

ATTENTION = {
    "self_attention_norm": "0.layer_norm",
    **attention_names("self_attention", "0.SelfAttention.{}", "q k v o"),
    "cross_attention_norm": "1.layer_norm",
    **attention_names("cross_attention", "1.EncDecAttention.{}", "q k v o"),
}
FEED_FORWARD = {
    "feed_forward_norm": "layer_norm",
    "feed_forward.inner_dense": "DenseReluDense.wi",
    "feed_forward.output_dense": "DenseReluDense.wo",
}
GATED_FEED_FORWARD = {
    **FEED_FORWARD,
    "feed_forward.inner_dense": "DenseReluDense.wi_1",
    "feed_forward.gate_dense": "DenseReluDense.wi_0",
}
BIAS = "relative_attention_bias.weight"
IGNORED = (  # copies of the embedding matrix, and a bias that is not used
    r"(en|de)coder\.embed_tokens\.weight",
    r"lm_head\.weight",
    r"decoder\.block\.\d+\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
)


def _permutations(config, tokenizer):
    pad_id = config.integer("pad_token_id")
    permutation = TokenPermutation(
        config.integer("vocab_size"),
        pad_id,
        config.integer("unk_token_id", None),
        config.integer("decoder_start_token_id", pad_id),
        config.integer("eos_token_id", None),
    )
    return permutation, permutation


def _is_tied(checkpoint):
    config = checkpoint.config
    if config["model_type"] == "umt5":  # transformers ties what has no matrix
        return "lm_head.weight" not in checkpoint.tensors.shapes
    return config.get("tie_word_embeddings", config["model_type"] != "mt5")


def _arguments(checkpoint):
    config = checkpoint.config
    kind = config.string("feed_forward_proj", "relu")
    # Where it is gated, its "gelu" is the approximation by tanh. Newer configs
    # also name the function, which then takes precedence.
    default = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    num_layers = config.integer("num_layers")
    dropout = config.number("dropout_rate")
    return {
        "vocabulary_size": checkpoint.permutation.size,
        "num_layers": (num_layers, config.integer("num_decoder_layers", num_layers)),
        "embedding_dim": config.integer("d_model"),
        "intermediate_dim": config.integer("d_ff"),
        "num_heads": config.integer("num_heads"),
        "key_dim": config.integer("d_kv"),
        "tie": "all" if _is_tied(checkpoint) else "inputs",
        "positions": T5Positions(
            config.integer("relative_attention_num_buckets"),
            config.integer("relative_attention_max_distance", 128),
            shared=config["model_type"] != "umt5",
        ),
        "scale_embedding": False,
        "logits_bias": bool(checkpoint.permutation.never_generated),
        "dropout": dropout,
        "attention_dropout": dropout,
        "activation_dropout": dropout,
        "activation": activation(config, "dense_act_fn", default),
        "gated": bool(config.get("is_gated_act", kind.startswith("gated-"))),
        "normalize_first": True,
        "normalization": "rms_norm",
        "epsilon": config.number("layer_norm_epsilon"),
        "use_bias": False,
        "score": "dot",
    }


def _weights(model, checkpoint):
    config, permutation = checkpoint.config, checkpoint.permutation
    copies = [f"{side}embed_tokens.weight" for side in ("encoder.", "decoder.")]
    copies = ["shared.weight", *copies]
    copies += ["lm_head.weight"] if _is_tied(checkpoint) else []
    tokens = checkpoint.tensors.first_of(copies)
    embeddings = model.target_embedding.embeddings
    mapping = [Weight(embeddings, [tokens], permutation.rows)]
    mapping += logits(model, permutation, "lm_head.weight")
    for side, layers, last in (
        ("encoder", model.encoder_blocks, 1),
        ("decoder", model.decoder_blocks, 2),
    ):
        stem = f"{side}.block.{{}}.layer."
        gated = layers[0].feed_forward.gated
        names = GATED_FEED_FORWARD if gated else FEED_FORWARD
        mapping += blocks(layers, ATTENTION, stem)
        mapping += blocks(layers, names, f"{stem}{last}.")
        # The first block holds a bias that all of them share.
        for number, block in enumerate(layers):
            if number == 0 or not block.positions.shared:
                bias = f"{stem.format(number)}0.SelfAttention.{BIAS}"
                mapping.append(Weight(block.positions.embeddings, [bias]))
    mapping += pytorch_layers([model.encoder_norm], "encoder.final_layer_norm")
    # Version 1.0 scales the hidden states before the projection.
    scale = config.integer("d_model") ** -0.5 if _scales_output(config) else 1.0
    name = "decoder.final_layer_norm.weight"
    return [
        *mapping,
        Weight(model.decoder_norm.scale, [name], lambda w: scale * w.astype("float32")),
    ]


def _scales_output(config):
    # Older configs tell 1.0 from 1.1 by whether the projection is tied.
    if config["model_type"] == "mt5":
        return False
    return config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))


FAMILY = Family(
    model_types=("t5", "mt5", "umt5"),
    heads=("seq2seq",),
    permutations=_permutations,
    arguments=_arguments,
    build=lambda checkpoint, arguments: Transformer(**arguments),
    weights=_weights,
    ignored=IGNORED,
    vocabulary=vocabulary_of,
    decoding=lambda checkpoint: {"split_tokens": 1024},  # texts stay whole
)
