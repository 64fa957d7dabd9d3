"""Guesses hidden tokens: an encoder with the head that pretrains it."""

import keras
from keras import ops

from keras_tfm.layers.quantization import dtype_config, settle_policies
from keras_tfm.models import stacks


@keras.saving.register_keras_serializable(package="keras_tfm")
class MaskedLM(keras.Model):
    """Gives the logits of the tokens at some places of a text.

    A plain functional `keras.Model` from the inputs of its encoder and
    `"mask_positions"` `(B, P)`, integers, to float `(B, P, V)`. The table of
    the encoder's tokens projects, and a bias is added.

    Args:
        encoder: `Encoder`. Trained together with what stands on it.
        activation: Keras activation of the layer before the projection.
        **kwargs: `name`, `dtype`, `trainable` of a Keras model.

    Source: Devlin et al. 2019, section 3.1. https://arxiv.org/abs/1810.04805
    """

    def __init__(self, encoder, activation="gelu", **kwargs):
        policy = stacks.policy_of(kwargs, encoder.dtype_policy)
        dense = keras.layers.Dense(
            encoder.embedding_dim, activation=activation, dtype=policy, name="dense"
        )
        norm = keras.layers.LayerNormalization(
            epsilon=encoder.config["epsilon"], dtype=policy, name="norm"
        )
        bias = Bias(dtype=policy, name="bias")
        mask_positions = keras.Input((None,), dtype="int32", name="mask_positions")
        inputs = stacks.inputs_of(encoder)
        hidden = encoder(inputs)
        hidden = ops.take_along_axis(hidden, mask_positions[:, :, None], axis=1)
        logits = bias(encoder.embedding.as_logits(norm(dense(hidden))))
        super().__init__(
            inputs={**inputs, "mask_positions": mask_positions},
            outputs=logits,
            **kwargs,
        )
        settle_policies(self)
        self.dtype_policy = policy  # `compile` scales the loss of mixed_float16.
        self.encoder, self.dense, self.norm, self.bias = encoder, dense, norm, bias
        self.activation = keras.activations.get(activation)

    def get_config(self):
        return {
            "encoder": keras.saving.serialize_keras_object(self.encoder),
            "activation": keras.activations.serialize(self.activation),
            "name": self.name,
            "trainable": self.trainable,
            "dtype": dtype_config(self),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        config["encoder"] = keras.saving.deserialize_keras_object(
            config["encoder"], custom_objects=custom_objects
        )
        return cls(**config)


@keras.saving.register_keras_serializable(package="keras_tfm")
class Bias(keras.layers.Layer):
    """Adds a vector of its own to the last axis.

    Args:
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: float `(..., D)`.

    Returns:
        float `(..., D)`.
    """

    def build(self, x_shape):
        self.bias = self.add_weight(
            name="bias", shape=(x_shape[-1],), initializer="zeros"
        )

    def call(self, x):
        return x + ops.cast(self.bias, x.dtype)
