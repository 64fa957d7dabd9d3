"""Initializers that several matrices draw from."""

import keras

from keras_tfm.layers.types import Initializer


def clone_initializer(initializer: Initializer) -> Initializer:
    """Copies an initializer, so that each matrix gets its own random numbers.

    Args:
        initializer: what `keras.initializers.get` takes.

    Returns:
        `keras.initializers.Initializer` with a new seed unless it has a fixed
        one; a function is returned as it is.
    """
    initializer = keras.initializers.get(initializer)
    is_function = not isinstance(initializer, keras.initializers.Initializer)
    return initializer if is_function else initializer.clone()
