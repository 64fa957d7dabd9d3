"""Normalizations that blocks, stacks and embeddings choose from."""

from typing import Any

import keras

from keras_tfm.layers.checks import check_above, check_choice

NORMALIZATIONS = {
    "layer_norm": keras.layers.LayerNormalization,
    "rms_norm": keras.layers.RMSNormalization,
    "batch_norm": keras.layers.BatchNormalization,
}


def normalization_layer(kind: str, epsilon: float, **kwargs: Any) -> keras.layers.Layer:
    """Creates a normalization over the last axis, or of each feature.

    `"batch_norm"` gives each feature mean 0 and variance 1 over batch and
    positions: with the statistics of the batch in training, else with moving
    averages. Pass `mask=padding_mask` in its call to leave out padding. In a
    decoder the statistics of training leak later positions into earlier ones.

    Args:
        kind: `"layer_norm"`, `"rms_norm"` or `"batch_norm"`.
        epsilon: float > 0, added to the variance.
        **kwargs: arguments of the Keras layer.

    Returns:
        `keras.layers.LayerNormalization`, `keras.layers.RMSNormalization` or
        `keras.layers.BatchNormalization`.

    Raises:
        ValueError: an unknown kind, or an `epsilon` of 0 or less.

    Source: Ba et al. 2016, https://arxiv.org/abs/1607.06450; Zhang and
    Sennrich 2019, https://arxiv.org/abs/1910.07467; Ioffe and Szegedy 2015,
    https://arxiv.org/abs/1502.03167
    """
    check_choice("normalization", kind, NORMALIZATIONS)
    check_above(0, epsilon=epsilon)
    layer = NORMALIZATIONS[kind](epsilon=epsilon, **kwargs)
    layer.supports_masking = True  # Keras' RMSNormalization warns otherwise.
    return layer
