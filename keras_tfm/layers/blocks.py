"""Encoder and decoder blocks: attention, feed-forward, residuals, norms."""

import inspect

import keras

from keras_tfm.layers.dropout import check_shares
from keras_tfm.layers.feed_forward import FeedForward
from keras_tfm.layers.masks import implicit_mask
from keras_tfm.layers.multi_head import MultiHeadAttention
from keras_tfm.layers.normalization import normalization_layer
from keras_tfm.layers.quantization import dtype_config
from keras_tfm.layers.relative import positions_config, relative_positions


class _Block(keras.layers.Layer):
    """What encoder and decoder blocks share: settings and the residual."""

    bidirectional = True  # keys after the query are attended to

    def __init__(
        self,
        intermediate_dim,
        num_heads,
        key_dim=None,
        value_dim=None,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation="relu",
        gated=False,
        normalize_first=False,
        normalization="layer_norm",
        epsilon=1e-5,
        use_bias=True,
        score="scaled_dot",
        num_key_value_heads=None,
        positions=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        check_shares(
            dropout=dropout,
            attention_dropout=attention_dropout,
            activation_dropout=activation_dropout,
        )
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.activation = keras.activations.get(activation)
        self.gated = gated
        self.normalize_first = normalize_first
        self.normalization = normalization
        self.epsilon = epsilon
        self.use_bias = use_bias
        self.score = score
        self.num_key_value_heads = num_key_value_heads
        self.positions = relative_positions(
            positions, self.bidirectional, dtype=self.dtype_policy
        )
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.supports_masking = True
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self._add_first_layer()
        self.feed_forward = FeedForward(
            intermediate_dim,
            activation=activation,
            gated=gated,
            dropout=activation_dropout,
            name="feed_forward",
            **self._weights(),
        )
        self.feed_forward_norm = self._norm("feed_forward_norm")

    def compute_output_spec(self, *args, **kwargs):
        given = inspect.signature(self.call).bind(*args, **kwargs).arguments
        return self._spec(**given)

    def compute_output_shape(self, x_shape):
        return tuple(x_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "dtype": dtype_config(self),
            "intermediate_dim": self.intermediate_dim,
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation_dropout": self.activation_dropout,
            "activation": keras.activations.serialize(self.activation),
            "gated": self.gated,
            "normalize_first": self.normalize_first,
            "normalization": self.normalization,
            "epsilon": self.epsilon,
            "use_bias": self.use_bias,
            "score": self.score,
            "num_key_value_heads": self.num_key_value_heads,
            "positions": positions_config(self.positions),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }

    def _add_first_layer(self):
        """Makes what a position hears of its own sequence by."""
        self.self_attention = self._attention("self_attention", self.positions)
        self.self_attention_norm = self._norm("self_attention_norm")

    def _weights(self):
        return {
            "use_bias": self.use_bias,
            "kernel_initializer": self.kernel_initializer,
            "bias_initializer": self.bias_initializer,
            "dtype": self.dtype_policy,
        }

    def _attention(self, name, positions=None):
        return MultiHeadAttention(
            self.num_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            dropout=self.attention_dropout,
            score=self.score,
            num_key_value_heads=self.num_key_value_heads,
            positions=positions,
            name=name,
            **self._weights(),
        )

    def _norm(self, name):
        return normalization_layer(
            self.normalization, self.epsilon, name=name, dtype=self.dtype_policy
        )

    def _normalized(self, norm, x, real, training):
        """Normalises x, by statistics of real positions alone."""
        if self.normalization != "batch_norm":
            return norm(x)
        # Not by `__call__`, which hands an explicit mask on as an implicit one.
        return norm.call(x, training=training, mask=real)

    def _before(self, norm, x, real, training):
        """What a layer inside a residual gets."""
        return self._normalized(norm, x, real, training) if self.normalize_first else x

    def _after(self, norm, x, heard, real, training):
        """The residual, closed around what the layer gave."""
        x = x + self.dropout_layer(heard, training=training)
        return x if self.normalize_first else self._normalized(norm, x, real, training)

    def _feed(self, x, real, training):
        inner = self._before(self.feed_forward_norm, x, real, training)
        fed = self.feed_forward(inner, training=training)
        return self._after(self.feed_forward_norm, x, fed, real, training)


@keras.saving.register_keras_serializable(package="keras_tfm")
class TransformerEncoder(_Block):
    """One encoder block: self-attention, then a feed-forward network.

    Each of the two has a residual around it. Post-norm, the paper's, gives
    `norm(x + layer(x))`; pre-norm gives `x + layer(norm(x))`, and the stack
    then wants one more normalisation at its end.

    Args:
        intermediate_dim: int >= 1, F, width inside the feed-forward network.
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
        epsilon: float > 0, of the normalisations.
        use_bias: bool. Projections add a bias.
        score: `"scaled_dot"` or another of `Score`.
        num_key_value_heads: int or None, G, see `MultiHeadAttention`.
        positions: `"rotary"`, `"alibi"`, `"t5"`, `"shaw"`, or a layer of
            `RelativePositions`, inside self-attention; None for none.
        kernel_initializer: Keras initializer of the matrices.
        bias_initializer: Keras initializer of the biases.
        **kwargs: of `keras.layers.Layer`.

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
        ValueError: as `MultiHeadAttention`, or an unknown normalisation.

    Source: Vaswani et al. 2017, section 3.1, https://arxiv.org/abs/1706.03762;
    pre-norm: Xiong et al. 2020, https://arxiv.org/abs/2002.04745
    """

    def build(self, x_shape):
        self.self_attention.build(x_shape)
        self.self_attention_norm.build(x_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_norm.build(x_shape)

    def call(
        self,
        x,
        padding_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=False,
    ):
        real = implicit_mask(x) if padding_mask is None else padding_mask
        if padding_mask is None and attention_mask is None:
            padding_mask = real
        heard = self.self_attention(
            self._before(self.self_attention_norm, x, real, training),
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        heard, scores = heard if return_attention_scores else (heard, None)
        x = self._after(self.self_attention_norm, x, heard, real, training)
        x = self._feed(x, real, training)
        return (x, scores) if return_attention_scores else x

    def _spec(self, x, training=False, **others):
        return self.self_attention.compute_output_spec(x, **others)


@keras.saving.register_keras_serializable(package="keras_tfm")
class TransformerDecoder(_Block):
    """One decoder block: causal self-attention, attention to the encoder's
    output, and a feed-forward network.

    Called without an encoder sequence it has no cross-attention and is a
    block of a language model; the first call decides.

    Args:
        intermediate_dim: int >= 1, F, width inside the feed-forward network.
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
        epsilon: float > 0, of the normalisations.
        use_bias: bool. Projections add a bias.
        score: `"scaled_dot"` or another of `Score`.
        num_key_value_heads: int or None, G, see `MultiHeadAttention`.
        positions: `"rotary"`, `"alibi"`, `"t5"` (one-way), `"shaw"`, or a layer
            of `RelativePositions`, inside self-attention; None for none.
        kernel_initializer: Keras initializer of the matrices.
        bias_initializer: Keras initializer of the biases.
        **kwargs: of `keras.layers.Layer`.

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
        cache: pair of pairs of keys and values: of this block's past (room of
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
        `(B, H, T, S)` if asked for, and the new cache if one was given.

    Raises:
        ValueError: as `MultiHeadAttention`; an encoder sequence for a block
            built without one, or none for a block built with one; a cache
            without `cache_index`.

    Source: Vaswani et al. 2017, section 3.1. https://arxiv.org/abs/1706.03762
    """

    bidirectional = False

    def build(self, x_shape, encoder_sequence_shape=None):
        self.self_attention.build(x_shape)
        self.self_attention_norm.build(x_shape)
        self._build_others(x_shape, encoder_sequence_shape)

    def _build_others(self, x_shape, encoder_sequence_shape):
        self.cross_attention = None
        if encoder_sequence_shape is not None:
            self.cross_attention = self._attention("cross_attention")
            self.cross_attention.build(x_shape, encoder_sequence_shape)
            self.cross_attention_norm = self._norm("cross_attention_norm")
            self.cross_attention_norm.build(x_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_norm.build(x_shape)

    def call(
        self,
        x,
        encoder_sequence=None,
        padding_mask=None,
        attention_mask=None,
        encoder_padding_mask=None,
        use_causal_mask=True,
        cache=None,
        cache_index=None,
        query_positions=None,
        key_positions=None,
        return_attention_scores=False,
        training=False,
    ):
        if cache is not None and cache_index is None:
            raise ValueError(
                "A decoder block writes to its cache. Received: a cache and no "
                "`cache_index`. Pass the slot of `x[:, 0]`."
            )
        past, memory = (None, None) if cache is None else cache
        self._check_encoder(encoder_sequence if memory is None else memory)
        real = implicit_mask(x) if padding_mask is None else padding_mask
        if cache is not None:
            real = None  # A padding mask is then of the slots.
        elif padding_mask is None and attention_mask is None:
            padding_mask = real
        if encoder_padding_mask is None:
            encoder_padding_mask = implicit_mask(encoder_sequence)
        heard = self.self_attention(
            self._before(self.self_attention_norm, x, real, training),
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
            cache=past,
            cache_index=cache_index,
            query_positions=query_positions,
            key_positions=key_positions,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        heard, *more = heard if isinstance(heard, tuple) else (heard,)
        x = self._after(self.self_attention_norm, x, heard, real, training)
        scores = more[:1] if return_attention_scores else []
        x, cross_scores = self._attend_and_feed(
            x,
            encoder_sequence,
            encoder_padding_mask,
            memory,
            real,
            return_attention_scores,
            training,
        )
        results = [x, *scores, *cross_scores]
        if cache is not None:
            results.append((more[-1], memory))
        return x if len(results) == 1 else tuple(results)

    def _attend_and_feed(
        self, x, sequence, mask, memory, real, return_attention_scores, training
    ):
        """What comes after a position has heard of its own sequence."""
        scores = []
        if self.cross_attention is not None:
            heard = self.cross_attention(
                self._before(self.cross_attention_norm, x, real, training),
                sequence,
                padding_mask=mask,
                cache=memory,
                return_attention_scores=return_attention_scores,
                training=training,
            )
            if return_attention_scores:
                heard, *scores = heard
            x = self._after(self.cross_attention_norm, x, heard, real, training)
        return self._feed(x, real, training), scores

    def empty_cache(self, batch_size, length):
        """Makes room for the keys and values of this block's past.

        Args:
            batch_size: int, or scalar int tensor: B.
            length: int: L, in slots.

        Returns:
            zeros `(B, H, d_k, L)` and `(B, H, L, d_v)`.
        """
        return self.self_attention.empty_cache(batch_size, length)

    def extend_cache(self, cache, length):
        """Makes more room in a cache of this block's past.

        Args:
            cache: of `empty_cache`.
            length: int, in slots, no less than there are.

        Returns:
            The same with that many slots.
        """
        return self.self_attention.extend_cache(cache, length)

    def compute_output_shape(self, x_shape, encoder_sequence_shape=None):
        return tuple(x_shape)

    def _spec(
        self,
        x,
        encoder_sequence=None,
        encoder_padding_mask=None,
        cache=None,
        return_attention_scores=False,
        training=False,
        **others,
    ):
        past, memory = (None, None) if cache is None else cache
        self._check_encoder(encoder_sequence if memory is None else memory)
        scores = {"return_attention_scores": return_attention_scores}
        heard = self.self_attention.compute_output_spec(
            x, cache=past, **scores, **others
        )
        x, *results = heard if isinstance(heard, tuple) else (heard,)
        if self.cross_attention is not None:
            heard = self.cross_attention.compute_output_spec(
                x,
                encoder_sequence,
                cache=memory,
                padding_mask=encoder_padding_mask,
                **scores,
            )
            if return_attention_scores:
                results.insert(1, heard[1])
        if memory is not None:
            memory = tuple(keras.KerasTensor(m.shape, m.dtype) for m in memory)
        if cache is not None:
            results[-1] = (results[-1], memory)
        return (x, *results) if results else x

    def _check_encoder(self, memory):
        if (memory is None) == (self.cross_attention is None):
            return
        built, called = (
            ("without", "with")
            if memory is not None
            else (
                "with",
                "without",
            )
        )
        raise ValueError(
            f"This decoder block was built {built} an encoder sequence and is "
            f"called {called} one. Use two blocks."
        )
