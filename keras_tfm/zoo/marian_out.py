"""A `Transformer` as the Marian or Pegasus of transformers."""

import numpy as np

from keras_tfm.layers import LearnedPositions
from keras_tfm.models import stacks
from keras_tfm.zoo import arrays, bart
from keras_tfm.zoo.torch_layers import (
    EVERY,
    activation,
    block_shape,
    blocks,
    check,
    layer,
)

IDS = {"pad_token_id": 0, "decoder_start_token_id": 2, "eos_token_id": 3}


def written(model, max_length):
    """Gives what transformers has of a model.

    Args:
        model: `Transformer`.
        max_length: int, in tokens, that sinusoids are written for.

    Returns:
        dict, the configuration; and a dict of float32 arrays.

    Raises:
        ValueError: a model of another shape.
    """
    settings = model.config
    kind = "pegasus" if settings["normalize_first"] else "marian"
    given = {
        **settings,
        "target_vocabulary_size": model.target_vocabulary_size,
        "positions": type(model.target_embedding.position_layer).__name__,
    }
    ties = ("all", "target", "inputs", None) if kind == "marian" else ("all",)
    wanted = {
        **block_shape(settings),
        "epsilon": (1e-5,),
        "normalize_embedding": (False,),
        "decoder_recurrence": (None,),
        "target_vocabulary_size": (model.vocabulary_size,),
        "positions": ("SinusoidalPositions", "LearnedPositions"),
        "tie": ties,
    }
    check(kind.title(), given, wanted)
    embeddings = (model.source_embedding, model.target_embedding)
    check("Marian", vars(embeddings[1].position_layer), {"combine": ("add",)})
    order, tables = _positions(embeddings, max_length)
    width, heads = settings["embedding_dim"], settings["num_heads"]
    config = {
        "model_type": kind,
        "architectures": [
            "MarianMTModel" if kind == "marian" else "PegasusForConditionalGeneration"
        ],
        "is_encoder_decoder": True,
        "vocab_size": model.vocabulary_size,
        "decoder_vocab_size": model.vocabulary_size,
        "d_model": width,
        "encoder_layers": len(model.encoder_blocks),
        "decoder_layers": len(model.decoder_blocks),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": settings["intermediate_dim"],
        "decoder_ffn_dim": settings["intermediate_dim"],
        "max_position_embeddings": len(tables[0]),
        "activation_function": activation(settings["activation"]),
        "dropout": settings["dropout"],
        "attention_dropout": settings["attention_dropout"],
        "activation_dropout": settings["activation_dropout"],
        "scale_embedding": embeddings[1].factor != 1.0,
        # Theirs ties none of the tables, or the output too.
        "share_encoder_decoder_embeddings": settings["tie"] == "all",
        "tie_word_embeddings": settings["tie"] in ("all", "target"),
        **IDS,
        "unk_token_id": 1,
        "bos_token_id": None,
        "forced_eos_token_id": None,
    }
    tensors = _seq2seq_words(model, config, order)
    sides = (
        ("encoder", model.encoder_blocks, model.encoder_norm, bart.BLOCK),
        ("decoder", model.decoder_blocks, model.decoder_norm, bart.DECODER_BLOCK),
    )
    for (side, stack, norm, names), table in zip(sides, tables, strict=True):
        tensors |= blocks(stack, names, f"model.{side}.layers.{{}}", order)
        if norm is not None:
            tensors |= layer(norm, f"model.{side}.layer_norm", order)
        if kind == "pegasus" or order is EVERY:
            tensors[f"model.{side}.embed_positions.weight"] = table
    return config, tensors


def _positions(embeddings, max_length):
    """Our channel of each of theirs, and the tables of positions."""
    layers = [embedding.position_layer for embedding in embeddings]
    if isinstance(layers[0], LearnedPositions):
        return EVERY, [arrays.array(layer.embeddings) for layer in layers]
    width = embeddings[0].embedding_dim
    plain = {"first_position": 0, "max_period": 10_000.0, "reach_max_period": False}
    order = EVERY
    if all(getattr(layers[0], name) == value for name, value in plain.items()):
        order = np.arange(width)
        if layers[0].style == "interleaved":
            order = np.concatenate([order[0::2], order[1::2]])
    tables = [arrays.array(one.signal(max_length, 0, width)) for one in layers]
    return order, [np.ascontiguousarray(table[:, order]) for table in tables]


def _seq2seq_words(model, config, order):
    tables = []
    for embedding in (model.source_embedding, model.target_embedding):
        arrays.check_is_whole(embedding.token_embedding)
        table = arrays.array(embedding.embeddings)[:, order]
        tables.append(np.ascontiguousarray(table))
    if config["share_encoder_decoder_embeddings"]:
        tensors = {"model.shared.weight": tables[0]}
    else:
        tensors = {
            "model.encoder.embed_tokens.weight": tables[0],
            "model.decoder.embed_tokens.weight": tables[1],
        }
    if model.projection is not None:
        arrays.check_is_whole(model.projection)
        kernel = arrays.array(model.projection.kernel).T[:, order]
        tensors["lm_head.weight"] = np.ascontiguousarray(kernel)
    bias = stacks.logits_bias(model.target_embedding, model.projection)
    zeros = np.zeros(model.vocabulary_size, "float32")
    bias = zeros if bias is None else arrays.array(bias)
    return {**tensors, "final_logits_bias": bias[None]}
