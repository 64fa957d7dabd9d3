"""Creates the variables of a model with the values of a file.

A model usually gets random values first, and each variable then holds both
these and the new ones for a moment: much, for an embedding matrix. Here the
variables wait, and each is created with the value that it is to have.

Keras has no public API for this. Two private ones are used, here alone:
`keras.src.backend.common.global_state`, to give up variables that wait after an
error, and `variable._initializer`, to say later what a variable starts with.
Where either is gone, variables are created as usual and then assigned.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.zoo.weight_mapping import WeightMapping, misfit

try:
    from keras.src.backend.common import global_state
except ImportError:  # the fallback: assign
    global_state = None

WAITING = "uninitialized_variables"  # Keras' name of the list of those that wait


def can_defer() -> bool:
    """Returns whether Keras still has the private APIs that creation waits by.

    Example:
        ```python
        from keras_tfm.zoo.weight_loader import can_defer

        print(can_defer())  # True
        ```
    """
    return global_state is not None and hasattr(keras.Variable(0.0), "_initializer")


class WeightLoader:
    """Context in which a model is built and gets the values of a mapping.

    Args:
        file: path, named in errors.

    Raises:
        ValueError: at the end, a tensor of another shape than the variable.

    Example:
        ```python
        import keras
        import numpy as np
        from keras_tfm.zoo.weight_loader import WeightLoader
        from keras_tfm.zoo.weight_mapping import pytorch_layers

        tensors = {"fc.weight": np.ones((2, 3)), "fc.bias": np.zeros(2)}
        with WeightLoader("model.safetensors") as loader:
            layer = keras.layers.Dense(2)
            layer.build((None, 3))
            loader.load(pytorch_layers([layer], "fc"), tensors.get)
        print(layer.kernel.shape)  # (3, 2)
        ```
    """

    def __init__(self, file: str | os.PathLike):
        self._file, self._errors = file, []
        self._scope = keras.StatelessScope() if can_defer() else None

    def __enter__(self) -> "WeightLoader":
        if self._scope is not None:
            self._waiting = list(global_state.get_global_attribute(WAITING) or [])
            self._scope.__enter__()
        return self

    def load(self, mapping: WeightMapping, read: Callable[[str], np.ndarray]) -> None:
        """Assigns values to variables when the context ends.

        Args:
            mapping: list of `Weight`.
            read: function from a tensor's name to its array.

        Raises:
            ValueError: a variable holds integers.
        """
        quantized = [
            w.variable.path for w in mapping if "float" not in w.variable.dtype
        ]
        if quantized:
            raise ValueError(
                f"`dtype` must be a float to load weights; got integers for "
                f"{quantized[:4]}. Load the model in float32, then quantize it."
            )
        for weight in mapping:
            value = functools.partial(self._value, weight, read)
            if self._scope is None:
                weight.variable.assign(
                    value(weight.variable.shape, weight.variable.dtype)
                )
            else:
                weight.variable._initializer = value

    def __exit__(self, error_type: type | None, *error: Any) -> None:
        if self._scope is not None:
            if error_type is not None:  # create none of the variables that wait
                global_state.set_global_attribute(WAITING, self._waiting)
            self._scope.__exit__(error_type, *error)
        if self._errors and error_type is None:
            raise self._errors[0]

    def _value(self, weight, read, shape, dtype):
        # An error here would leave Keras with variables that it tries to create
        # ever after, so it is raised at the end.
        try:
            shapes = []

            def _read(name):
                array = read(name)
                shapes.append(array.shape)
                return array

            # No reference to the tensors outlives their conversion.
            value = weight.convert(*map(_read, weight.tensors))
            if value.shape != tuple(shape):
                raise misfit(self._file, weight, shapes[0])
            return ops.cast(ops.convert_to_tensor(value), dtype)
        except Exception as error:
            self._errors.append(error)
            return ops.zeros(shape, dtype)
