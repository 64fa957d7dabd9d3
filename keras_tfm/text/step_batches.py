"""Batches that are a pure function of a seed and the number of a step."""

import abc
from typing import Any

import keras
import numpy as np

from keras_tfm.text.checks import check
from keras_tfm.text.division import WHOLE, Division, Part, make_division
from keras_tfm.text.tf_data import generated_dataset, has_tensorflow, step_dataset


class StepBatches(abc.ABC):
    """Base of all batches that train: one rule of seeds, one way to resume.

    A batch depends on `seed` and the number of its step alone, counted over all
    epochs: a run that was stopped resumes with `dataset(first_step=step)`, or
    `py_dataset(first_epoch=epoch)`, and sees what it would have seen. The order
    of an epoch is drawn from `[seed, epoch]`; everything else from
    `[seed, step]`, which a number for the purpose follows in some subclasses.

    Under a distribution of Keras (JAX), `dataset` and `py_dataset` divide each
    batch: it is filled up with empty rows, of no weight in the loss, to a
    multiple of `text.data_parallel_width()`, and a process has the rows of its
    own devices, `text.local_part()`. What is in a batch does not depend on the
    number of devices, so that a run can resume on fewer or more.

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

    def divided_batch(self, step: int, division: Division) -> tuple:
        """Returns a part of a batch that is filled up, as NumPy arrays.

        Args:
            step: int from 0, counted over all epochs.
            division: `keras_tfm.text.division.Division`.
        """
        return self._divide(self.batch(step), division)

    @abc.abstractmethod
    def lengths(self, step: int) -> tuple[int, ...]:
        """Returns the padded lengths of a batch, without computing it.

        Args:
            step: int from 0, counted over all epochs.
        """

    def dataset(
        self,
        first_step: int = 0,
        repeat: bool = False,
        prefetch: int = 8,
        part: Part | None = None,
        rows_multiple: int | None = None,
    ) -> Any:
        """Returns the batches as a `tf.data.Dataset`, on any Keras backend.

        It ends with its epoch, and the next pass over it is the next epoch, in
        another order, so that `fit(batches.dataset(), epochs=3)` trains for
        three epochs. A pass that is not read to its end begins again.

        Args:
            first_step: int from 0. The first batch, counted over all epochs.
            repeat: bool. True: a pass never ends, and begins at `first_step`;
                pass `steps_per_epoch` to `fit`.
            prefetch: int. Batches that TensorFlow prepares ahead.
            part: `(index, count)`: the part of each batch, of `count` equal
                ones. None: the rows of this process, see `text.local_part`.
            rows_multiple: int >= 1. Each batch is filled up with empty rows to
                a multiple of it, and of `count`. None: the width of the
                distribution of Keras, see `text.data_parallel_width`.

        Returns:
            `tf.data.Dataset`; pass it to `fit` with `shuffle=False`. Without
            TensorFlow a `keras.utils.PyDataset` of the same batches.

        Raises:
            ImportError: TensorFlow is not installed, `repeat` is False, and
                `first_step` is not the first of an epoch.
            ValueError: `first_step` is negative, or an argument is out of its
                range.
        """
        check(first_step >= 0, "`first_step` must be 0 or more", first_step=first_step)
        division = make_division(part, rows_multiple)

        def batch(step):
            return self.divided_batch(step, division)

        def signature(tf):
            return self._divided_signature(tf, division)

        batch(first_step)  # a fault is raised here, not inside of tf.data
        if repeat:
            return step_dataset(batch, signature, first_step, None, prefetch)
        steps = self.steps_per_epoch
        if first_step % steps == 0 and not has_tensorflow():
            return EpochDataset(self, first_step // steps, division)
        start = first_step  # of the next pass

        def generate():
            nonlocal start
            end = (start // steps + 1) * steps
            yield from map(batch, range(start, end))
            start = end

        # A first pass that resumes inside an epoch is shorter than the others.
        length = None if first_step % steps else steps
        return generated_dataset(generate, signature, length, prefetch)

    def py_dataset(
        self,
        first_epoch: int = 0,
        part: Part | None = None,
        rows_multiple: int | None = None,
    ) -> "EpochDataset":
        """Returns the batches as a `keras.utils.PyDataset`, without TensorFlow.

        Args:
            first_epoch: int from 0.
            part: `(index, count)` or None, as in `dataset`.
            rows_multiple: int or None, as in `dataset`.

        Returns:
            `EpochDataset`, for `fit`, `evaluate` and `predict`.

        Raises:
            ValueError: an argument is out of its range.
        """
        return EpochDataset(self, first_epoch, make_division(part, rows_multiple))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.report}>"

    def _divided_signature(self, tf, division):
        """Returns the structure of `divided_batch`, of `tf.TensorSpec`."""
        return self._signature(tf)

    def _divide(self, batch, division):
        """Fills a batch up with empty rows, and takes a part of it."""
        if division == WHOLE:
            return batch
        num_rows = len(batch[1])
        first, end = division.rows(num_rows)
        filled = self._filled(batch, division.num_rows(num_rows) - num_rows)
        return keras.tree.map_structure(lambda array: array[first:end], filled)

    def _filled(self, batch, num_empty):
        """Adds rows of padding, whose labels have no weight in a loss."""
        return keras.tree.map_structure(lambda x: pad_rows(x, num_empty), batch)

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


class EpochDataset(keras.utils.PyDataset):
    """The batches of an epoch, and after it those of the next one.

    Each batch of an epoch is here once, in the order of `batches` but for two:
    a batch of the shortest bucket is the first and one of the longest the
    second. From these two Keras learns on TensorFlow which dimensions vary.

    Args:
        batches: `StepBatches`.
        first_epoch: int from 0.
        division: `keras_tfm.text.division.Division` of each batch.

    Attributes:
        epoch: int, the epoch of the batches, which `fit` counts up. One that is
            not read to its end begins again.

    Example:
        ```python
        from keras_tfm import text

        vocabulary = text.Vocabulary.train(["a b c"] * 9, 270, exact=False)
        rows = text.TokenRows(["a b c"] * 9, vocabulary, length=4, batch_size=2)
        dataset = rows.py_dataset()
        assert len(dataset) == rows.steps_per_epoch
        # model.fit(dataset, epochs=3)
        ```
    """

    def __init__(
        self,
        batches: StepBatches,
        first_epoch: int = 0,
        division: Division = WHOLE,
    ):
        # No threads: those of Keras carry batches of one epoch into the next,
        # and leave some unread.
        super().__init__()
        check(first_epoch >= 0, "`first_epoch` must be 0 or more", epoch=first_epoch)
        self.batches, self.epoch = batches, first_epoch
        self._division = division
        self._order = (None, None)  # the epoch it belongs to, and its steps
        self._read = set()  # indices, since the last epoch ended

    def __len__(self) -> int:
        return self.batches.steps_per_epoch

    def __getitem__(self, index: int) -> tuple:
        if not 0 <= index < len(self):
            raise IndexError(f"`index` must be from 0 to {len(self) - 1}; got {index}.")
        self._read.add(index)
        return self.batches.divided_batch(self._steps()[index], self._division)

    def on_epoch_end(self) -> None:
        # Keras ends an epoch twice, and one of which it has read a batch only.
        self.epoch += len(self._read) == len(self)
        self._read = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: epoch {self.epoch} of {self.batches!r}>"

    def _steps(self):
        """Returns the numbers of the steps of this epoch, in this order."""
        epoch, steps = self._order
        if epoch != self.epoch:
            epoch, first = self.epoch, self.epoch * len(self)
            steps = list(range(first, first + len(self)))
            for place, choose in enumerate((min, max)):
                step = choose(steps[place:], key=self.batches.lengths, default=None)
                if step is not None:
                    index = steps.index(step)
                    steps[place], steps[index] = step, steps[place]
            self._order = (epoch, steps)
        return steps


def pad_rows(array: np.ndarray, count: int) -> np.ndarray:
    """Returns an array with rows of 0 after its own.

    Args:
        array: `(B, ...)`.
        count: int, rows to add.
    """
    return np.pad(array, [(0, count)] + [(0, 0)] * (array.ndim - 1))


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
