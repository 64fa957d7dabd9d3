"""The relative position bias of T5."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.layers.initialization import clone_initializer
from keras_tfm.layers.quantization import layer_config
from keras_tfm.layers.relative_position import RelativePositions, distances
from keras_tfm.layers.types import Initializer, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tfm")
class T5Positions(RelativePositions):
    """Adds a learned bias to each score, by the bucket of its distance.

    Half of the buckets hold one distance each, the other half grow
    logarithmically up to `max_distance`; larger distances share the last. Each
    head has its own biases. T5 shares them among all layers of a stack, as
    `Transformer(positions="t5")` does. Blocks that receive the same layer share
    it too, but Keras loads a functional model of them from its weights alone.

    Args:
        num_buckets: int >= 2, if bidirectional even and >= 4.
        max_distance: int, in tokens, more than the buckets of one distance.
        bidirectional: bool. Keys after the query have half of the buckets; else
            they share that of distance 0, as a causal mask hides them. A model
            chooses this itself: True in its encoder, False in its decoder.
        initializer: Keras initializer of the biases.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        queries: float `(B, T, H, d_k)`.
        query_positions: int `(T,)` or `(B, T)`, in tokens.
        key_positions: int `(S,)` or `(B, S)`, in tokens.

    Returns:
        float32 `(1, H, T, S)`.

    Raises:
        ValueError: buckets and distance that do not fit each other.

    Source: Raffel et al. 2020, section 2.1. https://arxiv.org/abs/1910.10683

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        positions = layers.T5Positions(16, 40)
        attention = layers.MultiHeadAttention(2, positions=positions)
        print(attention(np.ones((1, 3, 8))).shape)  # (1, 3, 8)
        ```
    """

    has_score_bias = True

    def __init__(
        self,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        initializer: Initializer = "random_normal",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        per_direction = num_buckets // 2 if bidirectional else num_buckets
        is_odd = bidirectional and num_buckets % 2
        if per_direction < 2 or is_odd or max_distance <= per_direction // 2:
            raise ValueError(
                "`num_buckets` must be at least 2 in each direction, even if "
                "bidirectional, and `max_distance` above half of those; got "
                f"num_buckets={num_buckets}, max_distance={max_distance}, "
                f"bidirectional={bidirectional}."
            )
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.initializer = keras.initializers.get(initializer)

    def build(self, queries_shape: Shape) -> None:
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.num_buckets, queries_shape[2]),
            initializer=clone_initializer(self.initializer),
            autocast=False,  # Scores are float32 in half precision too.
        )

    def score_bias(
        self, queries: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        distance = distances(query_positions, key_positions)  # (1, T, S)
        past, future = ops.maximum(-distance, 0), ops.maximum(distance, 0)
        buckets = ops.convert_to_tensor(self._buckets(), dtype="int32")
        bucket = ops.take(buckets, ops.minimum(past, self.max_distance), axis=0)
        if self.bidirectional:
            future = ops.minimum(future, self.max_distance)
            future = ops.take(buckets, future, axis=0) + self.num_buckets // 2
            bucket = ops.where(distance > 0, future, bucket)
        bias = ops.take(ops.convert_to_tensor(self.embeddings), bucket, axis=0)
        return ops.transpose(ops.cast(bias, "float32"), (0, 3, 1, 2))  # (1, H, T, S)

    def _buckets(self) -> np.ndarray:
        """Maps each distance to its bucket, in float32 as T5 does."""
        count = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        exact = count // 2
        distance = np.arange(self.max_distance + 1)
        ratio = np.log(np.maximum(distance, 1).astype("float32") / np.float32(exact))
        ratio = ratio / np.float32(math.log(self.max_distance / exact))
        large = exact + (ratio * np.float32(count - exact)).astype("int32")
        return np.where(distance < exact, distance, np.minimum(large, count - 1))

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, T5Positions)}
