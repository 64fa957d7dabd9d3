"""Relative positions by name, and one layer of them for each block."""

from typing import Any

import keras

from keras_tfm.layers.checks import check_choice
from keras_tfm.layers.relative_position import (
    AlibiPositions,
    RelativePositions,
    ShawPositions,
    T5Positions,
)
from keras_tfm.layers.rotary import RotaryPositions

KINDS = {
    "rotary": RotaryPositions,
    "alibi": AlibiPositions,
    "t5": T5Positions,
    "shaw": ShawPositions,
}
RelativePositionsLike = str | dict | RelativePositions | None


def relative_positions(
    kind: RelativePositionsLike, bidirectional: bool = True, **kwargs: Any
) -> RelativePositions | None:
    """Creates a layer of relative positions from its name.

    Args:
        kind: `"rotary"`, `"alibi"`, `"t5"`, `"shaw"`; or a layer, or the config
            of one, or None.
        bidirectional: bool. For `"t5"`.
        **kwargs: arguments of the layer that a name stands for.

    Returns:
        `RelativePositions`, or None.

    Raises:
        ValueError: an unknown name.
    """
    if isinstance(kind, dict):
        kind = keras.saving.deserialize_keras_object(kind)
    if kind is None or isinstance(kind, RelativePositions):
        return kind
    check_choice("positions", kind, KINDS)
    if kind == "t5":
        kwargs["bidirectional"] = bidirectional  # the only kind with a direction
    return KINDS[kind](**kwargs)


def is_relative(kind: object) -> bool:
    """Returns whether positions act inside attention, not on token vectors.

    Args:
        kind: str, layer or None.
    """
    return isinstance(kind, RelativePositions) or kind in tuple(KINDS)


def positions_of_blocks(
    positions: RelativePositions | None,
    num_blocks: int,
    bidirectional: bool,
    dtype: Any = None,
) -> list[RelativePositions | None]:
    """Creates the layer of positions of each block in a stack.

    The layers have the config of `positions` and new weights; the blocks share
    `T5Positions`, as in T5, unless `shared` is false.

    Args:
        positions: `RelativePositions`, or None.
        num_blocks: int.
        bidirectional: bool. Keys after the query are attended to.
        dtype: dtype policy of the layers.

    Returns:
        List of layers, or of None.

    Raises:
        ValueError: the layer has weights, which the new ones would not have.
    """
    if positions is None:
        return [None] * num_blocks
    if positions.weights:
        raise ValueError(
            "`positions` must be a layer without weights, since each block creates "
            f"its own from the config; got positions={positions!r}. Pass a new "
            "layer, and set the weights in the model."
        )
    config = {**positions.get_config(), "dtype": dtype}
    if isinstance(positions, T5Positions):
        config["bidirectional"] = bidirectional
        if positions.shared:
            return [type(positions).from_config(config)] * num_blocks
    return [type(positions).from_config(config) for _ in range(num_blocks)]
