"""Attention as one network of queries, keys and values, without heads."""

import keras
from keras import ops

from keras_tfm.layers.dropout import check_shares
from keras_tfm.layers.initialization import fresh
from keras_tfm.layers.masks import (
    check_fits,
    check_length,
    check_mask,
    combine,
    implicit_masks,
    masked_softmax,
)
from keras_tfm.layers.quantization import dtype_config, settle_policies
from keras_tfm.layers.scores import Score


@keras.saving.register_keras_serializable(package="keras_tfm")
class Attention(keras.layers.Layer):
    """The mean of the values, weighted by how well their keys fit a query.

    `ATT(Q, K, V) = softmax(score(Q, K)) V`; without keys the values are their
    own, `ATT(Q, V)`. Nothing is projected but what the score itself projects,
    so `"dot"` and `"scaled_dot"` have no weights. `MultiHeadAttention` has the
    same scores in each head.

    Args:
        score: `"scaled_dot"`, `"dot"`, `"multiplicative"` or `"additive"`, see
            `Score`.
        units: int >= 1: width of the two projections that `"additive"` adds.
            None: the width of the query.
        dropout: float in [0, 1). Share of weights dropped.
        kernel_initializer: Keras initializer of all matrices.
        **kwargs: of `keras.layers.Layer`.

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
        cache: of `keys_and_values`, instead of value and key. It carries no
            implicit mask, so pass `padding_mask`.
        return_attention_scores: bool. Also give the weights.

    Returns:
        float `(B, T, D')`; with `return_attention_scores` a pair of it and the
        weights `(B, T, S)`, which sum to one over what may be attended to, or
        are zeros where that is nothing.

    Raises:
        ValueError: an unknown score, `units` for a score without them, widths
            that do not fit it, sequences that do not fit the layer or each
            other, or a mask of another rank, dtype or shape.

    Source: Bahdanau et al. 2015, appendix A.1.2, https://arxiv.org/abs/1409.0473;
    Luong et al. 2015, section 3.1, https://arxiv.org/abs/1508.04025;
    Vaswani et al. 2017, section 3.2.1, https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self,
        score="scaled_dot",
        units=None,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if units is not None and (units < 1 or score != "additive"):
            raise ValueError(
                "`units` is the width, 1 or more, of what 'additive' adds. Received: "
                f"units={units}, score={score!r}. Leave it out for another score."
            )
        self.score = score
        self.units = units
        check_shares(dropout=dropout)
        self.dropout = dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True
        self.score_layer = Score(
            score, kernel_initializer, dtype=self.dtype_policy, name="score"
        )
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, query_shape, value_shape=None, key_shape=None):
        if isinstance(query_shape[0], list | tuple):
            raise ValueError(
                "Query, value and key are arguments of their own. Received: a list of "
                f"{len(query_shape)} for the query. Write `attention(query, value)`."
            )
        value_shape = value_shape or query_shape
        key_shape = key_shape or value_shape
        widths = query_shape[-1], key_shape[-1]
        self._widths = dict(zip(("query", "key"), widths, strict=True))
        if self.score == "additive":
            units = self.units or query_shape[-1]
            self.query_dense = self._projection("query", widths[0], units)
            self.key_dense = self._projection("key", widths[1], units)
            widths = units, units
        self.score_layer.build((None, 1, None, widths[0]), (None, 1, widths[1], None))
        settle_policies(self)

    def call(
        self,
        query,
        value=None,
        key=None,
        padding_mask=None,
        attention_mask=None,
        use_causal_mask=False,
        cache=None,
        return_attention_scores=False,
        training=False,
    ):
        value = query if value is None and cache is None else value
        self._check_given(query, value, key, padding_mask, attention_mask)
        if padding_mask is None and attention_mask is None and cache is None:
            padding_mask = implicit_masks(value, key)
        keys, values = self.keys_and_values(value, key) if cache is None else cache
        queries = self.query_dense(query) if self.score == "additive" else query
        scores = self.score_layer(queries[:, None], keys[:, None])[:, 0]  # (B, T, S)
        check_length(padding_mask, scores.shape[-1])
        causal = None
        if use_causal_mask:
            length, memory = ops.shape(scores)[1:]
            causal = ops.arange(length)[:, None] >= ops.arange(memory)[None]
        mask = combine(attention_mask, padding_mask=padding_mask, causal_mask=causal)
        if mask is not None:
            check_fits(mask[:, None], (scores.shape[0], 1, *scores.shape[1:]))
        weights = ops.cast(masked_softmax(scores, mask), self.compute_dtype)
        dropped = self.dropout_layer(weights, training=training)
        heard = ops.matmul(dropped, values)
        return (heard, weights) if return_attention_scores else heard

    def keys_and_values(self, value, key=None):
        """Projects what is attended to, once, for many later queries.

        Args:
            value: float `(B, S, D')`.
            key: float `(B, S, D'')`, or None for `value`.

        Returns:
            float `(B, D_k, S)` and `(B, S, D')`, to pass as `cache`. D_k is
            the width of what is scored: `units`, or D''.

        Raises:
            ValueError: the layer is not built.
        """
        if not self.built:
            raise ValueError(
                "Only a built layer knows its widths. Received: "
                f"{self.name!r}, not built. Call it, or build it, first."
            )
        key = value if key is None else key
        keys = self.key_dense(key) if self.score == "additive" else key
        return ops.transpose(keys, (0, 2, 1)), value

    def compute_output_spec(
        self,
        query,
        value=None,
        key=None,
        padding_mask=None,
        attention_mask=None,
        cache=None,
        return_attention_scores=False,
        **others,
    ):
        value = query if value is None and cache is None else value
        self._check_given(query, value, key, padding_mask, attention_mask)
        value = value if cache is None else cache[1]
        shape = (*query.shape[:2], value.shape[-1])
        heard = keras.KerasTensor(shape, self.compute_dtype)
        if not return_attention_scores:
            return heard
        shape = (*query.shape[:2], value.shape[1])
        return heard, keras.KerasTensor(shape, self.compute_dtype)

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        return (*query_shape[:-1], (value_shape or query_shape)[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "dtype": dtype_config(self),
            "score": self.score,
            "units": self.units,
            "dropout": self.dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }

    def _check_given(self, query, value, key, padding_mask, attention_mask):
        """Refuses, in a functional model too, what no call can use."""
        if padding_mask is not None:
            check_mask("padding_mask", padding_mask, (2,))
        if attention_mask is not None:
            check_mask("attention mask", attention_mask, (3,))
        given = {"query": query, "value": value, "key": value if key is None else key}
        shapes = {k: tuple(x.shape) for k, x in given.items() if x is not None}
        fits = all(len(shape) == 3 for shape in shapes.values())
        if fits:
            pairs = [(shape[0], shapes["query"][0]) for shape in shapes.values()]
            pairs += [(shapes[k][-1], self._widths[k]) for k in shapes if k != "value"]
            if "value" in shapes:
                pairs.append((shapes["value"][1], shapes["key"][1]))
            # A size may be unknown, or a symbol of an export.
            fits = all(
                one == other
                for one, other in pairs
                if isinstance(one, int) and isinstance(other, int)
            )
        if not fits:
            raise ValueError(
                "Query, value and key are (batch, length, width), value and key of "
                f"one length. Received: {shapes}; wanted are the widths "
                f"{self._widths}."
            )

    def _projection(self, name, width, units):
        dense = keras.layers.Dense(
            units,
            use_bias=False,
            kernel_initializer=fresh(self.kernel_initializer),
            dtype=self.dtype_policy,
            name=name,
        )
        dense.build((None, width))
        return dense
