"""The floating-point operations of a training step, counted from shapes."""

import math
from collections.abc import Iterable

import keras

from keras_tfm.layers.multi_head_attention import MultiHeadAttention
from keras_tfm.models.causal_lm import CausalLM
from keras_tfm.models.recurrent_seq2seq import RecurrentSeq2Seq
from keras_tfm.models.sequence_classifier import SequenceClassifier
from keras_tfm.models.transformer import Transformer

# A product of (m, k) and (k, n) has m n k multiplications and as many
# additions. Its gradients by both factors are two products of the same size.
OPERATIONS = 2
PASSES = 3  # forward, and two of the gradients


def training_flops(
    model: Transformer | RecurrentSeq2Seq | CausalLM | SequenceClassifier,
    batch_size: int,
    *lengths: int,
) -> int:
    """Counts the floating-point operations of one training step.

    A matrix of P weights costs `2 P` operations for each position, and
    attention `2 (d_k + d_v)` for each head, query and key; the gradients cost
    twice as much again. Padding and masked keys count, since they are computed.
    Not counted is what grows more slowly than the products: biases,
    normalization, softmax, activations, dropout, lookups, relative positions,
    what a classifier computes once for each text, and the optimizer.

    Args:
        model: `Transformer`, `RecurrentSeq2Seq`, `CausalLM` or
            `SequenceClassifier`, all of whose weights are trained.
        batch_size: int, B.
        *lengths: ints, in tokens, padding included: S and T, T of a
            `CausalLM`, or S of a `SequenceClassifier`.

    Returns:
        int, multiplications and additions.

    Example:
        ```python
        from keras_tfm import models

        model = models.transformer_tiny(9_712)
        flops = models.training_flops(model, 32, 20, 20)
        print(f"{flops:.1e}")  # 1.0e+10
        ```

    Source: Kaplan et al. 2020, table 1, https://arxiv.org/abs/2001.08361, here
    with an encoder too.
    """
    factor = PASSES * OPERATIONS * batch_size
    if isinstance(model, SequenceClassifier):
        return factor * _stack_products(model.encoder.blocks, *lengths)
    if isinstance(model, Transformer):
        products = _transformer_products(model, *lengths)
    elif isinstance(model, RecurrentSeq2Seq):
        products = _recurrent_products(model, *lengths)
    else:
        products = _stack_products(model.blocks, *lengths)
    logits = model.target_vocabulary_size * model.config["embedding_dim"]
    products += lengths[-1] * logits
    return factor * products


def _stack_products(blocks, length):
    """Counts multiplications of self-attention blocks for one sequence."""
    products = length * matrices(blocks)
    return products + sum(
        attention_products(block.self_attention, length, length) for block in blocks
    )


def _transformer_products(model, source_length, target_length):
    """Counts multiplications for one pair, without the logits."""
    products = _stack_products(model.encoder_blocks, source_length)
    for block in model.decoder_blocks:
        cross = block.cross_attention
        # Keys and values are those of the source.
        memory = matrices([cross.key_dense, cross.value_dense])
        products += source_length * memory
        products += target_length * (matrices([block]) - memory)
        products += attention_products(cross, target_length, source_length)
        if not model.config["decoder_recurrence"]:
            products += attention_products(
                block.self_attention, target_length, target_length
            )
    return products


def _recurrent_products(model, source_length, target_length):
    """Counts multiplications for one pair, without the logits."""
    decoder = model.decoder
    memory = [decoder.key_dense] if decoder.key_dense is not None else []
    units, dim = decoder.units, 2 * decoder.units
    score_dim = units
    if decoder.attention == "additive":
        memory = [decoder.attention_layer.key_dense]
        score_dim += units  # the sum before tanh, and its product with a vector
    at_start = matrices([decoder.bridge])
    at_source, at_all = matrices(memory), matrices([decoder])
    return (
        source_length * (matrices([model.encoder]) + at_source)
        + target_length * (at_all - at_source - at_start)
        + at_start
        + target_length * source_length * (score_dim + dim)
    )


def matrices(layers: Iterable[keras.layers.Layer]) -> int:
    """Counts the weights of all matrices of layers, biases and scales not."""
    return sum(
        math.prod(weight.shape)
        for layer in layers
        for weight in layer.trainable_weights
        # The heads of attention have their biases as a matrix.
        if len(weight.shape) > 1 and weight.name != "bias"
    )


def attention_products(
    attention: MultiHeadAttention, num_queries: int, num_keys: int
) -> int:
    """Counts the multiplications of scores and of weighted values.

    Args:
        attention: built `MultiHeadAttention`.
        num_queries: int, T.
        num_keys: int, S.
    """
    key_dim = attention.query_dense.kernel.shape[-1]
    value_dim = attention.value_dense.kernel.shape[-1]
    heads = attention.num_heads
    return heads * num_queries * num_keys * (key_dim + value_dim)
