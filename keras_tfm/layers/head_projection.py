"""The projections of attention heads, and products that heads share."""

import keras
from keras import ops

from keras_tfm.layers.initialization import clone_initializer
from keras_tfm.layers.types import Tensor


def grouped_matmul(left: Tensor, right: Tensor, heads_per_group: int) -> Tensor:
    """Multiplies the matrices of H heads by those of G, each for H / G heads.

    Args:
        left: float `(B, H, T, N)`.
        right: float `(B, G, N, M)`.
        heads_per_group: int, H / G.

    Returns:
        float `(B, H, T, M)`.
    """
    if heads_per_group == 1:
        return ops.matmul(left, right)
    batch_size, heads, length, inner_dim = ops.shape(left)
    # Not `repeat`, which would copy a cache: the heads of a group become rows.
    rows = (batch_size, heads // heads_per_group, heads_per_group * length, inner_dim)
    product = ops.matmul(ops.reshape(left, rows), right)  # (B, G, H / G * T, M)
    return ops.reshape(product, (batch_size, heads, length, ops.shape(product)[-1]))


def head_projection(
    layer: keras.layers.Layer, name: str, input_dim: int, heads: int, head_dim: int
) -> keras.layers.EinsumDense:
    """Creates the map from `(B, T, D)` to `(B, T, H, d)`."""
    dense = keras.layers.EinsumDense(
        "btd,dhk->bthk",
        output_shape=(None, heads, head_dim),
        bias_axes="hk" if layer.use_bias else None,
        kernel_initializer=_as_matrix(layer, input_dim, heads * head_dim),
        bias_initializer=clone_initializer(layer.bias_initializer),
        dtype=layer.dtype_policy,
        name=name,
    )
    dense.supports_masking = True  # Keras warns otherwise.
    dense.build((None, None, input_dim))
    return dense


def output_projection(
    layer: keras.layers.Layer, heads: int, head_dim: int, output_dim: int
) -> keras.layers.EinsumDense:
    """Creates the map from `(B, T, H, d_v)` to `(B, T, D)`."""
    dense = keras.layers.EinsumDense(
        "bthd,hde->bte",
        output_shape=(None, output_dim),
        bias_axes="e" if layer.use_bias else None,
        kernel_initializer=_as_matrix(layer, heads * head_dim, output_dim),
        bias_initializer=clone_initializer(layer.bias_initializer),
        dtype=layer.dtype_policy,
        name="attention_output",
    )
    dense.build((None, None, heads, head_dim))
    return dense


def _as_matrix(layer, rows, columns):
    """Returns the kernel initializer, with the bounds of a matrix."""
    initializer = clone_initializer(layer.kernel_initializer)

    def initialize(shape, dtype=None):
        return ops.reshape(initializer((rows, columns), dtype=dtype), shape)

    return initialize
