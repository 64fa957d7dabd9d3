"""Batches that are a pure function of a seed and the number of a step."""

import abc
from typing import Any

import numpy as np

from keras_tfm.text.checks import check
from keras_tfm.text.tf_data import step_dataset


class StepBatches(abc.ABC):
    """Base of all batches that train: one rule of seeds, one way to resume.

    A batch depends on `seed` and the number of its step alone, counted over all
    epochs: a run that was stopped resumes with `dataset(first_step=step)` and
    sees what it would have seen. The order of an epoch is drawn from
    `[seed, epoch]`; everything else from `[seed, step]`, which a number for
    the purpose follows in some subclasses.

    Args:
        seed: int >= 0.

    Attributes:
        steps_per_epoch: int.
        report: string.
    """

    steps_per_epoch: int
    report: str

    def __init__(self, seed: int):
        check(seed >= 0, "`seed` must be 0 or more", seed=seed)
        self.seed = seed
        self._epoch = (None, None)  # the last one drawn: its number and its steps

    @abc.abstractmethod
    def batch(self, step: int) -> tuple:
        """Returns one batch, as NumPy arrays.

        Args:
            step: int from 0, counted over all epochs.
        """

    @abc.abstractmethod
    def _signature(self, tf):
        """Returns the structure of a batch, of `tf.TensorSpec`."""

    def dataset(
        self, first_step: int = 0, repeat: bool = True, prefetch: int = 8
    ) -> Any:
        """Returns the batches as a `tf.data.Dataset`, on any Keras backend.

        Reading it twice yields the same batches twice.

        Args:
            first_step: int from 0. The first batch, counted over all epochs.
            repeat: bool. False ends with the epoch of `first_step`, as
                `validation_data` needs it.
            prefetch: int. Batches prepared ahead.

        Returns:
            `tf.data.Dataset`; pass it to `fit` with `shuffle=False`.

        Raises:
            ImportError: TensorFlow is not installed.
            ValueError: `first_step` is negative.
        """
        check(first_step >= 0, "`first_step` must be 0 or more", first_step=first_step)
        self.batch(first_step)  # a fault is raised here, not inside of tf.data
        end = None
        if not repeat:
            end = (first_step // self.steps_per_epoch + 1) * self.steps_per_epoch
        return step_dataset(self.batch, self._signature, first_step, end, prefetch)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.report}>"

    def _at_step(self, step):
        """Returns the entry of `_draw_epoch` for a step."""
        epoch, position = divmod(step, self.steps_per_epoch)
        number, entries = self._epoch
        if number != epoch:
            entries = self._draw_epoch(epoch)
            self._epoch = (epoch, entries)
        return entries[position]

    def _draw_epoch(self, epoch):
        """Draws which examples each step of an epoch takes, a list of them."""
        raise NotImplementedError

    def _generator(self, number, *purpose):
        return np.random.default_rng([self.seed, number, *purpose])


def check_sampling(subword_sampling: float | None) -> None:
    """Checks the alpha of subword sampling.

    Raises:
        ValueError: it is neither None nor above 0 and at most 1.
    """
    check(
        subword_sampling is None or 0 < subword_sampling <= 1,
        "`subword_sampling` must be None, or above 0 and at most 1",
        subword_sampling=subword_sampling,
    )
