"""Absolute position encodings, added to token vectors."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.layers.checks import check_above, check_choice
from keras_tfm.layers.quantization import layer_config, settle_policies
from keras_tfm.types import Initializer, Shape, Tensor


class Positions(keras.layers.Layer):
    """Combines a signal of the position with token vectors; base class.

    A subclass implements `signal(length, offset, dim)`.

    Args:
        combine: `"add"`, or `"concat"`: concatenate signal and vector and
            project the pair back to D by a learned matrix.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        x: float `(B, T, D)`.
        offset: int, or int tensor, scalar or `(B,)`, in tokens. Position of
            `x[:, 0]`; above 0 when decoding from a cache.

    Returns:
        float `(B, T, D)`, in the dtype of `x`.

    Raises:
        ValueError: `combine` is neither of the two, or x is of another rank.
    """

    def __init__(self, combine: str = "add", **kwargs: Any):
        super().__init__(**kwargs)
        check_choice("combine", combine, ("add", "concat"))
        self.combine = combine
        self.supports_masking = True

    def build(self, input_shape: Shape) -> None:
        if len(input_shape) != 3:
            raise ValueError(
                "Positions expect shape (batch, length, dimension); got "
                f"shape={tuple(input_shape)}."
            )
        dim = input_shape[-1]
        # Keras then rejects other shapes in every later call.
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: dim})
        if self.combine == "concat":
            self.projection = keras.layers.Dense(
                dim, use_bias=False, name="projection", dtype=self.dtype_policy
            )
            # The token vector and the signal, one after the other.
            self.projection.build((None, None, 2 * dim))
            settle_policies(self)

    def call(self, x: Tensor, offset: Tensor = 0) -> Tensor:
        # (T, D), or (B, T, D) where each row has its own offset
        signal = self.signal(ops.shape(x)[1], offset, x.shape[-1])
        signal = ops.cast(signal, x.dtype)
        if self.combine == "add":
            return x + signal
        signal = ops.broadcast_to(signal, ops.shape(x))  # (B, T, D)
        return self.projection(ops.concatenate([x, signal], axis=-1))  # from 2 D

    def signal(self, length: Tensor, offset: Tensor, dim: int) -> Tensor:
        """Computes the signal of each position.

        Args:
            length: int, or scalar int tensor: T, in tokens.
            offset: int, or int tensor, scalar or `(B,)`, in tokens.
            dim: int: D.

        Returns:
            float `(T, D)`, or `(B, T, D)`.
        """
        raise NotImplementedError

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return tuple(input_shape)


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
        combine: `"add"` or `"concat"`: see `Positions`.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        x: float `(B, T, D)`, D even.
        offset: int, or int tensor, scalar or `(B,)`, in tokens. Position of
            `x[:, 0]`; above 0 when decoding from a cache.

    Returns:
        float `(B, T, D)`, in the dtype of `x`.

    Raises:
        ValueError: an odd D, an unknown style, or a number out of its range.

    Source: Vaswani et al. 2017, section 3.5. https://arxiv.org/abs/1706.03762

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        signal = layers.SinusoidalPositions()(np.zeros((1, 5, 4)))
        print(signal[0, 0])  # [0, 1, 0, 1]
        ```
    """

    def __init__(
        self,
        style: str = "interleaved",
        first_position: int = 0,
        max_period: float = 10_000.0,
        reach_max_period: bool | None = None,
        combine: str = "add",
        **kwargs: Any,
    ):
        super().__init__(combine=combine, **kwargs)
        check_choice("style", style, ("interleaved", "halves"))
        check_above(1, max_period=max_period)
        if not first_position >= 0:
            raise ValueError(
                "`first_position` must be at least 0; got "
                f"first_position={first_position}."
            )
        self.style = style
        self.first_position = first_position
        self.max_period = max_period
        self.reach_max_period = (
            style == "halves" if reach_max_period is None else reach_max_period
        )

    def build(self, input_shape: Shape) -> None:
        if input_shape[-1] % 2:
            raise ValueError(
                "The last dimension must be even, one cosine for each sine; got "
                f"input_shape={tuple(input_shape)}. Choose an even `embedding_dim`."
            )
        super().build(input_shape)

    def signal(self, length: Tensor, offset: Tensor, dim: int) -> Tensor:
        num_waves = dim // 2
        steps = max(num_waves - 1, 1) if self.reach_max_period else num_waves
        exponent = np.arange(num_waves, dtype="float64") / steps
        speed = np.exp(-math.log(self.max_period) * exponent)  # (D/2,)
        position = _positions(offset, length) + self.first_position  # (T,) or (B, T)
        speed = ops.convert_to_tensor(speed, dtype="float32")
        # float32: half precision cannot tell position 2049 from 2048.
        angle = ops.cast(position, "float32")[..., None] * speed  # (..., T, D/2)
        if self.style == "halves":
            return ops.concatenate([ops.sin(angle), ops.cos(angle)], axis=-1)  # D
        pairs = ops.stack([ops.sin(angle), ops.cos(angle)], axis=-1)  # (..., D/2, 2)
        return ops.reshape(pairs, (*ops.shape(position), dim))

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, SinusoidalPositions)}


@keras.saving.register_keras_serializable(package="keras_tfm")
class LearnedPositions(Positions):
    """Adds a trained vector for each position to token vectors.

    Args:
        sequence_length: int >= 1, in tokens, of the longest sequence.
        combine: `"add"` or `"concat"`: see `Positions`.
        initializer: Keras initializer of the vectors.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        x: float `(B, T, D)`.
        offset: int, or int tensor, scalar or `(B,)`, in tokens. Position of
            `x[:, 0]`. A tensor is not checked against `sequence_length`.

    Returns:
        float `(B, T, D)`, in the dtype of `x`.

    Raises:
        ValueError: `sequence_length` below 1, an `offset` below 0, or
            `offset + T` above `sequence_length`.

    Source: Gehring et al. 2017, section 3.1, https://arxiv.org/abs/1705.03122;
    Vaswani et al. 2017, table 3, row E.

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        positions = layers.LearnedPositions(sequence_length=16)
        print(positions(np.zeros((1, 5, 4))).shape)  # (1, 5, 4)
        ```
    """

    def __init__(
        self,
        sequence_length: int,
        combine: str = "add",
        initializer: Initializer = "random_normal",
        **kwargs: Any,
    ):
        super().__init__(combine=combine, **kwargs)
        if sequence_length is None or sequence_length < 1:
            raise ValueError(
                "`sequence_length` must be at least 1 for learned positions; got "
                f"sequence_length={sequence_length}. Pass the length of the longest "
                "sequence, in tokens."
            )
        self.sequence_length = sequence_length
        self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape: Shape) -> None:
        self.check_length(input_shape[1])
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.sequence_length, input_shape[-1]),  # one row a position
            initializer=self.initializer,
        )
        super().build(input_shape)

    def signal(self, length: Tensor, offset: Tensor, dim: int) -> Tensor:
        if isinstance(offset, int):
            self._check_range(offset, length if isinstance(length, int) else None)
            # A slice past the end comes out short, so that the sum with the
            # token vectors fails; a lookup would repeat the last row on JAX.
            return self.embeddings[offset : offset + length]
        # Not checked: the values of a tensor are not known while tracing.
        return ops.take(self.embeddings, _positions(offset, length), axis=0)

    def compute_output_spec(self, x: Tensor, offset: Tensor = 0) -> Tensor:
        if isinstance(offset, int):
            self._check_range(offset, x.shape[1])
        return super().compute_output_spec(x, offset=offset)

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, LearnedPositions)}

    def check_length(self, length: int | None) -> None:
        """Checks that a sequence is not longer than `sequence_length`.

        Args:
            length: int or None, in tokens. None is not checked.

        Raises:
            ValueError: `length` is above `sequence_length`.
        """
        if length is not None and length > self.sequence_length:
            raise ValueError(
                "`sequence_length` of the learned positions must be at least the "
                f"length of the sequence; got sequence_length={self.sequence_length} "
                f"for {length} tokens. Shorten the sequence, or train with a larger "
                "`sequence_length` or sinusoids."
            )

    def _check_range(self, offset: int, length: int | None) -> None:
        if offset < 0:  # A slice would count from the end.
            raise ValueError(f"`offset` must be at least 0; got offset={offset}.")
        self.check_length(None if length is None else offset + length)


def _positions(offset: Tensor, length: Tensor) -> Tensor:
    """Counts int `(T,)` from an offset, or `(B, T)` from one for each row."""
    rank = 0 if isinstance(offset, int) else len(offset.shape)
    return ops.arange(length) + (offset[:, None] if rank else offset)
