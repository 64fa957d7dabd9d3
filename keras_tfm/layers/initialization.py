"""Initializers that several matrices draw from."""

import keras


def fresh(initializer):
    """Copies an initializer, so that each matrix is drawn for itself.

    Args:
        initializer: what `keras.initializers.get` takes.

    Returns:
        `keras.initializers.Initializer` with a seed of its own unless one was
        given; or the function that was given.
    """
    initializer = keras.initializers.get(initializer)
    is_function = not isinstance(initializer, keras.initializers.Initializer)
    return initializer if is_function else initializer.clone()
