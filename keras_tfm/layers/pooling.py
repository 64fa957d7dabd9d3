"""Pooling: from a vector for each position to one, or a few, a sequence."""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers.attention import Attention
from keras_tfm.layers.checks import (
    boolean_mask,
    call_arguments,
    check_choice,
    check_mask_rank,
    check_sizes,
    same_size,
)
from keras_tfm.layers.keras_internals import implicit_mask
from keras_tfm.layers.masks import open_rows
from keras_tfm.layers.quantization import layer_config, settle_policies
from keras_tfm.types import Initializer, Shape, Tensor

POOLINGS = ("mean", "max", "first")


@keras.saving.register_keras_serializable(package="keras_tfm")
class Pooling(keras.layers.Layer):
    """Computes the mean or maximum of the real positions, or selects the first.

    Args:
        kind: `"mean"`, `"max"`, of each feature, or `"first"`, the vector of
            the first real position, such as the token `[CLS]`.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        x: float `(B, S, D)`.
        padding_mask: bool `(B, S)`, True where x is real. None: the implicit
            Keras mask of x, if it has one.

    Returns:
        float `(B, D)`; zeros for a sequence without real positions.

    Raises:
        ValueError: an unknown kind, x of another rank, or a mask of another
            rank, dtype or shape.

    Source: first: Devlin et al. 2019, section 3. https://arxiv.org/abs/1810.04805

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        x, real = np.ones((1, 3, 8)), np.array([[True, True, False]])
        print(layers.Pooling("mean")(x, padding_mask=real).shape)  # (1, 8)
        ```
    """

    def __init__(self, kind: str = "mean", **kwargs: Any):
        super().__init__(**kwargs)
        check_choice("kind", kind, POOLINGS)
        self.kind = kind
        self.supports_masking = True

    def call(self, x: Tensor, padding_mask: Tensor = None) -> Tensor:
        if padding_mask is None:
            padding_mask = implicit_mask(x)
        _check_inputs(x, padding_mask)
        if padding_mask is None:
            return self._pool(x, ops.ones(ops.shape(x)[:2], "bool"))  # (B, D)
        mask = boolean_mask("padding_mask", padding_mask, (2,))
        mask, is_real = open_rows(mask)  # (B, S), (B, 1)
        return ops.where(is_real, self._pool(x, mask), 0)

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor) -> None:
        return None  # The axis of positions is gone.

    def compute_output_spec(self, x: Tensor, padding_mask: Tensor = None) -> Tensor:
        _check_inputs(x, padding_mask)
        return keras.KerasTensor(self.compute_output_shape(x.shape), self.compute_dtype)

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        return (x_shape[0], x_shape[-1])

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, Pooling)}

    def _pool(self, x: Tensor, mask: Tensor) -> Tensor:
        """Pools `(B, S, D)` where bool `(B, S)` is True."""
        if x.shape[1] == 0:  # A maximum over no positions is an error.
            return ops.sum(x, axis=1)
        if self.kind == "first":
            # Index of the first True, (B, 1, 1)
            first = ops.argmax(ops.cast(mask, "int32"), axis=1)[:, None, None]
            return ops.take_along_axis(x, first, axis=1)[:, 0]  # (B, D)
        if self.kind == "max":
            # A row is never all -inf: `open_rows` has opened empty ones.
            return ops.max(ops.where(mask[..., None], x, float("-inf")), axis=1)
        # float32: in float16 a sum of 600 values of 110 is infinite.
        total = ops.sum(ops.where(mask[..., None], ops.cast(x, "float32"), 0), axis=1)
        count = ops.sum(ops.cast(mask, "float32"), axis=1, keepdims=True)  # (B, 1)
        # A sequence of length 0 has no position at all.
        return ops.cast(total / ops.maximum(count, 1), x.dtype)


@keras.saving.register_keras_serializable(package="keras_tfm")
class AttentionPooling(keras.layers.Layer):
    """Attends to a sequence with one learned query, or with several.

    The pooled vector is the mean of the values, weighted by the scores of their
    keys. With the score `"additive"` and one query this is the word attention
    of Yang et al., whose context vector is the vector of the score and whose
    bias is the projected query. With `key=tanh(x W)` and the score `"dot"` it
    is theirs without the bias, and with several queries the structured
    embedding of Lin et al.

    Args:
        num_queries: int >= 1, n; or None for one query whose axis is left out.
        score: `"scaled_dot"`, `"dot"`, `"multiplicative"` or `"additive"`, see
            `AttentionScore`.
        units: int >= 1: dimension of the two projections that `"additive"`
            adds. None: the dimension of the keys.
        dropout: float in [0, 1). Rate at which weights are dropped.
        queries_initializer: Keras initializer of the queries `(n, D'')`. With
            equal values several queries would stay equal.
        kernel_initializer: Keras initializer of the matrices of the score.
        seed: int or None, of the dropout.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        value: float `(B, S, D)`.
        key: float `(B, S, D'')`, or None for `value`.
        padding_mask: bool `(B, S)`, True where the sequence is real. None: the
            implicit Keras mask of `key` or `value`, if it has one.
        return_attention_scores: bool. Return the weights as well.

    Returns:
        float `(B, D)`, or `(B, n, D)` if `num_queries` is set; zeros for a
        sequence without real positions. With `return_attention_scores` a pair
        of it and the weights, `(B, S)` or `(B, n, S)`.

    Raises:
        ValueError: `num_queries` below 1, or as `Attention`.

    Source: Yang et al. 2016, section 2.2, https://aclanthology.org/N16-1174;
    several queries: Lin et al. 2017, section 2.1, without their penalty,
    https://arxiv.org/abs/1703.03130

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        pooling = layers.AttentionPooling(num_queries=2)
        print(pooling(np.ones((4, 3, 8))).shape)  # (4, 2, 8)
        ```
    """

    def __init__(
        self,
        num_queries: int | None = None,
        score: str = "scaled_dot",
        units: int | None = None,
        dropout: float = 0.0,
        queries_initializer: Initializer = "glorot_uniform",
        kernel_initializer: Initializer = "glorot_uniform",
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_sizes(num_queries=num_queries)
        self.num_queries = num_queries
        self.score = score
        self.units = units
        self.dropout = dropout
        self.queries_initializer = keras.initializers.get(queries_initializer)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        self.supports_masking = True
        self.attention = Attention(
            score,
            units,
            dropout,
            seed,
            kernel_initializer=kernel_initializer,
            dtype=self.dtype_policy,
            name="attention",
        )

    def build(self, value_shape: Shape, key_shape: Shape = None) -> None:
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
        value: Tensor,
        key: Tensor = None,
        padding_mask: Tensor = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor:
        shape = (ops.shape(value)[0], *self.queries.shape)  # (B, n, D'')
        if padding_mask is None:
            padding_mask = implicit_mask(value, key)
        if padding_mask is not None:
            _check_inputs(value, padding_mask)
            padding_mask = boolean_mask("padding_mask", padding_mask, (2,))
            # A NaN in the padding has weight 0, but 0 * NaN is NaN.
            mask = ops.expand_dims(padding_mask, -1)  # LiteRT cannot index bools.
            value = ops.where(mask, value, 0)
            key = None if key is None else ops.where(mask, key, 0)
        pooled, weights = self.attention(
            # Not `ops.repeat`, for which PyTorch's export fixes the batch size.
            ops.broadcast_to(ops.cast(self.queries, self.compute_dtype), shape),
            value,
            key,
            padding_mask=padding_mask,
            return_attention_scores=True,
            training=training,
        )  # (B, n, D), (B, n, S)
        if self.num_queries is None:
            pooled, weights = pooled[:, 0], weights[:, 0]  # (B, D), (B, S)
        return (pooled, weights) if return_attention_scores else pooled

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor) -> None:
        return None  # The axis of positions is gone.

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Tensor:
        call = call_arguments(self, args, kwargs)
        value, key, padding_mask = list(call.values())[:3]
        _check_inputs(value, padding_mask)
        queries = (value.shape[0], *self.queries.shape)
        queries = keras.KerasTensor(queries, self.compute_dtype)
        self.attention.compute_output_spec(queries, value, key, padding_mask)
        shape = self.compute_output_shape(value.shape)
        pooled = keras.KerasTensor(shape, self.compute_dtype)
        if not call["return_attention_scores"]:
            return pooled
        shape = (*shape[:-1], value.shape[1])
        return pooled, keras.KerasTensor(shape, self.compute_dtype)

    def compute_output_shape(
        self, value_shape: Shape, key_shape: Shape = None
    ) -> Shape:
        queries = () if self.num_queries is None else (self.num_queries,)
        return (value_shape[0], *queries, value_shape[-1])

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, AttentionPooling)}


def _check_inputs(x: Tensor, padding_mask: Tensor) -> None:
    if len(x.shape) != 3:
        raise ValueError(
            "Pooling expects shape (batch, length, dimension); got "
            f"shape={tuple(x.shape)}."
        )
    check_mask_rank("padding_mask", padding_mask, (2,))
    if padding_mask is not None and not all(
        same_size(size, expected)
        for size, expected in zip(padding_mask.shape, x.shape[:2], strict=True)
    ):
        raise ValueError(
            "`padding_mask` must have shape (batch, length) of the sequence; got "
            f"shape={tuple(padding_mask.shape)} for {tuple(x.shape)}."
        )
