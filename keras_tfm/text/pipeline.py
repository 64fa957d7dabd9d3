"""TensorFlow as the pipeline of any backend."""

import contextlib

import keras


def import_tensorflow():
    """Imports TensorFlow for tf.data and leaves the accelerator to the backend.

    Under JAX and PyTorch TensorFlow gets to see no GPU: it would take most of
    its memory with its first operation.

    Returns:
        the module `tensorflow`.

    Raises:
        ImportError: TensorFlow is not installed.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            "A tf.data pipeline needs TensorFlow, which cannot be imported here "
            f"({error}). Install `keras-tfm[tensorflow]`, or take NumPy arrays from "
            "`Batches.batch(step)`."
        ) from error
    if keras.backend.backend() != "tensorflow":
        # Too late if TensorFlow is in use already: then that is a choice.
        with contextlib.suppress(RuntimeError):
            tf.config.set_visible_devices([], "GPU")
    return tf
