"""Running text split into rows of one length, for a language model."""

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_tfm.text.checks import check
from keras_tfm.text.division import make_division
from keras_tfm.text.files import chunks
from keras_tfm.text.step_batches import StepBatches
from keras_tfm.text.tf_data import step_dataset
from keras_tfm.text.vocabulary import Vocabulary


class TokenRows(StepBatches):
    """Rows of one length from running text, to train or evaluate a `CausalLM`.

    Each text gets a start and an end token; then all are concatenated without
    padding and split into rows, so that a row may begin inside a text and hold
    several. In each epoch the splits fall elsewhere and rows come in another
    order; tokens at the beginning and the end that fill no batch are left out.

    An element is `({"token_ids": (B, T)}, labels)`, both int32: labels `(B, T)`
    are the next tokens.

    Args:
        texts: iterable of strings.
        vocabulary: `Vocabulary`.
        length: int >= 1, T, in tokens.
        batch_size: int >= 1, B.
        seed: int from 0, of the splits and the order.

    Attributes:
        num_tokens: int, of all texts, with starts and ends.
        num_words: int, of all texts, by whitespace.
        num_labels: int, tokens that are predicted: all except starts.
        steps_per_epoch: int.
        report: string.

    Raises:
        TypeError: `texts` is one string.
        ValueError: there is no text, or an argument is out of its range; in
            training, there is less text than one batch.

    Source: Radford et al. 2018, section 3.1, for rows of running text.

    Example:
        ```python
        from keras_tfm import text

        texts = ["one two three"] * 20
        vocabulary = text.Vocabulary.train(texts, 280, exact=False)
        rows = text.TokenRows(texts, vocabulary, length=8, batch_size=2)
        inputs, labels = rows.batch(0)
        print(rows.report)
        ```
    """

    def __init__(
        self,
        texts: Iterable[str],
        vocabulary: Vocabulary,
        length: int = 128,
        batch_size: int = 32,
        seed: int = 0,
    ):
        check(
            min(length, batch_size) >= 1,
            "`length` and `batch_size` must be 1 or more",
            length=length,
            batch_size=batch_size,
        )
        if isinstance(texts, str):
            raise TypeError(
                f"`texts` must be a list of strings; got one string: {texts[:40]!r}. "
                "Put it into a list."
            )
        super().__init__(seed)
        self.length, self.batch_size = length, batch_size
        self._ids, self.num_words = _concatenate(texts, vocabulary)
        self.num_tokens, self._start_id = len(self._ids), vocabulary.start_id
        check(self.num_tokens > 1, "`texts` must hold text", tokens=self.num_tokens)
        self.num_labels = int((self._ids != self._start_id).sum())
        # A label more than inputs, and up to a row before the first.
        usable = max(self.num_tokens - length - 1, 0)
        self.steps_per_epoch = usable // (length * batch_size)
        self.report = (
            f"{self.num_tokens:,} tokens of {self.num_words:,} words; "
            f"{self.steps_per_epoch:,} steps an epoch of {batch_size} rows of {length}"
        )

    def batch(self, step: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns one batch to train on, as NumPy arrays.

        Args:
            step: int from 0, counted over all epochs.

        Returns:
            `(inputs, labels)`.
        """
        check(
            self.steps_per_epoch,
            f"`texts` must have {self.length * (self.batch_size + 1) + 1:,} tokens for "
            f"a batch of {self.batch_size} rows of {self.length}",
            "Add text, or lower `batch_size` or `length`.",
            tokens=self.num_tokens,
        )
        return self._rows(self._at_step(step))

    def lengths(self, step: int) -> tuple[int, ...]:
        return (self.length,)

    def ordered(self, prefetch: int = 8) -> Any:
        """Returns the text once from its beginning, for `evaluate`.

        Every token except starts is a label once; the last row is padded.

        Args:
            prefetch: int. Batches that TensorFlow prepares ahead.

        Returns:
            `tf.data.Dataset`; without TensorFlow a `keras.utils.PyDataset`.
        """
        starts, size = np.arange(0, self.num_tokens - 1, self.length), self.batch_size
        division = make_division()

        def batch(step):
            rows = self._rows(starts[step * size : (step + 1) * size])
            return self._divide(rows, division)

        return step_dataset(
            batch,
            self._signature,
            0,
            -(-len(starts) // size),
            prefetch,
        )

    def _draw_epoch(self, epoch):
        """Returns where the rows of each step start, `(steps, B)`."""
        generator = self._generator(epoch)
        num_rows = self.steps_per_epoch * self.batch_size
        offset = int(generator.integers(self.num_tokens - self.length * num_rows))
        starts = offset + self.length * generator.permutation(num_rows)
        return starts.reshape(self.steps_per_epoch, self.batch_size)

    def _rows(self, starts):
        positions = starts[:, None] + np.arange(self.length + 1)  # (B, T + 1)
        ids = self._ids[np.minimum(positions, self.num_tokens - 1)]
        ids = np.where(positions < self.num_tokens, ids, 0)
        # The last token has no label, and so is no input.
        token_ids = np.where(ids[:, 1:] == 0, 0, ids[:, :-1])
        # A start is certain after an end: nothing to predict.
        labels = np.where(ids[:, 1:] == self._start_id, 0, ids[:, 1:])
        return {"token_ids": token_ids}, labels

    def _signature(self, tf):
        ids = tf.TensorSpec((None, self.length), "int32")
        return ({"token_ids": ids}, ids)


def _concatenate(texts, vocabulary):
    """Returns the ids of all texts, starts and ends included, and the words."""
    parts, num_words = [np.zeros(0, "int32")], 0
    for chunk in chunks(texts, 10_000):
        num_words += sum(len(text.split()) for text in chunk)
        rows = (
            (vocabulary.start_id, *row, vocabulary.end_id)
            for row in vocabulary.encode(chunk)
        )
        parts.append(np.fromiter(itertools.chain.from_iterable(rows), "int32"))
    return np.concatenate(parts), num_words
