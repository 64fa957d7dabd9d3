"""The cache of keys and values with which attention decodes.

Keys are `(B, G, d_k, L)` and values `(B, G, L, d_v)`: both are then the right
side of a plain matrix product, with the slots innermost where they are summed.
"""

from keras import ops

from keras_tfm.types import Cache, Tensor


def to_cache_layout(keys: Tensor, values: Tensor) -> Cache:
    """Transposes `(B, S, G, d_k)` and `(B, S, G, d_v)` for a cache."""
    return ops.transpose(keys, (0, 2, 3, 1)), ops.transpose(values, (0, 2, 1, 3))


def extend_cache(cache: Cache, length: Tensor) -> Cache:
    """Appends slots of zeros.

    Args:
        cache: pair of `(B, G, d_k, L)` and `(B, G, L, d_v)`.
        length: int >= L, or scalar int tensor: slots of the result.
    """
    keys, values = cache
    # Keys grow along their last axis, values along the last but one.
    new_slots, no_padding = [0, length - ops.shape(keys)[3]], [0, 0]
    return (
        ops.pad(keys, [no_padding, no_padding, no_padding, new_slots]),
        ops.pad(values, [no_padding, no_padding, new_slots, no_padding]),
    )


def write_cache(cache: Cache, index: Tensor, update: Cache) -> Cache:
    """Writes keys and values from a slot on.

    Args:
        cache: pair of `(B, G, d_k, L)` and `(B, G, L, d_v)`.
        index: int, or scalar int tensor: the first slot.
        update: the same with T slots.

    Returns:
        The new cache; in PyTorch's inference mode the old one, written over.
    """
    # A cache may be kept in another dtype than the layer computes in.
    (keys, values), dtype = cache, cache[0].dtype
    new_keys, new_values = (ops.cast(x, dtype) for x in update)
    return (
        _write(keys, 3, index, new_keys),
        _write(values, 2, index, new_values),
    )


def _write(slots: Tensor, axis: int, index: Tensor, update: Tensor) -> Tensor:
    # On PyTorch `slice_update` copies the whole cache. Tensors of its inference
    # mode, in which a decoder runs, have one owner and are written in place.
    if getattr(slots, "is_inference", bool)():
        indices = ops.arange(update.shape[axis], dtype="int64") + index
        return slots.index_copy_(axis, indices, update)
    starts = [0, 0, 0, 0]  # one for each axis
    starts[axis] = index
    return ops.slice_update(slots, starts, update)


def check_cache_index(index: Tensor, cache: Cache | None, length: int | None) -> None:
    """Checks that what is written fits into the cache.

    Args:
        index: int, scalar int tensor, or None. Only an int is checked.
        cache: pair of `(B, G, d_k, L)` and `(B, G, L, d_v)`, or None.
        length: int or None, T: slots to write.

    Raises:
        ValueError: no cache, or slots outside of it.
    """
    if index is None:
        return
    if cache is None:
        raise ValueError(
            f"`cache_index` needs a cache; got cache_index={index} and cache=None. "
            "Pass the cache of the step before, or one from `empty_cache`."
        )
    capacity = cache[0].shape[3]
    # Tensors and symbols of an export are not checked.
    sizes_known = all(isinstance(x, int) for x in (index, capacity, length))
    if sizes_known and not 0 <= index <= capacity - length:
        # Backends would move the slice to the left, over older keys.
        raise ValueError(
            f"`cache_index` must leave space for all that is written; got "
            f"cache_index={index} and {length} positions for a cache of {capacity} "
            "slots. Extend the cache with `extend_cache`, or stop."
        )
