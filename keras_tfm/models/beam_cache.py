"""Caches of the hypotheses of a beam, which are never moved.

Every step writes the keys and values of all K hypotheses into K new slots. A
hypothesis changes its place in the beam, but a slot stays where it was written:
the bool mask `ancestors (B, K, L)` says which slots each hypothesis descends
from, and only this mask is reordered. L is the number of slots.
"""

from collections.abc import Iterable

from keras import ops

from keras_tfm.layers.embedding import TokenAndPositionEmbedding
from keras_tfm.models.output_projection import OutputProjection
from keras_tfm.types import Tensor


def add_optional_entries(
    cache: dict,
    source_ids: Tensor,
    beam_size: int,
    return_attention: bool,
    candidates: Tensor,
    output: OutputProjection,
) -> dict:
    """Adds the entries `"attention"` and `"projection"`, if they are asked for.

    Args:
        cache: dict.
        source_ids: integer `(B, S)`.
        beam_size: int, K.
        return_attention: bool. Adds `"attention"`, float `(B, K, S)`.
        candidates: int32 `(B, C)`, which adds the columns of the projection
            that compute their logits; or None.
        output: `OutputProjection`.

    Returns:
        The cache.
    """
    if return_attention:
        batch_size, length = ops.shape(source_ids)
        # Compiled loops need every entry of the cache from the beginning.
        cache["attention"] = ops.zeros((batch_size, beam_size, length), "float32")
    if candidates is not None:
        cache["projection"] = output.columns_of(candidates)
    return cache


def mark_step(ancestors: Tensor, slot: Tensor) -> Tensor:
    """Marks the slots that this step writes: hypothesis k owns `slot + k`.

    Args:
        ancestors: bool `(B, K, L)`.
        slot: int or scalar int tensor, the first of the K slots.

    Returns:
        bool `(B, K, L)`.
    """
    batch_size, beam_size = ops.shape(ancestors)[0], ancestors.shape[1]
    # (B, K, K): a hypothesis attends to its own token, not to the others.
    diagonal = ops.broadcast_to(
        ops.eye(beam_size, dtype="bool"), (batch_size, beam_size, beam_size)
    )
    return ops.slice_update(ancestors, (0, 0, slot), diagonal)


def extend_slots(cache: dict, blocks: Iterable, num_slots: Tensor) -> dict:
    """Adds empty slots to a cache.

    Args:
        cache: dict with `"past"` and `"beams"`.
        blocks: the decoder blocks, one for each item of `"past"`.
        num_slots: int or scalar int tensor, the new L.

    Returns:
        dict, the new cache.
    """
    ancestors = cache["beams"]["ancestors"]
    padding = [[0, 0], [0, 0], [0, num_slots - ops.shape(ancestors)[2]]]
    pairs = zip(blocks, cache["past"], strict=True)
    return {
        **cache,
        "past": [block.extend_cache(past, num_slots) for block, past in pairs],
        "beams": {"ancestors": ops.pad(ancestors, padding)},
    }


def embed_step(
    embedding: TokenAndPositionEmbedding, ids: Tensor, offset: Tensor
) -> Tensor:
    """Embeds the last token of each hypothesis.

    The hypotheses of a source stand at one position: they are embedded as rows
    and then attend as if they were K queries of one sequence.

    Args:
        embedding: `TokenAndPositionEmbedding`.
        ids: integer `(B, K)`.
        offset: int, scalar int tensor, or int `(B,)`: position of the tokens.

    Returns:
        float `(B, K, D)`.
    """
    batch_size, beam_size = ops.shape(ids)[0], ids.shape[1]
    if not isinstance(offset, int) and len(offset.shape) > 0:
        offset = ops.repeat(offset, beam_size, axis=0)  # (B * K,)
    x = embedding(ops.reshape(ids, (-1, 1)), offset=offset)  # (B * K, 1, D)
    return ops.reshape(x, (batch_size, beam_size, x.shape[-1]))  # (B, K, D)
