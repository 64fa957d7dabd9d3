"""A weighted sum of the outputs of several layers."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm.layers.checks import boolean_mask, check_choice, same_size
from keras_tfm.layers.keras_internals import implicit_mask
from keras_tfm.layers.quantization import layer_config
from keras_tfm.types import Shape, Tensor

TRANSFORMATIONS = ("softmax", "sparsemax")
EPSILON = 1e-12  # added to the variance


@keras.saving.register_keras_serializable(package="keras_tfm")
class LayerMixture(keras.layers.Layer):
    """Computes a learned weighted sum of the outputs of several layers.

    `scale * sum(p[i] * states[i])`, where the probabilities `p` are the softmax
    or the sparsemax of one learned number for each layer. Sparsemax gives some
    layers a weight of exactly 0.

    Args:
        transformation: `"softmax"` or `"sparsemax"`.
        normalize: bool. Each sequence of each layer first gets mean 0 and
            variance 1 over its real positions and features together.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        states: list of n floats `(B, S, D)`, one for each layer.
        padding_mask: bool `(B, S)`, True where the sequence is real; it only
            matters with `normalize`. None: the implicit Keras mask of the
            first of the states, if it has one.

    Returns:
        float `(B, S, D)`, computed in float32, in the compute dtype.

    Raises:
        ValueError: an unknown transformation, no states, or states of
            different shapes.

    Source: Peters et al. 2018, section 3.2, https://arxiv.org/abs/1802.05365;
    sparsemax: Martins and Astudillo 2016, https://arxiv.org/abs/1602.02068

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        states = [np.ones((1, 3, 8)), np.zeros((1, 3, 8))]
        print(layers.LayerMixture("sparsemax")(states).shape)  # (1, 3, 8)
        ```
    """

    def __init__(
        self, transformation: str = "softmax", normalize: bool = False, **kwargs: Any
    ):
        super().__init__(**kwargs)
        check_choice("transformation", transformation, TRANSFORMATIONS)
        self.transformation = transformation
        self.normalize = bool(normalize)
        self.supports_masking = True

    def build(self, states_shape: Sequence[Shape]) -> None:
        _check_shapes(states_shape)
        self.layer_weights = self.add_weight(
            name="layer_weights", shape=(len(states_shape),), initializer="zeros"
        )
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")

    def call(self, states: Sequence[Tensor], padding_mask: Tensor = None) -> Tensor:
        if padding_mask is None:
            padding_mask = implicit_mask(states[0])
        mask = boolean_mask("padding_mask", padding_mask, (2,))
        transform = ops.softmax if self.transformation == "softmax" else sparsemax
        weights = transform(ops.cast(self.layer_weights, "float32"))  # (n,)
        mixture = 0.0
        # float32: half precision rounds a sum of 25 layers at each addition.
        for index, state in enumerate(states):
            state = ops.cast(state, "float32")
            if self.normalize:
                state = _normalized(state, mask)
            mixture = mixture + weights[index] * state  # (B, S, D)
        scale = ops.cast(self.scale, "float32")
        return ops.cast(scale * mixture, self.compute_dtype)

    def compute_output_shape(self, states_shape: Sequence[Shape]) -> Shape:
        return tuple(states_shape[0])

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, LayerMixture)}


def sparsemax(x: Tensor) -> Tensor:
    """Projects a vector onto the probability simplex.

    `keras.ops.sparsemax` of Keras 3.15 returns numbers that do not sum to 1.

    Args:
        x: float `(n,)`.

    Returns:
        float `(n,)`, which sum to 1; some are 0.

    Source: Martins and Astudillo 2016, algorithm 1.
    """
    descending = ops.flip(ops.sort(x))
    count = ops.arange(1, x.shape[0] + 1, dtype=x.dtype)
    # (sum of the k largest - 1) / k is greatest where k counts those above 0.
    threshold = ops.max((ops.cumsum(descending) - 1) / count)
    return ops.relu(x - threshold)


def _normalized(x: Tensor, mask: Tensor) -> Tensor:
    """Gives each sequence mean 0 and variance 1 over positions and features."""
    if mask is None:
        mask = ops.ones(ops.shape(x)[:2], "bool")
    real = ops.expand_dims(mask, -1)  # (B, S, 1)
    # A sequence without real positions would divide by 0.
    count = ops.maximum(ops.sum(ops.cast(mask, x.dtype), 1), 1) * x.shape[-1]
    count = ops.reshape(count, (-1, 1, 1))

    def _mean(values: Tensor) -> Tensor:
        values = ops.where(real, values, 0)
        return ops.sum(values, (1, 2), keepdims=True) / count  # (B, 1, 1)

    centered = x - _mean(x)
    return centered / ops.sqrt(_mean(ops.square(centered)) + EPSILON)


def _check_shapes(shapes: Sequence[Shape]) -> None:
    is_list = isinstance(shapes, list | tuple) and len(shapes) > 0
    if is_list and all(isinstance(shape, list | tuple) for shape in shapes):
        first = next(iter(shapes))
        if all(
            len(shape) == 3 and all(map(same_size, shape, first)) for shape in shapes
        ):
            return
    raise ValueError(
        "`states` must be a list of tensors of one shape (batch, length, dimension); "
        f"got the shapes {shapes}."
    )
