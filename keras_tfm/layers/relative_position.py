"""Relative position encodings inside attention, by the distance of a key.

`MultiHeadAttention` calls their `rotate`, `score_bias` and `value_bias`; a kind
implements those that it needs. Positions are passed as numbers, so that they
are right for a cache too, whose slots may lie in any order; and as `(B, T)`
where the rows of a batch differ, as after prompts of different lengths.
"""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.layers.checks import check_sizes
from keras_tfm.layers.projections import clone_initializer
from keras_tfm.layers.quantization import layer_config
from keras_tfm.types import Initializer, Shape, Tensor


class RelativePositions(keras.layers.Layer):
    """Encodes how far a key is from a query; base class.

    Args:
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        queries: float `(B, T, H, d_k)`.
        query_positions: int `(T,)` or `(B, T)`, in tokens.
        key_positions: int `(S,)` or `(B, S)`, in tokens.

    Returns:
        What `score_bias` returns.
    """

    has_score_bias = False  # Attention with a score bias cannot be fused.

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)

    def build_for(self, queries_shape: Shape, value_dim: int) -> None:
        """Creates the weights, if there are none yet.

        Args:
            queries_shape: `(B, T, H, d_k)`.
            value_dim: int, d_v.
        """
        if not self.built:
            self.build(queries_shape)

    def call(
        self, queries: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        return self.score_bias(queries, query_positions, key_positions)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotates queries, or keys, by their positions.

        Args:
            x: float `(B, T, H, d_k)`.
            positions: int `(T,)` or `(B, T)`.

        Returns:
            The same shape and dtype.
        """
        return x

    def score_bias(
        self, queries: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        """Computes what is added to the scores.

        Args:
            queries: float `(B, T, H, d_k)`, scaled as for the scores.
            query_positions: int `(T,)` or `(B, T)`.
            key_positions: int `(S,)` or `(B, S)`.

        Returns:
            float32 `(B, H, T, S)`, or with a first axis of 1; or None.
        """
        return

    def value_bias(
        self, weights: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        """Computes what is added to the weighted values.

        Args:
            weights: float `(B, H, T, S)`.
            query_positions: int `(T,)` or `(B, T)`.
            key_positions: int `(S,)` or `(B, S)`.

        Returns:
            float `(B, H, T, d_v)`, or None.
        """
        return

    def get_config(self) -> dict:
        return super().get_config()


def distances(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Computes how far keys are after queries.

    Args:
        query_positions: int `(T,)` or `(B, T)`.
        key_positions: int `(S,)` or `(B, S)`.

    Returns:
        int32 `(1, T, S)` or `(B, T, S)`.
    """

    def with_rows(positions):
        positions = ops.cast(positions, "int32")
        return positions if len(positions.shape) == 2 else positions[None]  # (1, T)

    query, key = with_rows(query_positions), with_rows(key_positions)
    return key[:, None, :] - query[:, :, None]


@keras.saving.register_keras_serializable(package="keras_tfm")
class AlibiPositions(RelativePositions):
    """Subtracts a fixed multiple of the distance from each score.

    Of H heads, a power of two, head h from 1 has the slope `2^(-8h / H)`; for
    other numbers those of the next lower power come first, then every other
    one of the next higher. Keys after the query, which the paper does not have,
    count like those before it.

    Args:
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        queries: float `(B, T, H, d_k)`.
        query_positions: int `(T,)` or `(B, T)`, in tokens.
        key_positions: int `(S,)` or `(B, S)`, in tokens.

    Returns:
        float32 `(1, H, T, S)`.

    Source: Press et al. 2022, section 3. https://arxiv.org/abs/2108.12409

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        attention = layers.MultiHeadAttention(2, positions="alibi")
        print(attention(np.ones((1, 3, 8))).shape)  # (1, 3, 8)
        ```
    """

    has_score_bias = True

    def build(self, queries_shape: Shape) -> None:
        heads = queries_shape[2]
        lower = 2 ** int(math.log2(heads))  # power of two up to H

        def slopes(count):
            return [2 ** (-8 * (h + 1) / count) for h in range(count)]

        self._slopes = slopes(lower) + slopes(2 * lower)[::2][: heads - lower]

    def score_bias(
        self, queries: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        distance = ops.abs(distances(query_positions, key_positions))
        distance = ops.cast(distance, "float32")[:, None]  # (1, 1, T, S)
        # float32: float16 has only even numbers above 2,048.
        slopes = ops.convert_to_tensor(self._slopes, dtype="float32")
        return -slopes[:, None, None] * distance  # (1, H, T, S)


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
        shared: bool. The blocks of a stack share one layer, as in T5; else each
            has its own, as in umT5.
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
    Not shared: Chung et al. 2023, section 4. https://arxiv.org/abs/2304.09151

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
        shared: bool = True,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        per_direction = num_buckets // 2 if bidirectional else num_buckets
        is_odd = bidirectional and num_buckets % 2
        if per_direction < 2 or is_odd or max_distance <= per_direction // 2:
            raise ValueError(
                "`num_buckets` must be at least 2, or even and at least 4 with "
                "bidirectional=True, and `max_distance` above half the buckets of a "
                "direction; got "
                f"num_buckets={num_buckets}, max_distance={max_distance}, "
                f"bidirectional={bidirectional}."
            )
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.initializer = keras.initializers.get(initializer)
        self.shared = shared

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
            # The first half of the buckets is of the past, as in T5.
            bucket = ops.where(distance > 0, future, bucket)
        # (1, T, S, H)
        bias = ops.take(ops.convert_to_tensor(self.embeddings), bucket, axis=0)
        return ops.transpose(ops.cast(bias, "float32"), (0, 3, 1, 2))  # (1, H, T, S)

    def _buckets(self) -> np.ndarray:
        """Maps each distance to its bucket, in float32 as T5 does."""
        count = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        exact = count // 2  # distances with a bucket of their own
        distance = np.arange(self.max_distance + 1)  # larger ones share the last
        ratio = np.log(np.maximum(distance, 1).astype("float32") / np.float32(exact))
        ratio = ratio / np.float32(math.log(self.max_distance / exact))
        large = exact + (ratio * np.float32(count - exact)).astype("int32")
        return np.where(distance < exact, distance, np.minimum(large, count - 1))

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, T5Positions)}


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
                shape=(2 * self.max_distance + 1, dim),  # from -k to k
                initializer=clone_initializer(self.initializer),
            )
            for name, dim in dims.items()
        )

    def score_bias(
        self, queries: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        vectors = self._vectors(self.key_embeddings, query_positions, key_positions)
        vectors = ops.cast(vectors, queries.dtype)
        if vectors.shape[0] == 1:  # all rows have the same positions
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
