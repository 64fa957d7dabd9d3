"""Batches of a fixed budget of tokens from texts with labels."""

import functools
import logging
from typing import Any

import numpy as np

from keras_tfm.text.bucketing import Bucketing
from keras_tfm.text.checks import check
from keras_tfm.text.division import make_division
from keras_tfm.text.labeled import LabeledDataset
from keras_tfm.text.pair_packing import (
    add_empty_texts,
    count_special_tokens,
    pack_texts,
    truncated_lengths,
)
from keras_tfm.text.step_batches import StepBatches, check_sampling, pad_rows
from keras_tfm.text.tf_data import step_dataset
from keras_tfm.text.tokenized_column import TokenArray, TokenizedColumn
from keras_tfm.text.tokenizers_vocabulary import TokenizersVocabulary
from keras_tfm.text.vocabulary import Vocabulary

_log = logging.getLogger(__name__)


class LabelBatches(StepBatches):
    """Batches of a few shapes, to train or evaluate a `SequenceClassifier`.

    A sequence is start, text, end; of a pair start, first text, separator,
    second text, end, of which the second text and its end are segment 1. A text
    over `max_length` loses its last tokens and keeps the end token; of a pair
    the longer text is truncated first. Truncated texts are counted in `report`
    and logged.

    An element is `({"token_ids": (B, S)}, labels)`, for pairs with
    `"segment_ids"` `(B, S)` too, all int32 and padded. Labels are int32 `(B,)`,
    or float32 `(B, C)` of 0 and 1 where a text may have several. With
    `class_weight`, `dataset` adds weights, float32 `(B,)`. No batch has empty
    rows: the last of the longest bucket has fewer. Where batches are divided
    among devices they have weights too: 0 of an empty row, and above 1 of the
    others of its batch, so that the mean over all rows is that of the texts.

    Args:
        examples: `LabeledDataset`.
        vocabulary: `Vocabulary` or `TokenizersVocabulary`.
        batch_tokens: int. Positions of a batch at most, padding included: a
            bucket has `batch_tokens // S` rows at most.
        num_buckets: int from 1. Lengths of batches at most; each costs one
            compilation under XLA, and the smaller last batch one more.
        max_length: int. S at most, start and end included: 3 or more, for pairs
            5 or more.
        seed: int from 0, of everything that `dataset` draws.
        subword_sampling: None, or float above 0 and at most 1: the alpha of
            `Vocabulary.encode_sampled`, which segments each text of `dataset`
            anew in each epoch. A segmentation that is too long for its batch is
            replaced by the usual one, and a truncated text keeps it.
        word_dropout: float from 0 to below 1. The fraction of tokens, special
            tokens excluded, that `dataset` replaces by the unknown token, or by
            the mask where there is none.
        class_weight: None; `"balanced"`, by which all classes together weigh
            the same and a text 1 on average; or a dictionary from each class to
            a float of 0 or more. For one label per text.
        segments: bool. Add `"segment_ids"`; None: where texts are pairs.

    Attributes:
        steps_per_epoch: int.
        buckets: list of `keras_tfm.text.bucketing.Bucket`.
        ordered_indices: int array `(N,)`. The index in `examples` of each row
            of `ordered`.
        truncated: int, number of texts that `max_length` truncates.
        padding: float, the fraction of padding among the positions of an epoch.
        report: string. Texts, those truncated; buckets; padding.

    Raises:
        ValueError: `batch_tokens` is less than the longest text, an argument is
            out of its range, weights do not fit the classes, or no text has a
            token.

    Example:
        ```python
        from keras_tfm import text

        examples = text.LabeledDataset(["good", "bad", "so good"], list("+-+"))
        vocabulary = text.Vocabulary.train(examples.texts, 280, exact=False)
        batches = text.LabelBatches(examples, vocabulary, num_buckets=1)
        inputs, labels = batches.batch(0)
        # model.fit(batches.dataset(), epochs=3, shuffle=False)
        # batches.restore(model.predict(batches.ordered()))
        ```
    """

    def __init__(
        self,
        examples: LabeledDataset,
        vocabulary: Vocabulary | TokenizersVocabulary,
        batch_tokens: int = 4096,
        num_buckets: int = 8,
        max_length: int = 256,
        seed: int = 0,
        subword_sampling: float | None = None,
        word_dropout: float = 0.0,
        class_weight: str | dict[str, float] | None = None,
        segments: bool | None = None,
    ):
        super().__init__(seed)
        self.examples = examples
        self.vocabulary = vocabulary
        self.subword_sampling = subword_sampling
        self.word_dropout = word_dropout
        self._segments = examples.paired if segments is None else segments
        self._num_texts = 1 + examples.paired  # of a sequence
        self._pack = functools.partial(
            pack_texts, vocabulary=vocabulary, segments=self._segments
        )
        self._check_augmentation()
        self._labels = examples.encoded_labels()
        weights = _class_weights(examples, class_weight)
        self._weights = None if weights is None else weights[self._labels]
        lengths, counts = self._tokenize(max_length)
        self._bucketing = Bucketing(lengths[None], num_buckets, batch_tokens)
        self.buckets = self._bucketing.buckets
        self.steps_per_epoch = self._bucketing.steps_per_epoch
        self._ordered = self._bucketing.batches(np.arange(len(self)))
        self.ordered_indices = np.concatenate([rows for _, rows in self._ordered])
        positions = sum(bucket.lengths[0] * len(rows) for bucket, rows in self._ordered)
        self.padding = float(1 - lengths.sum() / positions)
        table = self._bucketing.report("length")
        self.report = f"{counts}\n{table}\nPadding: {self.padding:.1%} of positions."

    def __len__(self) -> int:
        return len(self.examples)

    def batch(self, step: int) -> tuple:
        """Returns one batch to train on, as NumPy arrays.

        Args:
            step: int from 0, counted over all epochs.

        Returns:
            `(inputs, labels)`, or `(inputs, labels, weights)` with
            `class_weight`.
        """
        bucket, indices = self._at_step(step)
        generator = self._generator(step, 1)
        texts = self._tokens(indices)
        if self.subword_sampling is not None:
            self._resample(texts, indices, bucket.lengths[0], generator)
        inputs = self._pack(texts, bucket.lengths[0])
        if self.word_dropout:
            ids = inputs["token_ids"]
            is_dropped = generator.random(ids.shape) < self.word_dropout
            ids[is_dropped & ~np.isin(ids, self.vocabulary.special_ids)] = (
                self._dropped_id
            )
        weights = () if self._weights is None else (self._weights[indices],)
        return inputs, self._labels[indices], *weights

    def lengths(self, step: int) -> tuple[int, ...]:
        return self._at_step(step)[0].lengths

    def ordered_batch(self, step: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns one batch of `ordered`, as NumPy arrays.

        Args:
            step: int from 0 to below `steps_per_epoch`.

        Returns:
            `(inputs, labels)`.
        """
        bucket, indices = self._ordered[step]
        inputs = self._pack(self._tokens(indices), bucket.lengths[0])
        return inputs, self._labels[indices]

    def ordered(self, prefetch: int = 8) -> Any:
        """Returns each text once, always the same, for `evaluate` or `predict`.

        Nothing is augmented or weighted. Texts are sorted by length: row i is
        text `ordered_indices[i]`, and `restore` undoes that order.

        Args:
            prefetch: int. Batches that TensorFlow prepares ahead.

        Returns:
            `tf.data.Dataset` of `steps_per_epoch` batches; without TensorFlow a
            `keras.utils.PyDataset`.
        """
        division = make_division()
        num_arrays = 2 if division.multiple == 1 else 3
        return step_dataset(
            lambda step: self._divide(self.ordered_batch(step), division),
            # Without the weights of the classes.
            lambda tf: self._divided_signature(tf, division)[:num_arrays],
            0,
            self.steps_per_epoch,
            prefetch,
        )

    def restore(self, outputs: np.ndarray) -> np.ndarray:
        """Puts predictions for `ordered` into the order of the texts.

        Args:
            outputs: array `(N, ...)`, as `model.predict(batches.ordered())`
                returns it.

        Returns:
            array `(N, ...)`, whose row i belongs to text i of `examples`.

        Raises:
            ValueError: there are more or fewer rows than texts.
        """
        outputs, division = np.asarray(outputs), make_division((0, 1))
        is_text = np.concatenate(
            [
                np.arange(division.num_rows(len(rows))) < len(rows)
                for _, rows in self._ordered
            ]
        )
        if len(outputs) == len(is_text):  # without the empty rows
            outputs = outputs[is_text]
        check(
            outputs.shape[:1] == (len(self),),
            f"`outputs` must have one row for each of {len(self):,} texts",
            "Predict all of `ordered()` once.",
            shape=outputs.shape,
        )
        restored = np.empty_like(outputs)
        restored[self.ordered_indices] = outputs
        return restored

    def _check_augmentation(self):
        check_sampling(self.subword_sampling)
        check(
            0 <= self.word_dropout < 1,
            "`word_dropout` must be 0 or more and below 1",
            word_dropout=self.word_dropout,
        )
        check(
            self.subword_sampling is None or hasattr(self.vocabulary, "encode_sampled"),
            "`subword_sampling` needs a SentencePiece vocabulary",
            vocabulary=self.vocabulary,
        )
        # Vocabularies without an unknown token name padding for it.
        candidates = (self.vocabulary.unknown_id, self.vocabulary.mask_id)
        self._dropped_id = next(
            (i for i in candidates if i not in (None, self.vocabulary.pad_id)), None
        )
        check(
            not self.word_dropout or self._dropped_id is not None,
            "`word_dropout` needs a vocabulary with an unknown token or a mask",
            word_dropout=self.word_dropout,
        )

    def _tokenize(self, max_length):
        """Tokenizes the texts; returns lengths `(N,)` and a line of counts."""
        paired = self.examples.paired
        num_special = count_special_tokens(self.vocabulary, 1 + paired)
        check(
            max_length >= num_special + 1 + paired,
            f"`max_length` must be at least {num_special + 1 + paired}, for the "
            "special tokens and one token of a text",
            max_length=max_length,
        )
        columns = zip(*self.examples.texts, strict=True)
        self._columns = [
            TokenizedColumn(
                TokenArray.encode(texts, self.vocabulary),
                self.vocabulary,
                max_length,
                texts=texts,
            )
            for texts in (columns if paired else [self.examples.texts])
        ]
        tokens = np.stack([column.num_tokens for column in self._columns])
        check(
            tokens.any(1).all(),
            "`examples` must have a text with tokens on each side",
            "Check the texts and the vocabulary.",
            first_text=self.examples.texts[0],
        )
        self._num_tokens = truncated_lengths(tokens, max_length - num_special)
        lost = tokens.sum(0) - self._num_tokens.sum(0)  # (N,)
        self._is_truncated = lost > 0
        self.truncated = int(self._is_truncated.sum())
        empty = int((tokens == 0).any(0).sum())
        counts = (
            f"{len(self):,} texts; truncated for over {max_length} tokens: "
            f"{self.truncated:,} ({lost.sum() / max(tokens.sum(), 1):.1%} of all "
            f"tokens); with a side without tokens: {empty:,}."
        )
        if self.truncated or empty:
            _log.warning(counts)
        return self._num_tokens.sum(0) + num_special, counts

    def _signature(self, tf):
        ids = tf.TensorSpec((None, None), "int32")
        labels = tf.TensorSpec((None,), "int32")
        if self.examples.multi_label:
            labels = tf.TensorSpec((None, len(self.examples.classes)), "float32")
        inputs = {"token_ids": ids} | ({"segment_ids": ids} if self._segments else {})
        has_weights = self._weights is not None
        return (inputs, labels, *[tf.TensorSpec((None,), "float32")] * has_weights)

    def _divided_signature(self, tf, division):
        signature = self._signature(tf)
        if division.multiple == 1 or len(signature) == 3:
            return signature
        return (*signature, tf.TensorSpec((None,), "float32"))

    def _filled(self, batch, num_empty):
        inputs, labels, *weights = batch
        count = len(labels)
        [weights] = weights or [np.ones(count, "float32")]
        # Keras divides the loss by all rows, those of weight 0 included.
        weights = weights * np.float32((count + num_empty) / count)
        inputs = add_empty_texts(inputs, num_empty, self.vocabulary, self._num_texts)
        return inputs, pad_rows(labels, num_empty), pad_rows(weights, num_empty)

    def _tokens(self, indices) -> list[tuple]:
        """Returns the tokens of each text of a batch, truncated."""
        columns = []
        for column, count in zip(
            self._columns, self._num_tokens[:, indices], strict=True
        ):
            ids = column.ids(indices, max(int(count.max()), 1))
            columns.append([row[:n] for row, n in zip(ids, count, strict=True)])
        return list(zip(*columns, strict=True))

    def _resample(self, texts: list[tuple], indices, length: int, generator):
        """Replaces texts, in place, by a random segmentation where it fits."""
        # A truncated text does not fit in more tokens either.
        rows = np.flatnonzero(~self._is_truncated[indices])
        columns = []
        for column in self._columns:
            sources = [column.texts[index] for index in indices[rows]]
            seed = int(generator.integers(2**32))
            columns.append(
                self.vocabulary.encode_sampled(sources, self.subword_sampling, seed)
            )
        capacity = length - count_special_tokens(self.vocabulary, len(columns))
        for row, sampled in zip(rows, zip(*columns, strict=True), strict=True):
            if sum(map(len, sampled)) <= capacity:
                texts[row] = sampled

    def _draw_epoch(self, epoch):
        return self._bucketing.shuffled_batches(self._generator(epoch))


def _class_weights(examples: LabeledDataset, class_weight):
    """Returns the weight of each class, float32 `(C,)`, or None."""
    if class_weight is None:
        return None
    classes, counts = examples.classes, examples.counts
    if class_weight == "balanced":
        share = len(examples) / len(classes)
        class_weight = {name: share / max(counts[name], 1) for name in classes}
    check(
        not examples.multi_label
        and isinstance(class_weight, dict)
        and set(class_weight) == set(classes)
        and min(class_weight.values()) >= 0 < max(class_weight.values()) < np.inf,
        "`class_weight` must be None, 'balanced', or one weight of 0 or more for each "
        f"of {classes}, one of them above 0; and each text must have one label",
        class_weight=class_weight,
    )
    return np.array([class_weight[name] for name in classes], "float32")
