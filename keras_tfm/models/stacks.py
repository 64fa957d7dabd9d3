"""What the models are built of: embeddings, stacks of blocks, final norms."""

import functools
from typing import Any

import keras
from keras import ops

from keras_tfm.layers.checks import check_sizes
from keras_tfm.layers.embedding import TokenAndPositionEmbedding
from keras_tfm.layers.normalization import normalization_layer
from keras_tfm.layers.position_factory import (
    is_relative,
    positions_of_blocks,
    relative_positions,
)
from keras_tfm.layers.positions import LearnedPositions
from keras_tfm.types import Tensor

TIES = ("all", "target", "inputs", None)
Embeddings = tuple[TokenAndPositionEmbedding, TokenAndPositionEmbedding]


def check_tie(
    tie: str | None, vocabulary_size: int, target_vocabulary_size: int | None
) -> None:
    """Checks that embedding matrices can be tied.

    Args:
        tie: str or None.
        vocabulary_size: int, V of the source.
        target_vocabulary_size: int or None.

    Raises:
        ValueError: `tie` is unknown, or ties vocabularies of two sizes.
    """
    if tie not in TIES:
        raise ValueError(f"`tie` must be one of {TIES}; got tie={tie!r}.")
    differ = target_vocabulary_size not in (None, vocabulary_size)
    if tie in ("all", "inputs") and differ:
        raise ValueError(
            f"`tie` must be 'target' or None for two vocabularies; got tie={tie!r}, "
            f"vocabulary_size={vocabulary_size}, "
            f"target_vocabulary_size={target_vocabulary_size}. Or train a joint "
            "vocabulary."
        )


def depths(num_layers: int | tuple[int, int]) -> tuple[int, int]:
    """Returns N of the encoder and of the decoder."""
    if isinstance(num_layers, (list, tuple)):
        encoder_depth, decoder_depth = num_layers
        return encoder_depth, decoder_depth
    return num_layers, num_layers


def tied_embeddings(
    config: dict, policy: keras.DTypePolicy, logits_bias: bool = False, **options: Any
) -> tuple[Embeddings, keras.layers.Dense | None]:
    """Makes the embeddings of source and target, and the output projection.

    Args:
        config: dict, config of a model with `tie`.
        policy: dtype policy.
        logits_bias: bool. The projection adds a bias.
        **options: of `embedding`.

    Returns:
        A pair of embeddings, one layer twice where they share all weights; and
        a `keras.layers.Dense`, or None where the target embedding projects.
    """
    tie, source_size = config["tie"], config["vocabulary_size"]
    target_size = config["target_vocabulary_size"] or source_size
    inputs_tied, output_tied = tie in ("all", "inputs"), tie in ("all", "target")
    make = functools.partial(embedding, config=config, policy=policy, **options)
    bias = logits_bias and output_tied
    # One layer for both, unless it has weights that each side has for itself.
    source = target = make(target_size, "embedding", logits_bias=bias)
    if not inputs_tied or _has_weights_beside_matrix(target):
        source = make(source_size, "source_embedding")
        target = make(target_size, "target_embedding", logits_bias=bias)
        if inputs_tied:
            target.tie_embeddings(source)  # the matrix alone
    dense = None
    if not output_tied:
        dense = keras.layers.Dense(
            target_size, use_bias=logits_bias, dtype=policy, name="projection"
        )
    return (source, target), dense


def _has_weights_beside_matrix(embedding: TokenAndPositionEmbedding) -> bool:
    positions = embedding.position_layer
    learned = isinstance(positions, LearnedPositions)
    # Concatenated positions are projected, which needs weights.
    learned = learned or getattr(positions, "combine", "add") != "add"
    return learned or embedding.norm is not None


def embedding(
    size: int, name: str, config: dict, policy: keras.DTypePolicy, **options: Any
) -> TokenAndPositionEmbedding:
    """Makes an embedding of tokens and of the positions that are added to them.

    Args:
        size: int, V.
        name: str.
        config: dict with `embedding_dim`, `positions` and `sequence_length`. A
            position layer is copied, without its weights.
        policy: dtype policy.
        **options: other arguments of `TokenAndPositionEmbedding`.

    Returns:
        `TokenAndPositionEmbedding`.

    Raises:
        ValueError: the position layer has weights.
    """
    positions = config["positions"]  # a name, a layer or None
    if is_relative(positions):
        positions = None  # those belong to the blocks
    if isinstance(positions, keras.layers.Layer):
        if positions.weights:
            raise ValueError(
                "`positions` must be a layer without weights, since every embedding "
                f"makes its own copy; got {positions!r}, which has weights. Pass a "
                "new layer and set the weights in the model."
            )
        copied = {**positions.get_config(), "dtype": policy}
        positions = type(positions).from_config(copied)
    return TokenAndPositionEmbedding(
        size,
        embedding_dim=config["embedding_dim"],
        sequence_length=config["sequence_length"],
        positions=positions,
        dtype=policy,
        name=name,
        **options,
    )


def id_inputs(*names: str) -> dict[str, keras.KerasTensor]:
    """Makes inputs of token ids, int32 `(B, length)`, by name."""
    return {name: keras.Input((None,), dtype="int32", name=name) for name in names}


def max_positions(embedding: TokenAndPositionEmbedding) -> int | None:
    """Returns how many positions an embedding has, or None for no limit."""
    return getattr(embedding.position_layer, "sequence_length", None)


class Stack:
    """A stack of blocks, and the normalization after them if they are pre-norm.

    Args:
        block_class: `TransformerEncoder`, `TransformerDecoder`, `SSRUDecoder`.
        count: int, N.
        options: dict, options of a block.
        positions: `positions` of the model; only those inside attention are
            used.
        policy: dtype policy.
        name: str, which the number of each block follows.

    Raises:
        ValueError: `count` is below 1.

    Example:
        ```python
        import keras
        import numpy as np
        from keras_tfm import layers
        from keras_tfm.models.stacks import Stack

        options = dict(num_heads=2, intermediate_dim=8, normalize_first=False)
        policy, block = keras.DTypePolicy("float32"), layers.TransformerEncoder
        stack = Stack(block, 2, options, None, policy, "encoder")
        print(stack(np.ones((1, 3, 4)), padding_mask=None).shape)  # (1, 3, 4)
        ```
    """

    def __init__(
        self,
        block_class: type,
        count: int,
        options: dict,
        positions: Any,
        policy: keras.DTypePolicy,
        name: str,
    ):
        check_sizes(num_layers=count)
        relative = relative_positions(positions) if is_relative(positions) else None
        layers = positions_of_blocks(relative, count, block_class.bidirectional, policy)
        self.blocks = [
            block_class(**options, positions=layer, dtype=policy, name=f"{name}_{i}")
            for i, layer in enumerate(layers)
        ]
        self.norm = None
        if options["normalize_first"]:
            self.norm = make_norm(options, policy, f"{name}_norm")

    def __call__(
        self, x: Tensor, *inputs: Tensor, maps: list | None = None, **options: Any
    ) -> Tensor:
        """Applies all blocks to a sequence.

        Args:
            x: float `(B, S, D)`.
            *inputs: other inputs of each block.
            maps: list or None. The attention scores of each block are appended
                to it, as lists.
            **options: call arguments of each block, `padding_mask` among them.

        Returns:
            float `(B, S, D)`.
        """
        for block in self.blocks:
            x = block(x, *inputs, **options, return_attention_scores=maps is not None)
            if maps is not None:
                x, *scores = x  # of self-attention, then of cross-attention
                maps.append(scores)
        return normalize(self.norm, x, options["padding_mask"])  # (B, S, D)

    def step(
        self, x: Tensor, caches: list, return_attention: bool, **options: Any
    ) -> tuple[Tensor, list, Tensor]:
        """Applies all blocks to the tokens of one decoding step.

        Args:
            x: float `(B, K, D)`.
            caches: list of the `cache` of each block.
            return_attention: bool.
            **options: other call arguments of each block.

        Returns:
            float `(B, K, D)`; list of what each block has written; and, if
            asked for, the attention of the last block, averaged over its
            heads: float32 `(B, K, L)`, else None.
        """
        pasts, attention, last = [], None, len(self.blocks) - 1
        for i, (block, cache) in enumerate(zip(self.blocks, caches, strict=True)):
            wants_scores = return_attention and i == last
            x, *scores, (past, _) = block(
                x, **options, cache=cache, return_attention_scores=wants_scores
            )
            pasts.append(past)  # the cache of the encoder does not change
        if return_attention:
            # Cross-attention comes last. (B, H, K, L) to (B, K, L)
            attention = ops.mean(ops.cast(scores[-1], "float32"), axis=1)
        return normalize(self.norm, x), pasts, attention


def make_norm(
    options: dict, policy: keras.DTypePolicy, name: str
) -> keras.layers.Layer:
    """Makes a normalization of the kind that the blocks have."""
    kind, epsilon = options["normalization"], options["epsilon"]
    return normalization_layer(kind, epsilon, dtype=policy, name=name)


def normalize(
    norm: keras.layers.Layer | None, x: Tensor, mask: Tensor = None
) -> Tensor:
    """Applies a normalization, if there is one.

    Args:
        norm: layer, or None.
        x: float `(B, S, D)`.
        mask: bool `(B, S)`, True where x is no padding: batch statistics are
            computed there.

    Returns:
        float `(B, S, D)`.
    """
    if norm is None:
        return x
    # Only batch statistics depend on other positions.
    if isinstance(norm, keras.layers.BatchNormalization):
        return norm(x, mask=mask)
    return norm(x)


def enable_lora(model: keras.Model, attentions: list, rank: int) -> None:
    """Freezes a model except for low-rank updates of queries and values.

    Args:
        model: Keras model.
        attentions: list of `MultiHeadAttention` to update.
        rank: int >= 1.

    Raises:
        ValueError: `rank` is below 1; nothing is frozen then.
    """
    check_sizes(rank=rank)
    # `enable_lora` makes its factors afterwards, which stay trainable.
    for weight in model.weights:
        weight.trainable = False
    for attention in attentions:
        attention.query_dense.enable_lora(rank)
        attention.value_dense.enable_lora(rank)
