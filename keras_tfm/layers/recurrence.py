"""A recurrence in place of the decoder's self-attention."""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers.blocks import TransformerDecoder
from keras_tfm.layers.checks import boolean_mask
from keras_tfm.layers.keras_internals import implicit_mask
from keras_tfm.layers.projections import dense
from keras_tfm.layers.quantization import layer_config, settle_policies
from keras_tfm.layers.transformer_block import symbol_like
from keras_tfm.layers.weights import KernelLayer
from keras_tfm.types import Cache, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tfm")
class SSRU(KernelLayer):
    """Simpler simple recurrent unit: its state is one vector.

    With a forget gate `f_t = sigmoid(W_f x_t + b_f)` the state is
    `c_t = f_t * c_{t-1} + (1 - f_t) * (W x_t)`, from zeros, and the output
    `relu(c_t)`. A step costs the same at every position, where attention costs
    more the longer the past is.

    Args:
        use_bias: bool. The gate adds a bias.
        **kwargs: initializers, regularizers and constraints, see
            `layers.weights.KernelLayer`; arguments of `keras.layers.Layer`.

    Call arguments:
        x: float `(B, T, D)`.
        padding_mask: bool `(B, T)`, True where x is real; elsewhere the state
            stays as it is. None: the implicit Keras mask of x, if it has one.

    Returns:
        float `(B, T, D)`.

    Source: Kim et al. 2019, section 3.1. https://aclanthology.org/D19-5632

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        print(layers.SSRU()(np.ones((2, 3, 8))).shape)  # (2, 3, 8)
        ```
    """

    def __init__(
        self,
        use_bias: bool = True,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.use_bias = use_bias
        self.supports_masking = True

    def build(self, x_shape: Shape) -> None:
        dim = x_shape[-1]
        # D to D each; only the gate has a bias, as in the paper's equation.
        self.value_dense = dense(self, "value", dim, dim, use_bias=False)
        self.gate_dense = dense(
            self,
            "gate",
            dim,
            dim,
            activation="sigmoid",
            use_bias=self.use_bias,
        )
        # `ops.scan` has no gradient under XLA on TensorFlow.
        self.loop = keras.layers.RNN(
            _StateUpdate(dim, dtype=self.dtype_policy),
            return_sequences=True,
            dtype=self.dtype_policy,
        )
        self.loop.build((*x_shape[:-1], 2 * dim))
        settle_policies(self)

    def call(self, x: Tensor, padding_mask: Tensor = None) -> Tensor:
        gate, update = self._gate(x)  # (B, T, D) twice
        padding_mask = boolean_mask("padding_mask", padding_mask, (2,))
        padding_mask = implicit_mask(x) if padding_mask is None else padding_mask
        if padding_mask is not None:
            mask = padding_mask[:, :, None]  # (B, T, 1)
            # A gate of 1 and an update of 0 leave the state as it is.
            gate = ops.where(mask, gate, ops.ones_like(gate))
            update = ops.where(mask, update, ops.zeros_like(update))
        if x.shape[1] == 0:  # On PyTorch Keras' loop needs a position.
            return gate
        # The loop has one input: gate and update side by side, (B, T, 2 D).
        return ops.relu(self.loop(ops.concatenate([gate, update], axis=-1)))

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Advances by one position.

        Args:
            x: float `(..., D)`.
            state: float `(..., D)`, of the position before; zeros at first.

        Returns:
            float `(..., D)`, the output, and the new state of that shape.
        """
        gate, update = self._gate(x)
        state = gate * state + update  # (..., D)
        return ops.relu(state), state

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        return tuple(x_shape)

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, SSRU)}

    def _gate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the factor of the old state, and what is added to it."""
        gate = self.gate_dense(x)
        return gate, (1 - gate) * self.value_dense(x)


class _StateUpdate(keras.layers.Layer):
    """One position of the loop, as a cell of `keras.layers.RNN`."""

    def __init__(self, state_size, **kwargs):
        super().__init__(**kwargs)
        self.state_size = state_size

    def call(self, inputs, states, training=None):
        gate, update = ops.split(inputs, 2, axis=-1)
        state = gate * states[0] + update
        return state, [state]


@keras.saving.register_keras_serializable(package="keras_tfm")
class SSRUDecoder(TransformerDecoder):
    """One decoder block with an `SSRU` in place of self-attention.

    Cross-attention, unless the block is called without an encoder sequence, and
    a feed-forward network follow, as in a `TransformerDecoder`. The constructor
    has the block options, see `TransformerBlock`; those of attention concern
    cross-attention, and `positions` must be None, since a recurrence knows the
    order by itself.

    Call arguments:
        x: float `(B, T, D)`.
        encoder_sequence: float `(B, S, D')`, or None.
        padding_mask: bool `(B, T)`, True where x is real. None: the implicit
            Keras mask of x, if it has one.
        encoder_padding_mask: bool `(B, S)`. None: the implicit Keras mask of
            the encoder sequence.
        encoder_attention_mask: bool `(B, T, S)` or `(B, H, T, S)`, of
            cross-attention.
        cache: pair of the state after the position before, from `empty_cache`
            at first, and of keys and values of the encoder sequence (from
            `cross_attention.keys_and_values`) or None. Each `x[:, t]` is then
            the next position of a sequence of its own, as for K beams.
        return_attention_scores: bool.

    Returns:
        float `(B, T, D)`; or a tuple of it, the weights of cross-attention
        `(B, H, T, S)` with `return_attention_scores`, and the new cache if one
        was passed.

    Raises:
        ValueError: as `TransformerDecoder`, or `positions` are set.

    Source: Kim et al. 2019, section 3.1. https://aclanthology.org/D19-5632

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        block = layers.SSRUDecoder(intermediate_dim=16, num_heads=2)
        print(block(np.ones((1, 3, 8)), np.ones((1, 5, 8))).shape)  # (1, 3, 8)
        ```
    """

    def build(self, x_shape: Shape, encoder_sequence_shape: Shape = None) -> None:
        self.recurrence.build(x_shape)
        self.recurrence_norm.build(x_shape)
        self._build_cross_attention(x_shape, encoder_sequence_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_norm.build(x_shape)

    def call(
        self,
        x: Tensor,
        encoder_sequence: Tensor = None,
        padding_mask: Tensor = None,
        encoder_padding_mask: Tensor = None,
        encoder_attention_mask: Tensor = None,
        cache: tuple[Tensor, Cache | None] | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor:
        state, memory = (None, None) if cache is None else cache
        self._check_inputs(encoder_sequence, cache, 0)
        padding_mask = boolean_mask("padding_mask", padding_mask, (2,))
        real_mask = implicit_mask(x) if padding_mask is None else padding_mask
        x, new_state = self._residual(
            self._recur,
            self.recurrence_norm,
            x,
            real_mask,
            padding_mask=real_mask,
            state=state,
            training=training,
        )
        masks = encoder_padding_mask, encoder_attention_mask
        encoder = (encoder_sequence, *masks, memory)
        options = {"return_attention_scores": return_attention_scores}
        options["training"] = training
        x, weights = self._attend_and_feed(x, real_mask, encoder, options)
        results = (x, *weights)
        if cache is not None:
            results += ((*new_state, memory),)
        return x if len(results) == 1 else results

    def empty_cache(self, batch_size: Tensor, length: Tensor) -> Tensor:
        """Creates the states before the first position.

        Args:
            batch_size: int, or scalar int tensor: B.
            length: int: K, sequences of each row.

        Returns:
            zeros `(B, K, D)`.
        """
        dim = self.recurrence.gate_dense.kernel.shape[-1]  # D
        return ops.zeros((batch_size, length, dim), self.compute_dtype)

    def extend_cache(self, cache: Tensor, length: Tensor) -> Tensor:
        """Returns the states, which do not grow.

        Args:
            cache: float `(B, K, D)`.
            length: int, not used.
        """
        return cache

    def _add_sequence_layer(self):
        if self.positions is not None:
            raise ValueError(
                "`positions` must be None for an SSRUDecoder, whose recurrence knows "
                f"the order by itself; got positions={self.positions!r}."
            )
        self.recurrence = SSRU(
            name="recurrence", use_bias=self.use_bias, **self.weight_options()
        )
        self.recurrence_norm = self._norm("recurrence_norm")

    def _recur(self, x, padding_mask, state, training):
        if state is None:
            return self.recurrence(x, padding_mask=padding_mask)
        return self.recurrence.step(x, state)

    def _sequence_spec(self, past, call):
        """Lists x; and the new state."""
        output = keras.KerasTensor(call["x"].shape, self.compute_dtype)
        return [output], None if past is None else symbol_like(past)
