"""What Keras knows of tensors and does not publish.

No other module of this package imports `keras.src`.
"""

from keras_tfm.types import Tensor

try:
    # Keras keeps masks of traced JAX tensors apart from the tensors.
    from keras.src.backend import get_keras_mask
except ImportError:  # a Keras that moved it: only masks of eager tensors remain

    def get_keras_mask(x: Tensor) -> Tensor:
        """Reads the mask that Keras attached to a tensor."""
        return getattr(x, "_keras_mask", None)
