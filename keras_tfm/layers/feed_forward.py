"""The feed-forward network of a block, applied to each position."""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers.checks import check_rates, check_sizes
from keras_tfm.layers.projections import dense
from keras_tfm.layers.quantization import layer_config, settle_policies
from keras_tfm.layers.weights import KernelLayer
from keras_tfm.types import Activation, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tfm")
def gelu_tanh(x: Tensor) -> Tensor:
    """Computes GELU by its approximation with the hyperbolic tangent.

    Args:
        x: float tensor.

    Returns:
        float tensor of the same shape.

    Source: Hendrycks and Gimpel 2016, section 2. https://arxiv.org/abs/1606.08415

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        print(layers.gelu_tanh(np.array([1.0], "float32")))  # about 0.8412
        ```
    """
    return keras.activations.gelu(x, approximate=True)


@keras.saving.register_keras_serializable(package="keras_tfm")
class FeedForward(KernelLayer):
    """Applies two linear maps with an activation between them.

    `activation(x W_1 + b_1) W_2 + b_2`; gated, the first factor is
    `activation(x W_g + b_g) * (x W_1 + b_1)`, a gated linear unit (SwiGLU with
    `activation="silu"`, GeGLU with `"gelu"`).

    Args:
        intermediate_dim: int >= 1, F.
        activation: Keras activation.
        gated: bool. Gated linear unit.
        dropout: float in [0, 1). Rate at which activations are dropped.
        use_bias: bool.
        seed: int or None, of the dropout.
        **kwargs: initializers, regularizers and constraints, see
            `layers.weights.KernelLayer`; arguments of `keras.layers.Layer`.

    Call arguments:
        x: float `(..., D)`.

    Returns:
        float `(..., D)`.

    Raises:
        ValueError: a dimension below 1, or a rate outside [0, 1).

    Source: Vaswani et al. 2017, section 3.3. https://arxiv.org/abs/1706.03762;
    gated: Shazeer 2020, https://arxiv.org/abs/2002.05202

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        layer = layers.FeedForward(16, activation="silu", gated=True)
        print(layer(np.ones((2, 3, 8))).shape)  # (2, 3, 8)
        ```
    """

    def __init__(
        self,
        intermediate_dim: int,
        activation: Activation = "relu",
        gated: bool = False,
        dropout: float = 0.0,
        use_bias: bool = True,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_sizes(intermediate_dim=intermediate_dim)
        check_rates(dropout=dropout)
        self.intermediate_dim = intermediate_dim
        self.activation = keras.activations.get(activation)
        self.gated = gated
        self.dropout = dropout
        self.use_bias = use_bias
        self.seed = seed
        self.supports_masking = True
        self.dropout_layer = keras.layers.Dropout(
            dropout, seed=seed, dtype=self.dtype_policy
        )

    def build(self, x_shape: Shape) -> None:
        dim, inner_dim = x_shape[-1], self.intermediate_dim  # D, F
        self.inner_dense = self._dense("inner", dim, inner_dim)
        if self.gated:
            self.gate_dense = self._dense("gate", dim, inner_dim)
        self.output_dense = self._dense("output", inner_dim, dim)
        settle_policies(self)

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        inner = self.inner_dense(x)  # (..., F)
        if self.gated:
            # The activation is on the gate, as in Shazeer 2020, equation 6.
            inner = ops.multiply(self.activation(self.gate_dense(x)), inner)
        else:
            inner = self.activation(inner)
        inner = self.dropout_layer(inner, training=training)
        return self.output_dense(inner)  # (..., D)

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        return tuple(x_shape)

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, FeedForward)}

    def _dense(self, name, input_dim, units):
        return dense(self, name, input_dim, units, use_bias=self.use_bias)
