"""Base layers that hold Keras' options of their weights."""

from typing import Any

import keras

from keras_tfm.layers.quantization import layer_config
from keras_tfm.types import Constraint, Initializer, Regularizer


class KernelLayer(keras.layers.Layer):
    """Holds initializers, regularizers and constraints; base class.

    A layer made of several matrices applies them to each: the kernels of all
    projections, and all biases. `activity_regularizer` is an argument of every
    Keras layer.

    Args:
        kernel_initializer: Keras initializer of the matrices.
        bias_initializer: Keras initializer of the biases.
        kernel_regularizer: Keras regularizer of the matrices, or None.
        bias_regularizer: Keras regularizer of the biases, or None.
        kernel_constraint: Keras constraint of the matrices, or None.
        bias_constraint: Keras constraint of the biases, or None.
        **kwargs: arguments of `keras.layers.Layer`.
    """

    def __init__(
        self,
        *,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer = None,
        bias_regularizer: Regularizer = None,
        kernel_constraint: Constraint = None,
        bias_constraint: Constraint = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, KernelLayer)}

    def weight_options(self) -> dict:
        """Returns the arguments of this class by name, and the dtype policy."""
        names = ("initializer", "regularizer", "constraint")
        options = {f"kernel_{name}": getattr(self, f"kernel_{name}") for name in names}
        options |= {f"bias_{name}": getattr(self, f"bias_{name}") for name in names}
        return options | {"dtype": self.dtype_policy}


class EmbeddingLayer(keras.layers.Layer):
    """Holds initializer, regularizer and constraint of a matrix; base class.

    Args:
        embeddings_initializer: Keras initializer, or None for the default of
            the subclass.
        embeddings_regularizer: Keras regularizer, or None.
        embeddings_constraint: Keras constraint, or None.
        **kwargs: arguments of `keras.layers.Layer`.
    """

    def __init__(
        self,
        *,
        embeddings_initializer: Initializer | None = None,
        embeddings_regularizer: Regularizer = None,
        embeddings_constraint: Constraint = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, EmbeddingLayer)}


def nth_seed(seed: int | None, number: int) -> int | None:
    """Derives the seed of one of several dropouts, whose masks then differ."""
    return None if seed is None else seed + number
