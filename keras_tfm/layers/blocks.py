"""Encoder and decoder blocks: attention, feed-forward, residuals, norms."""

import inspect
from typing import Any

import keras

from keras_tfm.layers.checks import call_arguments, check_rates
from keras_tfm.layers.feed_forward import FeedForward
from keras_tfm.layers.keras_internals import implicit_mask
from keras_tfm.layers.multi_head_attention import MultiHeadAttention
from keras_tfm.layers.normalization import normalization_layer
from keras_tfm.layers.position_factory import RelativePositionsLike, relative_positions
from keras_tfm.layers.quantization import layer_config
from keras_tfm.types import Activation, Cache, Initializer, Shape, Tensor


class TransformerBlock(keras.layers.Layer):
    """Holds options and residual of encoder and decoder blocks; base class.

    Each layer has a residual. Post-norm, the paper's, is `norm(x + layer(x))`;
    pre-norm is `x + layer(norm(x))`, with one more norm at the end of a stack.

    Args:
        intermediate_dim: int >= 1, F, inside the feed-forward network.
        num_heads: int >= 1, H.
        key_dim: int or None, d_k. None: D / H.
        value_dim: int or None, d_v. None: `key_dim`.
        dropout: float in [0, 1), of what is added to a residual.
        attention_dropout: float in [0, 1), of the attention weights.
        activation_dropout: float in [0, 1), inside the feed-forward network.
        activation: Keras activation of the feed-forward network.
        gated: bool. Gated linear unit in the feed-forward network.
        normalize_first: bool. Pre-norm.
        normalization: `"layer_norm"`, `"rms_norm"` or `"batch_norm"`, see
            `normalization_layer`.
        epsilon: float > 0, of the normalizations.
        use_bias: bool. Projections add a bias.
        score: `"scaled_dot"`, `"dot"`, `"multiplicative"` or `"additive"`, see
            `AttentionScore`.
        num_key_value_heads: int or None, G, see `MultiHeadAttention`.
        positions: `"rotary"`, `"alibi"`, `"t5"`, `"shaw"`, or a layer of
            `RelativePositions`, inside self-attention; None for none.
        kernel_initializer: Keras initializer of the matrices.
        bias_initializer: Keras initializer of the biases.
        **kwargs: arguments of `keras.layers.Layer`.
    """

    bidirectional = True  # Keys after the query are attended to.

    def __init__(
        self,
        intermediate_dim: int,
        num_heads: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        activation: Activation = "relu",
        gated: bool = False,
        normalize_first: bool = False,
        normalization: str = "layer_norm",
        epsilon: float = 1e-5,
        use_bias: bool = True,
        score: str = "scaled_dot",
        num_key_value_heads: int | None = None,
        positions: RelativePositionsLike = None,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_rates(dropout=dropout, attention_dropout=attention_dropout)
        check_rates(activation_dropout=activation_dropout)
        self.intermediate_dim = intermediate_dim
        self.num_heads, self.num_key_value_heads = num_heads, num_key_value_heads
        self.key_dim, self.value_dim = key_dim, value_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.activation = keras.activations.get(activation)
        self.gated = gated
        self.normalize_first = normalize_first
        self.normalization, self.epsilon = normalization, epsilon
        self.use_bias = use_bias
        self.score = score
        self.positions = relative_positions(
            positions, self.bidirectional, dtype=self.dtype_policy
        )
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.supports_masking = True
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self._add_sequence_layer()
        self.feed_forward = FeedForward(
            intermediate_dim,
            activation,
            gated,
            activation_dropout,
            name="feed_forward",
            **self._weight_options(),
        )
        self.feed_forward_norm = self._norm("feed_forward_norm")

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        return tuple(x_shape)

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, TransformerBlock)}

    def _add_sequence_layer(self):
        """Adds the layer through which a position sees the others."""
        self.self_attention = self._attention("self_attention", self.positions)
        self.self_attention_norm = self._norm("self_attention_norm")

    def _weight_options(self):
        return {
            "use_bias": self.use_bias,
            "kernel_initializer": self.kernel_initializer,
            "bias_initializer": self.bias_initializer,
            "dtype": self.dtype_policy,
        }

    def _attention(self, name, positions=None):
        return MultiHeadAttention(
            self.num_heads,
            self.key_dim,
            self.value_dim,
            dropout=self.attention_dropout,
            score=self.score,
            num_key_value_heads=self.num_key_value_heads,
            positions=positions,
            name=name,
            **self._weight_options(),
        )

    def _norm(self, name):
        return normalization_layer(
            self.normalization, self.epsilon, name=name, dtype=self.dtype_policy
        )

    def _normalize(self, norm, x, real_mask, training):
        if self.normalization != "batch_norm":
            return norm(x)
        # Statistics of real positions alone. Not by `__call__`, which hands an
        # explicit mask on as an implicit one.
        return norm.call(x, training=training, mask=real_mask)

    def _residual(self, sublayer, norm, x, real_mask, **arguments):
        """Adds `sublayer(x)` to x, with the normalization before or after.

        Args:
            sublayer: layer whose first argument is x. It returns a tensor, or a
                tuple that begins with one.
            norm: the normalization.
            x: float `(B, T, D)`.
            real_mask: bool `(B, T)` or None, True where x is real.
            **arguments: further arguments of the sublayer, `training` among
                them.

        Returns:
            float `(B, T, D)`, and a list of the sublayer's further results.
        """
        training = arguments["training"]
        inner = x
        if self.normalize_first:
            inner = self._normalize(norm, x, real_mask, training)
        output, *extras = _as_tuple(sublayer(inner, **arguments))  # (B, T, D)
        x = x + self.dropout_layer(output, training=training)
        if not self.normalize_first:
            x = self._normalize(norm, x, real_mask, training)
        return x, extras


# Options that models pass on to all their blocks; documented there.
BLOCK_OPTIONS = tuple(
    name
    for name, parameter in inspect.signature(TransformerBlock).parameters.items()
    if parameter.kind != parameter.VAR_KEYWORD
    and name not in ("positions", "kernel_initializer", "bias_initializer")
)


def symbol_like(x: Tensor) -> keras.KerasTensor:
    """Returns a symbol of the shape and dtype of a tensor."""
    return keras.KerasTensor(x.shape, x.dtype)


def _as_tuple(results: Any) -> tuple:
    return results if isinstance(results, tuple) else (results,)


@keras.saving.register_keras_serializable(package="keras_tfm")
class TransformerEncoder(TransformerBlock):
    """One encoder block: self-attention, then a feed-forward network.

    The constructor has the block options, see `TransformerBlock`.

    Call arguments:
        x: float `(B, S, D)`.
        padding_mask: bool `(B, S)`, True where x is real. None: the implicit
            Keras mask of x, if it has one and no `attention_mask` is given.
        attention_mask: bool `(B, S, S)` or `(B, H, S, S)`.
        return_attention_scores: bool.

    Returns:
        float `(B, S, D)`; with `return_attention_scores` a pair of it and the
        weights `(B, H, S, S)`.

    Raises:
        ValueError: as `MultiHeadAttention`, or an unknown normalization.

    Source: Vaswani et al. 2017, section 3.1, https://arxiv.org/abs/1706.03762;
    pre-norm: Xiong et al. 2020, https://arxiv.org/abs/2002.04745

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        block = layers.TransformerEncoder(intermediate_dim=16, num_heads=2)
        real = np.array([[True, True, False]])
        print(block(np.ones((1, 3, 8)), padding_mask=real).shape)  # (1, 3, 8)
        ```
    """

    def build(self, x_shape: Shape) -> None:
        self.self_attention.build(x_shape)
        self.self_attention_norm.build(x_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_norm.build(x_shape)

    def call(
        self,
        x: Tensor,
        padding_mask: Tensor = None,
        attention_mask: Tensor = None,
        return_attention_scores: bool = False,
        training: bool = False,
    ) -> Tensor:
        real_mask = implicit_mask(x) if padding_mask is None else padding_mask
        if padding_mask is None and attention_mask is None:
            padding_mask = real_mask
        x, weights = self._residual(
            self.self_attention,
            self.self_attention_norm,
            x,
            real_mask,
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        feed_forward = self.feed_forward, self.feed_forward_norm
        x, _ = self._residual(*feed_forward, x, real_mask, training=training)
        return (x, *weights) if return_attention_scores else x

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Tensor:
        x, *masks, return_scores, _ = call_arguments(self, args, kwargs).values()
        return self.self_attention.compute_output_spec(
            x, None, None, *masks, return_attention_scores=return_scores
        )


@keras.saving.register_keras_serializable(package="keras_tfm")
class TransformerDecoder(TransformerBlock):
    """One decoder block: causal self-attention, cross-attention, feed-forward.

    Called without an encoder sequence it has no cross-attention and is a block
    of a language model; the first call decides. The constructor has the block
    options, see `TransformerBlock`; `positions="t5"` is unidirectional here.

    Call arguments:
        x: float `(B, T, D)`.
        encoder_sequence: float `(B, S, D')`, or None.
        padding_mask: bool `(B, T)`, True where x is real; with a cache
            `(B, L)`, of its slots. None: the implicit Keras mask of x, if it
            has one and no cache or `attention_mask` is given.
        attention_mask: bool `(B, T, T)` or `(B, H, T, T)`; with a cache the
            last axis is L.
        encoder_padding_mask: bool `(B, S)`. None: the implicit Keras mask of
            the encoder sequence.
        use_causal_mask: bool. No position attends to a later one.
        cache: pair of pairs of keys and values: of this block's past (from
            `empty_cache`) and of the encoder sequence (from
            `cross_attention.keys_and_values`), the second None in a language
            model. `encoder_sequence` is then not needed.
        cache_index: int or scalar int tensor: the slot of `x[:, 0]`.
        query_positions: int `(T,)` or `(B, T)`, in tokens, for `positions`.
            None: from 0, or from `cache_index`, on.
        key_positions: int `(T,)` or `(B, T)`, with a cache of all its slots.
            None: from 0 on.
        return_attention_scores: bool.

    Returns:
        float `(B, T, D)`; or a tuple of it, the weights of self-attention
        `(B, H, T, T)` and, if the block has it, of cross-attention
        `(B, H, T, S)` with `return_attention_scores`, and the new cache if one
        was passed.

    Raises:
        ValueError: as `MultiHeadAttention`; an encoder sequence for a block
            built without one, or none for a block built with one; a cache
            without `cache_index`.

    Source: Vaswani et al. 2017, section 3.1. https://arxiv.org/abs/1706.03762

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        block = layers.TransformerDecoder(intermediate_dim=16, num_heads=2)
        target, memory = np.ones((1, 3, 8)), np.ones((1, 5, 8))
        print(block(target, memory).shape)  # (1, 3, 8)

        # One position at a time; keys and values of the memory computed once.
        past = block.empty_cache(batch_size=1, length=3)
        cache = (past, block.cross_attention.keys_and_values(memory))
        for t in range(3):
            x = target[:, t : t + 1]
            output, cache = block(x, cache=cache, cache_index=t)
        ```
    """

    bidirectional = False

    def build(self, x_shape: Shape, encoder_sequence_shape: Shape = None) -> None:
        self.self_attention.build(x_shape)
        self.self_attention_norm.build(x_shape)
        self._build_cross_attention(x_shape, encoder_sequence_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_norm.build(x_shape)

    def call(
        self,
        x: Tensor,
        encoder_sequence: Tensor = None,
        padding_mask: Tensor = None,
        attention_mask: Tensor = None,
        encoder_padding_mask: Tensor = None,
        use_causal_mask: bool = True,
        cache: tuple[Cache, Cache | None] | None = None,
        cache_index: Tensor = None,
        query_positions: Tensor = None,
        key_positions: Tensor = None,
        return_attention_scores: bool = False,
        training: bool = False,
    ) -> Tensor:
        past, memory = (None, None) if cache is None else cache
        self._check_inputs(encoder_sequence, cache, cache_index)
        real_mask = implicit_mask(x) if padding_mask is None else padding_mask
        if cache is not None:
            real_mask = None  # The padding mask is of the slots, not of x.
        elif padding_mask is None and attention_mask is None:
            padding_mask = real_mask
        options = {"return_attention_scores": return_attention_scores}
        options["training"] = training
        x, extras = self._residual(
            self.self_attention,
            self.self_attention_norm,
            x,
            real_mask,
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
            cache=past,
            cache_index=cache_index,
            query_positions=query_positions,
            key_positions=key_positions,
            **options,
        )
        # Self-attention returns the weights, if asked for, and then its cache.
        new_past = extras.pop() if cache is not None else None
        encoder = (encoder_sequence, encoder_padding_mask, memory)
        x, cross_weights = self._attend_and_feed(x, real_mask, encoder, options)
        results = (x, *extras, *cross_weights)
        if cache is not None:
            results += ((new_past, memory),)
        return x if len(results) == 1 else results

    def empty_cache(self, batch_size: Tensor, length: Tensor) -> Cache:
        """Creates a cache for the keys and values of this block's past.

        Args:
            batch_size: int, or scalar int tensor: B.
            length: int: L, in slots.

        Returns:
            zeros `(B, G, d_k, L)` and `(B, G, L, d_v)` in the compute dtype.
        """
        return self.self_attention.empty_cache(batch_size, length)

    def extend_cache(self, cache: Cache, length: Tensor) -> Cache:
        """Appends slots to a cache of this block's past.

        Args:
            cache: pair from `empty_cache`.
            length: int: slots of the result, no less than there are.

        Returns:
            The same with that many slots.
        """
        return self.self_attention.extend_cache(cache, length)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Tensor:
        call = call_arguments(self, args, kwargs)
        x, encoder_sequence = call["x"], call["encoder_sequence"]
        self._check_inputs(encoder_sequence, call["cache"], call.get("cache_index", 0))
        past, memory = call["cache"] or (None, None)
        results, new_past = self._sequence_spec(past, call)
        if self.cross_attention is not None:
            spec = self.cross_attention.compute_output_spec(
                x,
                encoder_sequence,
                padding_mask=call["encoder_padding_mask"],
                cache=memory,
                return_attention_scores=call["return_attention_scores"],
            )
            results += _as_tuple(spec)[1:]
        if past is not None:
            memory = memory and tuple(map(symbol_like, memory))
            results.append((new_past, memory))
        return results[0] if len(results) == 1 else tuple(results)

    def _build_cross_attention(self, x_shape, encoder_sequence_shape):
        # Created here, since only a call tells whether there is an encoder.
        self.cross_attention = None
        if encoder_sequence_shape is not None:
            self.cross_attention = self._attention("cross_attention")
            self.cross_attention.build(x_shape, encoder_sequence_shape)
            self.cross_attention_norm = self._norm("cross_attention_norm")
            self.cross_attention_norm.build(x_shape)

    def _attend_and_feed(self, x, real_mask, encoder, options):
        """Applies cross-attention, if the block has it, and feed-forward.

        Args:
            x: float `(B, T, D)`.
            real_mask: bool `(B, T)` or None, True where x is real.
            encoder: the encoder sequence, its padding mask, and its keys and
                values; each may be None.
            options: dict of `return_attention_scores` and `training`.

        Returns:
            float `(B, T, D)`, and a list of the weights `(B, H, T, S)`, empty
            if they are not returned.
        """
        weights = []
        if self.cross_attention is not None:
            sequence, padding_mask, memory = encoder
            if padding_mask is None:
                padding_mask = implicit_mask(sequence)
            x, weights = self._residual(
                self.cross_attention,
                self.cross_attention_norm,
                x,
                real_mask,
                value=sequence,
                padding_mask=padding_mask,
                cache=memory,
                **options,
            )
        training = options["training"]
        feed_forward = self.feed_forward, self.feed_forward_norm
        x, _ = self._residual(*feed_forward, x, real_mask, training=training)
        return x, weights

    def _sequence_spec(self, past, call):
        """Lists x and the weights of self-attention; and its new cache."""
        names = ("padding_mask", "attention_mask", "cache_index")
        names += ("return_attention_scores",)
        spec = self.self_attention.compute_output_spec(
            call["x"], cache=past, **{name: call[name] for name in names}
        )
        results = list(_as_tuple(spec))
        return results, None if past is None else results.pop()

    def _check_inputs(self, encoder_sequence, cache, cache_index):
        if cache is not None and cache_index is None:
            raise ValueError(
                "`cache_index` must be set with a cache; got cache_index=None. Pass "
                "the slot of `x[:, 0]`."
            )
        # With a cache the encoder's keys and values stand for its sequence.
        memory = None if cache is None else cache[1]
        has_encoder = encoder_sequence is not None or memory is not None
        if has_encoder != (self.cross_attention is not None):
            build, call = ("without", "with") if has_encoder else ("with", "without")
            raise ValueError(
                "`encoder_sequence` must be passed always or never; this block was "
                f"built {build} one and is called {call} one. Use two blocks."
            )
