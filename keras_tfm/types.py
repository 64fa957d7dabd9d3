"""Names of types in signatures; docstrings give dtypes and shapes."""

from collections.abc import Callable
from typing import Any

import keras

Tensor = Any  # of TensorFlow, JAX, PyTorch or NumPy, or a `keras.KerasTensor`
Shape = Any  # tuple of int, None where unknown; None for an absent tensor
Cache = tuple[Tensor, Tensor]  # keys (B, G, d_k, L) and values (B, G, L, d_v)
Initializer = str | dict | keras.initializers.Initializer | Callable
Regularizer = str | dict | keras.regularizers.Regularizer | None
Constraint = str | dict | keras.constraints.Constraint | None
Activation = str | dict | Callable | None
