"""Recurrent layers: a bidirectional encoder, and a decoder with attention."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_tfm.layers.attention import Attention
from keras_tfm.layers.checks import check_choice, check_sizes
from keras_tfm.layers.quantization import layer_config, settle_policies
from keras_tfm.types import Shape, Tensor

CELLS = {"gru": keras.layers.GRU, "lstm": keras.layers.LSTM}
ATTENTIONS = ("additive", "multiplicative")
States = list[list[Tensor]]  # of each layer: h, and c of an LSTM


@keras.saving.register_keras_serializable(package="keras_tfm")
class RecurrentEncoder(keras.layers.Layer):
    """Reads a sequence in both directions.

    The backward cells begin with the last token before the padding, so that
    padding changes nothing and no step is masked: fused kernels take no masks.

    Args:
        units: int, dimension of the states of each direction.
        num_layers: int, N. Layers after the first read both directions.
        cell: `"gru"` or `"lstm"`.
        dropout: float in [0, 1), between layers.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: float `(B, S, D)`.
        padding_mask: bool `(B, S)`. True, then False where there is padding.

    Returns:
        float `(B, S, 2 * units)`: forward states, backward states.

    Raises:
        ValueError: an unknown `cell`, or a size below 1.

    Example:
        ```python
        import numpy as np
        from keras_tfm.models.recurrent import RecurrentEncoder

        encoder = RecurrentEncoder(units=8)
        x, mask = np.ones((1, 4, 16)), np.ones((1, 4), bool)
        print(encoder(x, mask).shape)  # (1, 4, 16)
        ```

    Source: Bahdanau et al. 2015, section 3.2. https://arxiv.org/abs/1409.0473
    """

    def __init__(
        self,
        units: int,
        num_layers: int = 1,
        cell: str = "gru",
        dropout: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_choice("cell", cell, CELLS)
        check_sizes(units=units, num_layers=num_layers)
        self.units = units
        self.num_layers = num_layers
        self.cell = cell
        self.dropout = dropout
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.forward_layers, self.backward_layers = (
            [_make_recurrent(self, f"{direction}_{i}") for i in range(num_layers)]
            for direction in ("forward", "backward")
        )

    def build(self, x_shape: Shape) -> None:
        dims = [x_shape[-1]] + [2 * self.units] * (self.num_layers - 1)
        for layers in (self.forward_layers, self.backward_layers):
            for layer, dim in zip(layers, dims, strict=True):
                layer.build((None, None, dim))

    def call(
        self, x: Tensor, padding_mask: Tensor, training: bool | None = None
    ) -> Tensor:
        length = ops.shape(x)[1]
        last = ops.sum(ops.cast(padding_mask, "int32"), axis=1, keepdims=True) - 1
        # Reverses tokens and padding, each in place; twice restores the order.
        reverse = ops.mod(last - ops.arange(length), length)[:, :, None]  # (B, S, 1)
        layers = zip(self.forward_layers, self.backward_layers, strict=True)
        for i, (forward, backward) in enumerate(layers):
            if i:
                x = self.dropout_layer(x, training=training)
            # (B, S, units), in the reverse order
            backward_states = backward(ops.take_along_axis(x, reverse, axis=1))
            backward_states = ops.take_along_axis(backward_states, reverse, axis=1)
            x = ops.concatenate([forward(x), backward_states], axis=-1)  # 2 * units
        return x

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        return (*x_shape[:-1], 2 * self.units)

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, RecurrentEncoder)}


@keras.saving.register_keras_serializable(package="keras_tfm")
class RecurrentDecoder(keras.layers.Layer):
    """Computes hidden states from target tokens and an encoded source.

    Args:
        units: int, dimension of the states.
        num_layers: int, N.
        cell: `"gru"` or `"lstm"`.
        attention: `"additive"` or `"multiplicative"`, see `RecurrentSeq2Seq`.
        dropout: float in [0, 1), between layers, and of the output.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: float `(B, T, D)`, embedded target tokens.
        memory: float `(B, S, 2 * units)`, of `RecurrentEncoder`.
        padding_mask: bool `(B, S)`, of the memory.

    Returns:
        float `(B, T, D)`.

    Raises:
        ValueError: an unknown `cell` or `attention`, a size below 1, or a
            memory of another dimension.

    Example:
        ```python
        import numpy as np
        from keras_tfm.models.recurrent import RecurrentDecoder

        decoder = RecurrentDecoder(units=8, attention="multiplicative")
        x, memory = np.ones((1, 3, 4)), np.ones((1, 5, 16))
        print(decoder(x, memory, np.ones((1, 5), bool)).shape)  # (1, 3, 4)
        ```

    Source: as in `RecurrentSeq2Seq`.
    """

    def __init__(
        self,
        units: int,
        num_layers: int = 1,
        cell: str = "gru",
        attention: str = "additive",
        dropout: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_choice("cell", cell, CELLS)
        check_sizes(units=units, num_layers=num_layers)
        check_choice("attention", attention, ATTENTIONS)
        self.units = units
        self.num_layers = num_layers
        self.cell = cell
        self.attention = attention
        self.dropout = dropout
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        # Luong's "general" score multiplies by a matrix. Here it projects the
        # keys, once for a source, and not the queries, at every step.
        score = "additive" if attention == "additive" else "dot"
        self.attention_layer = Attention(
            score, dtype=self.dtype_policy, name="attention"
        )
        self.key_dense = None
        if attention == "multiplicative":
            self.key_dense = keras.layers.Dense(
                units, use_bias=False, dtype=self.dtype_policy, name="key"
            )
        self.layers = [_make_recurrent(self, f"layer_{i}") for i in range(num_layers)]
        self.bridge = keras.layers.Dense(
            units * sum(len(layer.state_size) for layer in self.layers),
            activation="tanh",
            dtype=self.dtype_policy,
            name="bridge",
        )

    def build(self, x_shape: Shape, memory_shape: Shape) -> None:
        dim, units, memory_dim = x_shape[-1], self.units, memory_shape[-1]
        if memory_dim != 2 * units:
            raise ValueError(
                "`memory` must have 2 * units channels, the states of two directions; "
                f"got {memory_dim} channels, units={units}."
            )
        is_additive = self.attention == "additive"
        context_dim = memory_dim if is_additive else 0  # beside the layer below
        input_dims = [dim] + [units] * (self.num_layers - 1)
        for layer, input_dim in zip(self.layers, input_dims, strict=True):
            layer.build((None, None, input_dim + context_dim))
        key_dim = memory_dim
        if self.key_dense is not None:
            self.key_dense.build((None, None, memory_dim))
            key_dim = units
        shapes = [(None, None, size) for size in (units, memory_dim, key_dim)]
        self.attention_layer.build(*shapes)
        self.bridge.build((None, units))
        self.readout = keras.layers.Dense(
            2 * dim if is_additive else dim,
            activation=None if is_additive else "tanh",
            use_bias=is_additive,
            dtype=self.dtype_policy,
            name="readout",
        )
        self.readout.build((None, None, units + memory_dim + is_additive * dim))
        settle_policies(self)

    def call(
        self,
        x: Tensor,
        memory: Tensor,
        padding_mask: Tensor,
        training: bool | None = None,
    ) -> Tensor:
        states = self.initial_states(memory)
        memory, context = self.keys_and_values(memory), None
        if self.attention == "additive":
            h, context = self._attend_at_each_step(x, states[0], memory, padding_mask)
        else:
            h = self.layers[0](x, initial_state=states[0])  # (B, T, units)
        for layer, state in zip(self.layers[1:], states[1:], strict=True):
            h = self.dropout_layer(h, training=training)
            h = layer(_with_context(h, context), initial_state=state)
        if context is None:
            # All T states attend at once: (B, T, 2 * units).
            context = self.attention_layer(h, cache=memory, padding_mask=padding_mask)
        return self.dropout_layer(self._hidden(x, h, context), training=training)

    def step(
        self, x: Tensor, states: States, memory: tuple, padding_mask: Tensor
    ) -> tuple[Tensor, States, Tensor]:
        """Advances K hypotheses of each source by one step.

        Args:
            x: float `(B, K, D)`, the embedded last token of each.
            states: from `initial_states` or the step before, each
                `(B, K, units)`.
            memory: from `keys_and_values`.
            padding_mask: bool `(B, S)`, of the memory.

        Returns:
            float `(B, K, D)`, the new states, and the attention `(B, K, S)`.
        """

        def attend(h):
            return self.attention_layer(
                h,
                cache=memory,
                padding_mask=padding_mask,
                return_attention_scores=True,
            )

        context, new_states, h = None, [], x
        if self.attention == "additive":
            context, weights = attend(states[0][0])  # the state before this token
        for layer, state in zip(self.layers, states, strict=True):
            new_states.append(_advance(layer, _with_context(h, context), state))
            h = new_states[-1][0]
        if context is None:
            context, weights = attend(h)  # the new state
        return self._hidden(x, h, context), new_states, weights

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Projects the memory to keys and values, once for all steps.

        Args:
            memory: float `(B, S, 2 * units)`.

        Returns:
            float `(B, units, S)` and `(B, S, 2 * units)`.
        """
        key = None if self.key_dense is None else self.key_dense(memory)
        return self.attention_layer.keys_and_values(memory, key)

    def initial_states(self, memory: Tensor) -> States:
        """Computes the states before the first token.

        Args:
            memory: float `(B, S, 2 * units)`.

        Returns:
            A list with a list of states `(B, units)` for each layer: h, and c
            of an LSTM.
        """
        # The backward encoder ends at the first token.
        states = self.bridge(memory[:, 0, self.units :])
        count = len(self.layers[0].state_size)
        states = ops.split(states, count * self.num_layers, axis=-1)
        return [states[i : i + count] for i in range(0, len(states), count)]

    def _attend_at_each_step(self, x, state, memory, padding_mask):
        """Runs the first layer: states `(B, T, units)` and their contexts."""

        def step(x, state):
            state = [tensor[:, None] for tensor in state]  # (B, 1, units)
            context = self.attention_layer(
                state[0], cache=memory, padding_mask=padding_mask
            )
            x = ops.concatenate([x[:, None], context], axis=-1)  # (B, 1, D + 2 * units)
            state = [tensor[:, 0] for tensor in _advance(self.layers[0], x, state)]
            # The loop returns one tensor a step: state and context together.
            return ops.concatenate([state[0], context[:, 0]], axis=-1), state

        state_sizes, output_size = [self.units] * len(state), 3 * self.units
        loop = keras.layers.RNN(
            _FunctionCell(step, state_sizes, output_size, self.compute_dtype),
            return_sequences=True,
            dtype=self.dtype_policy,
        )
        outputs = loop(x, initial_state=list(state))  # (B, T, 3 * units)
        return outputs[..., : self.units], outputs[..., self.units :]

    def _hidden(self, x, h, context):
        if self.attention == "multiplicative":
            return self.readout(ops.concatenate([context, h], axis=-1))
        # (B, T, 2 * D): two candidates for each channel
        channels = self.readout(ops.concatenate([h, x, context], axis=-1))
        return ops.maximum(*ops.split(channels, 2, axis=-1))  # maxout

    def compute_output_shape(self, x_shape: Shape, memory_shape: Shape) -> Shape:
        return x_shape

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, RecurrentDecoder)}


@dataclasses.dataclass(frozen=True)
class _FunctionCell:
    """The interface of a cell that `keras.layers.RNN` needs, from a function.

    The function may read tensors that are the same at every step, for which a
    cell of Keras has no argument.
    """

    function: Callable
    state_size: list[int]
    output_size: int
    compute_dtype: str

    def __call__(self, inputs, states):
        return self.function(inputs, states)

    call = __call__


def _make_recurrent(layer, name):
    """Makes a recurrent layer of Keras with the options of `layer`."""
    # Decoding is compiled with XLA, which cannot compile TensorFlow's cuDNN
    # kernels.
    use_cudnn = False if keras.backend.backend() == "tensorflow" else "auto"
    return CELLS[layer.cell](
        layer.units,
        return_sequences=True,
        use_cudnn=use_cudnn,
        dtype=layer.dtype_policy,
        name=name,
    )


def _advance(layer, x, state):
    """Computes states `(B, K, units)` after one step by `(B, K, D)`."""
    beam_size = x.shape[1]
    # (B, K, ...) to (B * K, ...) and back
    rows = [ops.reshape(tensor, (-1, tensor.shape[-1])) for tensor in (x, *state)]
    _, state = layer.cell(rows[0], rows[1:])
    return [ops.reshape(tensor, (-1, beam_size, layer.units)) for tensor in state]


def _with_context(h, context):
    return h if context is None else ops.concatenate([h, context], axis=-1)
