"""Running text cut into rows of one length, for a language model."""

import itertools
from collections.abc import Iterable

import numpy as np

from keras_tfm.text.tf_data import step_dataset
from keras_tfm.text.vocabulary import Vocabulary


class TokenRows:
    """Rows of one length from running text, to train a `CausalLM` or judge it.

    Each text gets a start before and an end after it; then all follow one
    another without padding and are cut into rows, so that a row may begin
    inside a text and hold several. In each epoch the cuts fall elsewhere and
    rows come in another order; what fills no batch, at the beginning and the
    end, is left out.

    An element is `({"token_ids": (B, T)}, labels)`, both int32: labels `(B, T)`
    are the tokens one place on.

    Args:
        texts: iterable of strings.
        vocabulary: `Vocabulary`.
        length: int >= 1, T, in tokens.
        rows: int >= 1, B.
        seed: int from 0, of the cuts and the order.

    Attributes:
        tokens: int, of all texts, with starts and ends.
        words: int, of all texts, by spaces.
        steps_per_epoch: int.
        report: string.

    Raises:
        TypeError: `texts` is one string.
        ValueError: there is no text, or an argument is out of its range; to
            train, less text than a batch and a row hold.

    Source: Radford et al. 2018, section 3.1, for rows of running text.
    """

    def __init__(
        self,
        texts: Iterable[str],
        vocabulary: Vocabulary,
        length: int = 128,
        rows: int = 32,
        seed: int = 0,
    ):
        if min(length, rows) < 1 or seed < 0:
            raise ValueError(
                "`length` and `rows` must be 1 or more, `seed` 0 or more. Received: "
                f"length={length}, rows={rows}, seed={seed}."
            )
        if isinstance(texts, str):
            raise TypeError(
                "`texts` must be a list. Received one string: "
                f"{texts[:40]!r}. Put it into a list."
            )
        self.length, self.rows, self.seed = length, rows, seed
        self._ids, self.words = _running(texts, vocabulary)
        self.tokens, self._start_id = len(self._ids), vocabulary.start_id
        self.labels = int((self._ids != self._start_id).sum())
        # A label more than inputs, and room for cuts that fall elsewhere.
        self.steps_per_epoch = max(self.tokens - length - 1, 0) // (length * rows)
        if self.tokens < 2:
            raise ValueError("There must be text. Received: none. Give some.")
        self.report = (
            f"{self.tokens:,} tokens of {self.words:,} words; "
            f"{self.steps_per_epoch:,} steps an epoch of {rows} rows of {length}"
        )
        self._plan = (None, None)

    def batch(self, step: int):
        """Makes one batch to train on, as NumPy arrays.

        Args:
            step: int from 0, counted over all epochs.

        Returns:
            `(inputs, labels)`.
        """
        self._check_room()
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._plan[0] != epoch:
            draw = np.random.default_rng([self.seed, epoch])
            rows = self.steps_per_epoch * self.rows
            first = int(draw.integers(self.tokens - self.length * rows))
            order = draw.permutation(rows)
            self._plan = (epoch, first + self.length * order)
        starts = self._plan[1][place * self.rows : (place + 1) * self.rows]
        return self._cut(starts)

    def dataset(self, first_step: int = 0, prefetch: int = 8):
        """Gives batches to train on without end, on any Keras backend.

        Args:
            first_step: int from 0. The first batch, counted over all epochs.
            prefetch: int. Batches made ahead.

        Returns:
            `tf.data.Dataset`; give it to `fit` with `shuffle=False`.

        Raises:
            ImportError: TensorFlow is not installed.
        """
        self._check_room()
        return step_dataset(self.batch, self._signature, first_step, None, prefetch)

    def ordered(self, prefetch: int = 8):
        """Gives the text once from its beginning, for `evaluate`.

        Every token but starts is a label once; the last row is padded.

        Args:
            prefetch: int. Batches made ahead.

        Returns:
            `tf.data.Dataset`.

        Raises:
            ImportError: TensorFlow is not installed.
        """
        starts = np.arange(0, self.tokens - 1, self.length)
        count = -(-len(starts) // self.rows)

        def batch(step):
            return self._cut(starts[step * self.rows : (step + 1) * self.rows])

        return step_dataset(batch, self._signature, 0, count, prefetch)

    def _check_room(self):
        if self.steps_per_epoch < 1:
            length, rows = self.length, self.rows
            raise ValueError(
                f"A batch has {rows} rows of {length} tokens. Received: "
                f"{self.tokens:,} tokens, and {length * (rows + 1) + 1:,} are wanted. "
                "Give more text, or lower `rows` or `length`."
            )

    def _cut(self, starts):
        places = starts[:, None] + np.arange(self.length + 1)
        ids = np.where(
            places < self.tokens, self._ids[np.minimum(places, self.tokens - 1)], 0
        )
        # What is no label any more is no input either.
        token_ids = np.where(ids[:, 1:] == 0, 0, ids[:, :-1])
        # After an end comes a start for certain: that is nothing to predict.
        labels = np.where(ids[:, 1:] == self._start_id, 0, ids[:, 1:])
        return {"token_ids": token_ids}, labels

    def _signature(self, tf):
        ids = tf.TensorSpec((None, self.length), "int32")
        return ({"token_ids": ids}, ids)


def _running(texts, vocabulary):
    parts, words, texts = [], 0, iter(texts)
    marks = (vocabulary.start_id, vocabulary.end_id)
    while some := list(itertools.islice(texts, 10_000)):
        words += sum(len(text.split()) for text in some)
        rows = ((marks[0], *row, marks[1]) for row in vocabulary.encode(some))
        parts.append(np.fromiter(itertools.chain.from_iterable(rows), "int32"))
    return np.concatenate([np.zeros(0, "int32"), *parts]), words
