"""TensorFlow as the pipeline of any backend."""

import contextlib
import itertools

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


def step_dataset(batch, signature, first, last=None, prefetch=8):
    """Gives batches that are made by their number as a `tf.data.Dataset`.

    Args:
        batch: function of an int, giving a structure of NumPy arrays.
        signature: function that takes the module `tensorflow` and gives that
            structure, of `tf.TensorSpec`.
        first: int, the first number.
        last: int or None, the number after the last; None for no end.
        prefetch: int. Batches made ahead.

    Returns:
        `tf.data.Dataset`. Reading it twice gives the same batches twice.

    Raises:
        ImportError: TensorFlow is not installed.
        ValueError: `first` is negative.
    """
    if first < 0:
        raise ValueError(f"Steps are counted from 0. Received: first_step={first}.")
    tf = import_tensorflow()

    def generate():
        numbers = itertools.count(first) if last is None else range(first, last)
        yield from map(batch, numbers)

    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature(tf))
    # Keras warns at the end of a dataset whose length it did not know.
    count = tf.data.INFINITE_CARDINALITY if last is None else last - first
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
    return dataset.prefetch(prefetch)
