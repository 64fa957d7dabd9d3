"""How well a key fits a query: the scores that attention softens to weights."""

import math

import keras
from keras import ops

from keras_tfm.layers.initialization import fresh

SCORES = ("scaled_dot", "dot", "multiplicative", "additive")


@keras.saving.register_keras_serializable(package="keras_tfm")
class Score(keras.layers.Layer):
    """Scores each key for each query, in every head.

    | kind | score of query q and key k | source |
    |---|---|---|
    | `"dot"` | q . k | Luong et al. 2015, section 3.1 |
    | `"scaled_dot"` | q . k / sqrt(d_k) | Vaswani et al. 2017, section 3.2.1 |
    | `"multiplicative"` | q W k | Luong et al. 2015, "general" |
    | `"additive"` | v . tanh(q + k) | Bahdanau et al. 2015, appendix A.1.2 |

    The matrices that Bahdanau et al. multiply query and key with before they
    add them are projections of the layer around this one. All but
    `"additive"` are one product of matrices, so that attention can be fused.

    Args:
        kind: `"scaled_dot"`, `"dot"`, `"multiplicative"` or `"additive"`.
        kernel_initializer: Keras initializer of W and v.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        queries: float `(B, H, T, d_q)`.
        keys: float `(B, H, d_k, S)`. d_q and d_k differ only for
            `"multiplicative"`.

    Returns:
        float `(B, H, T, S)`.

    Raises:
        ValueError: an unknown kind, or widths that differ.

    Source: https://arxiv.org/abs/1508.04025, https://arxiv.org/abs/1706.03762,
    https://arxiv.org/abs/1409.0473
    """

    def __init__(
        self, kind="scaled_dot", kernel_initializer="glorot_uniform", **kwargs
    ):
        super().__init__(**kwargs)
        if kind not in SCORES:
            raise ValueError(f"`score` is one of {SCORES}. Received: {kind!r}.")
        self.kind = kind
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.is_product = kind != "additive"

    def build(self, queries_shape, keys_shape):
        heads, query_dim, key_dim = queries_shape[1], queries_shape[3], keys_shape[2]
        if self.kind != "multiplicative" and query_dim != key_dim:
            raise ValueError(
                f"A score of kind {self.kind!r} wants queries and keys of one width. "
                f"Received: widths {query_dim} and {key_dim}. Project one of them, or "
                "take 'multiplicative'."
            )
        self.scale = 1 / math.sqrt(key_dim) if self.kind == "scaled_dot" else 1.0
        if self.kind == "multiplicative":
            self.kernel = self._weight("kernel", (heads, query_dim, key_dim))
        if self.kind == "additive":
            self.vector = self._weight("vector", (heads, key_dim, 1))

    def call(self, queries, keys):
        if self.is_product:
            return ops.matmul(*self.factors(queries, keys))
        both = ops.expand_dims(queries, -1) + ops.expand_dims(keys, 2)
        vector = ops.cast(self.vector, self.compute_dtype)  # (H, d_k, 1)
        return ops.sum(ops.tanh(both) * vector[:, None], axis=3)

    @property
    def is_wide(self):
        """Whether a sum over a wide head is past what its dtype holds."""
        return self.compute_dtype == "float16" and self.kind != "scaled_dot"

    def factors(self, queries, keys):
        """Gives two matrices whose product is the score.

        Args:
            queries, keys: of a call; keys of any number of heads.

        Returns:
            float `(B, H, T, d_k)`, and the keys: in float32 where float16 does
            not hold their product.
        """
        queries = self.turned(queries) * self.scale
        if self.is_wide:
            return ops.cast(queries, "float32"), ops.cast(keys, "float32")
        return queries, keys

    def turned(self, queries):
        """Gives what a product with the keys, times `scale`, is the score of.

        Args:
            queries: float `(B, H, T, d_q)`.

        Returns:
            float `(B, H, T, d_k)`: q W where the score has a W, else q.
        """
        if self.kind != "multiplicative":
            return queries
        kernel = ops.cast(self.kernel, self.compute_dtype)
        # Not `matmul`, in which TensorFlow 2.21 crashes on a CPU with one head.
        return ops.einsum("bhtd,hdk->bhtk", queries, kernel)

    def compute_output_shape(self, queries_shape, keys_shape):
        return (*queries_shape[:3], keys_shape[3])

    def get_config(self):
        return {
            **super().get_config(),
            "kind": self.kind,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }

    def _weight(self, name, shape):
        """A matrix for each head, drawn by itself."""
        draw = fresh(self.kernel_initializer)

        def initialize(shape, dtype=None):
            return ops.stack([fresh(draw)(shape[1:], dtype) for _ in range(shape[0])])

        return self.add_weight(name=name, shape=shape, initializer=initialize)
