"""What tells a Transformer where a token stands."""

import math

import keras
import numpy as np
from keras import ops

from keras_tfm.layers.quantization import dtype_config, settle_policies


class Positions(keras.layers.Layer):
    """Joins a signal of the position to token vectors; base of the kinds.

    A kind of position implements `signal(position, width)`.

    Args:
        combine: `"add"`, or `"concat"`: concatenate signal and vector and
            project the pair back to the width by a learned matrix.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: float `(B, T, D)`.
        offset: int, or int tensor, scalar or `(B,)`, in tokens. Position of
            `x[:, 0]`; above 0 when decoding from a cache.

    Returns:
        float `(B, T, D)`, in the dtype of `x`.

    Raises:
        ValueError: `combine` is neither of the two, or x is of another rank.
    """

    def __init__(self, combine="add", **kwargs):
        super().__init__(**kwargs)
        if combine not in ("add", "concat"):
            raise ValueError(
                "Positions are joined to token vectors by 'add' or 'concat'. "
                f"Received: combine={combine!r}."
            )
        self.combine = combine
        self.supports_masking = True

    def build(self, input_shape):
        if len(input_shape) != 3:
            raise ValueError(
                "Positions are joined to vectors (batch, length, width). Received: "
                f"shape={tuple(input_shape)}."
            )
        # Keras then refuses other shapes in every later call.
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: input_shape[-1]})
        if self.combine == "concat":
            self.projection = keras.layers.Dense(
                input_shape[-1],
                use_bias=False,
                name="projection",
                dtype=self.dtype_policy,
            )
            self.projection.build((None, None, 2 * input_shape[-1]))
            settle_policies(self)

    def call(self, x, offset=0):
        # (T, D), or (B, T, D)
        signal = self.signal(ops.shape(x)[1], offset, x.shape[-1])
        signal = ops.cast(signal, x.dtype)
        if self.combine == "add":
            return x + signal
        signal = ops.broadcast_to(signal, ops.shape(x))
        return self.projection(ops.concatenate([x, signal], axis=-1))

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "dtype": dtype_config(self),
            "combine": self.combine,
        }


@keras.saving.register_keras_serializable(package="keras_tfm")
class SinusoidalPositions(Positions):
    """Adds fixed sine and cosine position signals to token vectors.

    Two layouts are in use. The paper alternates sine and cosine along the
    channels; tensor2tensor, fairseq and Marian put all sines first. A model
    learns either equally well, but a checkpoint needs its own.

    Args:
        style: `"interleaved"` (the paper's) or `"halves"`.
        first_position: int >= 0. The number of the first token: 0, or 1 as in
            OpenNMT-tf.
        max_period: float > 1, in tokens. The slowest wave repeats after
            about `2 * pi * max_period` tokens.
        reach_max_period: bool or None. The D/2 waves are spaced evenly in the
            logarithm: with False by steps of 2/D, as in the paper, so that
            the slowest wave stays one step short of `max_period`; with True by
            steps of 1 / (D/2 - 1), so that it reaches it, as tensor2tensor,
            fairseq and Marian do. None: True for `"halves"`.
        combine: `"add"` or `"concat"`, see `Positions`.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: float `(B, T, D)`, D even.
        offset: int, or int tensor, scalar or `(B,)`, in tokens. Position of
            `x[:, 0]`; above 0 when decoding from a cache.

    Returns:
        float `(B, T, D)`, in the dtype of `x`.

    Raises:
        ValueError: an odd D, an unknown style, `max_period` of 1 or less, or
            a negative `first_position`.

    Source: Vaswani et al. 2017, section 3.5. https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self,
        style="interleaved",
        first_position=0,
        max_period=10_000.0,
        reach_max_period=None,
        combine="add",
        **kwargs,
    ):
        super().__init__(combine=combine, **kwargs)
        if style not in ("interleaved", "halves"):
            raise ValueError(
                "Sine and cosine stand 'interleaved' (the paper's layout) or in "
                f"'halves' (tensor2tensor's). Received: style={style!r}."
            )
        if max_period <= 1 or first_position < 0:
            raise ValueError(
                "`max_period` must be above 1 and `first_position` 0 or more. "
                f"Received: max_period={max_period}, "
                f"first_position={first_position}."
            )
        self.style = style
        self.first_position = first_position
        self.max_period = max_period
        self.reach_max_period = (
            style == "halves" if reach_max_period is None else reach_max_period
        )

    def build(self, input_shape):
        if input_shape[-1] % 2:
            raise ValueError(
                "Each sine needs a cosine beside it, so the last axis must be even. "
                f"Received: input_shape={tuple(input_shape)}. "
                "Choose an even model width."
            )
        super().build(input_shape)

    def signal(self, length, offset, width):
        """Computes the waves.

        Args:
            length: int, or scalar int tensor: T, in tokens.
            offset: int, or int tensor, scalar or `(B,)`, in tokens.
            width: int, even: D.

        Returns:
            float32 `(T, D)`, or `(B, T, D)`. Never in half precision, which
            cannot tell position 2049 from 2048.
        """
        waves = width // 2
        steps = max(waves - 1, 1) if self.reach_max_period else waves
        exponent = np.arange(waves, dtype="float64") / steps
        speed = np.exp(-math.log(self.max_period) * exponent)  # (D/2,)
        position = _from(offset, length) + self.first_position
        speed = ops.convert_to_tensor(speed, dtype="float32")
        angle = ops.cast(position, "float32")[..., None] * speed
        if self.style == "halves":
            return ops.concatenate([ops.sin(angle), ops.cos(angle)], axis=-1)
        pairs = ops.stack([ops.sin(angle), ops.cos(angle)], axis=-1)
        return ops.reshape(pairs, (*ops.shape(position), width))

    def get_config(self):
        return {
            **super().get_config(),
            "style": self.style,
            "first_position": self.first_position,
            "max_period": self.max_period,
            "reach_max_period": self.reach_max_period,
        }


@keras.saving.register_keras_serializable(package="keras_tfm")
class LearnedPositions(Positions):
    """Adds a trained vector for each position to token vectors.

    Args:
        sequence_length: int >= 1, in tokens. Rows of the table: the longest
            sequence there can be.
        combine: `"add"` or `"concat"`, see `Positions`.
        initializer: Keras initializer of the table.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: float `(B, T, D)`.
        offset: int, or int tensor, scalar or `(B,)`, in tokens. Position of
            `x[:, 0]`. A tensor is not checked against the table.

    Returns:
        float `(B, T, D)`, in the dtype of `x`.

    Raises:
        ValueError: `sequence_length` below 1, an `offset` below 0, or
            `offset + T` past the table.

    Source: Gehring et al. 2017, section 3.1, https://arxiv.org/abs/1705.03122;
    Vaswani et al. 2017, table 3, row E.
    """

    def __init__(
        self, sequence_length, combine="add", initializer="random_normal", **kwargs
    ):
        super().__init__(combine=combine, **kwargs)
        if sequence_length is None or sequence_length < 1:
            raise ValueError(
                "A table of learned positions needs at least one row. "
                f"Received: sequence_length={sequence_length}. "
                "Pass the number of tokens of the longest sequence."
            )
        self.sequence_length = sequence_length
        self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape):
        self.check_length(input_shape[1])
        self.table = self.add_weight(
            name="table",
            shape=(self.sequence_length, input_shape[-1]),
            initializer=self.initializer,
        )
        super().build(input_shape)

    def signal(self, length, offset, width):
        """Looks the vectors up.

        Args:
            length: int, or scalar int tensor: T, in tokens.
            offset: int, or int tensor, scalar or `(B,)`, in tokens.
            width: int: D.

        Returns:
            float `(T, D)`, or `(B, T, D)`.
        """
        if isinstance(offset, int):
            self.check_offset(offset)
            if isinstance(length, int):
                self.check_length(offset + length)
            # A slice past the end comes out short, so that the sum with the
            # token vectors fails; a lookup would repeat the last row on JAX.
            return self.table[offset : offset + length]
        return ops.take(self.table, _from(offset, length), axis=0)

    def compute_output_spec(self, x, offset=0):
        if isinstance(offset, int):
            self.check_offset(offset)
            self.check_length(x.shape[1] and offset + x.shape[1])
        return super().compute_output_spec(x, offset=offset)

    def check_offset(self, offset):
        """Refuses a position before the first.

        Args:
            offset: int, in tokens.

        Raises:
            ValueError: `offset` is below 0: a slice would count from the end.
        """
        if offset < 0:
            raise ValueError(f"`offset` must be 0 or more. Received: {offset}.")

    def check_length(self, length):
        """Refuses a sequence that is longer than the table.

        Args:
            length: int or None, in tokens. None is not checked.

        Raises:
            ValueError: `length` is above `sequence_length`.
        """
        if length is not None and length > self.sequence_length:
            raise ValueError(
                "The sequence is longer than the table of learned positions. "
                f"Received: {length} tokens; sequence_length={self.sequence_length}. "
                "Shorten it, or train with a longer table or sinusoids."
            )

    def get_config(self):
        return {
            **super().get_config(),
            "sequence_length": self.sequence_length,
            "initializer": keras.initializers.serialize(self.initializer),
        }


def _from(offset, length):
    """int `(T,)`, or `(B, T)`: positions from an offset, or from several."""
    rank = 0 if isinstance(offset, int) else len(offset.shape)
    return ops.arange(length) + (offset[:, None] if rank else offset)
