"""Weights of layers as arrays, for the files of other programs."""

import keras
import numpy as np
from keras import ops

from keras_tfm.zoo.weight_mapping import output_dim


def to_array(tensor) -> np.ndarray:
    """Copies a variable or tensor into a contiguous float32 array.

    Args:
        tensor: of any float dtype.
    """
    values = ops.cast(ops.convert_to_tensor(tensor), "float32")
    return np.ascontiguousarray(ops.convert_to_numpy(values))


def kernel(layer: keras.layers.Layer) -> np.ndarray:
    """Returns the matrix of a projection, LoRA included, without heads.

    Args:
        layer: built `Dense` or `EinsumDense`.

    Returns:
        float32 array `(inputs, outputs)`.

    Raises:
        ValueError: the layer is quantized.
    """
    check_not_quantized(layer)
    return to_array(layer.kernel).reshape(-1, output_dim(layer))


def bias(layer: keras.layers.Layer) -> np.ndarray:
    """Returns the bias of a projection; zeros where it has none.

    Args:
        layer: built `Dense` or `EinsumDense`.

    Returns:
        float32 array `(outputs,)`.
    """
    if layer.bias is None:
        return np.zeros(output_dim(layer), "float32")
    return to_array(layer.bias).reshape(-1)


def norm(layer: keras.layers.Layer) -> list[np.ndarray]:
    """Returns scale and offset of a normalization, or the scale alone.

    Args:
        layer: built `LayerNormalization` or `RMSNormalization`.

    Returns:
        list of float32 arrays `(D,)`.
    """
    if isinstance(layer, keras.layers.RMSNormalization):
        return [to_array(layer.scale)]
    return [to_array(layer.gamma), to_array(layer.beta)]


def check_not_quantized(layer: keras.layers.Layer) -> None:
    """Rejects a layer whose matrix has been rounded to integers.

    Args:
        layer: built Keras layer with a matrix.

    Raises:
        ValueError: the layer is quantized.
    """
    mode = getattr(layer, "quantization_mode", None)
    if mode is not None:
        raise ValueError(
            f"`model` must have float weights; got {layer.name!r} quantized to {mode}. "
            "Export the model that it was quantized from; the other program quantizes "
            "by itself."
        )
