"""`tf.data` as the input pipeline of any backend.

Without TensorFlow, a `keras.utils.PyDataset` yields batches that depend on
their number alone.
"""

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


def has_tensorflow() -> bool:
    """Returns whether TensorFlow can be imported."""
    try:
        import_tensorflow()
    except ImportError:
        return False
    return True


class StepDataset(keras.utils.PyDataset):
    """Batches, computed from their number, without TensorFlow.

    Args:
        batch: function of an int that returns a structure of NumPy arrays.
        first_step: int, the first number.
        end: int or None, the number after the last; None for an endless
            dataset.
    """

    def __init__(self, batch: Callable[[int], Any], first_step: int, end: int | None):
        super().__init__()  # no threads: Keras' leave some batches unread
        self._batch, self._first_step, self._end = batch, first_step, end

    @property
    def num_batches(self) -> int | None:
        """Number of batches; None for an endless dataset."""
        return None if self._end is None else self._end - self._first_step

    def __getitem__(self, index: int) -> Any:
        return self._batch(self._first_step + index)


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
        Without TensorFlow, `StepDataset`.
    """
    if not has_tensorflow():
        return StepDataset(batch, first_step, end)

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
