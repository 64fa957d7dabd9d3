"""A `Transformer` as the Marian or Pegasus of transformers.

The two have the same layers; a Pegasus normalizes first.
"""

from typing import Any

import keras
import numpy as np

from keras_tfm.layers import LearnedPositions
from keras_tfm.zoo.huggingface import bart
from keras_tfm.zoo.huggingface.pytorch_layers import (
    activation_name,
    add_missing_biases,
    check_supported,
    supported_blocks,
)
from keras_tfm.zoo.weight_mapping import (
    Weight,
    blocks,
    export,
    logits,
    pytorch_layers,
    stacks_of,
    to_array,
)

IDS = {"pad_token_id": 0, "decoder_start_token_id": 2, "eos_token_id": 3}
# Projections that read the D channels between blocks.
READERS = ("q_proj", "k_proj", "v_proj", "fc1")
ARCHITECTURES = {
    "marian": "MarianMTModel",
    "pegasus": "PegasusForConditionalGeneration",
}


def convert(
    model: keras.Model, max_length: int
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the config and the tensors of a model in transformers.

    Args:
        model: `Transformer`.
        max_length: int, in tokens, the number of sinusoidal positions.

    Raises:
        ValueError: the model is of another configuration.
    """
    model_type = "pegasus" if model.config["normalize_first"] else "marian"
    _check_model(model, model_type)
    order, positions = _positions(model, max_length)
    config = _config(model, model_type, len(positions[0]))
    tensors = export(_weights(model))
    if order is not None:
        tensors = {n: _reordered(n, array, order) for n, array in tensors.items()}
    for side, matrix in zip(bart.SIDES, positions, strict=True):
        if model_type == "pegasus" or order is None:
            tensors[f"model.{side}.embed_positions.weight"] = matrix
    bias = tensors.get("final_logits_bias", np.zeros(model.vocabulary_size, "float32"))
    tensors["final_logits_bias"] = bias[None]
    add_missing_biases(tensors)
    return config, tensors


def _weights(model):
    is_shared = model.config["tie"] == "all"
    mapping = logits(model, None, "lm_head.weight", "final_logits_bias")
    for side, embedding, layers, norm in stacks_of(model):
        name = "shared" if is_shared else f"{side}.embed_tokens"
        if side == "encoder" or not is_shared:
            mapping.append(Weight(embedding.embeddings, [f"model.{name}.weight"]))
        mapping += blocks(layers, bart.BLOCK, f"model.{side}.layers.{{}}.")
        if norm is not None:
            mapping += pytorch_layers([norm], f"model.{side}.layer_norm")
    return mapping


def _reordered(name, array, order):
    """Reorders the axis of the D channels between blocks."""
    layer = name.split(".")[-2] if "." in name else name
    if layer == "final_logits_bias" or (array.ndim == 1 and layer in READERS):
        return array
    is_first = layer not in (*READERS, "shared", "embed_tokens", "lm_head")
    return np.ascontiguousarray(array[order] if is_first else array[:, order])


def _check_model(model, model_type):
    positions = model.target_embedding.position_layer
    config = {
        **model.config,
        "target_vocabulary_size": model.target_vocabulary_size,
        "positions": type(positions).__name__,
    }
    ties = ("all", "target", "inputs", None) if model_type == "marian" else ("all",)
    supported = {
        **supported_blocks(model.config),
        "epsilon": (1e-5,),
        "normalize_embedding": (False,),
        "decoder_recurrence": (None,),
        "target_vocabulary_size": (model.vocabulary_size,),
        "positions": ("SinusoidalPositions", "LearnedPositions"),
        "tie": ties,
    }
    check_supported(model_type.title(), config, supported)
    check_supported("Marian", vars(positions), {"combine": ("add",)})


def _config(model, model_type, num_positions):
    config = model.config
    sizes = {}
    for side, _, layers, _ in stacks_of(model):
        sizes[f"{side}_layers"] = len(layers)
        sizes[f"{side}_attention_heads"] = config["num_heads"]
        sizes[f"{side}_ffn_dim"] = config["intermediate_dim"]
    names = ("dropout", "attention_dropout", "activation_dropout")
    return {
        "model_type": model_type,
        "architectures": [ARCHITECTURES[model_type]],
        "is_encoder_decoder": True,
        "vocab_size": model.vocabulary_size,
        "decoder_vocab_size": model.vocabulary_size,
        "d_model": config["embedding_dim"],
        **sizes,
        "max_position_embeddings": num_positions,
        "activation_function": activation_name(config["activation"]),
        **{name: config[name] for name in names},
        "scale_embedding": model.target_embedding.factor != 1.0,
        # transformers ties no matrix, or the output too.
        "share_encoder_decoder_embeddings": config["tie"] == "all",
        "tie_word_embeddings": config["tie"] in ("all", "target"),
        **IDS,
        "unk_token_id": 1,
        "bos_token_id": None,
        "forced_eos_token_id": None,
    }


def _positions(model, max_length):
    """Returns our channel of each of theirs, or None, and position matrices."""
    layers = [embedding.position_layer for _, embedding, _, _ in stacks_of(model)]
    if isinstance(layers[0], LearnedPositions):
        return None, [to_array(positions.embeddings) for positions in layers]
    embedding_dim, order = model.config["embedding_dim"], None
    plain = {"first_position": 0, "max_period": 10_000.0, "reach_max_period": False}
    if all(getattr(layers[0], name) == value for name, value in plain.items()):
        order = np.arange(embedding_dim)
        if layers[0].style == "interleaved":
            order = np.concatenate([order[0::2], order[1::2]])  # sines first
    channels = slice(None) if order is None else order
    signals = [p.signal(max_length, 0, embedding_dim) for p in layers]  # (T, D)
    matrices = [to_array(signal)[:, channels] for signal in signals]
    return order, [np.ascontiguousarray(matrix) for matrix in matrices]
