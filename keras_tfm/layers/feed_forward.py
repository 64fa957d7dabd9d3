"""The network that each position goes through on its own."""

import keras
from keras import ops

from keras_tfm.layers.dropout import check_shares
from keras_tfm.layers.initialization import fresh
from keras_tfm.layers.quantization import dtype_config, settle_policies


@keras.saving.register_keras_serializable(package="keras_tfm")
def gelu_tanh(x):
    """Gives GELU by its approximation with the hyperbolic tangent.

    Args:
        x: float tensor.

    Returns:
        float tensor of the same shape.

    Source: Hendrycks and Gimpel 2016, section 2. https://arxiv.org/abs/1606.08415
    """
    return keras.activations.gelu(x, approximate=True)


@keras.saving.register_keras_serializable(package="keras_tfm")
class FeedForward(keras.layers.Layer):
    """Widens each position, applies a non-linearity, and narrows it again.

    `activation(x W_1 + b_1) W_2 + b_2`; gated, the first factor is
    `activation(x W_g + b_g) * (x W_1 + b_1)`, a gated linear unit (SwiGLU with
    `activation="silu"`, GeGLU with `"gelu"`).

    Args:
        intermediate_dim: int >= 1, F.
        activation: Keras activation.
        gated: bool. Gated linear unit.
        dropout: float in [0, 1). Share of activations dropped.
        output_dim: int >= 1. None: the width of the input.
        use_bias: bool.
        kernel_initializer: Keras initializer of the matrices.
        bias_initializer: Keras initializer of the biases.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: float `(..., D)`.

    Returns:
        float `(..., output_dim)`.

    Raises:
        ValueError: `intermediate_dim` below 1.

    Source: Vaswani et al. 2017, section 3.3. https://arxiv.org/abs/1706.03762;
    gated: Shazeer 2020, https://arxiv.org/abs/2002.05202
    """

    def __init__(
        self,
        intermediate_dim,
        activation="relu",
        gated=False,
        dropout=0.0,
        output_dim=None,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if intermediate_dim < 1:
            raise ValueError(
                f"`intermediate_dim` must be 1 or more. Received: {intermediate_dim}."
            )
        self.intermediate_dim = intermediate_dim
        self.activation = keras.activations.get(activation)
        self.gated = gated
        check_shares(dropout=dropout)
        self.dropout = dropout
        self.output_dim = output_dim
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.supports_masking = True
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, x_shape):
        width = x_shape[-1]
        self.inner_dense = self._dense("inner", self.intermediate_dim, width)
        if self.gated:
            self.gate_dense = self._dense("gate", self.intermediate_dim, width)
        self.output_dense = self._dense(
            "output", self.output_dim or width, self.intermediate_dim
        )
        settle_policies(self)

    def call(self, x, training=False):
        inner = self.inner_dense(x)  # (..., F)
        if self.gated:
            inner = ops.multiply(self.activation(self.gate_dense(x)), inner)
        else:
            inner = self.activation(inner)
        return self.output_dense(self.dropout_layer(inner, training=training))

    def compute_output_shape(self, x_shape):
        return (*x_shape[:-1], self.output_dim or x_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "dtype": dtype_config(self),
            "intermediate_dim": self.intermediate_dim,
            "activation": keras.activations.serialize(self.activation),
            "gated": self.gated,
            "dropout": self.dropout,
            "output_dim": self.output_dim,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }

    def _dense(self, name, units, width):
        dense = keras.layers.Dense(
            units,
            use_bias=self.use_bias,
            kernel_initializer=fresh(self.kernel_initializer),
            bias_initializer=fresh(self.bias_initializer),
            dtype=self.dtype_policy,
            name=name,
        )
        dense.build((None, width))
        return dense
