"""Estimates the quality of a translation: an encoder, pooled and compared."""

from collections.abc import Sequence
from typing import Unpack

import keras
from keras import ops

from keras_tfm.layers.checks import check_rates, check_sizes
from keras_tfm.layers.layer_mixture import LayerMixture
from keras_tfm.layers.masks import padding_mask
from keras_tfm.layers.pooling import Pooling
from keras_tfm.models import configured_model, stacks
from keras_tfm.models.encoder import Encoder
from keras_tfm.types import Tensor

INPUTS = ("source_ids", "translation_ids", "reference_ids")


@keras.saving.register_keras_serializable(package="keras_tfm")
class TranslationEstimator(configured_model.ConfiguredModel):
    """Estimates the quality of translations, as the Estimator model of COMET.

    A plain functional `keras.Model` from `{"source_ids": (B, S),
    "translation_ids": (B, S'), "reference_ids": (B, S'')}` of integers to float
    `(B,)`: compile it with the mean squared error against human judgments.
    One encoder reads the three texts apart. The outputs of its layers, those of
    the embedding included, are mixed and pooled to one vector for each text.

    Args:
        encoder: `Encoder` without segments.
        hidden_dims: ints >= 1, the dimensions of the layers of the estimator.
        activation: Keras activation of these layers.
        final_activation: Keras activation of the estimate, or None.
        transformation: `"softmax"` or `"sparsemax"`, of the weights of the
            encoder's layers, see `LayerMixture`.
        normalize_layers: bool. Normalize the outputs of the layers before they
            are mixed.
        pooling: `"mean"`, `"max"` or `"first"`, see `Pooling`.
        dropout: float in [0, 1), after each layer of the estimator. COMET also
            drops layers of the encoder in training; this model does not.
        **options: `name`, `dtype`, `trainable` of a Keras model.

    Attributes:
        sentence_encoder: functional `keras.Model` from `{"token_ids": (B, S)}`
            to float `(B, D)`.

    Raises:
        ValueError: a size or rate is out of range, the encoder has segments, or
            a name is unknown.
        TypeError: an option has an unknown name.

    Source: Rei et al. 2020, sections 2.1 to 2.3,
    https://arxiv.org/abs/2009.09025; the products with the source as in the
    published code, https://github.com/Unbabel/COMET

    Example:
        ```python
        import numpy as np
        from keras_tfm import models

        model = models.TranslationEstimator(models.encoder_small(100), [16])
        ids = np.array([[2, 8, 6, 3]])
        inputs = dict(source_ids=ids, translation_ids=ids, reference_ids=ids)
        print(model(inputs).shape)  # (1,)
        ```
    """

    def __init__(
        self,
        encoder: Encoder,
        hidden_dims: Sequence[int] = (3072, 1024),
        activation: str = "tanh",
        final_activation: str | None = None,
        transformation: str = "softmax",
        normalize_layers: bool = False,
        pooling: str = "mean",
        dropout: float = 0.1,
        **options: Unpack[configured_model.KerasOptions],
    ):
        if encoder.segment_embedding is not None:
            raise ValueError(
                "`encoder` must have no segments, since each text is read apart; got "
                f"num_segments={encoder.config['num_segments']}."
            )
        check_rates(dropout=dropout)
        check_sizes(hidden_dims=min(hidden_dims, default=None))
        policy, keras_options = configured_model.take_policy(
            options, encoder.dtype_policy
        )
        mixture = LayerMixture(
            transformation, normalize_layers, dtype=policy, name="mixture"
        )
        pooling_layer = Pooling(pooling, dtype=policy, name="pooling")
        hidden_layers = [
            keras.layers.Dense(
                n, activation=activation, dtype=policy, name=f"dense_{i}"
            )
            for i, n in enumerate(hidden_dims)
        ]
        dropout_layer = keras.layers.Dropout(dropout, dtype=policy, name="head_dropout")
        # Half precision would round close estimates to the same number.
        half_precision = policy.compute_dtype in ("float16", "bfloat16")
        output_dense = keras.layers.Dense(
            1,
            activation=final_activation,
            dtype="float32" if half_precision else policy,
            name="estimate",
        )
        sentence_encoder = _sentence_encoder(encoder, mixture, pooling_layer)
        inputs = stacks.id_inputs(*INPUTS)
        vectors = [sentence_encoder({"token_ids": ids}) for ids in inputs.values()]
        head = (hidden_layers, dropout_layer, output_dense)
        config = {
            "encoder": encoder,
            "hidden_dims": list(hidden_dims),
            "activation": activation,
            "final_activation": final_activation,
            "transformation": transformation,
            "normalize_layers": normalize_layers,
            "pooling": pooling,
            "dropout": dropout,
        }
        estimate = _estimate(head, *vectors)  # (B,)
        super().__init__(inputs, estimate, config, policy, keras_options)
        self.encoder, self.sentence_encoder = encoder, sentence_encoder
        self.mixture, self.pooling_layer = mixture, pooling_layer
        self.hidden_layers, self.output_dense = hidden_layers, output_dense
        self.dropout_layer = dropout_layer

    def estimate(
        self, source: Tensor, translation: Tensor, reference: Tensor
    ) -> Tensor:
        """Estimates quality from the vectors of `sentence_encoder`.

        Args:
            source, translation, reference: float `(B, D)`.

        Returns:
            float `(B,)`.
        """
        head = (self.hidden_layers, self.dropout_layer, self.output_dense)
        return _estimate(head, source, translation, reference)


def _sentence_encoder(
    encoder: Encoder, mixture: LayerMixture, pooling: Pooling
) -> keras.Model:
    """Makes a functional model from token ids to a vector for each text."""
    # The last of them after the final norm, if there is one.
    states = [encoder.dropout_layer, *encoder.blocks[:-1]]
    states = [*(layer.output for layer in states), encoder.output]  # n * (B, S, D)
    layers_of_encoder = configured_model.hidden_model(encoder, states)
    inputs = stacks.id_inputs("token_ids")
    mask = padding_mask(inputs["token_ids"], encoder.pad_id)
    mixed = mixture(layers_of_encoder(inputs), padding_mask=mask)
    pooled = pooling(mixed, padding_mask=mask)  # (B, D)
    return keras.Model(inputs, pooled, name="sentence_encoder")


def _estimate(
    head: tuple, source: Tensor, translation: Tensor, reference: Tensor
) -> Tensor:
    """Compares three vectors `(B, D)`; returns `(B,)`."""
    hidden_layers, dropout, output = head
    features = [translation, reference]
    for text in (reference, source):
        features += [translation * text, ops.abs(translation - text)]
    x = ops.concatenate(features, axis=-1)  # (B, 6 D)
    for layer in hidden_layers:
        x = dropout(layer(x))
    return ops.squeeze(output(x), -1)
