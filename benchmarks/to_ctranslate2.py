"""Our Transformer as a CTranslate2 model, so that both decode with one set."""

import os

import numpy as np
from keras import ops

from keras_tfm.layers import SinusoidalPositions


def write(model, source_pieces, target_pieces, folder, quantization=None):
    """Writes the weights of a model in CTranslate2's own format.

    Args:
        model: `Transformer`, post- or pre-norm with LayerNorm, sinusoidal or
            learned positions, and biases.
        source_pieces: list of str, as many as the source table has rows.
        target_pieces: list of str, as many as the target table has rows; the
            ids 2 and 3 are start and end.
        folder: path. Made anew.
        quantization: None for float32, or a type of CTranslate2 as `"int8"`.
    """
    from ctranslate2 import specs

    settings = model.settings
    activation = {"relu": specs.common_spec.Activation.RELU}[settings["activation"]]
    spec = specs.TransformerSpec.from_config(
        num_layers=(len(model.encoder_blocks), len(model.decoder_blocks)),
        num_heads=settings["num_heads"],
        pre_norm=settings["normalize_first"],
        activation=activation,
    )
    spec.config.bos_token = spec.config.decoder_start_token = target_pieces[2]
    spec.config.eos_token = target_pieces[3]
    spec.config.unk_token = target_pieces[1]
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.config.layer_norm_epsilon = settings["epsilon"]
    spec.register_source_vocabulary(source_pieces)
    spec.register_target_vocabulary(target_pieces)
    _stack(spec.encoder, model.source_embedding, model.encoder_norm)
    _stack(spec.decoder, model.target_embedding, model.decoder_norm)
    for layer, block in zip(spec.encoder.layer, model.encoder_blocks, strict=True):
        _attention(layer.self_attention, block.self_attention, True)
        _norm(layer.self_attention.layer_norm, block.self_attention_norm)
        _feed_forward(layer.ffn, block)
    for layer, block in zip(spec.decoder.layer, model.decoder_blocks, strict=True):
        _attention(layer.self_attention, block.self_attention, True)
        _norm(layer.self_attention.layer_norm, block.self_attention_norm)
        _attention(layer.attention, block.cross_attention, False)
        _norm(layer.attention.layer_norm, block.cross_attention_norm)
        _feed_forward(layer.ffn, block)
    if model.projection is None:
        spec.decoder.projection.weight = _array(model.target_embedding.embeddings)
    else:
        spec.decoder.projection.weight = _array(model.projection.kernel).T.copy()
    spec.validate()
    spec.optimize(quantization=quantization)
    os.makedirs(folder, exist_ok=True)
    spec.save(os.fspath(folder))


def _array(tensor):
    return np.ascontiguousarray(ops.convert_to_numpy(tensor), dtype="float32")


def _stack(spec, embedding, norm):
    table = embedding.embeddings
    one = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    one.weight = _array(table)
    spec.scale_embeddings = embedding.factor != 1.0
    positions = embedding.position_layer
    if isinstance(positions, SinusoidalPositions):
        encodings = positions.signal(1024, 0, table.shape[-1])
    else:
        encodings = positions.table
    spec.position_encodings.encodings = _array(encodings)
    if norm is not None:
        _norm(spec.layer_norm, norm)


def _norm(spec, norm):
    spec.gamma, spec.beta = _array(norm.gamma), _array(norm.beta)


def _dense(spec, layers, inputs=1):
    """Joins dense layers by their outputs; the first `inputs` axes go in."""
    kernels, biases = [], []
    for layer in layers:
        kernel = _array(layer.kernel)
        rows = int(np.prod(kernel.shape[:inputs]))
        kernels.append(kernel.reshape(rows, -1))
        biases.append(_array(layer.bias).reshape(-1))
    spec.weight = np.ascontiguousarray(np.concatenate(kernels, axis=1).T)
    spec.bias = np.concatenate(biases)


def _attention(spec, attention, joint):
    query, key, value = (
        attention.query_dense,
        attention.key_dense,
        attention.value_dense,
    )
    if joint:
        _dense(spec.linear[0], [query, key, value])
    else:
        _dense(spec.linear[0], [query])
        _dense(spec.linear[1], [key, value])
    _dense(spec.linear[-1], [attention.output_dense], inputs=2)


def _feed_forward(spec, block):
    _dense(spec.linear_0, [block.feed_forward.inner_dense])
    _dense(spec.linear_1, [block.feed_forward.output_dense])
    _norm(spec.layer_norm, block.feed_forward_norm)
