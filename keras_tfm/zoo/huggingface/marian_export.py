"""A `Transformer` as the Marian or Pegasus of transformers.

The two have the same layers; a Pegasus normalizes first.
"""

from typing import Any

import keras
import numpy as np

from keras_tfm.layers import LearnedPositions
from keras_tfm.models import stacks
from keras_tfm.zoo import layer_arrays
from keras_tfm.zoo.huggingface import bart
from keras_tfm.zoo.huggingface.pytorch_layers import (
    ALL_CHANNELS,
    activation_name,
    block_tensors,
    check_supported,
    layer_tensors,
    supported_blocks,
)
from keras_tfm.zoo.weight_mapping import stacks_of

IDS = {"pad_token_id": 0, "decoder_start_token_id": 2, "eos_token_id": 3}
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
    tensors = _embedding_tensors(model, order)
    for (side, _, layers, norm), matrix in zip(
        stacks_of(model), positions, strict=True
    ):
        stem = f"model.{side}.layers.{{}}."
        tensors |= block_tensors(layers, bart.BLOCK, stem, order)
        if norm is not None:
            tensors |= layer_tensors(norm, f"model.{side}.layer_norm", order)
        if model_type == "pegasus" or order is ALL_CHANNELS:
            tensors[f"model.{side}.embed_positions.weight"] = matrix
    return config, tensors


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
    """Returns our channel of each of theirs, and the position matrices."""
    layers = [embedding.position_layer for _, embedding, _, _ in stacks_of(model)]
    if isinstance(layers[0], LearnedPositions):
        return ALL_CHANNELS, [layer_arrays.to_array(p.embeddings) for p in layers]
    embedding_dim, order = model.config["embedding_dim"], ALL_CHANNELS
    plain = {"first_position": 0, "max_period": 10_000.0, "reach_max_period": False}
    if all(getattr(layers[0], name) == value for name, value in plain.items()):
        order = np.arange(embedding_dim)
        if layers[0].style == "interleaved":
            order = np.concatenate([order[0::2], order[1::2]])  # sines first
    signals = [p.signal(max_length, 0, embedding_dim) for p in layers]  # (T, D)
    matrices = [layer_arrays.to_array(signal)[:, order] for signal in signals]
    return order, [np.ascontiguousarray(matrix) for matrix in matrices]


def _embedding_tensors(model, order):
    matrices = {}
    for side, embedding, _, _ in stacks_of(model):
        layer_arrays.check_not_quantized(embedding.token_embedding)
        matrix = layer_arrays.to_array(embedding.embeddings)[:, order]  # (V, D)
        name = "shared" if model.config["tie"] == "all" else f"{side}.embed_tokens"
        matrices[f"model.{name}.weight"] = matrix
    if model.projection is not None:
        layer_arrays.check_not_quantized(model.projection)
        kernel = layer_arrays.to_array(model.projection.kernel)  # (D, V)
        matrices["lm_head.weight"] = kernel.T[:, order]
    bias = stacks.logits_bias(model.target_embedding, model.projection)
    if bias is None:
        bias = np.zeros(model.vocabulary_size)
    matrices["final_logits_bias"] = layer_arrays.to_array(bias)[None]
    return {name: np.ascontiguousarray(matrix) for name, matrix in matrices.items()}
