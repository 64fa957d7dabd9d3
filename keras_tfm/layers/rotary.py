"""Rotary position encoding (RoPE)."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.layers.checks import check_above, check_choice
from keras_tfm.layers.quantization import layer_config
from keras_tfm.layers.relative_position import RelativePositions
from keras_tfm.types import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tfm")
class RotaryPositions(RelativePositions):
    """Rotates pairs of channels by an angle that grows with the position.

    The product of a query and a key then depends on their distance only.
    Channels 2i and 2i + 1 rotate by `position * max_period^(-2i / d)`, as in
    the paper (`"interleaved"`); GPT-NeoX and LLaMA pair channel i with i + d/2
    (`"halves"`).

    Args:
        style: `"interleaved"` (the paper's) or `"halves"`.
        max_period: float > 1, in tokens.
        rotary_dim: even int or None: d, the first channels of each head, which
            rotate; the others stay. None: all.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        x: float `(B, T, H, d_k)`, queries or keys.
        positions: int `(T,)` or `(B, T)`, in tokens, or None for 0 to T - 1.

    Returns:
        float `(B, T, H, d_k)`.

    Raises:
        ValueError: an unknown style, a `max_period` of 1 or less, or a number
            of channels that is odd or more than there are.

    Source: Su et al. 2021, section 3.2. https://arxiv.org/abs/2104.09864

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        x = np.ones((1, 3, 2, 4))
        print(layers.RotaryPositions()(x).shape)  # (1, 3, 2, 4)
        attention = layers.MultiHeadAttention(2, positions="rotary")
        print(attention(np.ones((1, 3, 8))).shape)  # (1, 3, 8)
        ```
    """

    def __init__(
        self,
        style: str = "interleaved",
        max_period: float = 10_000.0,
        rotary_dim: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_choice("style", style, ("interleaved", "halves"))
        check_above(1, max_period=max_period)
        self.style = style
        self.max_period = max_period
        self.rotary_dim = rotary_dim

    def build(self, queries_shape: Shape) -> None:
        head_dim = queries_shape[-1]
        rotary_dim = head_dim if self.rotary_dim is None else self.rotary_dim
        if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
            raise ValueError(
                "`rotary_dim` must be even and at most the dimension of a head; got "
                f"rotary_dim={self.rotary_dim}, key_dim={head_dim}. Choose another "
                "`key_dim` or `rotary_dim`."
            )
        self._rotary_dim = rotary_dim

    def call(self, x: Tensor, positions: Tensor = None) -> Tensor:
        if positions is None:
            positions = ops.arange(ops.shape(x)[1])
        return self.rotate(x, positions)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        dim, num_pairs = self._rotary_dim, self._rotary_dim // 2
        speed = self.max_period ** (-np.arange(num_pairs, dtype="float64") / num_pairs)
        speed = ops.convert_to_tensor(speed, dtype="float32")  # (d/2,)
        # float32: half precision cannot tell position 2049 from 2048.
        angle = ops.cast(positions, "float32")[..., None, None] * speed
        cos, sin = ops.cos(angle), ops.sin(angle)  # (T, 1, d/2), or (B, T, 1, d/2)
        channels = ops.cast(x[..., :dim], "float32")  # (B, T, H, d)
        if self.style == "halves":
            # Channel i is paired with i + d/2.
            first, second = channels[..., :num_pairs], channels[..., num_pairs:]
        else:
            # Channel 2i is paired with 2i + 1.
            pairs = ops.reshape(channels, (*ops.shape(x)[:3], num_pairs, 2))
            first, second = pairs[..., 0], pairs[..., 1]
        # (B, T, H, d/2) each
        rotated = [first * cos - second * sin, second * cos + first * sin]
        if self.style == "halves":
            rotated = ops.concatenate(rotated, axis=-1)  # (B, T, H, d)
        else:
            rotated = ops.stack(rotated, axis=-1)  # (B, T, H, d/2, 2)
            rotated = ops.reshape(rotated, (*ops.shape(x)[:3], dim))
        rotated = ops.cast(rotated, x.dtype)
        if dim == x.shape[-1]:
            return rotated
        # Channels past `rotary_dim` carry no position, as in GPT-J.
        return ops.concatenate([rotated, x[..., dim:]], axis=-1)

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, RotaryPositions)}
