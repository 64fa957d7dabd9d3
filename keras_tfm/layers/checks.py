"""Checks of arguments that several layers share."""

import inspect
import math
from collections.abc import Collection
from numbers import Integral

import keras
import numpy as np
from keras import backend, ops

from keras_tfm.layers.host_values import host_values
from keras_tfm.layers.keras_internals import is_placeholder
from keras_tfm.types import Shape, Tensor

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SHAPES_OF_MASKS = {
    (2,): "(B, S)",
    (3,): "(B, T, S)",
    (3, 4): "(B, T, S) or (B, H, T, S)",
}


def check_rates(**rates: float) -> None:
    """Checks that dropout rates lie in [0, 1)."""
    for name, rate in rates.items():
        if not 0 <= rate < 1:
            raise ValueError(f"`{name}` must be in [0, 1); got {name}={rate}.")


def check_sizes(**sizes: int | None) -> None:
    """Checks that sizes are integers of 1 or more, or None."""
    for name, size in sizes.items():
        if size is not None and not isinstance(size, Integral):
            raise ValueError(f"`{name}` must be an integer; got {name}={size!r}.")
        if size is not None and size < 1:
            raise ValueError(f"`{name}` must be at least 1; got {name}={size}.")


def check_above(minimum: float, **numbers: float) -> None:
    """Checks that numbers are finite and above a minimum."""
    for name, number in numbers.items():
        if not minimum < number < math.inf:  # NaN is neither
            raise ValueError(
                f"`{name}` must be a finite number above {minimum}; got "
                f"{name}={number}."
            )


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Checks that an argument is among the names it may have."""
    if value not in tuple(choices):
        choices = sorted(choices)
        raise ValueError(f"`{name}` must be one of {choices}; got {name}={value!r}.")


def check_mask_rank(name: str, mask: Tensor, ranks: tuple[int, ...]) -> None:
    """Checks the rank of a mask, or of None.

    Args:
        name: str. The argument that the error names.
        mask: the mask, or None.
        ranks: ranks that are accepted, a key of `SHAPES_OF_MASKS`.

    Raises:
        ValueError: the rank is not among `ranks`.
    """
    if mask is not None and len(mask.shape) not in ranks:
        raise ValueError(
            f"`{name}` must be boolean of shape {SHAPES_OF_MASKS[ranks]}, True = may "
            f"be attended to; got shape={tuple(mask.shape)}."
        )


def boolean_mask(name: str, mask: Tensor, ranks: tuple[int, ...]) -> Tensor:
    """Checks a mask and converts it to bool, True = may be attended to.

    Integers and floats of 0 and 1 count as False and True, as in Keras. Floats
    without a positive number are an additive mask, in which 0 may be attended
    to and large negative numbers may not. Values are checked where they are
    known: not in a compiled function, nor on an accelerator.

    Args:
        name: str. The argument that the error names.
        mask: the mask, or None.
        ranks: ranks that are accepted, a key of `SHAPES_OF_MASKS`.

    Returns:
        bool of the same shape, or None.

    Raises:
        ValueError: the rank is not among `ranks`, or a value is neither of a
            boolean nor of an additive mask.
    """
    check_mask_rank(name, mask, ranks)
    if mask is None:
        return None
    dtype = backend.standardize_dtype(mask.dtype)
    if dtype == "bool":
        return mask
    _check_mask_values(name, mask, is_float=dtype not in INTEGERS)
    is_one = mask > 0
    if dtype in INTEGERS:
        return is_one
    # An additive mask of a batch without padding is 0 throughout.
    is_additive = ops.logical_not(ops.any(is_one))
    return ops.logical_or(is_one, ops.logical_and(is_additive, ops.equal(mask, 0)))


def _check_mask_values(name, mask, is_float):
    values = host_values(mask)
    if values is None or not values.size:
        return
    # 1e3: BERT adds -1e4, others -1e9, -inf or the lowest number of the dtype.
    is_binary = np.isin(values, (0, 1)).all()
    is_additive = is_float and ((values == 0) | (values <= -1e3)).all()
    if not (is_binary or is_additive):
        raise ValueError(
            f"`{name}` must be boolean, True = may be attended to; or hold 0 and 1; or "
            "be additive, floats of 0 and large negative numbers. Got numbers from "
            f"{values.min()} to {values.max()}. Of token ids compute "
            "`masks.padding_mask(ids)`."
        )


def check_padding_length(padding_mask: Tensor, length: int | None) -> None:
    """Checks that a padding mask has one column for each key.

    Args:
        padding_mask: bool `(B, S)`, or None. One column would be broadcast.
        length: int, S, or None where unknown.

    Raises:
        ValueError: both lengths are known and differ.
    """
    if padding_mask is None or same_size(padding_mask.shape[1], length):
        return
    raise ValueError(
        "`padding_mask` must have one column for each key, or for each slot of the "
        f"cache; got shape={tuple(padding_mask.shape)} for {length} keys."
    )


def check_attention_mask_shape(mask: Tensor, expected_shape: Shape) -> None:
    """Checks that a mask broadcasts to the scores and to nothing larger.

    Args:
        mask: bool `(B, H, T, S)`.
        expected_shape: four sizes, None where unknown.

    Raises:
        ValueError: a known size is neither 1 nor the expected one.
    """
    # A size of 1 broadcasts; any other has to be the expected one.
    pairs = zip(mask.shape, expected_shape, strict=True)
    if not all(size == 1 or same_size(size, expected) for size, expected in pairs):
        raise ValueError(
            "`attention_mask` must have shape (B, T, S) or (B, H, T, S), where any "
            f"size may be 1; expected (B, H, T, S) = {tuple(expected_shape)}, got "
            f"{tuple(mask.shape)}."
        )


def check_sequences(dims: dict[str, int], shapes: dict[str, Shape]) -> None:
    """Checks that query, value and key fit the layer and each other.

    Args:
        dims: last dimensions that the layer was built for, by argument.
        shapes: shapes of the arguments that are present; None where unknown.

    Raises:
        ValueError: another rank or dimension, batch sizes that differ, or value
            and key of different lengths.
    """
    shapes = {name: tuple(shape) for name, shape in shapes.items()}
    fits = all(len(shape) == 3 for shape in shapes.values())
    if fits:
        first = next(iter(shapes.values()))
        # Batch sizes, then last dimensions
        pairs = [(shape[0], first[0]) for shape in shapes.values()]
        pairs += [(shape[2], dims[n]) for n, shape in shapes.items() if n in dims]
        # Lengths of query and key may differ, those of key and value not.
        if "value" in shapes and "key" in shapes:
            pairs.append((shapes["value"][1], shapes["key"][1]))
        fits = all(same_size(*pair) for pair in pairs)
    if not fits:
        raise ValueError(
            "`query`, `value` and `key` must have shape (batch, length, dimension), "
            f"with one length for value and key; expected dimensions {dims}, got "
            f"shapes {shapes}."
        )


def check_position_shape(
    name: str, positions: Tensor, length: int | None, batch_size: int | None
) -> None:
    """Checks that positions are one for each token, or row and token.

    Args:
        name: str. The argument that the error names.
        positions: int `(T,)` or `(B, T)`.
        length: int or None, T.
        batch_size: int or None, B.

    Raises:
        ValueError: another shape, which would be broadcast.
    """
    shape = tuple(positions.shape)
    fits = len(shape) in (1, 2) and same_size(shape[-1], length)
    rows = shape[0] if len(shape) == 2 else 1  # of the batch
    if not fits or not (rows == 1 or same_size(rows, batch_size)):
        raise ValueError(
            f"`{name}` must have shape (length,), (1, length) or (batch, length); got "
            f"shape={shape} for batch size {batch_size} and length {length}."
        )


def check_built(layer: keras.layers.Layer) -> None:
    """Checks that a layer has weights already."""
    if not layer.built:
        raise ValueError(
            f"Layer {layer.name!r} must be built before this call, which needs its "
            "dimensions. Call the layer, or its `build`, first."
        )


def same_size(size: object, expected: object) -> bool:
    """Compares two sizes; unknown ones and symbols of an export fit any."""
    both_known = isinstance(size, int) and isinstance(expected, int)
    return not both_known or size == expected


def check_ids(name: str, ids: Tensor, fix: str = "") -> None:
    """Checks that ids are integers of shape (batch, length)."""
    shape, dtype = tuple(ids.shape), backend.standardize_dtype(ids.dtype)
    if len(shape) != 2 or not (dtype in INTEGERS or is_placeholder(ids)):
        raise ValueError(
            f"`{name}` must be integers of shape (batch, length); got dtype={dtype}, "
            f"shape={shape}.{fix}"
        )


def call_arguments(layer: keras.layers.Layer, args: tuple, kwargs: dict) -> dict:
    """Maps the arguments of a call of a layer to their names, with defaults."""
    call = inspect.signature(layer.call).bind(*args, **kwargs)
    call.apply_defaults()
    return call.arguments
