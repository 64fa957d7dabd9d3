"""Multi-head attention, with a cache for decoding."""

import inspect

import keras
from keras import ops

from keras_tfm.layers.dropout import check_shares
from keras_tfm.layers.initialization import fresh
from keras_tfm.layers.masks import (
    causal_mask,
    check_fits,
    check_length,
    check_mask,
    combine,
    implicit_masks,
    masked_softmax,
    open_rows,
)
from keras_tfm.layers.quantization import dtype_config, settle_policies
from keras_tfm.layers.relative import (
    RelativePositions,
    positions_config,
    relative_positions,
)
from keras_tfm.layers.scores import Score


@keras.saving.register_keras_serializable(package="keras_tfm")
class MultiHeadAttention(keras.layers.Layer):
    """Lets each query gather values, weighted by how well their keys fit.

    `softmax(Q K^T / sqrt(d_k)) V` in each head; heads are concatenated and
    projected. Other scores than this product, fewer heads of keys and values
    than of queries, and positions inside attention are choices.

    Weights have the layout of `keras.layers.MultiHeadAttention` (query, key,
    value, output; kernel, then bias), so that they can be copied with
    `set_weights`. Glorot's bounds are those of each projection as the matrix
    (D, H d) that it is.

    The fused path (`keras.ops.dot_product_attention`, flash attention where
    the backend has it) is taken for a product of queries and keys of the width
    of the values, if nothing is added to the scores, there is no cache, no
    dropout is active in this call and no map is asked for. A query that may
    attend to nothing gives zeros before the output projection.

    Args:
        num_heads: int >= 1, H.
        key_dim: int >= 1, d_k, width of a head's queries and keys. None:
            width of the query / H, which must divide.
        value_dim: int >= 1, d_v, width of a head's values. None: `key_dim`.
        output_dim: int >= 1. None: the width of the query.
        dropout: float in [0, 1). Share of attention weights dropped.
        use_bias: bool. Projections add a bias.
        score: `"scaled_dot"`, `"dot"`, `"multiplicative"` or `"additive"`, see
            `Score`; the matrices of `"additive"` are the projections.
        num_key_value_heads: int >= 1, G, which divides H: heads of keys and
            values, each for H / G heads of queries that follow one another. 1
            is multi-query attention. None: H.
        positions: `"rotary"`, `"alibi"`, `"t5"`, `"shaw"`, or a layer of
            `RelativePositions`; None for none.
        flash_attention: bool or None. Passed to
            `keras.ops.dot_product_attention`; None lets the backend choose.
        kernel_initializer: Keras initializer of the four matrices.
        bias_initializer: Keras initializer of the biases.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        query: float `(B, T, D)`.
        value: float `(B, S, D')`, or None for self-attention.
        key: float `(B, S, D'')`, or None for `value`.
        padding_mask: bool `(B, S)`; with a cache `(B, L)`, of its slots. Keys
            that are real. None: the implicit Keras masks of `key` and `value`,
            if they have any and no cache or `attention_mask` is given.
        attention_mask: bool `(B, T, S)` or `(B, H, T, S)`, True = may be
            attended to; axes of size 1 are broadcast.
        use_causal_mask: bool. Query t attends to keys 0 to t, counted from
            `cache_index` when a cache is written.
        cache: pair of float `(B, G, d_k, L)` and `(B, G, L, d_v)`: keys and
            values that are there already. Without `cache_index` they are
            attended to as they are, and `value` is not needed.
        cache_index: int or scalar int tensor, of which only an int is checked.
            The keys and values of this call are written to the cache from this
            slot on; in PyTorch's inference mode in place.
        query_positions: int `(T,)` or `(B, T)`, in tokens, for `positions`.
            None: from 0, or from `cache_index`, on.
        key_positions: int `(S,)` or `(B, S)`, with a cache of all its slots.
            None: from 0 on.
        return_attention_scores: bool. Also give the weights.

    Returns:
        float `(B, T, output_dim)`; or a tuple of it, the weights
        `(B, H, T, S)` if asked for, and the new cache if one was written.

    Raises:
        ValueError: sizes below 1, a width that H does not divide, sequences
            that do not fit the layer or each other, a mask whose rank, dtype
            or shape does not fit, or a `cache_index` without a cache.

    Source: Vaswani et al. 2017, section 3.2, https://arxiv.org/abs/1706.03762;
    fewer heads of keys and values: Shazeer 2019,
    https://arxiv.org/abs/1911.02150, and Ainslie et al. 2023,
    https://arxiv.org/abs/2305.13245
    """

    def __init__(
        self,
        num_heads,
        key_dim=None,
        value_dim=None,
        output_dim=None,
        dropout=0.0,
        use_bias=True,
        score="scaled_dot",
        num_key_value_heads=None,
        positions=None,
        flash_attention=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        sizes = {"num_heads": num_heads, "key_dim": key_dim}
        sizes |= {"value_dim": value_dim, "output_dim": output_dim}
        sizes["num_key_value_heads"] = num_key_value_heads
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ValueError(f"`{name}` must be 1 or more. Received: {size}.")
        if num_heads % (num_key_value_heads or num_heads):
            raise ValueError(
                "Heads of queries share heads of keys and values evenly. Received: "
                f"num_heads={num_heads}, num_key_value_heads={num_key_value_heads}."
            )
        self.num_heads = num_heads
        self.num_key_value_heads = num_key_value_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.output_dim = output_dim
        check_shares(dropout=dropout)
        self.dropout = dropout
        self.use_bias = use_bias
        self.score = score
        self.flash_attention = flash_attention
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.supports_masking = True
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.score_layer = Score(
            score, kernel_initializer, dtype=self.dtype_policy, name="score"
        )
        self.positions = relative_positions(positions, dtype=self.dtype_policy)

    def build(self, query_shape, value_shape=None, key_shape=None):
        value_shape = value_shape or query_shape
        key_shape = key_shape or value_shape
        shapes = {"query": query_shape, "value": value_shape, "key": key_shape}
        self._widths = {name: shape[-1] for name, shape in shapes.items()}
        self._check_sequences(**shapes)
        width = query_shape[-1]
        if self.key_dim is None and width % self.num_heads:
            raise ValueError(
                "The width of the query must divide evenly among the heads. "
                f"Received: width={width}, num_heads={self.num_heads}. Choose "
                "another number of heads, or set `key_dim`."
            )
        self._key_dim = self.key_dim or width // self.num_heads
        self._value_dim = self.value_dim or self._key_dim
        output_dim = self.output_dim or width
        heads = self.num_heads
        self._groups = self.num_key_value_heads or heads
        self.query_dense = self._projection("query", query_shape, heads, self._key_dim)
        self.key_dense = self._projection("key", key_shape, self._groups, self._key_dim)
        self.value_dense = self._projection(
            "value", value_shape, self._groups, self._value_dim
        )
        self.output_dense = keras.layers.EinsumDense(
            "bthd,hde->bte",
            output_shape=(None, output_dim),
            bias_axes="e" if self.use_bias else None,
            kernel_initializer=self._flat(heads * self._value_dim, output_dim),
            bias_initializer=fresh(self.bias_initializer),
            dtype=self.dtype_policy,
            name="attention_output",
        )
        self.output_dense.build((None, None, heads, self._value_dim))
        self.score_layer.build(
            (None, heads, None, self._key_dim), (None, heads, self._key_dim, None)
        )
        if self.positions is not None:
            queries_shape = (None, None, heads, self._key_dim)
            self.positions.build_for(queries_shape, self._value_dim)
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
        cache_index=None,
        query_positions=None,
        key_positions=None,
        return_attention_scores=False,
        training=False,
    ):
        self._check_given(query, value, key, cache=cache, cache_index=cache_index)
        self._check_sequences(**_shapes(query, value, key))
        if padding_mask is None and attention_mask is None and cache is None:
            padding_mask = implicit_masks(query if value is None else value, key)
        fuse = cache is None and self._can_fuse(return_attention_scores, training)
        queries = self.query_dense(query)  # (B, T, H, d_k)
        length = ops.shape(queries)[1]
        first = 0 if cache_index is None else cache_index
        if cache is None:
            keys, values = self._project(query, value, key, key_positions)
            if not fuse:
                keys, values = _to_cache(keys, values)
        elif cache_index is None:
            keys, values = cache
        else:
            keys, values = self._write(query, value, key, cache, first, key_positions)
        axis = 1 if fuse else 3
        memory = ops.shape(keys)[axis]
        check_length(padding_mask, keys.shape[axis])
        if self.positions is not None:
            if query_positions is None:
                query_positions = ops.arange(length) + first
            if key_positions is None:
                key_positions = ops.arange(memory)
            batch_size = query.shape[0]
            _check_positions("query", query_positions, query.shape[1], batch_size)
            _check_positions("key", key_positions, keys.shape[axis], batch_size)
            queries = self.positions.turn(queries, query_positions)
        causal = None
        if use_causal_mask:
            causal = _causal(length, memory, first)
        mask = combine(attention_mask, padding_mask=padding_mask, causal_mask=causal)
        if mask is not None:
            mask = ops.expand_dims(mask, 1) if len(mask.shape) == 3 else mask
            wanted = (queries.shape[0], self.num_heads, queries.shape[1])
            check_fits(mask, (*wanted, keys.shape[axis]))
        if fuse:
            heard, scores = self._attend_fused(queries, keys, values, mask), None
        else:
            places = (query_positions, key_positions)
            heard, scores = self._attend(queries, keys, values, mask, places, training)
        results = [self.output_dense(heard)]
        if return_attention_scores:
            results.append(scores)
        if cache_index is not None:
            results.append((keys, values))
        return results[0] if len(results) == 1 else tuple(results)

    def keys_and_values(self, value, key=None):
        """Projects what is attended to, once, for many later queries.

        Args:
            value: float `(B, S, D')`.
            key: float `(B, S, D'')`, or None for `value`.

        Returns:
            float `(B, G, d_k, S)` and `(B, G, S, d_v)`, to pass as `cache`.
            Both are then the right side of a plain matrix product.

        Raises:
            ValueError: the layer is not built, or the shapes do not fit.
        """
        self._check_built()
        self._check_sequences(**_shapes(None, value, value if key is None else key))
        return _to_cache(*self._project(None, value, key))

    def empty_cache(self, batch_size, length):
        """Makes room for keys and values to be written later.

        Args:
            batch_size: int, or scalar int tensor: B.
            length: int: L, in slots.

        Returns:
            zeros `(B, G, d_k, L)` and `(B, G, L, d_v)` in the compute dtype.

        Raises:
            ValueError: the layer is not built.
        """
        self._check_built()
        heads = (batch_size, self._groups)
        return (
            ops.zeros((*heads, self._key_dim, length), self.compute_dtype),
            ops.zeros((*heads, length, self._value_dim), self.compute_dtype),
        )

    def extend_cache(self, cache, length):
        """Makes more room in a cache.

        Args:
            cache: pair of `(B, G, d_k, L)` and `(B, G, L, d_v)`.
            length: int >= L, or scalar int tensor, in slots.

        Returns:
            The same with that many slots, zeros in the new ones.
        """
        keys, values = cache
        more = [0, length - ops.shape(keys)[3]]
        none = [0, 0]
        return (
            ops.pad(keys, [none, none, none, more]),
            ops.pad(values, [none, none, more, none]),
        )

    def compute_output_spec(self, *args, **kwargs):
        given = inspect.signature(self.call).bind(*args, **kwargs).arguments
        query, cache = given["query"], given.get("cache")
        self._check_given(**given)
        self._check_sequences(**_shapes(query, given.get("value"), given.get("key")))
        attended = _attended(query, given.get("value"), given.get("key"))
        batch_size, length = query.shape[:2]
        memory = attended.shape[1] if cache is None else cache[0].shape[3]
        heads, dtype = self.num_heads, self.compute_dtype
        shapes = [self.compute_output_shape(query.shape)]
        if given.get("return_attention_scores"):
            shapes.append((batch_size, heads, length, memory))
        results = [keras.KerasTensor(shape, dtype) for shape in shapes]
        if given.get("cache_index") is not None:
            keys = (batch_size, self._groups, self._key_dim, memory)
            keys = keras.KerasTensor(keys, dtype)
            values = (batch_size, self._groups, memory, self._value_dim)
            values = keras.KerasTensor(values, dtype)
            results.append((keys, values))
        return results[0] if len(results) == 1 else tuple(results)

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        return (*query_shape[:-1], self.output_dim or query_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "dtype": dtype_config(self),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "output_dim": self.output_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "score": self.score,
            "num_key_value_heads": self.num_key_value_heads,
            "positions": positions_config(self.positions),
            "flash_attention": self.flash_attention,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }

    def _projection(self, name, input_shape, heads, head_dim):
        dense = keras.layers.EinsumDense(
            "btd,dhk->bthk",
            output_shape=(None, heads, head_dim),
            bias_axes="hk" if self.use_bias else None,
            kernel_initializer=self._flat(input_shape[-1], heads * head_dim),
            bias_initializer=fresh(self.bias_initializer),
            dtype=self.dtype_policy,
            name=name,
        )
        dense.supports_masking = True  # Keras warns otherwise.
        dense.build((None, None, input_shape[-1]))
        return dense

    def _flat(self, rows, columns):
        """The kernel initializer, on the projection as a matrix."""
        initializer = fresh(self.kernel_initializer)

        def initialize(shape, dtype=None):
            return ops.reshape(initializer((rows, columns), dtype=dtype), shape)

        return initialize

    def _project(self, query, value, key, key_positions=None):
        """Keys `(B, S, G, d_k)` and values `(B, S, G, d_v)`."""
        value = query if value is None else value
        keys = self.key_dense(value if key is None else key)
        if self.positions is not None:
            if key_positions is None:
                key_positions = ops.arange(ops.shape(keys)[1])
            keys = self.positions.turn(keys, key_positions)
        return keys, self.value_dense(value)

    def _write(self, query, value, key, cache, cache_index, key_positions):
        count = ops.shape(_attended(query, value, key))[1]
        if self.positions is not None:  # those of the slots that are written
            slots = ops.arange(count) + cache_index
            if key_positions is None:
                key_positions = slots
            else:
                key_positions = ops.take(key_positions, slots, axis=-1)
        keys, values = _to_cache(*self._project(query, value, key, key_positions))
        keys, values = (ops.cast(x, cache[0].dtype) for x in (keys, values))
        return (
            _written(cache[0], 3, cache_index, keys),
            _written(cache[1], 2, cache_index, values),
        )

    def _attend(self, queries, keys, values, mask, places, training):
        """Gives `(B, T, H, d_v)` and the weights."""
        scores = self._scores(ops.transpose(queries, (0, 2, 1, 3)), keys)
        if self._has_bias():
            bias = self.positions.bias(queries * self.score_layer.scale, *places)
            scores = ops.cast(scores, "float32") + bias
        scores = ops.cast(masked_softmax(scores, mask), self.compute_dtype)
        dropped = self.dropout_layer(scores, training=training)
        heard = self._by_groups(dropped, values)
        if self.positions is not None:
            more = self.positions.heard(dropped, *places)
            heard = heard if more is None else heard + more
        return ops.transpose(heard, (0, 2, 1, 3)), scores

    def _scores(self, queries, keys):
        """`(B, H, T, S)`, from queries `(B, H, T, d_k)` and keys of a cache."""
        score = self.score_layer
        if score.is_product:
            return self._by_groups(*score.factors(queries, keys))
        return score(queries, ops.repeat(keys, self.num_heads // self._groups, axis=1))

    def _by_groups(self, left, right):
        """`(B, H, T, M)` of `(B, H, T, N)` and `(B, G, N, M)`."""
        if self._groups == self.num_heads:
            return ops.matmul(left, right)
        batch_size, heads, length, width = ops.shape(left)
        rows = (batch_size, self._groups, heads // self._groups * length, width)
        product = ops.matmul(ops.reshape(left, rows), right)
        return ops.reshape(product, (batch_size, heads, length, ops.shape(product)[-1]))

    def _attend_fused(self, queries, keys, values, mask):
        """Gives `(B, T, H, d_v)`, from keys and values as projected."""
        mask, allowed = open_rows(mask)
        if self.score == "multiplicative":
            queries = ops.transpose(queries, (0, 2, 1, 3))
            queries = ops.transpose(self.score_layer.turned(queries), (0, 2, 1, 3))
        if self._groups != self.num_heads:
            times = self.num_heads // self._groups
            keys, values = (ops.repeat(x, times, axis=2) for x in (keys, values))
        heard = ops.dot_product_attention(
            queries,
            keys,
            values,
            mask=mask,
            scale=self.score_layer.scale,
            flash_attention=self.flash_attention,
        )
        if allowed is not None:
            heard = ops.where(ops.transpose(allowed, (0, 2, 1, 3)), heard, 0)
        return heard

    def _has_bias(self):
        return self.positions is not None and self.positions.has_bias

    def _is_heard(self):
        kind = type(self.positions)
        plain = RelativePositions.heard
        return self.positions is not None and kind.heard is not plain

    def _can_fuse(self, with_scores, training):
        """No map, no dropout; and for JAX one width, no float16 on a CPU."""
        if with_scores or (training and self.dropout > 0):
            return False
        if self._has_bias() or self._is_heard() or not self.score_layer.is_product:
            return False
        if self._key_dim != self._value_dim or self.score_layer.is_wide:
            return False
        if keras.backend.backend() != "jax" or self.compute_dtype != "float16":
            return True
        return not keras.distribution.list_devices()[0].startswith("cpu")

    def _check_built(self):
        if not self.built:
            raise ValueError(
                "Only a built layer knows its widths. Received: "
                f"{self.name!r}, not built. Call it, or build it, first."
            )

    def _check_sequences(self, **shapes):
        """Refuses sequences that do not fit the layer or each other."""
        given = {name: tuple(shape) for name, shape in shapes.items() if shape}
        wanted = {name: self._widths[name] for name in given}
        fits = all(
            len(shape) == 3 and _same(shape[-1], wanted[name])
            for name, shape in given.items()
        )
        if fits:
            first, *others = given.values()
            fits = all(_same(first[0], other[0]) for other in others)
        if fits and "value" in given and "key" in given:
            fits = _same(given["value"][1], given["key"][1])
        if not fits:
            raise ValueError(
                "Query, value and key are (batch, length, width), value and key of "
                f"one length. Received: {given}; wanted are the widths {wanted}."
            )

    def _check_given(
        self,
        query,
        value=None,
        key=None,
        padding_mask=None,
        attention_mask=None,
        cache=None,
        cache_index=None,
        **others,
    ):
        """Refuses, in a functional model too, what no call can use."""
        if padding_mask is not None:
            check_mask("padding_mask", padding_mask, (2,))
        if attention_mask is not None:
            check_mask("attention mask", attention_mask, (3, 4))
        if cache_index is None:
            return
        if cache is None:
            raise ValueError(
                "`cache_index` is a slot of a cache. Received: "
                f"cache_index={cache_index} and no cache. Pass the cache of the "
                "step before, or one from `empty_cache`."
            )
        room, count = cache[0].shape[3], _attended(query, value, key).shape[1]
        known = all(isinstance(each, int) for each in (cache_index, room, count))
        if known and not 0 <= cache_index <= room - count:
            raise ValueError(
                "`cache_index` must be a slot of the cache, with room for all that is "
                f"written. Received: cache_index={cache_index}, {count} positions, and "
                f"a cache of {room} slots. Make it longer, or stop."
            )


def _to_cache(keys, values):
    """The layout of a cache, from `(B, S, H, d_k)` and `(B, S, H, d_v)`."""
    return ops.transpose(keys, (0, 2, 3, 1)), ops.transpose(values, (0, 2, 1, 3))


def _written(cache, axis, start, update):
    """Writes into a cache, along an axis from a slot on.

    On PyTorch `slice_update` copies the whole of it. Tensors of its inference
    mode, in which a search runs, are written in place: nobody else has them.
    """
    if getattr(cache, "is_inference", bool)():
        slots = ops.arange(update.shape[axis], dtype="int64") + start
        return cache.index_copy_(axis, slots, update)
    starts = [0, 0, 0, 0]
    starts[axis] = start
    return ops.slice_update(cache, starts, update)


def _shapes(query, value, key):
    """The shapes of those that are given."""
    given = {"query": query, "value": value, "key": key}
    return {name: x.shape for name, x in given.items() if x is not None}


def _check_positions(name, positions, count, batch_size):
    """Refuses positions that would broadcast to something else."""
    shape = tuple(positions.shape)
    fits = len(shape) in (1, 2) and _same(shape[-1], count)
    rows = shape[0] if len(shape) == 2 else 1
    if not fits or not (rows == 1 or _same(rows, batch_size)):
        raise ValueError(
            f"`{name}_positions` are (length,) or (batch, length); one position a row "
            f"is (batch, 1). Received: shape={shape}, for batch {batch_size} and "
            f"length {count}."
        )


def _same(size, other):
    """False if two sizes are known and differ; they may be None or symbols."""
    known = isinstance(size, int) and isinstance(other, int)
    return not known or size == other


def _causal(length, memory, first):
    if isinstance(first, int) and first == 0 and length is memory:
        return causal_mask(length)
    query = ops.arange(length) + first
    return ops.greater_equal(query[:, None], ops.arange(memory)[None, :])


def _attended(query, value, key):
    """The sequence whose positions are attended to."""
    return next(x for x in (key, value, query) if x is not None)
