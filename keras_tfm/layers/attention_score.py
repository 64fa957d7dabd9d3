"""Scores of attention: how well a key fits a query."""

import math
from typing import Any

import keras
from keras import ops

from keras_tfm.layers.checks import check_choice
from keras_tfm.layers.projections import clone_initializer
from keras_tfm.layers.quantization import layer_config
from keras_tfm.types import Initializer, Shape, Tensor

SCORES = ("scaled_dot", "dot", "multiplicative", "additive")


@keras.saving.register_keras_serializable(package="keras_tfm")
class AttentionScore(keras.layers.Layer):
    """Computes the score of each key for each query, in every head.

    | kind | score of query q and key k | source |
    |---|---|---|
    | `"dot"` | q . k | Luong et al. 2015, section 3.1 |
    | `"scaled_dot"` | q . k / sqrt(d_k) | Vaswani et al. 2017, section 3.2.1 |
    | `"multiplicative"` | q W k | Luong et al. 2015, "general" |
    | `"additive"` | v . tanh(q + k) | Bahdanau et al. 2015, appendix A.1.2 |

    The matrices that Bahdanau et al. multiply query and key with before they
    add them are projections of the layer around this one. All kinds but
    `"additive"` are one matrix product, so that attention can be fused.

    Args:
        kind: `"scaled_dot"`, `"dot"`, `"multiplicative"` or `"additive"`.
        kernel_initializer: Keras initializer of W and v.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        queries: float `(B, H, T, d_q)`.
        keys: float `(B, H, d_k, S)`. d_q and d_k differ only for
            `"multiplicative"`.

    Returns:
        float `(B, H, T, S)`.

    Raises:
        ValueError: an unknown kind, or dimensions that differ.

    Source: https://arxiv.org/abs/1508.04025, https://arxiv.org/abs/1706.03762,
    https://arxiv.org/abs/1409.0473

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        queries, keys = np.ones((1, 2, 3, 4)), np.ones((1, 2, 4, 5))
        print(layers.AttentionScore("dot")(queries, keys).shape)  # (1, 2, 3, 5)
        ```
    """

    def __init__(
        self,
        kind: str = "scaled_dot",
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_choice("score", kind, SCORES)
        self.kind = kind
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.is_product = kind != "additive"

    def build(self, queries_shape: Shape, keys_shape: Shape) -> None:
        # (B, H, T, d_q) and (B, H, d_k, S)
        heads, query_dim, key_dim = queries_shape[1], queries_shape[3], keys_shape[2]
        if self.kind != "multiplicative" and query_dim != key_dim:
            raise ValueError(
                f"`score={self.kind!r}` needs queries and keys of one dimension; got "
                f"{query_dim} and {key_dim}. Project one of them, or choose "
                "'multiplicative'."
            )
        self.scale = 1 / math.sqrt(key_dim) if self.kind == "scaled_dot" else 1.0
        if self.kind == "multiplicative":
            self.kernel = self._add_matrices("kernel", (heads, query_dim, key_dim))
        if self.kind == "additive":
            self.vector = self._add_matrices("vector", (heads, key_dim, 1))

    def call(self, queries: Tensor, keys: Tensor) -> Tensor:
        if self.is_product:
            return ops.matmul(*self.product_operands(queries, keys))
        # (B, H, T, d_k, 1) + (B, H, 1, d_k, S)
        sums = ops.expand_dims(queries, -1) + ops.expand_dims(keys, 2)
        vector = ops.cast(self.vector, self.compute_dtype)  # (H, d_k, 1)
        return ops.sum(ops.tanh(sums) * vector[:, None], axis=3)  # (B, H, T, S)

    @property
    def overflows_float16(self) -> bool:
        """Whether an unscaled product over a large head exceeds its dtype."""
        return self.compute_dtype == "float16" and self.kind != "scaled_dot"

    def product_operands(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Returns two matrices whose product is the score.

        Args:
            queries: float `(B, H, T, d_q)`.
            keys: float `(B, G, d_k, S)`, of any number of heads.

        Returns:
            float `(B, H, T, d_k)`, and the keys: in float32 where float16 would
            overflow.
        """
        # Scale the queries, not the product, which is S / d_k times as large.
        queries = self.transform_queries(queries) * self.scale
        if self.overflows_float16:
            return ops.cast(queries, "float32"), ops.cast(keys, "float32")
        return queries, keys

    def transform_queries(self, queries: Tensor) -> Tensor:
        """Multiplies queries by W, where the score has one.

        Args:
            queries: float `(B, H, T, d_q)`.

        Returns:
            float `(B, H, T, d_k)`, whose products with the keys, times `scale`,
            are the scores.
        """
        if self.kind != "multiplicative":
            return queries
        kernel = ops.cast(self.kernel, self.compute_dtype)
        # Not `matmul`, in which TensorFlow 2.21 crashes on a CPU with one head.
        return ops.einsum("bhtd,hdk->bhtk", queries, kernel)

    def compute_output_shape(self, queries_shape: Shape, keys_shape: Shape) -> Shape:
        return (*queries_shape[:3], keys_shape[3])

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, AttentionScore)}

    def _add_matrices(self, name: str, shape: Shape):
        """Adds a weight with one matrix for each head, drawn independently."""
        # Glorot's bound is that of one head, not of all of them together.
        initializer = clone_initializer(self.kernel_initializer)

        def initialize(shape, dtype=None):
            heads = [
                clone_initializer(initializer)(shape[1:], dtype)
                for _ in range(shape[0])
            ]
            return ops.stack(heads)

        return self.add_weight(name=name, shape=shape, initializer=initialize)
