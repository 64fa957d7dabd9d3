"""Transformers for the engine of CTranslate2."""

import os
import pathlib

import keras
import numpy as np

from keras_tfm.layers import SinusoidalPositions
from keras_tfm.models import Transformer, stacks
from keras_tfm.text import Vocabulary
from keras_tfm.zoo import arrays
from keras_tfm.zoo.ctranslate2_in import ACTIVATIONS, SHARED, VOCABULARIES


def to_ctranslate2(
    model,
    vocabulary,
    folder,
    quantization=None,
    target_vocabulary=None,
    add_source_eos=False,
    sequence_length=None,
):
    """Writes a `Transformer` for the engine of CTranslate2.

    Its tokens are the pieces of the vocabularies: give the engine what
    `vocabulary.tokens(ids)` says of each row of `vocabulary.encode(texts)`. It
    puts no mark of a language before a source: where the vocabulary has marks,
    see `Vocabulary.languages`, put the pieces of one there. Nor does it know
    the settings of a search: give it `beam_size`, `length_penalty` and
    `disable_unk`.

    Args:
        model: `Transformer` with positions added to tokens, scaled dot
            products, heads of width D / H, and `layer_norm` or `rms_norm`.
        vocabulary: `Vocabulary` of the source, and of the target unless another
            is given; or a list of str, a token for each row of the table. A
            `Vocabulary` is written too, as `sentencepiece.model`, or as
            `source.spm` and `target.spm`: so what is read again takes text.
        folder: path. Made if it is not there.
        quantization: None for float32, or a type of CTranslate2 such as
            `"int8"` or `"float16"`.
        target_vocabulary: as `vocabulary`, or None.
        add_source_eos: bool. The engine puts the end after each source, as
            models of others want it.
        sequence_length: int >= 1, in tokens, or None. The engine has a row for
            each position of a source or target and refuses longer ones. None:
            2,048 rows of sinusoids, and all that are learned; else so many
            sinusoids, and so many at most of what is learned.

    Raises:
        ImportError: `ctranslate2` is not installed.
        ValueError: a model of another architecture, or no position at all.
    """
    try:
        from ctranslate2 import specs
    except ImportError as error:
        raise ImportError(
            "Models for CTranslate2 are written by its package, which cannot be "
            f"imported here ({error}). Install `ctranslate2`."
        ) from error
    _check_writes(model)
    if sequence_length is not None and sequence_length < 1:
        raise ValueError(
            "Positions are written for one token at least. Received: "
            f"sequence_length={sequence_length}."
        )
    settings = model.config
    activations = {
        keras.activations.get(name): number for number, name in ACTIVATIONS.items()
    }
    spec = specs.TransformerSpec.from_config(
        num_layers=(len(model.encoder_blocks), len(model.decoder_blocks)),
        num_heads=settings["num_heads"],
        pre_norm=settings["normalize_first"],
        activation=specs.common_spec.Activation(
            activations[keras.activations.get(settings["activation"])]
        ),
        layernorm_embedding=settings["normalize_embedding"],
        ffn_glu=settings["gated"],
        rms_norm=settings["normalization"] == "rms_norm",
    )
    sides = (
        _pieces(vocabulary, model.vocabulary_size),
        _pieces(target_vocabulary or vocabulary, model.target_vocabulary_size),
    )
    unknown, start, end = sides[1][1:4]
    spec.config.unk_token, spec.config.bos_token = unknown, start
    spec.config.decoder_start_token, spec.config.eos_token = start, end
    spec.config.add_source_bos, spec.config.add_source_eos = False, add_source_eos
    spec.config.layer_norm_epsilon = settings["epsilon"]
    spec.register_source_vocabulary(sides[0])
    spec.register_target_vocabulary(sides[1])
    for written, embedding, norm, layers, blocks in (
        (
            spec.encoder,
            model.source_embedding,
            model.encoder_norm,
            spec.encoder.layer,
            model.encoder_blocks,
        ),
        (
            spec.decoder,
            model.target_embedding,
            model.decoder_norm,
            spec.decoder.layer,
            model.decoder_blocks,
        ),
    ):
        _write_stack(written, embedding, norm, sequence_length)
        for layer, block in zip(layers, blocks, strict=True):
            _write_block(layer, block)
    if model.projection is None:
        spec.decoder.projection.weight = arrays.array(model.target_embedding.embeddings)
    else:
        spec.decoder.projection.weight = arrays.kernel(model.projection).T.copy()
    if settings["logits_bias"]:
        bias = stacks.logits_bias(model.target_embedding, model.projection)
        spec.decoder.projection.bias = arrays.array(bias)
    spec.validate()
    spec.optimize(quantization=quantization)
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stale = [folder / name for name in (*VOCABULARIES, SHARED)]
    for file in (*folder.glob("*_vocabulary.*"), *stale):  # of another model
        file.unlink(missing_ok=True)
    spec.save(os.fspath(folder))
    _write_vocabularies(folder, vocabulary, target_vocabulary or vocabulary)


def _write_vocabularies(folder, source, target):
    """What cuts text into the tokens, where that is known."""
    if not isinstance(source, Vocabulary) or not isinstance(target, Vocabulary):
        return
    if source.model == target.model:
        source.save(folder / SHARED)
        return
    for name, side in zip(VOCABULARIES, (source, target), strict=True):
        side.save(folder / name)


def _check_writes(model):
    if not isinstance(model, Transformer):
        raise ValueError(
            f"CTranslate2 gets a Transformer. Received: {type(model).__name__}."
        )
    settings = model.config
    head = settings["embedding_dim"] // settings["num_heads"]
    wanted = {
        "score": ("scaled_dot",),
        "normalization": ("layer_norm", "rms_norm"),
        "num_key_value_heads": (None,),
        "decoder_recurrence": (None,),
        "key_dim": (None, head),
        "value_dim": (None, head),
    }
    wrong = {k: settings[k] for k, known in wanted.items() if settings[k] not in known}
    positions = model.target_embedding.position_layer
    if positions is None or getattr(positions, "combine", "add") != "add":
        wrong["positions"] = settings["positions"]
    if wrong:
        raise ValueError(
            "CTranslate2 gets a Transformer with positions added to its tokens, "
            "scaled dot products, heads of width D / H, and layer or RMS "
            f"normalisation. Received: {wrong}."
        )
    known = {keras.activations.get(name): name for name in ACTIVATIONS.values()}
    if keras.activations.get(settings["activation"]) not in known:
        raise ValueError(
            f"Activations that CTranslate2 has: {sorted(map(str, known.values()))}. "
            f"Received: {settings['activation']!r}."
        )


def _pieces(vocabulary, size):
    names = vocabulary
    if hasattr(vocabulary, "pieces"):
        names = vocabulary.tokens(range(vocabulary.size))
    return [*names, *(f"<spare {i}>" for i in range(len(names), size))]


def _write_stack(spec, embedding, norm, sequence_length):
    table = embedding.embeddings
    arrays.check_is_whole(embedding.token_embedding)
    one = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    one.weight = arrays.array(table)
    spec.scale_embeddings = embedding.factor != 1.0
    positions = embedding.position_layer
    if isinstance(positions, SinusoidalPositions):
        rows = 2048 if sequence_length is None else sequence_length
        encodings = positions.signal(rows, 0, table.shape[-1])
    else:
        encodings = positions.embeddings[:sequence_length]
    spec.position_encodings.encodings = arrays.array(encodings)
    if embedding.norm is not None:
        _write_norm(spec.layernorm_embedding, embedding.norm)
    if norm is not None:
        _write_norm(spec.layer_norm, norm)


def _write_block(layer, block):
    _write_attention(layer.self_attention, block.self_attention, joint=True)
    _write_norm(layer.self_attention.layer_norm, block.self_attention_norm)
    if getattr(block, "cross_attention", None) is not None:
        _write_attention(layer.attention, block.cross_attention, joint=False)
        _write_norm(layer.attention.layer_norm, block.cross_attention_norm)
    feed = block.feed_forward
    if feed.gated:
        _write_dense(layer.ffn.linear_0, [feed.gate_dense])
        _write_dense(layer.ffn.linear_0_noact, [feed.inner_dense])
    else:
        _write_dense(layer.ffn.linear_0, [feed.inner_dense])
    _write_dense(layer.ffn.linear_1, [feed.output_dense])
    _write_norm(layer.ffn.layer_norm, block.feed_forward_norm)


def _write_norm(spec, norm):
    spec.gamma, *beta = arrays.norm(norm)
    if beta:
        spec.beta = beta[0]


def _write_dense(spec, layers):
    """Joins dense layers by their outputs."""
    kernels = [arrays.kernel(layer) for layer in layers]
    spec.weight = np.ascontiguousarray(np.concatenate(kernels, axis=1).T)
    if layers[0].bias is not None:
        spec.bias = np.concatenate([arrays.bias(layer) for layer in layers])


def _write_attention(spec, attention, joint):
    query, key, value = (
        attention.query_dense,
        attention.key_dense,
        attention.value_dense,
    )
    if joint:
        _write_dense(spec.linear[0], [query, key, value])
    else:
        _write_dense(spec.linear[0], [query])
        _write_dense(spec.linear[1], [key, value])
    _write_dense(spec.linear[-1], [attention.output_dense])
