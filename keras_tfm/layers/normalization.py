"""Normalisations that blocks, stacks and embeddings choose from."""

import keras

NORMALIZATIONS = {
    "layer_norm": keras.layers.LayerNormalization,
    "rms_norm": keras.layers.RMSNormalization,
    "batch_norm": keras.layers.BatchNormalization,
}


def normalization_layer(kind, epsilon, **kwargs):
    """Makes a normalisation over the last axis, or of each feature.

    `"batch_norm"` gives each feature mean 0 and variance 1 over batch and
    positions, in training those of the batch, else moving averages of them.
    To leave out padding it wants `mask=padding_mask` in its call. In a decoder
    the statistics of training tell a position of later ones.

    Args:
        kind: `"layer_norm"`, `"rms_norm"` or `"batch_norm"`.
        epsilon: float > 0, added to the variance.
        **kwargs: of the Keras layer.

    Returns:
        `keras.layers.LayerNormalization`, `keras.layers.RMSNormalization` or
        `keras.layers.BatchNormalization`.

    Raises:
        ValueError: an unknown kind.

    Source: Ba et al. 2016, https://arxiv.org/abs/1607.06450; Zhang and
    Sennrich 2019, https://arxiv.org/abs/1910.07467; Ioffe and Szegedy 2015,
    https://arxiv.org/abs/1502.03167
    """
    if kind not in NORMALIZATIONS:
        raise ValueError(
            f"`normalization` is one of {sorted(NORMALIZATIONS)}. Received: {kind!r}."
        )
    layer = NORMALIZATIONS[kind](epsilon=epsilon, **kwargs)
    layer.supports_masking = True  # Keras' RMSNormalization warns otherwise.
    return layer
