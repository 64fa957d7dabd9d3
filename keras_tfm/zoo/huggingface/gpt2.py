"""GPT-2, a language model."""

from keras_tfm.models import CausalLM
from keras_tfm.zoo.huggingface.family import Family, activation, check_plain
from keras_tfm.zoo.huggingface.vocabularies import byte_level_vocabulary
from keras_tfm.zoo.token_permutation import TokenPermutation
from keras_tfm.zoo.weight_mapping import (
    QUERY_KEY_VALUE,
    Weight,
    blocks,
    logits,
    normalization,
    projections,
    pytorch_layers,
)

BLOCK = {
    "self_attention_norm": "ln_1",
    QUERY_KEY_VALUE: "attn.c_attn",
    "feed_forward_norm": "ln_2",
    "self_attention.output_dense": "attn.c_proj",
    "feed_forward.inner_dense": "mlp.c_fc",
    "feed_forward.output_dense": "mlp.c_proj",
}
IGNORED = (  # causal masks, and a copy of the embedding matrix
    r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",
    r"lm_head\.weight",
)
AS_PUBLISHED = {
    "add_cross_attention": False,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
}


def _permutations(config, tokenizer):
    end = config.integer("eos_token_id", None)
    start = config.integer("bos_token_id", end)
    size = config.integer("vocab_size")
    return (TokenPermutation(size, None, None, start, end),) * 2


def _arguments(checkpoint):
    config = checkpoint.config
    check_plain(config, AS_PUBLISHED)
    embedding_dim = config.integer("n_embd")
    return {
        "vocabulary_size": checkpoint.permutation.size,
        "num_layers": config.integer("n_layer"),
        "embedding_dim": embedding_dim,
        "intermediate_dim": config.integer("n_inner", 4 * embedding_dim),
        "num_heads": config.integer("n_head"),
        "tie": config.get("tie_word_embeddings", True),
        "logits_bias": True,
        "positions": "learned",
        "sequence_length": config.integer("n_positions"),
        "dropout": config.number("resid_pdrop"),
        "attention_dropout": config.number("attn_pdrop"),
        "activation": activation(config, "activation_function"),
        "epsilon": config.number("layer_norm_epsilon"),
    }


def _weights(model, checkpoint):
    # The first checkpoints have no prefix.
    prefix = "" if "wpe.weight" in checkpoint.tensors.shapes else "transformer."
    tied = checkpoint.config.get("tie_word_embeddings", True)
    copies = [f"{prefix}wte.weight", *(["lm_head.weight"] if tied else [])]
    tokens = checkpoint.tensors.first_of(copies)
    embedding, permutation = model.embedding, checkpoint.permutation
    mapping = [
        Weight(embedding.embeddings, [tokens], permutation.rows),
        Weight(embedding.position_layer.embeddings, [f"{prefix}wpe.weight"]),
        *logits(model, permutation, "lm_head.weight"),
        *pytorch_layers([model.norm], f"{prefix}ln_f"),
    ]
    return mapping + blocks(model.blocks, BLOCK, f"{prefix}h.{{}}.", _layers)


def _layers(layers, name):  # by x W + b, where PyTorch's own have x W^T + b
    names = f"{name}.weight", f"{name}.bias"
    if hasattr(layers[0], "kernel"):
        return projections(layers, *names)
    return normalization(layers[0], *names)


FAMILY = Family(
    model_types=("gpt2",),
    heads=("causal_lm",),
    permutations=_permutations,
    arguments=_arguments,
    build=lambda checkpoint, arguments: CausalLM(**arguments),
    weights=_weights,
    ignored=IGNORED,
    vocabulary=lambda checkpoint, model: byte_level_vocabulary(checkpoint),
    decoding=lambda checkpoint: {"source_suffix": []},
)
