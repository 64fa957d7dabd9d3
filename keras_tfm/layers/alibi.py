"""Attention with linear biases (ALiBi)."""

import math

import keras
from keras import ops

from keras_tfm.layers.relative_position import RelativePositions, distances
from keras_tfm.layers.types import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tfm")
class AlibiPositions(RelativePositions):
    """Subtracts a fixed multiple of the distance from each score.

    Of H heads, a power of two, head h from 1 has the slope `2^(-8h / H)`; for
    other numbers those of the next lower power come first, then every other
    one of the next higher. Keys after the query, which the paper does not have,
    count like those before it.

    Args:
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        queries: float `(B, T, H, d_k)`.
        query_positions: int `(T,)` or `(B, T)`, in tokens.
        key_positions: int `(S,)` or `(B, S)`, in tokens.

    Returns:
        float32 `(1, H, T, S)`.

    Source: Press et al. 2022, section 3. https://arxiv.org/abs/2108.12409

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        attention = layers.MultiHeadAttention(2, positions="alibi")
        print(attention(np.ones((1, 3, 8))).shape)  # (1, 3, 8)
        ```
    """

    has_score_bias = True

    def build(self, queries_shape: Shape) -> None:
        heads = queries_shape[2]
        lower = 2 ** int(math.log2(heads))

        def slopes(count):
            return [2 ** (-8 * (h + 1) / count) for h in range(count)]

        self._slopes = slopes(lower) + slopes(2 * lower)[::2][: heads - lower]

    def score_bias(
        self, queries: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        distance = ops.abs(distances(query_positions, key_positions))
        distance = ops.cast(distance, "float32")[:, None]  # (1, 1, T, S)
        # float32: float16 has only even numbers above 2,048.
        slopes = ops.convert_to_tensor(self._slopes, dtype="float32")
        return -slopes[:, None, None] * distance  # (1, H, T, S)
