"""Batches of a fixed budget of tokens from pairs in memory."""

import logging

import numpy as np

from keras_tfm.text.bucketing import assign, check_settings, choose_lengths, share_out
from keras_tfm.text.pairs import Pairs
from keras_tfm.text.tf_data import step_dataset
from keras_tfm.text.tokenized_column import TokenizedColumn
from keras_tfm.text.vocabulary import Vocabulary

_log = logging.getLogger(__name__)


class Batches:
    """Shuffled batches of a few fixed shapes, for `model.fit`.

    The corpus is encoded once. Each epoch draws a new order of all pairs from
    `seed`, holds each pair exactly once, and has the same number of steps. A
    step is a function of `seed` and its number alone, so that a run that was
    stopped can go on at its place: `dataset(first_step=k)`.

    An element is `({"source_ids": (B, S), "target_ids": (B, T)}, labels)` with
    labels `(B, T)`, all int32 and padded with 0. `target_ids` is start and the
    tokens, `labels` the tokens and end. A target that was truncated has no end.
    The last batch of the longest shape may have empty rows, all 0, of no weight
    in a loss that masks padding.

    Args:
        pairs: `Pairs`.
        vocabulary: `Vocabulary` of the source, and of the target if there is no
            other.
        target_vocabulary: `Vocabulary` of the target, or None for a joint one.
        batch_tokens: int. Target positions of a batch at most, with padding:
            a shape has `batch_tokens // T` rows at most.
        num_buckets: int. Different shapes of batches at most; each costs one
            compilation under XLA.
        max_source_length: int, tokens, S at most.
        max_target_length: int, tokens with start or end, T at most.
        too_long: what happens to a pair over these: `"drop"` or `"truncate"`.
            Either is counted in `report` and logged.
        seed: int from 0.
        subword_sampling: None, or float: the alpha of
            `Vocabulary.encode_sampled`, which then cuts each source and target
            anew in each epoch. A cut that is too long for its batch is replaced
            by the usual one.
        shuffle: bool. False keeps the order of the pairs within each shape and
            makes the same batches in each epoch, as for an evaluation.
        rows_multiple: int. The rows of every batch are a multiple of this: the
            number of devices in data-parallel training.
        source_cost: float, 0 or more. What a source position costs, in target
            positions: shapes are chosen to cost least. 0.25 is the share of
            the tiny model, whose targets also take cross-attention and logits;
            1 gives the least padding of both sides together.

    Attributes:
        steps_per_epoch: int.
        shapes: list of `keras_tfm.text.bucketing.Shape`.
        padding: dictionary of floats, the share of padding among the positions
            of an epoch, empty rows included: `"source"`, `"target"`, `"both"`.
        report: string. Pairs kept, dropped, truncated; shapes; padding.

    Raises:
        TypeError: `pairs` is something else.
        ValueError: no pair is left, `batch_tokens` is less than the longest
            target, or an argument is out of its range.
    """

    def __init__(
        self,
        pairs: Pairs,
        vocabulary: Vocabulary,
        target_vocabulary: Vocabulary | None = None,
        batch_tokens: int = 4096,
        num_buckets: int = 8,
        max_source_length: int = 256,
        max_target_length: int = 256,
        too_long: str = "drop",
        seed: int = 0,
        subword_sampling: float | None = None,
        shuffle: bool = True,
        rows_multiple: int = 1,
        source_cost: float = 0.25,
    ):
        if not isinstance(pairs, Pairs):
            raise TypeError(
                f"`pairs` must be `Pairs`. Received: {type(pairs).__name__}. Make "
                "them with `Pairs(source, target)` or `read_pairs`."
            )
        check_settings(
            num_buckets, max_source_length, max_target_length, too_long, seed
        )
        if source_cost < 0:
            raise ValueError(
                f"`source_cost` must be 0 or more. Received: source_cost={source_cost}."
            )
        if rows_multiple < 1 or (
            subword_sampling is not None and not 0 < subword_sampling <= 1
        ):
            raise ValueError(
                "`rows_multiple` must be at least 1, and `subword_sampling` None or "
                f"above 0 and at most 1. Received: rows_multiple={rows_multiple}, "
                f"subword_sampling={subword_sampling}."
            )
        self.seed = seed
        self.subword_sampling = subword_sampling
        self.shuffle = shuffle
        other = target_vocabulary or vocabulary
        self._source = TokenizedColumn(
            pairs.source, vocabulary, max_source_length, False
        )
        self._target = TokenizedColumn(pairs.target, other, max_target_length, True)
        self._kept, self._counts = self._select(too_long)
        source, target = (
            side.length[self._kept] for side in (self._source, self._target)
        )
        lengths = choose_lengths(source, target, num_buckets, source_cost)
        self._shape_of = assign(lengths, source, target)
        counts = np.bincount(self._shape_of, minlength=len(lengths))
        # Small batches do no harm in an evaluation; in training they are noise.
        fullness = 0.75 if shuffle else 0.0
        self.shapes = share_out(lengths, counts, batch_tokens, rows_multiple, fullness)
        self.steps_per_epoch = sum(shape.batches for shape in self.shapes)
        self.padding = self._shares(source.sum(), target.sum())
        self.report = "\n".join([self._counts, *self._table()])
        self._plan = (None, None)

    def __len__(self) -> int:
        return len(self._kept)

    def batch(self, step: int):
        """Makes one batch, as NumPy arrays.

        Args:
            step: int from 0, counted over all epochs.

        Returns:
            `({"source_ids": (B, S), "target_ids": (B, T)}, labels (B, T))`,
            int32.
        """
        index, rows = self._batches_of(step // self.steps_per_epoch)[
            step % self.steps_per_epoch
        ]
        shape = self.shapes[index]
        source = self._source.rows(rows, shape.source_length)
        target = self._target.rows(rows, shape.target_length + 1)
        if self.subword_sampling is not None:
            seeds = np.random.SeedSequence([self.seed, step]).generate_state(2)
            self._source.resample(source, rows, self.subword_sampling, int(seeds[0]))
            self._target.resample(target, rows, self.subword_sampling, int(seeds[1]))
        empty_rows = ((0, shape.rows - len(rows)), (0, 0))
        source, target = np.pad(source, empty_rows), np.pad(target, empty_rows)
        labels = target[:, 1:]
        # The end token is said, never read.
        target_ids = np.where(labels == 0, 0, target[:, :-1])
        return {"source_ids": source, "target_ids": target_ids}, labels

    def dataset(self, first_step: int = 0, repeat: bool = True, prefetch: int = 8):
        """Gives the batches as a `tf.data.Dataset`, on any Keras backend.

        Reading it twice gives the same batches twice.

        Args:
            first_step: int from 0. The first batch, counted over all epochs.
            repeat: bool. False ends with the epoch of `first_step`, as
                `validation_data` needs it.
            prefetch: int. Batches made ahead.

        Returns:
            `tf.data.Dataset`; give it to `fit` with `shuffle=False`.

        Raises:
            ImportError: TensorFlow is not installed.
            ValueError: `first_step` is negative.
        """

        def signature(tf):
            ids = tf.TensorSpec((None, None), "int32")
            return ({"source_ids": ids, "target_ids": ids}, ids)

        left = self.steps_per_epoch - first_step % self.steps_per_epoch
        last = None if repeat else first_step + left
        return step_dataset(self.batch, signature, first_step, last, prefetch)

    def _select(self, too_long: str) -> tuple[np.ndarray, str]:
        """Gives the pairs that are kept, and says how many are not, and why."""
        source, target = self._source, self._target
        blank = (source.tokens == 0) | (target.tokens == 0)
        long = (source.too_long | target.too_long) & ~blank
        kept = np.flatnonzero(~(blank | long) if too_long == "drop" else ~blank)
        counts = (
            f"{len(blank):,} pairs, {len(kept):,} kept; dropped for a side without "
            f"tokens: {blank.sum():,}; "
            f"{'dropped' if too_long == 'drop' else 'truncated'} for over "
            f"{source.longest} source or {target.longest} target tokens: "
            f"{long.sum():,}."
        )
        if not len(kept):
            raise ValueError(
                "No pair is left, at least one is wanted. Received: "
                f"{counts} Raise `max_source_length` and `max_target_length`."
            )
        if blank.any() or long.any():
            _log.warning(counts)
        return kept, counts

    def _batches_of(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        """Gives the shape and the pairs of each batch of one epoch."""
        epoch = epoch if self.shuffle else 0
        known, plan = self._plan
        if known != epoch:
            plan = self._make_plan(epoch)
            self._plan = (epoch, plan)
        return plan

    def _make_plan(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        generator = np.random.default_rng([self.seed, epoch])
        order = np.arange(len(self._kept))
        if self.shuffle:
            generator.shuffle(order)
        shape_of, waiting, plan = self._shape_of[order], order[:0], []
        for index, shape in enumerate(self.shapes):
            pairs = np.concatenate([waiting, order[shape_of == index]])
            waiting = pairs[shape.rows * shape.batches :]
            for number in range(shape.batches):
                rows = pairs[number * shape.rows : (number + 1) * shape.rows]
                plan.append((index, self._kept[rows]))
        if self.shuffle:
            generator.shuffle(plan)
        return plan

    def _shares(self, source_tokens: int, target_tokens: int) -> dict[str, float]:
        rows = np.array([shape.rows * shape.batches for shape in self.shapes])
        source = rows @ [shape.source_length for shape in self.shapes]
        target = rows @ [shape.target_length for shape in self.shapes]
        both = (source_tokens + target_tokens) / (source + target)
        return {
            "source": float(1 - source_tokens / source),
            "target": float(1 - target_tokens / target),
            "both": float(1 - both),
        }

    def _table(self) -> list[str]:
        lines = [f"{self.steps_per_epoch:,} steps an epoch, in these shapes:"]
        lines.append("  source  target    rows  batches")
        for shape in self.shapes:
            lines.append(
                f"{shape.source_length:8}{shape.target_length:8}"
                f"{shape.rows:8}{shape.batches:9}"
            )
        lines.append(
            f"Padding: {self.padding['source']:.1%} of source positions, "
            f"{self.padding['target']:.1%} of target positions, "
            f"{self.padding['both']:.1%} of both."
        )
        return lines
