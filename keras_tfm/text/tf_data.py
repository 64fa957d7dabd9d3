"""`tf.data` as the input pipeline of any backend."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import keras

INFINITE = -1  # length of an endless dataset, as in tf.data


def import_tensorflow() -> ModuleType:
    """Imports TensorFlow for `tf.data`; the accelerator stays with the backend.

    Under JAX and PyTorch TensorFlow gets to see no GPU: it would reserve most
    of its memory with its first operation.

    Raises:
        ImportError: TensorFlow is not installed.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            f"A tf.data pipeline needs TensorFlow, whose import failed ({error}). "
            "Install `keras-tfm[tensorflow]`, or take NumPy arrays from "
            "`Batches.batch(step)`."
        ) from error
    if keras.backend.backend() != "tensorflow":
        # RuntimeError: the user runs TensorFlow already, and chose devices.
        with contextlib.suppress(RuntimeError):
            tf.config.set_visible_devices([], "GPU")
    return tf


def step_dataset(
    batch: Callable[[int], Any],
    signature: Callable[[ModuleType], Any],
    first_step: int,
    end: int | None,
    prefetch: int = 8,
) -> Any:
    """Returns batches, computed from their number, as a `tf.data.Dataset`.

    Args:
        batch: function of an int that returns a structure of NumPy arrays.
        signature: function of the module `tensorflow` that returns the same
            structure of `tf.TensorSpec`.
        first_step: int, the first number.
        end: int or None, the number after the last; None for an endless
            dataset.
        prefetch: int. Batches prepared ahead.

    Returns:
        `tf.data.Dataset`. Reading it twice yields the same batches twice.

    Raises:
        ImportError: TensorFlow is not installed.
    """

    def generate():
        steps = itertools.count(first_step) if end is None else range(first_step, end)
        return map(batch, steps)

    length = INFINITE if end is None else end - first_step
    return generated_dataset(generate, signature, length, prefetch)


def generated_dataset(
    generate: Callable[[], Iterator],
    signature: Callable[[ModuleType], Any],
    length: int | None,
    prefetch: int = 8,
) -> Any:
    """Returns what a generator yields as a `tf.data.Dataset`.

    Args:
        generate: function that returns an iterator of structures of NumPy
            arrays.
        signature: function of the module `tensorflow` that returns the same
            structure of `tf.TensorSpec`.
        length: int, the number of elements; `INFINITE`; or None where it is
            unknown.
        prefetch: int. Elements prepared ahead.

    Raises:
        ImportError: TensorFlow is not installed.
    """
    tf = import_tensorflow()
    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature(tf))
    if length is not None:
        # Keras warns at the end of a dataset whose length it did not know.
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(length))
    return dataset.prefetch(prefetch)
