"""Attention masks: boolean, True = may be attended to."""

import functools

from keras import backend, ops
from keras.src.backend import get_keras_mask
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def padding_mask(ids, pad_id=0):
    """Marks the real tokens of a padded batch.

    Args:
        ids: integer `(B, S)`, token ids.
        pad_id: int. The id that stands for "nothing here".

    Returns:
        bool `(B, S)`, True where `ids` differs from `pad_id`.

    Raises:
        ValueError: `ids` is not of rank 2 or not of an integer dtype.
    """
    _check_integers("ids", ids)
    return ops.not_equal(ids, pad_id)


def causal_mask(length):
    """Lets each position attend to itself and to the past.

    Args:
        length: int >= 1, or scalar integer tensor: `T`, in tokens.

    Returns:
        bool `(T, T)`, a lower triangle: row t is True in columns 0 to t.

    Raises:
        ValueError: `length` is an int below 1.

    Source: Vaswani et al. 2017, section 3.2.3. https://arxiv.org/abs/1706.03762
    """
    if isinstance(length, int) and length < 1:
        raise ValueError(
            "A causal mask has at least one position. "
            f"Received: length={length}. Pass the number of target tokens."
        )
    position = ops.arange(length)
    return ops.greater_equal(position[:, None], position[None, :])


def segment_mask(query_segments, key_segments=None):
    """Keeps the sequences packed into one row from seeing each other.

    Args:
        query_segments: integer `(B, T)`. The number of the sequence that each
            query position belongs to, from 1; 0 is padding.
        key_segments: integer `(B, S)`, or None for self-attention.

    Returns:
        bool `(B, T, S)`, True where both positions are of one sequence.

    Raises:
        ValueError: a tensor is not of rank 2 or not of an integer dtype.
    """
    _check_integers("query_segments", query_segments)
    if key_segments is None:
        key_segments = query_segments
    _check_integers("key_segments", key_segments)
    query_segments = query_segments[:, :, None]
    key_segments = key_segments[:, None, :]
    return ops.logical_and(
        ops.equal(query_segments, key_segments), ops.not_equal(key_segments, 0)
    )


def combine(*attention_masks, padding_mask=None, causal_mask=None):
    """Allows what every one of the given masks allows.

    Padding and causal masks go by name, since `(B, S)` and `(T, T)` cannot be
    told apart when the sizes happen to fit.

    Args:
        *attention_masks: bool `(B, T, S)` or `(B, H, T, S)`; None is skipped.
        padding_mask: bool `(B, S)` or None. Keys that are real tokens.
        causal_mask: bool `(T, S)` or None.

    Returns:
        bool, of rank 4 if any of the masks is, else of rank 3, with axes of
        size 1 where nothing depends on them. None if every mask is None.

    Raises:
        ValueError: a mask of another rank or dtype.
    """
    # No indices with None: LiteRT has no operation for them on bools.
    masks = [("attention mask", mask, (3, 4)) for mask in attention_masks]
    masks.append(("padding_mask", padding_mask, (2,)))
    masks.append(("causal_mask", causal_mask, (2,)))
    masks = [(name, mask, ranks) for name, mask, ranks in masks if mask is not None]
    for name, mask, ranks in masks:
        check_mask(name, mask, ranks)
    rank = max((len(mask.shape) for _, mask, _ in masks), default=3)
    combined = None
    for name, mask, _ in masks:
        if name == "padding_mask":
            mask = ops.expand_dims(mask, 1)  # (B, 1, S)
        elif name == "causal_mask":
            mask = ops.expand_dims(mask, 0)  # (1, T, S)
        if len(mask.shape) < rank:
            mask = ops.expand_dims(mask, 1)
        combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def implicit_mask(x):
    """Reads the Keras mask that a tensor carries, as one from `mask_zero`.

    Args:
        x: tensor, or None.

    Returns:
        bool `(B, S)`, or None.

    Raises:
        ValueError: the mask is of another rank or dtype.
    """
    # The attribute `_keras_mask` is not there on tensors that JAX traces.
    mask = None if x is None else get_keras_mask(x)
    if mask is not None:
        check_mask("implicit mask", mask, (2,))
    return mask


def implicit_masks(*sequences):
    """Reads what all of some tensors of one length let through.

    Args:
        *sequences: tensors, or None.

    Returns:
        bool `(B, S)`: True where no mask that one carries is False. None if
        none carries a mask.

    Raises:
        ValueError: a mask is of another rank or dtype.
    """
    carried = [implicit_mask(x) for x in sequences]
    carried = [mask for mask in carried if mask is not None]
    return functools.reduce(ops.logical_and, carried) if carried else None


def open_rows(mask):
    """Lets a query that may attend to nothing attend to all, without a NaN.

    Args:
        mask: bool `(..., S)`, or None.

    Returns:
        The mask, and bool `(..., 1)`, False where the result is to be set to
        zero afterwards; or None twice.
    """
    if mask is None:
        return None, None
    allowed = ops.any(mask, axis=-1, keepdims=True)
    return ops.logical_or(mask, ops.logical_not(allowed)), allowed


def masked_softmax(scores, mask=None):
    """Turns scores to weights, which sum to one over what a mask allows.

    Args:
        scores: float `(..., S)`.
        mask: bool, of a shape that broadcasts to it, or None.

    Returns:
        float32 `(..., S)`; zeros in a row that allows nothing.
    """
    mask, allowed = open_rows(mask)
    scores = ops.cast(scores, "float32")
    if mask is not None:
        scores = ops.where(mask, scores, -1e30)
    # Keras warns of a softmax over a single key, which gets all.
    alone = scores.shape[-1] == 1
    weights = ops.ones_like(scores) if alone else ops.softmax(scores, axis=-1)
    return weights if allowed is None else ops.where(allowed, weights, 0.0)


def check_length(mask, length):
    """Refuses a padding mask of another length than what it is of.

    Args:
        mask: bool `(B, S)`, or None: one column would be broadcast. What is of
            another rank is left to `check_mask`.
        length: int, S, or None where unknown.

    Raises:
        ValueError: both are known and differ.
    """
    known = mask is not None and len(mask.shape) == 2
    known = known and isinstance(mask.shape[1], int)
    if known and isinstance(length, int) and mask.shape[1] != length:
        raise ValueError(
            "`padding_mask` has a column for each key, with a cache for each of its "
            f"slots. Received: shape={tuple(mask.shape)}, for {length} keys."
        )


def check_fits(mask, wanted):
    """Refuses a mask that would broadcast to something else.

    Args:
        mask: bool `(B, H, T, S)`.
        wanted: four sizes, None where unknown.

    Raises:
        ValueError: a known size is neither 1 nor the one wanted.
    """
    for size, full in zip(mask.shape, wanted, strict=True):
        if size is None or full is None or size in (1, full):
            continue
        raise ValueError(
            "The attention mask must be (B, T, S) or (B, H, T, S), or have "
            f"axes of size 1. Received, as (B, H, T, S): {tuple(mask.shape)}; "
            f"wanted: {wanted}."
        )


_WANTED = {
    (2,): "(B, S)",
    (3,): "(B, T, S)",
    (3, 4): "(B, T, S) or (B, H, T, S)",
}


def check_mask(name, mask, ranks):
    """Refuses a mask of the wrong rank or dtype.

    Args:
        name: str. What to call the mask in the message.
        mask: the mask.
        ranks: tuple of int. Ranks that are accepted.

    Raises:
        ValueError: the rank is not among `ranks`, or the dtype is not bool.
    """
    dtype = backend.standardize_dtype(mask.dtype)
    if len(mask.shape) in ranks and dtype == "bool":
        return
    wanted = _WANTED.get(tuple(ranks), f"of rank {ranks}")
    hint = ""
    if dtype != "bool":
        hint = (
            " True means that a position may be attended to; turn an additive "
            "mask of 0 and -1e9 into `mask == 0` first."
        )
    raise ValueError(
        f"`{name}` must be boolean {wanted}. "
        f"Received: shape={tuple(mask.shape)}, dtype={dtype}.{hint}"
    )


def are_integers(x):
    """Says whether a tensor can be ids.

    Args:
        x: tensor.

    Returns:
        bool. While Keras builds a subclassed model that it loads, it shows its
        layers floats whatever they are for, and looks at shapes only.
    """
    dtype = backend.standardize_dtype(x.dtype)
    shown = in_symbolic_scope() and backend.is_float_dtype(dtype)
    return dtype in INTEGERS or shown


def _check_integers(name, ids):
    if len(ids.shape) != 2 or not are_integers(ids):
        dtype = backend.standardize_dtype(ids.dtype)
        raise ValueError(
            f"`{name}` must be integers of shape (batch, length). "
            f"Received: shape={tuple(ids.shape)}, dtype={dtype}."
        )
