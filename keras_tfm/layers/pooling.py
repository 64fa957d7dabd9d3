"""From a vector for each position to one vector, or a few, for a sequence."""

import keras
from keras import ops

from keras_tfm.layers.attention import Attention
from keras_tfm.layers.dropout import check_shares
from keras_tfm.layers.masks import check_mask, implicit_mask, implicit_masks, open_rows
from keras_tfm.layers.quantization import dtype_config, settle_policies

POOLINGS = ("mean", "max", "first")


@keras.saving.register_keras_serializable(package="keras_tfm")
class Pooling(keras.layers.Layer):
    """Takes the mean, the maximum or the first of the real positions.

    Args:
        kind: `"mean"`, `"max"`, of each feature, or `"first"`, the vector of
            the first real position, as of the token `[CLS]`.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: float `(B, S, D)`.
        padding_mask: bool `(B, S)`, True where x is real. None: the implicit
            Keras mask of x, if it has one.

    Returns:
        float `(B, D)`; zeros in a row without real positions.

    Raises:
        ValueError: an unknown kind, x that is no sequence of vectors, or a
            mask of another rank, dtype or shape.

    Source: first: Devlin et al. 2019, section 3. https://arxiv.org/abs/1810.04805
    """

    def __init__(self, kind="mean", **kwargs):
        super().__init__(**kwargs)
        if kind not in POOLINGS:
            raise ValueError(f"`kind` is one of {POOLINGS}. Received: {kind!r}.")
        self.kind = kind
        self.supports_masking = True

    def call(self, x, padding_mask=None):
        if padding_mask is None:
            padding_mask = implicit_mask(x)
        _check_given(x, padding_mask)
        if padding_mask is None:
            return self._pool(x, ops.ones(ops.shape(x)[:2], "bool"))
        real, found = open_rows(padding_mask)  # (B, S), (B, 1)
        return ops.where(found, self._pool(x, real), 0)

    def compute_mask(self, inputs, previous_mask):
        return None  # positions are gone

    def compute_output_spec(self, x, padding_mask=None):
        _check_given(x, padding_mask)
        return keras.KerasTensor(self.compute_output_shape(x.shape), self.compute_dtype)

    def compute_output_shape(self, x_shape):
        return (x_shape[0], x_shape[-1])

    def get_config(self):
        return {**super().get_config(), "kind": self.kind}

    def _pool(self, x, real):
        """Pools `(B, S, D)` where bool `(B, S)` is True, once a row or more."""
        if self.kind == "first":
            first = ops.argmax(ops.cast(real, "int32"), axis=1)[:, None, None]
            return ops.take_along_axis(x, first, axis=1)[:, 0]
        if self.kind == "max":
            return ops.max(ops.where(real[..., None], x, float("-inf")), axis=1)
        # float32: in float16 a sum of 600 values of 110 is infinite.
        total = ops.sum(ops.where(real[..., None], ops.cast(x, "float32"), 0), axis=1)
        count = ops.sum(ops.cast(real, "float32"), axis=1, keepdims=True)
        return ops.cast(total / count, x.dtype)


@keras.saving.register_keras_serializable(package="keras_tfm")
class AttentionPooling(keras.layers.Layer):
    """Lets one learned query, or several, attend to a sequence.

    The pooled vector is the mean of the values, weighted by how well their
    keys fit the query. With the score `"additive"` and one query this is the
    word attention of Yang et al., whose context vector is the vector of the
    score and whose bias is the projected query. With `key=tanh(x W)` and the
    score `"dot"` it is theirs without the bias, and with several queries the
    structured embedding of Lin et al.

    Args:
        num_queries: int >= 1, n; or None for one query whose axis is left out.
        score: `"scaled_dot"`, `"dot"`, `"multiplicative"` or `"additive"`, see
            `Score`.
        units: int >= 1: width of what `"additive"` adds. None: the width of
            the keys.
        dropout: float in [0, 1). Share of weights dropped.
        queries_initializer: Keras initializer of the queries `(n, D'')`. All
            equal, several queries would stay equal.
        kernel_initializer: Keras initializer of the matrices of the score.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        value: float `(B, S, D)`.
        key: float `(B, S, D'')`, or None for `value`.
        padding_mask: bool `(B, S)`, True where the sequence is real. None: the
            implicit Keras mask of `key` or `value`, if it has one.
        return_attention_scores: bool. Also give the weights.

    Returns:
        float `(B, D)`, or `(B, n, D)` if `num_queries` is given; zeros in a
        row without real positions. With `return_attention_scores` a pair of it
        and the weights, `(B, S)` or `(B, n, S)`.

    Raises:
        ValueError: `num_queries` below 1, or as `Attention`.

    Source: Yang et al. 2016, section 2.2, https://aclanthology.org/N16-1174;
    several queries: Lin et al. 2017, section 2.1, without their penalty,
    https://arxiv.org/abs/1703.03130
    """

    def __init__(
        self,
        num_queries=None,
        score="scaled_dot",
        units=None,
        dropout=0.0,
        queries_initializer="glorot_uniform",
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if num_queries is not None and num_queries < 1:
            raise ValueError(
                f"`num_queries` must be 1 or more. Received: {num_queries}. Leave it "
                "out for one vector a sequence."
            )
        self.num_queries = num_queries
        self.score = score
        self.units = units
        check_shares(dropout=dropout)
        self.dropout = dropout
        self.queries_initializer = keras.initializers.get(queries_initializer)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True
        self.attention = Attention(
            score,
            units,
            dropout,
            kernel_initializer,
            dtype=self.dtype_policy,
            name="attention",
        )

    def build(self, value_shape, key_shape=None):
        key_shape = key_shape or value_shape
        self.queries = self.add_weight(
            name="queries",
            shape=(self.num_queries or 1, key_shape[-1]),
            initializer=self.queries_initializer,
        )
        self.attention.build((None, *self.queries.shape), value_shape, key_shape)
        settle_policies(self)

    def call(
        self,
        value,
        key=None,
        padding_mask=None,
        return_attention_scores=False,
        training=False,
    ):
        shape = (ops.shape(value)[0], *self.queries.shape)
        if padding_mask is None:
            padding_mask = implicit_masks(value, key)
        if padding_mask is not None:
            _check_given(value, padding_mask)
            # What is no number there would else be everywhere.
            real = ops.expand_dims(padding_mask, -1)  # by an index LiteRT fails
            value = ops.where(real, value, 0)
            key = None if key is None else ops.where(real, key, 0)
        pooled, weights = self.attention(
            # Not `ops.repeat`, for which PyTorch's export fixes the batch size.
            ops.broadcast_to(ops.cast(self.queries, self.compute_dtype), shape),
            value,
            key,
            padding_mask=padding_mask,
            return_attention_scores=True,
            training=training,
        )
        if self.num_queries is None:
            pooled, weights = pooled[:, 0], weights[:, 0]
        return (pooled, weights) if return_attention_scores else pooled

    def compute_mask(self, inputs, previous_mask):
        return None  # positions are gone

    def compute_output_spec(
        self,
        value,
        key=None,
        padding_mask=None,
        return_attention_scores=False,
        training=False,
    ):
        queries = (value.shape[0], *self.queries.shape)
        self.attention.compute_output_spec(
            keras.KerasTensor(queries, self.compute_dtype),
            value,
            key,
            padding_mask=padding_mask,
        )
        shape = self.compute_output_shape(value.shape)
        pooled = keras.KerasTensor(shape, self.compute_dtype)
        if not return_attention_scores:
            return pooled
        shape = (*shape[:-1], value.shape[1])
        return pooled, keras.KerasTensor(shape, self.compute_dtype)

    def compute_output_shape(self, value_shape, key_shape=None):
        queries = () if self.num_queries is None else (self.num_queries,)
        return (value_shape[0], *queries, value_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "dtype": dtype_config(self),
            "num_queries": self.num_queries,
            "score": self.score,
            "units": self.units,
            "dropout": self.dropout,
            "queries_initializer": keras.initializers.serialize(
                self.queries_initializer
            ),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


def _check_given(x, padding_mask):
    """Refuses, in a functional model too, what cannot be pooled."""
    if len(x.shape) != 3:
        raise ValueError(
            "What is pooled is (batch, length, width). Received: "
            f"shape={tuple(x.shape)}."
        )
    if padding_mask is None:
        return
    check_mask("padding_mask", padding_mask, (2,))
    pairs = zip(x.shape[:2], padding_mask.shape, strict=True)
    # A size may be unknown, or a symbol of an export.
    known = [pair for pair in pairs if all(isinstance(size, int) for size in pair)]
    if any(size != other for size, other in known):
        raise ValueError(
            "A padding mask has a place for each position. Received: a mask "
            f"{tuple(padding_mask.shape)} for {tuple(x.shape)}."
        )
