"""The relative position representations of Shaw et al."""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers.checks import check_sizes
from keras_tfm.layers.initialization import clone_initializer
from keras_tfm.layers.quantization import layer_config
from keras_tfm.layers.relative_position import RelativePositions, distances
from keras_tfm.layers.types import Initializer, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tfm")
class ShawPositions(RelativePositions):
    """Adds a learned vector of the distance to each key and to each value.

    Distances are clipped to `max_distance` in both directions. The heads of a
    layer share the vectors, as in tensor2tensor; each layer has its own.

    Args:
        max_distance: int >= 1, in tokens: the paper's k.
        initializer: Keras initializer of the vectors.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        queries: float `(B, T, H, d_k)`, scaled as for the scores.
        query_positions: int `(T,)` or `(B, T)`, in tokens.
        key_positions: int `(S,)` or `(B, S)`, in tokens.

    Returns:
        float32 `(B, H, T, S)`: product of each query and the vector of each
        key's distance.

    Raises:
        ValueError: `max_distance` below 1.

    Source: Shaw et al. 2018, section 3. https://arxiv.org/abs/1803.02155

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        positions = layers.ShawPositions(4)
        attention = layers.MultiHeadAttention(2, positions=positions)
        print(attention(np.ones((1, 3, 8))).shape)  # (1, 3, 8)
        ```
    """

    has_score_bias = True

    def __init__(
        self,
        max_distance: int = 16,
        initializer: Initializer = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_sizes(max_distance=max_distance)
        self.max_distance = max_distance
        self.initializer = keras.initializers.get(initializer)
        self._value_dim = None

    def build_for(self, queries_shape: Shape, value_dim: int) -> None:
        self._value_dim = value_dim
        super().build_for(queries_shape, value_dim)

    def build(self, queries_shape: Shape) -> None:
        key_dim = queries_shape[-1]
        dims = {"keys": key_dim, "values": self._value_dim or key_dim}
        self.key_embeddings, self.value_embeddings = (
            self.add_weight(
                name=name,
                shape=(2 * self.max_distance + 1, dim),
                initializer=clone_initializer(self.initializer),
            )
            for name, dim in dims.items()
        )

    def compute_output_shape(
        self,
        queries_shape: Shape,
        query_positions_shape: Shape,
        key_positions_shape: Shape,
    ) -> Shape:
        batch_size, length, heads, _ = queries_shape
        return (batch_size, heads, length, key_positions_shape[-1])

    def score_bias(
        self, queries: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        vectors = self._vectors(self.key_embeddings, query_positions, key_positions)
        vectors = ops.cast(vectors, queries.dtype)
        if vectors.shape[0] == 1:
            scores = ops.einsum("bthd,tsd->bhts", queries, vectors[0])
        else:
            scores = ops.einsum("bthd,btsd->bhts", queries, vectors)
        return ops.cast(scores, "float32")

    def value_bias(
        self, weights: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        vectors = self._vectors(self.value_embeddings, query_positions, key_positions)
        vectors = ops.cast(vectors, weights.dtype)
        if vectors.shape[0] == 1:
            return ops.einsum("bhts,tsd->bhtd", weights, vectors[0])
        return ops.einsum("bhts,btsd->bhtd", weights, vectors)

    def _vectors(
        self, embeddings: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        """Looks up `(1, T, S, d)`, or `(B, T, S, d)`."""
        distance = distances(query_positions, key_positions)
        index = ops.clip(distance, -self.max_distance, self.max_distance)
        index = index + self.max_distance  # 0 to 2 k
        return ops.take(ops.convert_to_tensor(embeddings), index, axis=0)

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, ShawPositions)}
