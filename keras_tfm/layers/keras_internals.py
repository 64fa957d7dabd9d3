"""What Keras knows of tensors and does not publish.

No other module of this package imports `keras.src`.
"""

import functools

from keras import backend, ops

from keras_tfm.types import Tensor

try:
    from keras.src.backend import get_keras_mask, set_keras_mask
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope
except ImportError:  # a Keras that moved them: masks of traced JAX tensors are lost

    def get_keras_mask(x: Tensor) -> Tensor:
        """Reads the mask that Keras attached to a tensor."""
        return getattr(x, "_keras_mask", None)

    def set_keras_mask(x: Tensor, mask: Tensor) -> None:
        """Attaches a mask to a tensor."""
        x._keras_mask = mask

    def in_symbolic_scope() -> bool:
        """Returns whether Keras infers shapes just now."""
        return False


def implicit_mask(*tensors: Tensor) -> Tensor:
    """Reads the Keras masks that tensors of one length carry.

    Args:
        *tensors: tensors, or None.

    Returns:
        bool `(B, S)`: True where no carried mask is False. None if no tensor
        carries a mask.

    Raises:
        ValueError: a mask has another rank than 2.
    """
    masks = [get_keras_mask(x) for x in tensors if x is not None]
    masks = [mask for mask in masks if mask is not None]
    for mask in masks:
        if len(mask.shape) != 2:
            raise ValueError(
                "The implicit Keras mask must have shape (batch, length); got "
                f"shape={tuple(mask.shape)}. Pass `padding_mask` instead."
            )
    return functools.reduce(ops.logical_and, masks) if masks else None


def is_placeholder(x: Tensor) -> bool:
    """Returns whether x is a float placeholder for an input of another dtype.

    Keras passes one while it builds a subclassed model that it loads, and looks
    at shapes only.
    """
    is_float = backend.is_float_dtype(backend.standardize_dtype(x.dtype))
    return in_symbolic_scope() and is_float
