"""Weights of layers as arrays, for the files of other programs."""

import keras
import numpy as np
from keras import ops

from keras_tfm.zoo import plans


def array(tensor):
    """Gives the values of a variable or tensor.

    Args:
        tensor: of any float dtype.

    Returns:
        float32 array of that shape, its rows one after another in memory.
    """
    values = ops.cast(ops.convert_to_tensor(tensor), "float32")
    return np.ascontiguousarray(ops.convert_to_numpy(values))


def kernel(layer):
    """Gives the matrix of a projection, without an axis of heads.

    Args:
        layer: built `Dense` or `EinsumDense`. What LoRA adds is added.

    Returns:
        float32 array `(inputs, outputs)`.

    Raises:
        ValueError: the layer is quantised.
    """
    check_is_whole(layer)
    return array(layer.kernel).reshape(-1, plans.width_of(layer))


def bias(layer):
    """Gives what a projection adds.

    Args:
        layer: built `Dense` or `EinsumDense`.

    Returns:
        float32 array `(outputs,)`; zeros where it adds nothing.
    """
    if layer.bias is None:
        return np.zeros(plans.width_of(layer), "float32")
    return array(layer.bias).reshape(-1)


def norm(layer):
    """Gives the scale of a normalisation and what it adds.

    Args:
        layer: built `LayerNormalization` or `RMSNormalization`.

    Returns:
        List of float32 arrays `(D,)`: two, or the scale alone.
    """
    if isinstance(layer, keras.layers.RMSNormalization):
        return [array(layer.scale)]
    return [array(layer.gamma), array(layer.beta)]


def check_is_whole(layer):
    """Refuses a layer whose matrix has been rounded.

    Args:
        layer: built Keras layer with a matrix.

    Raises:
        ValueError: the layer is quantised.
    """
    mode = getattr(layer, "quantization_mode", None)
    if mode is not None:
        raise ValueError(
            "Float weights are written for others. Received: a model of which "
            f"{layer.name!r} is quantised to {mode}. Write the model that it was "
            "quantised from; the other program rounds for itself."
        )
