"""A recurrence in place of the decoder's self-attention."""

import keras
from keras import ops

from keras_tfm.layers.blocks import TransformerDecoder
from keras_tfm.layers.initialization import fresh
from keras_tfm.layers.masks import implicit_mask
from keras_tfm.layers.quantization import dtype_config, settle_policies


@keras.saving.register_keras_serializable(package="keras_tfm")
class SSRU(keras.layers.Layer):
    """Simpler simple recurrent unit: what the past leaves is one vector.

    With a forget gate `f_t = sigmoid(W_f x_t + b_f)` the state is
    `c_t = f_t * c_{t-1} + (1 - f_t) * (W x_t)`, from zeros, and the output
    `relu(c_t)`. A step costs as much at every position, where attention costs
    more the longer the past is.

    Args:
        use_bias: bool. The gate adds a bias.
        kernel_initializer: Keras initializer of the matrices.
        bias_initializer: Keras initializer of the bias.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: float `(B, T, D)`.
        padding_mask: bool `(B, T)`, True where x is real; elsewhere the state
            stays as it is. None: the implicit Keras mask of x, if it has one.

    Returns:
        float `(B, T, D)`.

    Source: Kim et al. 2019, section 3.1. https://aclanthology.org/D19-5632
    """

    def __init__(
        self,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.supports_masking = True

    def build(self, x_shape):
        width = x_shape[-1]
        self.value_dense = keras.layers.Dense(
            width,
            use_bias=False,
            kernel_initializer=fresh(self.kernel_initializer),
            dtype=self.dtype_policy,
            name="value",
        )
        self.gate_dense = keras.layers.Dense(
            width,
            activation="sigmoid",
            use_bias=self.use_bias,
            kernel_initializer=fresh(self.kernel_initializer),
            bias_initializer=fresh(self.bias_initializer),
            dtype=self.dtype_policy,
            name="gate",
        )
        # `ops.scan` has no gradient under XLA on TensorFlow.
        self.loop = keras.layers.RNN(
            _Mixture(width, dtype=self.dtype_policy),
            return_sequences=True,
            dtype=self.dtype_policy,
        )
        self.value_dense.build(x_shape)
        self.gate_dense.build(x_shape)
        self.loop.build((*x_shape[:-1], 2 * width))
        settle_policies(self)

    def call(self, x, padding_mask=None):
        kept, added = self._gated(x)
        padding_mask = implicit_mask(x) if padding_mask is None else padding_mask
        if padding_mask is not None:
            real = padding_mask[:, :, None]
            kept = ops.where(real, kept, ops.ones_like(kept))
            added = ops.where(real, added, ops.zeros_like(added))
        return ops.relu(self.loop(ops.concatenate([kept, added], axis=-1)))

    def step(self, x, state):
        """Advances by one position.

        Args:
            x: float `(..., D)`.
            state: float `(..., D)`, of the position before; zeros at first.

        Returns:
            float `(..., D)`, the output, and the new state of that shape.
        """
        kept, added = self._gated(x)
        state = kept * state + added
        return ops.relu(state), state

    def compute_output_spec(self, x, padding_mask=None):
        return keras.KerasTensor(x.shape, dtype=self.compute_dtype)

    def compute_output_shape(self, x_shape):
        return tuple(x_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "dtype": dtype_config(self),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }

    def _gated(self, x):
        """How much of the state is kept, and what is added to it."""
        kept = self.gate_dense(x)
        return kept, (1 - kept) * self.value_dense(x)


class _Mixture(keras.layers.Layer):
    """One position of the loop: how much is kept, and what is added."""

    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.state_size = width

    def call(self, inputs, states, training=False):
        kept, added = ops.split(inputs, 2, axis=-1)
        state = kept * states[0] + added
        return state, [state]


@keras.saving.register_keras_serializable(package="keras_tfm")
class SSRUDecoder(TransformerDecoder):
    """One decoder block that hears its past by an `SSRU`.

    Then come attention to the encoder's output, unless it is called without
    one, and a feed-forward network, as in a `TransformerDecoder`.

    Args:
        intermediate_dim: int >= 1, F, width inside the feed-forward network.
        num_heads: int >= 1, H, of attention to the encoder's output; what
            follows for heads likewise.
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
        positions: None. A recurrence knows the order by itself.
        kernel_initializer: Keras initializer of the matrices.
        bias_initializer: Keras initializer of the biases.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: float `(B, T, D)`.
        encoder_sequence: float `(B, S, D')`, or None.
        padding_mask: bool `(B, T)`, True where x is real. None: the implicit
            Keras mask of x, if it has one.
        encoder_padding_mask: bool `(B, S)`. None: the implicit Keras mask of
            the encoder sequence.
        cache: pair of the state after the position before, from `empty_cache`
            at first, and of keys and values of the encoder sequence (from
            `cross_attention.keys_and_values`) or None. Each `x[:, t]` is then
            the next position of a sequence of its own, as of K beams.
        return_attention_scores: bool.

    Returns:
        float `(B, T, D)`; or a tuple of it, the weights of cross-attention
        `(B, H, T, S)` if asked for, and the new cache if one was given.

    Raises:
        ValueError: as `TransformerDecoder`, or `positions` are given.

    Source: Kim et al. 2019, section 3.1. https://aclanthology.org/D19-5632
    """

    def _add_first_layer(self):
        if self.positions is not None:
            raise ValueError(
                "A recurrence knows the order by itself. Received: positions="
                f"{self.positions!r} for an SSRUDecoder. Leave them out."
            )
        self.recurrence = SSRU(name="recurrence", **self._weights())
        self.recurrence_norm = self._norm("recurrence_norm")

    def build(self, x_shape, encoder_sequence_shape=None):
        self.recurrence.build(x_shape)
        self.recurrence_norm.build(x_shape)
        self._build_others(x_shape, encoder_sequence_shape)

    def call(
        self,
        x,
        encoder_sequence=None,
        padding_mask=None,
        encoder_padding_mask=None,
        cache=None,
        return_attention_scores=False,
        training=False,
    ):
        state, memory = (None, None) if cache is None else cache
        self._check_encoder(encoder_sequence if memory is None else memory)
        real = implicit_mask(x) if padding_mask is None else padding_mask
        if encoder_padding_mask is None:
            encoder_padding_mask = implicit_mask(encoder_sequence)
        inner = self._before(self.recurrence_norm, x, real, training)
        if cache is None:
            heard = self.recurrence(inner, padding_mask=real)
        else:
            heard, state = self.recurrence.step(inner, state)
        x = self._after(self.recurrence_norm, x, heard, real, training)
        x, scores = self._attend_and_feed(
            x,
            encoder_sequence,
            encoder_padding_mask,
            memory,
            real,
            return_attention_scores,
            training,
        )
        results = [x, *scores]
        if cache is not None:
            results.append((state, memory))
        return x if len(results) == 1 else tuple(results)

    def empty_cache(self, batch_size, length):
        """Gives the states before the first position.

        Args:
            batch_size: int, or scalar int tensor: B.
            length: int: K, sequences of each row.

        Returns:
            zeros `(B, K, D)`.
        """
        width = self.recurrence.gate_dense.kernel.shape[-1]
        return ops.zeros((batch_size, length, width), self.compute_dtype)

    def extend_cache(self, cache, length):
        """Gives back the states, which need no room."""
        return cache

    def _spec(
        self,
        x,
        encoder_sequence=None,
        encoder_padding_mask=None,
        cache=None,
        return_attention_scores=False,
        **others,
    ):
        memory = None if cache is None else cache[1]
        self._check_encoder(encoder_sequence if memory is None else memory)
        results = [keras.KerasTensor(x.shape, dtype=self.compute_dtype)]
        if self.cross_attention is not None and return_attention_scores:
            _, scores = self.cross_attention.compute_output_spec(
                x,
                encoder_sequence,
                cache=memory,
                padding_mask=encoder_padding_mask,
                return_attention_scores=True,
            )
            results.append(scores)
        if cache is not None:
            state = keras.KerasTensor(cache[0].shape, cache[0].dtype)
            if memory is not None:
                memory = tuple(keras.KerasTensor(m.shape, m.dtype) for m in memory)
            results.append((state, memory))
        return results[0] if len(results) == 1 else tuple(results)
