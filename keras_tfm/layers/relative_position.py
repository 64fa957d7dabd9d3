"""Relative position encodings inside attention; base class of the kinds.

`MultiHeadAttention` calls their `rotate`, `score_bias` and `value_bias`; a kind
implements those that it needs. Positions are passed as numbers, so that they
are right for a cache too, whose slots may lie in any order; and as `(B, T)`
where the rows of a batch differ, as after prompts of different lengths.
"""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers.types import Shape, Tensor


class RelativePositions(keras.layers.Layer):
    """Encodes how far a key is from a query; base class.

    Args:
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        queries: float `(B, T, H, d_k)`.
        query_positions: int `(T,)` or `(B, T)`, in tokens.
        key_positions: int `(S,)` or `(B, S)`, in tokens.

    Returns:
        What `score_bias` returns.
    """

    has_score_bias = False  # Attention with a score bias cannot be fused.

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)

    def build_for(self, queries_shape: Shape, value_dim: int) -> None:
        """Creates the weights, if there are none yet.

        Args:
            queries_shape: `(B, T, H, d_k)`.
            value_dim: int, d_v.
        """
        if not self.built:
            self.build(queries_shape)

    def call(
        self, queries: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        return self.score_bias(queries, query_positions, key_positions)

    def compute_output_shape(
        self,
        queries_shape: Shape,
        query_positions_shape: Shape,
        key_positions_shape: Shape,
    ) -> Shape:
        length, heads = queries_shape[1:3]
        shapes = (query_positions_shape, key_positions_shape)
        rows = [shape[0] for shape in shapes if len(shape) == 2]
        return (*(rows[:1] or [1]), heads, length, key_positions_shape[-1])

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotates queries, or keys, by their positions.

        Args:
            x: float `(B, T, H, d_k)`.
            positions: int `(T,)` or `(B, T)`.

        Returns:
            The same shape and dtype.
        """
        return x

    def score_bias(
        self, queries: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        """Computes what is added to the scores.

        Args:
            queries: float `(B, T, H, d_k)`, scaled as for the scores.
            query_positions: int `(T,)` or `(B, T)`.
            key_positions: int `(S,)` or `(B, S)`.

        Returns:
            float32 `(B, H, T, S)`, or with a first axis of 1; or None.
        """
        return

    def value_bias(
        self, weights: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        """Computes what is added to the weighted values.

        Args:
            weights: float `(B, H, T, S)`.
            query_positions: int `(T,)` or `(B, T)`.
            key_positions: int `(S,)` or `(B, S)`.

        Returns:
            float `(B, H, T, d_v)`, or None.
        """
        return

    def get_config(self) -> dict:
        return super().get_config()


def distances(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Computes how far keys are after queries.

    Args:
        query_positions: int `(T,)` or `(B, T)`.
        key_positions: int `(S,)` or `(B, S)`.

    Returns:
        int32 `(1, T, S)` or `(B, T, S)`.
    """

    def with_rows(positions):
        positions = ops.cast(positions, "int32")
        return positions if len(positions.shape) == 2 else positions[None]

    query, key = with_rows(query_positions), with_rows(key_positions)
    return key[:, None, :] - query[:, :, None]
