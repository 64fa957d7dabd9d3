"""Batches of a fixed budget of tokens from texts with labels."""

import dataclasses
import logging

import numpy as np

from keras_tfm.text.bucketing import assign, choose_lengths, share_out
from keras_tfm.text.labeled import LabeledDataset
from keras_tfm.text.pair_packing import (
    count_special_tokens,
    pack_texts,
    truncated_lengths,
)
from keras_tfm.text.tf_data import step_dataset
from keras_tfm.text.tokenized_column import TokenizedColumn
from keras_tfm.text.vocabulary import Vocabulary

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class LabelShape:
    """One shape of batches in an epoch.

    Args:
        length: int, S, tokens.
        rows: int, B, texts in each batch; the very last may have fewer.
        batches: int, batches of this shape in an epoch.
    """

    length: int
    rows: int
    batches: int


class LabelBatches:
    """Batches of a few shapes for a `Classifier`, to train on or to judge it.

    A row is start, the text and end; for a pair start, first text, end, second
    text, end, of which the second text and its end are segment 1. A text over
    `max_length` loses its last tokens and keeps its end; of a pair the longer
    text is cut first. Such texts are counted in `report` and logged.

    An element is `({"token_ids": (B, S)}, labels)`, for pairs with
    `"segment_ids"` `(B, S)` too, all int32 and padded. Labels are int32
    `(B,)`, or float32 `(B, C)` of 0 and 1 where a text may have several. With
    `class_weight`, `dataset` adds weights, float32 `(B,)`. No batch has empty
    rows: the last of the longest shape has fewer.

    Args:
        labelled: `LabeledDataset`.
        vocabulary: `Vocabulary`.
        batch_tokens: int. Positions of a batch at most, with padding: a shape
            has `batch_tokens // S` rows at most.
        num_buckets: int from 1. Lengths of batches at most; each costs one
            compilation under XLA, and the smaller last batch one more.
        max_length: int. S at most, start and end included: 3 or more, for pairs
            5 or more.
        seed: int from 0, of all that `dataset` draws.
        subword_sampling: None, or float above 0 and at most 1: the alpha of
            `Vocabulary.encode_sampled`, which cuts each text of `dataset` anew
            in each epoch. A cut that is too long for its batch is replaced by
            the usual one, and a truncated text keeps it.
        word_dropout: float from 0 to below 1. The share of tokens, other than
            start and end and what stands between two texts, that `dataset`
            replaces by the unknown one, or the mask where there is none.
        class_weight: None; `"balanced"`, by which all classes together weigh
            the same and a row 1 on average; or a dictionary from each class to
            a float of 0 or more. For one label a text.
        segments: bool. Give `"segment_ids"`; None: where texts are pairs.

    Attributes:
        steps_per_epoch: int.
        shapes: list of `LabelShape`.
        ordered_rows: int array `(N,)`. The row of `labelled` that each row of
            `ordered` is.
        truncated: int, texts that `max_length` cut.
        padding: float, the share of padding among the positions of an epoch.
        report: string. Texts, those truncated; shapes; padding.

    Raises:
        TypeError: `labelled` is something else.
        ValueError: `batch_tokens` is less than the longest text, an argument is
            out of its range, weights do not fit the classes, or no text has a
            token.
    """

    def __init__(
        self,
        labelled: LabeledDataset,
        vocabulary: Vocabulary,
        batch_tokens: int = 4096,
        num_buckets: int = 8,
        max_length: int = 256,
        seed: int = 0,
        subword_sampling: float | None = None,
        word_dropout: float = 0.0,
        class_weight: str | dict | None = None,
        segments: bool | None = None,
    ):
        if not isinstance(labelled, LabeledDataset):
            raise TypeError(
                "`labelled` must be `LabeledDataset`. Received: "
                f"{type(labelled).__name__}. "
                "Make it with `LabeledDataset(texts, labels)` or `read_labeled`."
            )
        marks = count_special_tokens(vocabulary, 1 + labelled.paired)
        _refuse_settings(num_buckets, max_length, marks + 1 + labelled.paired, seed)
        _refuse_chances(subword_sampling, word_dropout)
        if subword_sampling is not None and not hasattr(vocabulary, "encode_sampled"):
            raise ValueError(
                "Texts are cut in other ways by SentencePiece, not by WordPiece or "
                f"other tokenizers. Received: subword_sampling={subword_sampling}, "
                f"vocabulary={type(vocabulary).__name__}. Leave it out."
            )
        # Some vocabularies have no unknown token, and name padding for it.
        lost = (vocabulary.unknown_id, getattr(vocabulary, "mask_id", None))
        lost = [one for one in lost if one not in (None, vocabulary.pad_id)]
        if word_dropout and not lost:
            raise ValueError(
                "What is dropped is replaced by the unknown token or the mask. "
                f"Received: word_dropout={word_dropout}, and a vocabulary with neither."
            )
        self._lost_id = lost[0] if lost else None
        self.labelled = labelled
        self.seed = seed
        self.subword_sampling = subword_sampling
        self.word_dropout = word_dropout
        self._labels = labelled.encoded_labels()
        weights = _class_weights(labelled, class_weight)
        self._weights = None if weights is None else weights[self._labels]
        sides = list(zip(*labelled.texts, strict=True)) if labelled.paired else None
        self._sides = [
            TokenizedColumn(texts, vocabulary, max_length, marked=False)
            for texts in (sides or [labelled.texts])
        ]
        self.vocabulary = vocabulary
        self._segments = labelled.paired if segments is None else segments
        tokens = np.stack([side.tokens for side in self._sides])
        if not tokens.any(1).all():
            raise ValueError(
                "One text at least must have a token, of each side. Received: "
                f"{len(labelled):,} texts that come to nothing in this vocabulary, "
                f"such as {labelled.texts[0]!r}. Check the texts and its normalisation."
            )
        self._kept = truncated_lengths(tokens, max_length - marks)
        length = self._kept.sum(0) + marks
        cut = tokens.sum(0) - self._kept.sum(0)
        self._cut = cut > 0
        self.truncated = int(self._cut.sum())
        if batch_tokens < length.max():
            raise ValueError(
                "A batch must hold at least one text of the longest. Received: "
                f"batch_tokens={batch_tokens}, and a text of {length.max()} tokens. "
                "Raise `batch_tokens` or lower `max_length`."
            )
        self._shape_of, self.shapes = _shapes(length, num_buckets, batch_tokens)
        self.steps_per_epoch = sum(shape.batches for shape in self.shapes)
        self._ordered = self._make_plan(np.arange(len(self)))
        self.ordered_rows = np.concatenate([rows for _, rows in self._ordered])
        positions = sum(shape.length * len(rows) for shape, rows in self._ordered)
        self.padding = float(1 - length.sum() / positions)
        blank = int(np.count_nonzero((tokens == 0).any(0)))
        counts = (
            f"{len(self):,} texts; truncated for over {max_length} tokens: "
            f"{self.truncated:,} ({cut.sum() / max(tokens.sum(), 1):.1%} of all "
            f"tokens); with a side without tokens: {blank:,}."
        )
        if self.truncated or blank:
            _log.warning(counts)
        self.report = "\n".join([counts, *self._table()])
        self._plan = (None, None)

    def __len__(self) -> int:
        return len(self.labelled)

    def batch(self, step: int):
        """Makes one batch to train on, as NumPy arrays.

        Args:
            step: int from 0, counted over all epochs.

        Returns:
            `(inputs, labels)`, or `(inputs, labels, weights)` with
            `class_weight`.
        """
        shape, rows = self._batches_of(step // self.steps_per_epoch)[
            step % self.steps_per_epoch
        ]
        draw = np.random.default_rng([self.seed, step, 1])
        texts = self._texts(rows)
        if self.subword_sampling is not None:
            self._resample(texts, rows, shape.length, draw)
        inputs = self._inputs(texts, shape.length)
        if self.word_dropout:
            ids, special = inputs["token_ids"], self.vocabulary
            marks = [special.pad_id, special.start_id, special.end_id]
            marks += special.separator_ids
            lost = draw.random(ids.shape) < self.word_dropout
            ids[lost & ~np.isin(ids, marks)] = self._lost_id
        labels = self._labels[rows]
        if self._weights is None:
            return inputs, labels
        return inputs, labels, self._weights[rows]

    def ordered_batch(self, step: int):
        """Makes one batch of `ordered`, as NumPy arrays.

        Args:
            step: int from 0 to below `steps_per_epoch`.

        Returns:
            `(inputs, labels)`.
        """
        shape, rows = self._ordered[step]
        return self._inputs(self._texts(rows), shape.length), self._labels[rows]

    def dataset(self, first_step: int = 0, repeat: bool = True, prefetch: int = 8):
        """Gives the batches to train on, on any Keras backend.

        Each epoch holds every text once, in an order and batches of its own.
        Reading it twice gives the same batches twice.

        Args:
            first_step: int from 0. The first batch, counted over all epochs.
            repeat: bool. False ends with the epoch of `first_step`.
            prefetch: int. Batches made ahead.

        Returns:
            `tf.data.Dataset`; give it to `fit` with `shuffle=False`.

        Raises:
            ImportError: TensorFlow is not installed.
            ValueError: `first_step` is negative.
        """
        left = self.steps_per_epoch - first_step % self.steps_per_epoch
        last = None if repeat else first_step + left
        return self._as_dataset(
            self.batch, first_step, last, self._weights is not None, prefetch
        )

    def ordered(self, prefetch: int = 8):
        """Gives each text once, always the same, for `evaluate` or `predict`.

        Nothing is drawn and nothing weighed. Texts come by length: row i is
        text `ordered_rows[i]`, and `restore` puts predictions back in order.

        Args:
            prefetch: int. Batches made ahead.

        Returns:
            `tf.data.Dataset` of `steps_per_epoch` batches.

        Raises:
            ImportError: TensorFlow is not installed.
        """
        return self._as_dataset(
            self.ordered_batch, 0, self.steps_per_epoch, False, prefetch
        )

    def restore(self, outputs) -> np.ndarray:
        """Puts what was said of `ordered` into the order of the texts.

        Args:
            outputs: array `(N, ...)`, as `model.predict(batches.ordered())`
                gives it.

        Returns:
            array `(N, ...)`, whose row i belongs to text i of `labelled`.

        Raises:
            ValueError: there are more or fewer rows than texts.
        """
        outputs = np.asarray(outputs)
        if outputs.shape[:1] != (len(self),):
            raise ValueError(
                f"One row for each of {len(self):,} texts is wanted. Received: shape "
                f"{outputs.shape}. Predict all of `ordered()` once."
            )
        restored = np.empty_like(outputs)
        restored[self.ordered_rows] = outputs
        return restored

    def _as_dataset(self, batch, first, last, weighted, prefetch):
        def signature(tf):
            ids = tf.TensorSpec((None, None), "int32")
            labels = tf.TensorSpec((None,), "int32")
            if self.labelled.multi_label:
                classes = len(self.labelled.classes)
                labels = tf.TensorSpec((None, classes), "float32")
            inputs = {"token_ids": ids}
            if self._segments:
                inputs["segment_ids"] = ids
            return (inputs, labels, *[tf.TensorSpec((None,), "float32")] * weighted)

        return step_dataset(batch, signature, first, last, prefetch)

    def _texts(self, rows) -> list[tuple]:
        """Gives the tokens of each text of a batch, those kept of each side."""
        sides = []
        for side, kept in zip(self._sides, self._kept, strict=True):
            ids = side.rows(rows, max(int(kept[rows].max()), 1))
            sides.append([row[:n] for row, n in zip(ids, kept[rows], strict=True)])
        return list(zip(*sides, strict=True))

    def _resample(self, texts: list[tuple], rows, length: int, draw):
        """Cuts texts in another way, in place, where the new cut fits."""
        # What `max_length` cuts never fits in more pieces.
        whole = np.flatnonzero(~self._cut[rows])
        sides = []
        for side in self._sides:
            sources = [side.texts[row] for row in rows[whole]]
            seed = int(draw.integers(2**32))
            sides.append(
                self.vocabulary.encode_sampled(sources, self.subword_sampling, seed)
            )
        for index, new in zip(whole, zip(*sides, strict=True), strict=True):
            marks = count_special_tokens(self.vocabulary, len(new))
            if sum(map(len, new)) + marks <= length:
                texts[index] = new

    def _inputs(self, texts: list[tuple], length: int) -> dict[str, np.ndarray]:
        return pack_texts(texts, length, self.vocabulary, self._segments)

    def _batches_of(self, epoch: int) -> list[tuple[LabelShape, np.ndarray]]:
        known, plan = self._plan
        if known != epoch:
            draw = np.random.default_rng([self.seed, epoch])
            plan = self._make_plan(draw.permutation(len(self)))
            draw.shuffle(plan)
            self._plan = (epoch, plan)
        return plan

    def _make_plan(self, order) -> list[tuple[LabelShape, np.ndarray]]:
        """Gives the shape and the texts of each batch, those left over up."""
        shape_of, waiting, plan = self._shape_of[order], order[:0], []
        for index, shape in enumerate(self.shapes):
            texts = np.concatenate([waiting, order[shape_of == index]])
            waiting = texts[shape.rows * shape.batches :]
            for number in range(shape.batches):
                first = number * shape.rows
                plan.append((shape, texts[first : first + shape.rows]))
        return plan

    def _table(self) -> list[str]:
        lines = [f"{self.steps_per_epoch:,} steps an epoch, in these shapes:"]
        lines.append("  length    rows  batches")
        for shape in self.shapes:
            if not shape.batches:  # its texts are in longer ones
                continue
            lines.append(f"{shape.length:8}{shape.rows:8}{shape.batches:9}")
        lines.append(f"Padding: {self.padding:.1%} of positions.")
        return lines


def _shapes(length, num_buckets: int, batch_tokens: int):
    """Gives the shape of each text, and the shapes, by those of pairs."""
    nothing = np.ones_like(length)  # what would be the other side of a pair
    pairs = choose_lengths(nothing, length, num_buckets, source_cost=0.0)
    shape_of = assign(pairs, nothing, length)
    counts = np.bincount(shape_of, minlength=len(pairs))
    shared = share_out(pairs, counts, batch_tokens, rows_multiple=1, fullness=0.75)
    shapes = [LabelShape(s.target_length, s.rows, s.batches) for s in shared]
    return shape_of, shapes


def _class_weights(labelled: LabeledDataset, class_weight):
    """Gives the weight of each class, float32 `(C,)`, or None."""
    if class_weight is None:
        return None
    if labelled.multi_label:
        raise ValueError(
            "`class_weight` is for one label a text; here a text may have several. "
            f"Received: class_weight={class_weight!r}. Weigh classes in the loss."
        )
    classes, counts = labelled.classes, labelled.counts
    if class_weight == "balanced":
        empty = [each for each in classes if not counts[each]]
        if empty:
            raise ValueError(
                'Balanced weights need texts of each class. Received: class_weight="'
                f'balanced", and no text of {empty}. Give a dictionary.'
            )
        weights = [len(labelled) / (len(classes) * counts[each]) for each in classes]
        return np.array(weights, "float32")
    if not isinstance(class_weight, dict) or set(class_weight) != set(classes):
        raise ValueError(
            f'`class_weight` must be None, "balanced" or a dictionary of {classes}. '
            f"Received: {class_weight!r}. Give each class its weight."
        )
    weights = np.array([class_weight[each] for each in classes], "float32")
    if not np.isfinite(weights).all() or weights.min() < 0 or not weights.any():
        raise ValueError(
            "Weights must be 0 or more, and one above 0. Received: "
            f"class_weight={class_weight}."
        )
    return weights


def _refuse_settings(num_buckets: int, max_length: int, least: int, seed: int):
    if num_buckets < 1 or max_length < least or seed < 0:
        raise ValueError(
            f"`num_buckets` must be at least 1, `max_length` at least {least} (start, "
            "and each text with a token and its end), `seed` 0 or more. Received: "
            f"num_buckets={num_buckets}, max_length={max_length}, seed={seed}."
        )


def _refuse_chances(subword_sampling: float | None, word_dropout: float):
    sampled = subword_sampling is None or 0 < subword_sampling <= 1
    if not sampled or not 0 <= word_dropout < 1:
        raise ValueError(
            "`subword_sampling` must be None or above 0 and at most 1, `word_dropout` "
            f"0 or more and below 1. Received: subword_sampling={subword_sampling}, "
            f"word_dropout={word_dropout}."
        )
