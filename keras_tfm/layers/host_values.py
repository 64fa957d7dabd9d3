"""The values of a tensor, where they can be read at no cost."""

import numpy as np
from keras import ops

from keras_tfm.types import Tensor


def host_values(x: Tensor) -> np.ndarray | None:
    """Reads a tensor that lies in the memory of the processor.

    On an accelerator a read would wait for all the work before it, and while a
    function is traced there is nothing to read.

    Args:
        x: tensor, array, or symbol.

    Returns:
        NumPy array, or None where the values are not known here.
    """
    if isinstance(x, np.ndarray):
        return x
    try:
        # "cpu" of PyTorch, "TFRT_CPU_0" of JAX, "...:CPU:0" of TensorFlow
        if "cpu" in str(x.device).lower():
            return np.asarray(ops.convert_to_numpy(x))
    except Exception:  # each backend has another error for a traced tensor
        return None
    return None
