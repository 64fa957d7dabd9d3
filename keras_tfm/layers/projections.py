"""The matrices of layers, their initializers, and products of heads."""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers.weights import KernelLayer
from keras_tfm.types import Initializer, Tensor


def clone_initializer(initializer: Initializer) -> Initializer:
    """Copies an initializer, so that each matrix gets its own random numbers.

    Args:
        initializer: what `keras.initializers.get` takes.

    Returns:
        `keras.initializers.Initializer` with a new seed unless it has a fixed
        one; a function is returned as it is.
    """
    initializer = keras.initializers.get(initializer)
    is_function = not isinstance(initializer, keras.initializers.Initializer)
    return initializer if is_function else initializer.clone()


def dense(
    layer: KernelLayer, name: str, input_dim: int, units: int, **kwargs: Any
) -> keras.layers.Dense:
    """Creates and builds a `Dense` inside a layer.

    Args:
        layer: `KernelLayer`, whose options of weights it gets.
        name: str.
        input_dim: int.
        units: int.
        **kwargs: further arguments of `keras.layers.Dense`.
    """
    dense = keras.layers.Dense(units, name=name, **_weight_options(layer), **kwargs)
    dense.build((None, input_dim))
    return dense


def to_heads(
    layer: KernelLayer, name: str, input_dim: int, heads: int, head_dim: int
) -> keras.layers.EinsumDense:
    """Creates and builds the map from `(B, T, D)` to `(B, T, H, d)`."""
    dense = _einsum_dense(
        layer,
        "btd,dhk->bthk",
        (input_dim, heads * head_dim),
        output_shape=(None, heads, head_dim),
        bias_axes="hk" if layer.use_bias else None,
        name=name,
    )
    dense.supports_masking = True  # Keras warns of a lost mask otherwise.
    dense.build((None, None, input_dim))
    return dense


def from_heads(
    layer: KernelLayer, heads: int, head_dim: int, output_dim: int
) -> keras.layers.EinsumDense:
    """Creates and builds the map from `(B, T, H, d_v)` to `(B, T, D)`."""
    dense = _einsum_dense(
        layer,
        "bthd,hde->bte",
        (heads * head_dim, output_dim),
        output_shape=(None, output_dim),
        bias_axes="e" if layer.use_bias else None,
        name="attention_output",
    )
    dense.build((None, None, heads, head_dim))
    return dense


def _einsum_dense(layer, equation, matrix_shape, **kwargs):
    initializer = clone_initializer(layer.kernel_initializer)

    def initialize(shape, dtype=None):
        # Glorot's bounds are those of the matrix (D, H d).
        return ops.reshape(initializer(matrix_shape, dtype=dtype), shape)

    options = _weight_options(layer) | {"kernel_initializer": initialize}
    return keras.layers.EinsumDense(equation, **options, **kwargs)


def _weight_options(layer):
    """The options of weights of a layer, with initializers of their own."""
    options = layer.weight_options()
    for name in ("kernel_initializer", "bias_initializer"):
        options[name] = clone_initializer(options[name])
    return options


def grouped_matmul(a: Tensor, b: Tensor, heads_per_group: int) -> Tensor:
    """Multiplies the matrices of H heads by those of G, each for H / G heads.

    Args:
        a: float `(B, H, T, N)`.
        b: float `(B, G, N, M)`.
        heads_per_group: int, H / G.

    Returns:
        float `(B, H, T, M)`.
    """
    if heads_per_group == 1:
        return ops.matmul(a, b)
    batch_size, heads, length, inner_dim = ops.shape(a)
    # Not `repeat`, which would copy a cache: the heads of a group become rows.
    rows = (batch_size, heads // heads_per_group, heads_per_group * length, inner_dim)
    product = ops.matmul(ops.reshape(a, rows), b)  # (B, G, H / G * T, M)
    return ops.reshape(product, (batch_size, heads, length, ops.shape(product)[-1]))
