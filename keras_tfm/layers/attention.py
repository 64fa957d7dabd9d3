"""Attention of one query sequence to keys and values, without heads."""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers import checks
from keras_tfm.layers.attention_score import AttentionScore
from keras_tfm.layers.keras_internals import implicit_mask
from keras_tfm.layers.masks import causal_mask, combine, masked_softmax
from keras_tfm.layers.projections import dense
from keras_tfm.layers.quantization import layer_config, settle_policies
from keras_tfm.layers.weights import KernelLayer
from keras_tfm.types import Cache, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tfm")
class Attention(KernelLayer):
    """Computes the mean of the values, weighted by the scores of their keys.

    `ATT(Q, K, V) = softmax(score(Q, K)) V`; without keys the values are the
    keys too, `ATT(Q, V)`. Only the score may have weights: `"dot"` and
    `"scaled_dot"` have none. `MultiHeadAttention` has the same scores in each
    head.

    Args:
        score: `"scaled_dot"`, `"dot"`, `"multiplicative"` or `"additive"`, see
            `AttentionScore`.
        units: int >= 1: dimension of the two projections that `"additive"`
            adds. None: the dimension of the query.
        dropout: float in [0, 1). Rate at which weights are dropped.
        seed: int or None, of the dropout.
        **kwargs: initializers, regularizers and constraints, see
            `layers.weights.KernelLayer`; arguments of `keras.layers.Layer`. No
            score has a bias.

    Call arguments:
        query: float `(B, T, D)`.
        value: float `(B, S, D')`, or None for self-attention.
        key: float `(B, S, D'')`, or None for `value`.
        padding_mask: bool `(B, S)`. Keys that are real. None: the implicit
            Keras masks of `key` and `value`, if they have any and no
            `attention_mask` is given.
        attention_mask: bool `(B, T, S)`, True = may be attended to; axes of
            size 1 are broadcast.
        use_causal_mask: bool. Query t attends to keys 0 to t.
        cache: pair from `keys_and_values`, instead of value and key. It carries
            no implicit mask, so pass `padding_mask`.
        return_attention_scores: bool. Return the weights as well.

    Returns:
        float `(B, T, D')`; with `return_attention_scores` a pair of it and the
        weights `(B, T, S)`, which sum to one over the allowed keys, or are
        zeros where there is none.

    Raises:
        ValueError: an unknown score, `units` for a score without them,
            dimensions that do not fit it, sequences that do not fit the layer
            or each other, or a mask of another rank, dtype or shape.

    Source: Bahdanau et al. 2015, appendix A.1.2, https://arxiv.org/abs/1409.0473;
    Luong et al. 2015, section 3.1, https://arxiv.org/abs/1508.04025;
    Vaswani et al. 2017, section 3.2.1, https://arxiv.org/abs/1706.03762

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        query, value = np.ones((2, 3, 8)), np.ones((2, 5, 8))
        print(layers.Attention("additive")(query, value).shape)  # (2, 3, 8)
        ```
    """

    def __init__(
        self,
        score: str = "scaled_dot",
        units: int | None = None,
        dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        checks.check_sizes(units=units)
        checks.check_rates(dropout=dropout)
        if units is not None and score != "additive":
            raise ValueError(
                "`units` must be None unless score='additive'; got "
                f"units={units}, score={score!r}. Leave `units` out."
            )
        self.score = score
        self.units = units
        self.dropout = dropout
        self.seed = seed
        self.supports_masking = True
        self.score_layer = AttentionScore(
            score, self.kernel_initializer, dtype=self.dtype_policy, name="score"
        )
        self.dropout_layer = keras.layers.Dropout(
            dropout, seed=seed, dtype=self.dtype_policy
        )

    def build(
        self, query_shape: Shape, value_shape: Shape = None, key_shape: Shape = None
    ) -> None:
        if isinstance(query_shape[0], list | tuple):
            raise ValueError(
                "`query`, `value` and `key` must be separate arguments; got a list of "
                f"{len(query_shape)} as `query`. Write `attention(query, value)`."
            )
        key_shape = key_shape or value_shape or query_shape
        query_dim, key_dim = query_shape[-1], key_shape[-1]
        self._dims = {"query": query_dim, "key": key_dim}
        # Additive scores need one dimension; others compare D and D'' as is.
        if self.score == "additive":
            units = self.units or query_dim
            self.query_dense = dense(self, "query", query_dim, units, use_bias=False)
            self.key_dense = dense(self, "key", key_dim, units, use_bias=False)
            query_dim = key_dim = units
        self.score_layer.build((None, 1, None, query_dim), (None, 1, key_dim, None))
        settle_policies(self)

    def call(
        self,
        query: Tensor,
        value: Tensor = None,
        key: Tensor = None,
        padding_mask: Tensor = None,
        attention_mask: Tensor = None,
        use_causal_mask: bool = False,
        cache: Cache | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor:
        value = query if value is None and cache is None else value
        self._check_inputs(query, value, key, padding_mask, attention_mask)
        if padding_mask is None and attention_mask is None and cache is None:
            padding_mask = implicit_mask(value, key)
        # (B, d, S) and (B, S, D')
        keys, values = self.keys_and_values(value, key) if cache is None else cache
        queries = self.query_dense(query) if self.score == "additive" else query
        # The score layer expects heads: one here.
        scores = self.score_layer(queries[:, None], keys[:, None])[:, 0]  # (B, T, S)
        checks.check_padding_length(padding_mask, scores.shape[-1])
        causal = causal_mask(*ops.shape(scores)[1:]) if use_causal_mask else None
        mask = combine(attention_mask, padding_mask=padding_mask, causal_mask=causal)
        if mask is not None:
            expected_shape = (scores.shape[0], 1, *scores.shape[1:])
            checks.check_attention_mask_shape(mask[:, None], expected_shape)
        # A row without any key gets weights of zero, and so an output of zero.
        weights = ops.cast(masked_softmax(scores, mask), self.compute_dtype)
        dropped = self.dropout_layer(weights, training=training)
        output = ops.matmul(dropped, values)  # (B, T, D')
        return (output, weights) if return_attention_scores else output

    def keys_and_values(self, value: Tensor, key: Tensor = None) -> Cache:
        """Projects what is attended to, once, for many later queries.

        Args:
            value: float `(B, S, D')`.
            key: float `(B, S, D'')`, or None for `value`.

        Returns:
            float `(B, d, S)` and `(B, S, D')`, to pass as `cache`, where d is
            the dimension of what is scored: `units`, or D''.

        Raises:
            ValueError: the layer is not built.
        """
        checks.check_built(self)
        key = value if key is None else key
        keys = self.key_dense(key) if self.score == "additive" else key
        # The keys are then the right side of a plain matrix product.
        return ops.transpose(keys, (0, 2, 1)), value

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Tensor:
        call = checks.call_arguments(self, args, kwargs)
        query, value, cache = call["query"], call["value"], call["cache"]
        value = query if value is None and cache is None else value
        masks = call["padding_mask"], call["attention_mask"]
        self._check_inputs(query, value, call["key"], *masks)
        values = value if cache is None else cache[1]
        batch_size, length = query.shape[:2]
        shapes = [(batch_size, length, values.shape[2])]
        shapes.append((batch_size, length, values.shape[1]))
        output, weights = (keras.KerasTensor(s, self.compute_dtype) for s in shapes)
        return (output, weights) if call["return_attention_scores"] else output

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape = None, key_shape: Shape = None
    ) -> Shape:
        return (*query_shape[:-1], (value_shape or query_shape)[-1])

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, Attention)}

    def _check_inputs(self, query, value, key, padding_mask, attention_mask):
        checks.check_mask_rank("padding_mask", padding_mask, (2,))
        checks.check_mask_rank("attention_mask", attention_mask, (3,))
        inputs = {"query": query, "value": value}
        inputs["key"] = value if key is None else key
        shapes = {name: x.shape for name, x in inputs.items() if x is not None}
        checks.check_sequences(self._dims, shapes)
