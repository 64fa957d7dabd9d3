"""Attention masks: boolean, True = may be attended to."""

from keras import ops

from keras_tfm.layers.checks import boolean_mask, check_ids
from keras_tfm.types import Tensor

__all__ = ["causal_mask", "combine", "masked_softmax", "open_rows", "padding_mask"]


def padding_mask(ids: Tensor, pad_id: int = 0) -> Tensor:
    """Computes which tokens of a padded batch are real.

    Args:
        ids: integer `(B, S)`, token ids.
        pad_id: int. The id of padding.

    Returns:
        bool `(B, S)`, True where `ids` differs from `pad_id`.

    Raises:
        ValueError: `ids` is not of rank 2 or not of an integer dtype.

    Example:
        ```python
        import numpy as np
        from keras_tfm.layers import masks

        print(masks.padding_mask(np.array([[5, 3, 0]])))  # True, True, False
        ```
    """
    check_ids("ids", ids)
    return ops.not_equal(ids, pad_id)


def causal_mask(
    length: Tensor, num_keys: Tensor = None, first_position: Tensor = 0
) -> Tensor:
    """Computes a mask by which each query attends to itself and to the past.

    Args:
        length: int >= 0, or scalar integer tensor: T, in tokens.
        num_keys: int or scalar integer tensor, S, in tokens. None: T.
        first_position: int or scalar integer tensor. Position of the first
            query among the keys; above 0 when decoding from a cache.

    Returns:
        bool `(T, S)`: row t is True in columns 0 to `first_position + t`.

    Raises:
        ValueError: `length` is an int below 0.

    Source: Vaswani et al. 2017, section 3.2.3. https://arxiv.org/abs/1706.03762

    Example:
        ```python
        from keras_tfm.layers import masks

        mask = masks.causal_mask(3)  # a lower triangle of True
        ```
    """
    if isinstance(length, int) and length < 0:
        raise ValueError(f"`length` must be at least 0; got length={length}.")
    query = ops.arange(length)
    if not (isinstance(first_position, int) and first_position == 0):
        query = query + first_position
    key = ops.arange(length if num_keys is None else num_keys)
    return ops.greater_equal(query[:, None], key[None, :])  # (T, S)


def combine(
    *attention_masks: Tensor, padding_mask: Tensor = None, causal_mask: Tensor = None
) -> Tensor:
    """Combines masks with a logical and.

    Padding and causal masks are passed by name, since `(B, S)` and `(T, T)`
    cannot be told apart when the sizes happen to fit. Masks are boolean, or
    integers or floats of 0 and 1, or additive: floats of 0, which may be
    attended to, and large negative numbers.

    Args:
        *attention_masks: bool `(B, T, S)` or `(B, H, T, S)`; None is skipped.
        padding_mask: bool `(B, S)` or None. Keys that are real tokens.
        causal_mask: bool `(T, S)` or None.

    Returns:
        bool, of rank 4 if any of the masks is, else of rank 3, with axes of
        size 1 where nothing depends on them. None if every mask is None.

    Raises:
        ValueError: a mask has another rank, or holds other numbers.

    Example:
        ```python
        import numpy as np
        from keras_tfm.layers import masks

        padding, causal = np.array([[True, True, False]]), masks.causal_mask(3)
        mask = masks.combine(padding_mask=padding, causal_mask=causal)
        print(mask.shape)  # (1, 3, 3)
        ```
    """
    masks = [boolean_mask("attention_mask", x, (3, 4)) for x in attention_masks]
    masks = [mask for mask in masks if mask is not None]
    padding_mask = boolean_mask("padding_mask", padding_mask, (2,))
    causal_mask = boolean_mask("causal_mask", causal_mask, (2,))
    # `expand_dims`, since LiteRT cannot index bools with None.
    if padding_mask is not None:
        masks.append(ops.expand_dims(padding_mask, 1))  # (B, 1, S)
    if causal_mask is not None:
        masks.append(ops.expand_dims(causal_mask, 0))  # (1, T, S)
    # Rank 4 if heads differ in any mask
    rank = max((len(mask.shape) for mask in masks), default=3)
    combined = None
    for mask in masks:
        if len(mask.shape) < rank:
            mask = ops.expand_dims(mask, 1)  # (B, 1, T, S)
        combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def open_rows(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Lets queries without any key attend to all, so that no softmax is NaN.

    Args:
        mask: bool `(..., S)`, or None.

    Returns:
        The mask, and bool `(..., 1)`, False where the result has to be set to
        zero afterwards; or None twice.

    Example:
        ```python
        import numpy as np
        from keras_tfm.layers import masks

        mask = np.array([[True, False], [False, False]])
        mask, has_keys = masks.open_rows(mask)
        print(mask, has_keys)  # the second row opened, without keys
        ```
    """
    if mask is None:
        return None, None
    has_keys = ops.any(mask, axis=-1, keepdims=True)  # (..., 1)
    return ops.logical_or(mask, ops.logical_not(has_keys)), has_keys


def masked_softmax(scores: Tensor, mask: Tensor = None) -> Tensor:
    """Computes attention weights, which sum to one over what a mask allows.

    Args:
        scores: float `(..., S)`.
        mask: bool, of a shape that broadcasts to it, or None.

    Returns:
        float32 `(..., S)`; zeros in a row that allows nothing.

    Example:
        ```python
        import numpy as np
        from keras_tfm.layers import masks

        mask = np.array([[True, False]])
        print(masks.masked_softmax(np.zeros((1, 2)), mask))  # [[1. 0.]]
        ```
    """
    mask, has_keys = open_rows(mask)  # (..., S), (..., 1)
    # In float16 -1e30 would be -inf, and a row of them NaN.
    scores = ops.cast(scores, "float32")
    if mask is not None:
        scores = ops.where(mask, scores, -1e30)
    # Keras warns of a softmax over a single key, which gets all the weight.
    is_single = scores.shape[-1] == 1
    weights = ops.ones_like(scores) if is_single else ops.softmax(scores, axis=-1)
    return weights if has_keys is None else ops.where(has_keys, weights, 0.0)
