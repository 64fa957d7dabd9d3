"""A masked language model: an encoder with the head that pretrains it."""

from typing import Unpack

import keras
from keras import ops

from keras_tfm.models import configured_model
from keras_tfm.models.encoder import Encoder
from keras_tfm.types import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tfm")
class MaskedLM(configured_model.ConfiguredModel):
    """Predicts masked tokens of a text: their logits.

    A plain functional `keras.Model` from the inputs of its encoder and
    `"mask_positions"` `(B, P)`, integers, to float `(B, P, V)`. The embedding
    matrix of the encoder projects, and a bias is added.

    Args:
        encoder: `Encoder`. Trained together with its head.
        activation: Keras activation of the layer before the projection.
        epsilon: float, of the head's normalization; None for the encoder's.
        **options: `name`, `dtype`, `trainable` of a Keras model.

    Raises:
        TypeError: an option has an unknown name.

    Example:
        ```python
        import numpy as np
        from keras_tfm import models

        encoder = models.encoder_small(100)
        model = models.MaskedLM(encoder)
        inputs = {
            "token_ids": np.array([[2, 8, 6, 3]]),
            "mask_positions": np.array([[1, 2]]),
        }
        print(model(inputs).shape)  # (1, 2, 100)
        ```

    Source: Devlin et al. 2019, section 3.1. https://arxiv.org/abs/1810.04805
    """

    def __init__(
        self,
        encoder: Encoder,
        activation: str = "gelu",
        epsilon: float | None = None,
        **options: Unpack[configured_model.KerasOptions],
    ):
        policy, keras_options = configured_model.take_policy(
            options, encoder.dtype_policy
        )
        dense = keras.layers.Dense(
            encoder.embedding_dim, activation=activation, dtype=policy, name="dense"
        )
        norm = keras.layers.LayerNormalization(
            epsilon=encoder.config["epsilon"] if epsilon is None else epsilon,
            dtype=policy,
            name="norm",
        )
        bias = Bias(dtype=policy, name="bias")
        mask_positions = keras.Input((None,), dtype="int32", name="mask_positions")
        inputs = configured_model.inputs_like(encoder)
        hidden = encoder(inputs)  # (B, S, D)
        # (B, P, D): the vectors of the masked tokens
        hidden = ops.take_along_axis(hidden, mask_positions[:, :, None], axis=1)
        # Dense layer and norm belong to the head, the matrix to the encoder.
        logits = bias(encoder.embedding.as_logits(norm(dense(hidden))))
        inputs["mask_positions"] = mask_positions
        config = {"encoder": encoder, "activation": activation, "epsilon": epsilon}
        super().__init__(inputs, logits, config, policy, keras_options)
        self.encoder, self.dense, self.norm, self.bias = encoder, dense, norm, bias


@keras.saving.register_keras_serializable(package="keras_tfm")
class Bias(keras.layers.Layer):
    """Adds a learned vector to the last axis.

    Args:
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: float `(..., D)`.

    Returns:
        float `(..., D)`.

    Example:
        ```python
        import numpy as np
        from keras_tfm.models.masked_lm import Bias

        print(Bias()(np.ones((2, 3))).shape)  # (2, 3)
        ```
    """

    def build(self, x_shape: Shape) -> None:
        self.bias = self.add_weight(
            name="bias", shape=(x_shape[-1],), initializer="zeros"
        )

    def call(self, x: Tensor) -> Tensor:
        return x + ops.cast(self.bias, x.dtype)
