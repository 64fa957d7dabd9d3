"""Multi-head attention, with a cache for decoding."""

import functools
from typing import Any

import keras
from keras import ops

from keras_tfm.layers import checks, key_value_cache, projections
from keras_tfm.layers.attention_score import AttentionScore
from keras_tfm.layers.keras_internals import get_keras_mask, implicit_mask
from keras_tfm.layers.masks import causal_mask, combine, masked_softmax, open_rows
from keras_tfm.layers.position_factory import RelativePositionsLike, relative_positions
from keras_tfm.layers.quantization import layer_config, settle_policies
from keras_tfm.layers.relative_position import RelativePositions
from keras_tfm.layers.weights import KernelLayer
from keras_tfm.types import Cache, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tfm")
class MultiHeadAttention(KernelLayer):
    """Computes for each query a mean of values, weighted by how well keys fit.

    `softmax(Q K^T / sqrt(d_k)) V` in each head; heads are concatenated and
    projected. Options are other scores than this product, fewer heads of keys
    and values than of queries, and relative or rotary position encodings.

    Weights have the layout of `keras.layers.MultiHeadAttention` (query, key,
    value, output; kernel, then bias), so that they can be copied with
    `set_weights`. The Glorot initializer treats each projection as one matrix
    (D, H d).

    The fused path (`keras.ops.dot_product_attention`, flash attention where
    the backend has it) is taken if the score is a product, keys and values of a
    head have one dimension, nothing is added to the scores or values, there is
    no cache, no dropout is active in this call and the weights are not
    returned. In float16 it also needs `"scaled_dot"` and, on JAX, an
    accelerator. A query without any key gets zeros before the output
    projection.

    Args:
        num_heads: int >= 1, H.
        key_dim: int >= 1, d_k, of queries and keys in a head. None: D / H,
            where H must divide D.
        value_dim: int >= 1, d_v, of values in a head. None: `key_dim`.
        output_dim: int >= 1. None: D.
        dropout: float in [0, 1). Rate at which attention weights are dropped.
        use_bias: bool. Projections add a bias.
        score: `"scaled_dot"`, `"dot"`, `"multiplicative"` or `"additive"`, see
            `AttentionScore`; the matrices of `"additive"` are the projections.
        num_key_value_heads: int >= 1, G, which divides H: heads of keys and
            values, each for H / G consecutive heads of queries. 1 is
            multi-query attention. None: H.
        positions: `"rotary"`, `"alibi"`, `"t5"`, `"shaw"`, or a layer of
            `RelativePositions`; None for none.
        flash_attention: bool or None. Passed to
            `keras.ops.dot_product_attention`; None lets the backend choose.
        seed: int or None, of the dropout.
        **kwargs: initializers, regularizers and constraints, see
            `layers.weights.KernelLayer`; arguments of `keras.layers.Layer`.

    Call arguments:
        query: float `(B, T, D)`.
        value: float `(B, S, D')`, or None for self-attention.
        key: float `(B, S, D'')`, or None for `value`.
        padding_mask: bool `(B, S)`; with a cache `(B, L)`, of its slots. Keys
            that are real. None: the implicit Keras masks of `key` and `value`,
            if they have any and no cache or other mask of keys is given.
        attention_mask: bool `(B, T, S)` or `(B, H, T, S)`, True = may be
            attended to; axes of size 1 are broadcast.
        use_causal_mask: bool. Query t attends to keys 0 to t, counted from
            `cache_index` when a cache is written.
        query_mask, value_mask, key_mask: bool `(B, T)`, `(B, S)`, `(B, S)`, as
            in Keras: queries that are real, and two more padding masks. A
            masked query attends to nothing.
        cache: pair of float `(B, G, d_k, L)` and `(B, G, L, d_v)`: keys and
            values projected before. Without `cache_index` they are attended to
            as they are, and `value` is not needed.
        cache_index: int or scalar int tensor, of which only an int is checked.
            The keys and values of this call are written to the cache from this
            slot on; in PyTorch's inference mode in place.
        query_positions: int `(T,)` or `(B, T)`, in tokens, for `positions`.
            None: from 0, or from `cache_index`, on.
        key_positions: int `(S,)` or `(B, S)`, with a cache of all its slots.
            None: from 0 on.
        return_attention_scores: bool. Return the weights as well.

    Returns:
        float `(B, T, output_dim)`; or a tuple of it, the weights
        `(B, H, T, S)` with `return_attention_scores`, and the new cache if one
        was written.

    Raises:
        ValueError: sizes below 1, a D that H does not divide, sequences that do
            not fit the layer or each other, a mask whose rank, dtype or shape
            does not fit, or a `cache_index` without a cache.

    Source: Vaswani et al. 2017, section 3.2, https://arxiv.org/abs/1706.03762;
    fewer heads of keys and values: Shazeer 2019,
    https://arxiv.org/abs/1911.02150, and Ainslie et al. 2023,
    https://arxiv.org/abs/2305.13245

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        x = np.random.default_rng(0).normal(size=(2, 3, 8))
        attention = layers.MultiHeadAttention(num_heads=2)
        print(attention(x, use_causal_mask=True).shape)  # (2, 3, 8)

        # The same one position at a time, with a cache of 3 slots.
        cache = attention.empty_cache(batch_size=2, length=3)
        for t in range(3):
            output, cache = attention(
                x[:, t : t + 1],
                use_causal_mask=True,
                cache=cache,
                cache_index=t,
            )
        ```
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        *,
        output_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        score: str = "scaled_dot",
        num_key_value_heads: int | None = None,
        positions: RelativePositionsLike = None,
        flash_attention: bool | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        checks.check_sizes(num_heads=num_heads, num_key_value_heads=num_key_value_heads)
        checks.check_sizes(key_dim=key_dim, value_dim=value_dim, output_dim=output_dim)
        checks.check_rates(dropout=dropout)
        if num_heads % (num_key_value_heads or num_heads):
            raise ValueError(
                "`num_heads` must be a multiple of `num_key_value_heads`; got "
                f"num_heads={num_heads}, num_key_value_heads={num_key_value_heads}."
            )
        self.num_heads, self.num_key_value_heads = num_heads, num_key_value_heads
        self.key_dim, self.value_dim, self.output_dim = key_dim, value_dim, output_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self.score = score
        self.flash_attention = flash_attention
        self.seed = seed
        self.supports_masking = True
        self.dropout_layer = keras.layers.Dropout(
            dropout, seed=seed, dtype=self.dtype_policy
        )
        self.score_layer = AttentionScore(
            score, self.kernel_initializer, dtype=self.dtype_policy, name="score"
        )
        self.positions = relative_positions(positions, dtype=self.dtype_policy)

    def build(
        self, query_shape: Shape, value_shape: Shape = None, key_shape: Shape = None
    ) -> None:
        value_shape = value_shape or query_shape
        key_shape = key_shape or value_shape
        shapes = {"query": query_shape, "value": value_shape, "key": key_shape}
        self._dims = {name: shape[-1] for name, shape in shapes.items()}
        checks.check_sequences(self._dims, shapes)
        heads, dim = self.num_heads, query_shape[-1]
        if self.key_dim is None and dim % heads:
            raise ValueError(
                "`num_heads` must divide the dimension of the query; got "
                f"num_heads={heads} for dimension {dim}. Choose another number of "
                "heads, or set `key_dim`."
            )
        key_dim = self._key_dim = self.key_dim or dim // heads
        value_dim = self._value_dim = self.value_dim or key_dim
        groups = self._groups = self.num_key_value_heads or heads
        # D to (H, d_k), D'' to (G, d_k), D' to (G, d_v), (H, d_v) to output_dim
        to_heads, output_dim = projections.to_heads, self.output_dim or dim
        self.query_dense = to_heads(self, "query", dim, heads, key_dim)
        self.key_dense = to_heads(self, "key", key_shape[-1], groups, key_dim)
        self.value_dense = to_heads(self, "value", value_shape[-1], groups, value_dim)
        self.output_dense = projections.from_heads(self, heads, value_dim, output_dim)
        queries_shape = (None, heads, None, key_dim)
        self.score_layer.build(queries_shape, (None, heads, key_dim, None))
        if self.positions is not None:
            self.positions.build_for((None, None, heads, key_dim), value_dim)
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
        cache_index: Tensor = None,
        query_positions: Tensor = None,
        key_positions: Tensor = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        query_mask: Tensor = None,
        value_mask: Tensor = None,
        key_mask: Tensor = None,
    ) -> Tensor:
        self._check_inputs(query, value, key, cache, cache_index)
        masks = {"query": query_mask, "value": value_mask, "key": key_mask}
        masks = _explicit_masks(masks, {"query": query, "value": value, "key": key})
        # Self-attention: queries, keys and values are of one sequence.
        value = query if value is None else value
        padding_mask = _padding_mask(padding_mask, masks["value"], masks["key"])
        if padding_mask is None and attention_mask is None and cache is None:
            padding_mask = implicit_mask(value, key)
        is_fused = cache is None and self._can_fuse(return_attention_scores, training)
        queries = self.query_dense(query)  # (B, T, H, d_k)
        # (B, S, G, d_k) and (B, S, G, d_v) if fused, else in the cache layout
        arguments = (cache, cache_index, key_positions, is_fused)
        keys, values = self._gather(value, key, *arguments)
        key_axis = 1 if is_fused else 3
        lengths = ops.shape(queries)[1], ops.shape(keys)[key_axis]  # T, S
        # The same as far as they are known before the call; for checks.
        static = query.shape[0], query.shape[1], keys.shape[key_axis]
        first_position = 0 if cache_index is None else cache_index
        positions = None
        if self.positions is not None:
            positions = (query_positions, key_positions)
            positions = _token_positions(positions, lengths, first_position, static)
            queries = self.positions.rotate(queries, positions[0])
        causal = causal_mask(*lengths, first_position) if use_causal_mask else None
        checks.check_padding_length(padding_mask, static[2])
        rows = masks["query"]  # (B, T)
        rows = None if rows is None else ops.expand_dims(rows, 2)  # (B, T, 1)
        padding = {"padding_mask": padding_mask, "causal_mask": causal}
        mask = combine(attention_mask, rows, **padding)
        if mask is not None:
            # (B, H, T, S), or 1 for H, T or B
            mask = mask if len(mask.shape) == 4 else ops.expand_dims(mask, 1)
            expected_shape = (static[0], self.num_heads, *static[1:])
            checks.check_attention_mask_shape(mask, expected_shape)
        if is_fused:
            output, weights = self._attend_fused(queries, keys, values, mask), None
        else:
            arguments = (queries, keys, values, mask, positions, training)
            output, weights = self._attend(*arguments)  # (B, T, H, d_v), (B, H, T, S)
        results = [self.output_dense(output)]  # (B, T, output_dim)
        if return_attention_scores:
            results.append(weights)
        if cache_index is not None:
            results.append((keys, values))
        return results[0] if len(results) == 1 else tuple(results)

    def keys_and_values(self, value: Tensor, key: Tensor = None) -> Cache:
        """Projects what is attended to, once, for many later queries.

        Args:
            value: float `(B, S, D')`.
            key: float `(B, S, D'')`, or None for `value`.

        Returns:
            float `(B, G, d_k, S)` and `(B, G, S, d_v)`, to pass as `cache`.

        Raises:
            ValueError: the layer is not built, or the shapes do not fit.
        """
        checks.check_built(self)
        shapes = {"value": value.shape, "key": (value if key is None else key).shape}
        checks.check_sequences(self._dims, shapes)
        return key_value_cache.to_cache_layout(*self._project(value, key))

    def empty_cache(self, batch_size: Tensor, length: Tensor) -> Cache:
        """Creates a cache for keys and values to be written later.

        Args:
            batch_size: int, or scalar int tensor: B.
            length: int: L, in slots.

        Returns:
            zeros `(B, G, d_k, L)` and `(B, G, L, d_v)` in the compute dtype.

        Raises:
            ValueError: the layer is not built.
        """
        checks.check_built(self)
        heads = (batch_size, self._groups)
        return (
            ops.zeros((*heads, self._key_dim, length), self.compute_dtype),
            ops.zeros((*heads, length, self._value_dim), self.compute_dtype),
        )

    def extend_cache(self, cache: Cache, length: Tensor) -> Cache:
        """Appends slots of zeros to a cache.

        Args:
            cache: pair of `(B, G, d_k, L)` and `(B, G, L, d_v)`.
            length: int >= L, or scalar int tensor: slots of the result.

        Returns:
            The same with that many slots.
        """
        return key_value_cache.extend_cache(cache, length)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Tensor:
        call = checks.call_arguments(self, args, kwargs)
        query, value, key, padding_mask, attention_mask = list(call.values())[:5]
        cache, cache_index = call["cache"], call["cache_index"]
        self._check_inputs(query, value, key, cache, cache_index)
        checks.check_mask_rank("padding_mask", padding_mask, (2,))
        checks.check_mask_rank("attention_mask", attention_mask, (3, 4))
        batch_size, length, _ = query.shape
        attended = next(x for x in (key, value, query) if x is not None)
        num_keys = attended.shape[1] if cache is None else cache[0].shape[3]
        shapes = [self.compute_output_shape(query.shape)]
        if call["return_attention_scores"]:
            shapes.append((batch_size, self.num_heads, length, num_keys))
        if cache_index is not None:
            shapes.append((batch_size, self._groups, self._key_dim, num_keys))
            shapes.append((batch_size, self._groups, num_keys, self._value_dim))
        results = [keras.KerasTensor(shape, self.compute_dtype) for shape in shapes]
        if cache_index is not None:
            results[-2:] = [tuple(results[-2:])]
        return results[0] if len(results) == 1 else tuple(results)

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape = None, key_shape: Shape = None
    ) -> Shape:
        return (*query_shape[:-1], self.output_dim or query_shape[-1])

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, MultiHeadAttention)}

    def _check_inputs(self, query, value, key, cache, cache_index):
        inputs = {"query": query, "value": value, "key": key}
        shapes = {name: x.shape for name, x in inputs.items() if x is not None}
        checks.check_sequences(self._dims, shapes)
        length = shapes.get("key", shapes.get("value", query.shape))[1]
        key_value_cache.check_cache_index(cache_index, cache, length)

    def _project(self, value, key=None, positions=None):
        """Computes keys `(B, S, G, d_k)` and values `(B, S, G, d_v)`."""
        keys = self.key_dense(value if key is None else key)  # (B, S, G, d_k)
        if self.positions is not None:
            if positions is None:
                positions = ops.arange(ops.shape(keys)[1])
            keys = self.positions.rotate(keys, positions)
        return keys, self.value_dense(value)

    def _gather(self, value, key, cache, cache_index, key_positions, is_fused):
        """Collects keys and values of the call and of the cache."""
        if cache is not None and cache_index is None:
            return cache
        if cache is not None and self.positions is not None:
            length = ops.shape(value if key is None else key)[1]
            slots = ops.arange(length) + cache_index
            # `key_positions` are those of all slots, not only of the new ones.
            if key_positions is None:
                key_positions = slots
            else:
                key_positions = ops.take(key_positions, slots, axis=-1)  # (T,)
        keys, values = self._project(value, key, key_positions)  # (B, S, G, d)
        if is_fused:
            return keys, values
        keys, values = key_value_cache.to_cache_layout(keys, values)
        if cache is None:
            return keys, values
        return key_value_cache.write_cache(cache, cache_index, (keys, values))

    def _attend(self, queries, keys, values, mask, positions, training):
        """Computes the output `(B, T, H, d_v)` and the weights."""
        score = self.score_layer
        heads_first = ops.transpose(queries, (0, 2, 1, 3))  # (B, H, T, d_k)
        heads_per_group = self.num_heads // self._groups
        if score.is_product:
            scores = projections.grouped_matmul(
                *score.product_operands(heads_first, keys), heads_per_group
            )
        else:
            # The sum of each pair is formed, so heads of keys are copied.
            scores = score(heads_first, ops.repeat(keys, heads_per_group, axis=1))
        if self.positions is not None and self.positions.has_score_bias:
            bias = self.positions.score_bias(queries * score.scale, *positions)
            # In half precision a distance of 2,049 would be lost.
            scores = ops.cast(scores, "float32") + bias  # (B, H, T, S)
        weights = ops.cast(masked_softmax(scores, mask), self.compute_dtype)
        dropped = self.dropout_layer(weights, training=training)
        output = projections.grouped_matmul(
            dropped, values, heads_per_group
        )  # (B, H, T, d_v)
        if self.positions is not None:
            bias = self.positions.value_bias(dropped, *positions)
            output = output if bias is None else output + bias
        # The weights are those before dropout, which sum to one.
        return ops.transpose(output, (0, 2, 1, 3)), weights

    def _attend_fused(self, queries, keys, values, mask):
        """Computes `(B, T, H, d_v)` from keys and values as projected."""
        mask, has_keys = open_rows(mask)
        if self.score == "multiplicative":
            queries = ops.transpose(queries, (0, 2, 1, 3))
            queries = self.score_layer.transform_queries(queries)  # (B, H, T, d_k)
            queries = ops.transpose(queries, (0, 2, 1, 3))
        if self._groups != self.num_heads:
            heads_per_group = self.num_heads // self._groups
            # (B, S, H, d)
            keys, values = (
                ops.repeat(x, heads_per_group, axis=2) for x in (keys, values)
            )
        output = ops.dot_product_attention(
            queries,
            keys,
            values,
            mask=mask,
            scale=self.score_layer.scale,
            flash_attention=self.flash_attention,
        )
        if has_keys is not None:
            # has_keys (B, H, T, 1) to (B, T, H, 1)
            output = ops.where(ops.transpose(has_keys, (0, 2, 1, 3)), output, 0)
        return output

    def _can_fuse(self, return_attention_scores, training):
        if return_attention_scores or (training and self.dropout > 0):
            return False
        if not self.score_layer.is_product or self.score_layer.overflows_float16:
            return False
        if self.positions is not None and (
            self.positions.has_score_bias
            or type(self.positions).value_bias is not RelativePositions.value_bias
        ):
            return False
        if self._key_dim != self._value_dim:  # JAX fails.
            return False
        if keras.backend.backend() != "jax" or self.compute_dtype != "float16":
            return True
        # JAX has no float16 attention on a CPU.
        return not keras.distribution.list_devices()[0].startswith("cpu")


def _explicit_masks(masks, sequences):
    """Checks the masks of sequences, and drops those that Keras passed itself.

    Keras fills in an argument `value_mask` with the implicit mask of `value`,
    which must not come on top of an explicit padding mask.
    """
    explicit = {}
    for name, mask in masks.items():
        x = sequences[name]
        is_implicit = mask is not None and x is not None and mask is get_keras_mask(x)
        mask = None if is_implicit else mask
        explicit[name] = checks.boolean_mask(f"{name}_mask", mask, (2,))
    return explicit


def _padding_mask(padding_mask, *key_masks):
    """Combines all masks of keys that are not None: bool `(B, S)` or None."""
    padding_mask = checks.boolean_mask("padding_mask", padding_mask, (2,))
    masks = [mask for mask in (padding_mask, *key_masks) if mask is not None]
    return functools.reduce(ops.logical_and, masks) if masks else None


def _token_positions(positions, lengths, first_position, static):
    """Fills in positions of queries and keys that are None, and checks them.

    Args:
        positions: pair of int `(T,)` or `(B, T)`, and the same of S; or None.
        lengths: T and S.
        first_position: int, or scalar int tensor, of the first query.
        static: B, T and S, None where unknown.
    """
    query, key = positions
    if query is None:
        query = ops.arange(lengths[0]) + first_position
    if key is None:
        key = ops.arange(lengths[1])
    checks.check_position_shape("query_positions", query, static[1], static[0])
    checks.check_position_shape("key_positions", key, static[2], static[0])
    return query, key
