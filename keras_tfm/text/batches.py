"""Batches of a fixed budget of tokens from pairs in memory."""

import logging
from typing import Any

import numpy as np

from keras_tfm.text.bucketing import Bucketing, check_limits
from keras_tfm.text.checks import check
from keras_tfm.text.division import WHOLE, Division
from keras_tfm.text.encoded_corpus import EncodedCorpus
from keras_tfm.text.pairs import Pairs
from keras_tfm.text.special_tokens import SpecialTokens
from keras_tfm.text.step_batches import StepBatches, check_sampling
from keras_tfm.text.tokenized_column import TokenArray, TokenizedColumn
from keras_tfm.text.vocabulary import Vocabulary

_log = logging.getLogger(__name__)
# In the tiny model a source position costs this much of a target position,
# which also takes cross-attention and logits.
_SOURCE_COST = 0.25


class Batches(StepBatches):
    """Shuffled batches of a few fixed shapes, for `model.fit`.

    The corpus is tokenized once. Each epoch draws a new order of all pairs from
    `seed`, contains each pair exactly once (or as often as the weights of an
    `EncodedCorpus` say), and has the same number of steps. A
    step is a function of `seed` and its number alone, so that a stopped run can
    resume at any step, in another process too: `dataset(first_step=k)`.

    An element is `({"source_ids": (B, S), "target_ids": (B, T)}, labels)` with
    labels `(B, T)`, all int32 and padded with 0. `target_ids` is the start and
    the tokens, `labels` the tokens and the end. A truncated target has no end.
    The last batch of the longest bucket may have empty rows, all 0, of no
    weight in a loss that masks padding.

    Args:
        pairs: `Pairs`, or an `EncodedCorpus` of more than fits into memory.
        vocabulary: `Vocabulary` of the source, and of the target if there is no
            other.
        target_vocabulary: `Vocabulary` of the target, or None for a joint one.
        batch_tokens: int. Target positions of a batch at most, padding
            included: a bucket has `batch_tokens // T` rows at most.
        num_buckets: int. Different shapes of batches at most; each costs one
            compilation under XLA.
        max_source_length: int, tokens, S at most.
        max_target_length: int, tokens with start or end, T at most.
        too_long: what happens to a longer pair: `"drop"` or `"truncate"`. Both
            are counted in `report` and logged.
        seed: int from 0.
        subword_sampling: None, or float: the alpha of
            `Vocabulary.encode_sampled`, which segments each text anew in each
            epoch. A segmentation that is too long for its batch is replaced by
            the usual one.
        shuffle: bool. False keeps the order of the pairs within each bucket and
            returns the same batches in each epoch, as for an evaluation.
        batch_size_multiple: int. Every batch size is a multiple of this. A
            multiple of the number of devices leaves no empty rows where
            `dataset` divides the batches; choose the number for the most
            devices, since it changes what is in a batch.
        special_tokens: `SpecialTokens` around each text, which count as its
            tokens; None for none. Sources of fairseq and Marian, for example,
            have the end token as suffix, and their translators too.

    Attributes:
        steps_per_epoch: int.
        buckets: list of `keras_tfm.text.bucketing.Bucket`.
        padding: dictionary of floats, the fraction of padding among the
            positions of an epoch, empty rows included: `"source"`, `"target"`,
            `"both"`.
        target_tokens_per_batch: float, mean number of labels of a batch that
            are not padding.
        report: string. Pairs used, dropped, truncated; buckets; padding.

    Raises:
        ValueError: no pair is left, `batch_tokens` is less than the longest
            target, or an argument is out of its range.

    Example:
        ```python
        from keras_tfm import text

        pairs = text.Pairs(["a cat", "a big dog"], ["eine Katze", "ein Hund"])
        texts = [*pairs.source, *pairs.target]
        vocabulary = text.Vocabulary.train(texts, size=300, exact=False)
        batches = text.Batches(pairs, vocabulary, batch_tokens=64)
        inputs, labels = batches.batch(0)
        print(batches.report)
        # model.fit(batches.dataset(), epochs=3, shuffle=False)
        ```
    """

    def __init__(
        self,
        pairs: Pairs | EncodedCorpus,
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
        batch_size_multiple: int = 1,
        special_tokens: SpecialTokens | None = None,
    ):
        check_limits(max_source_length, max_target_length, too_long)
        check_sampling(subword_sampling)
        super().__init__(seed)
        self.subword_sampling = subword_sampling
        self.shuffle = shuffle
        self._source, self._target = _columns(
            pairs,
            (vocabulary, target_vocabulary or vocabulary),
            (max_source_length, max_target_length),
            special_tokens or SpecialTokens(),
            subword_sampling is not None,
        )
        columns = (self._source, self._target)
        self._selected, counts = select_pairs(*columns, too_long)
        total, empty, long = counts
        line = (
            f"{total:,} pairs, {len(self):,} used; dropped for a side without tokens: "
            f"{empty:,}; {'dropped' if too_long == 'drop' else 'truncated'} for over "
            f"{max_source_length} source or {max_target_length} target tokens: "
            f"{long:,}."
        )
        if not len(self):
            raise ValueError(f"`pairs` must have a pair that fits; got {line}")
        if empty or long:
            _log.warning(line)
        lengths = np.stack([column.lengths[self._selected] for column in columns])
        groups = _groups(pairs, self._selected) if shuffle else None
        self._bucketing = Bucketing(
            lengths,
            num_buckets,
            batch_tokens,
            _SOURCE_COST,
            batch_size_multiple,
            # Small batches add noise in training, and do no harm in evaluation.
            min_fill=0.75 if shuffle else 0.0,
            groups=groups,
        )
        self.buckets = self._bucketing.buckets
        self.steps_per_epoch = self._bucketing.steps_per_epoch
        self.padding = padding_rates(self.buckets, lengths, groups)
        self.target_tokens_per_batch = _labels_per_batch(self.buckets, self.padding)
        rates = (f"{rate:.1%} of {name}" for name, rate in self.padding.items())
        table = self._bucketing.report("source", "target")
        self.report = f"{line}\n{table}\nPadding: {', '.join(rates)} positions."

    def __len__(self) -> int:
        return len(self._selected)

    def batch(self, step: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns one batch, as NumPy arrays.

        Args:
            step: int from 0, counted over all epochs.

        Returns:
            `({"source_ids": (B, S), "target_ids": (B, T)}, labels (B, T))`,
            int32.
        """
        return self.divided_batch(step, WHOLE)

    def divided_batch(
        self, step: int, division: Division
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        bucket, selected = self._at_step(step)
        first, end = division.rows(bucket.batch_size)
        indices = self._selected[selected]
        if self.subword_sampling is None:  # no other row is computed
            return self._build(bucket, indices[first:end], end - first)
        seeds = self._generator(step).bit_generator.seed_seq.generate_state(2)
        # One seed draws the segmentations of a whole batch, row by row.
        inputs, labels = self._build(
            bucket, indices, division.num_rows(bucket.batch_size), seeds
        )
        rows = {name: ids[first:end] for name, ids in inputs.items()}
        return rows, labels[first:end]

    def _build(self, bucket, indices, num_rows, seeds=None):
        source = self._source.ids(indices, bucket.lengths[0])
        target = self._target.ids(indices, bucket.lengths[1] + 1)  # (B, T + 1)
        if seeds is not None:
            alpha = self.subword_sampling
            self._source.resample(source, indices, alpha, int(seeds[0]))
            self._target.resample(target, indices, alpha, int(seeds[1]))
        return pair_batch(source, target, num_rows)

    def lengths(self, step: int) -> tuple[int, ...]:
        return self._at_step(step)[0].lengths

    def _signature(self, tf):
        return pair_signature(tf)

    def _draw_epoch(self, epoch):
        if not self.shuffle:
            return self._bucketing.batches(np.arange(len(self)))
        return self._bucketing.shuffled_batches(self._generator(epoch))


def _columns(pairs, vocabularies, limits, special, with_texts):
    """Returns the columns of source and target, of text or of token ids."""
    around = (special.around_source, special.around_target)
    if isinstance(pairs, EncodedCorpus):
        check(
            not with_texts,
            "`subword_sampling` must be None with an encoded corpus, which has no text",
            "Leave it out, or pass `Pairs`.",
            pairs=pairs,
        )
        pairs.check_vocabularies(*vocabularies)
        tokens, texts = [pairs.tokens(0), pairs.tokens(1)], ((), ())
    else:
        texts = (pairs.source, pairs.target)
        tokens = list(map(TokenArray.encode, texts, vocabularies))
    return [
        TokenizedColumn(
            tokens[side],
            vocabularies[side],
            limits[side],
            side == 1,
            *around[side],
            texts=texts[side] if with_texts else (),
        )
        for side in (0, 1)
    ]


def _groups(pairs, selected):
    """Returns the groups of `Bucketing`: the folders of a weighted corpus."""
    weights = getattr(pairs, "weights", None)
    if weights is None:
        return None
    boundaries = pairs.boundaries.astype(selected.dtype)
    bounds = np.searchsorted(selected, boundaries).tolist()
    return list(zip(bounds[:-1], bounds[1:], weights, strict=True))


def select_pairs(
    source: TokenizedColumn, target: TokenizedColumn, too_long: str
) -> tuple[np.ndarray, np.ndarray]:
    """Selects pairs with tokens on both sides and, with "drop", that fit.

    Args:
        source, target: `TokenizedColumn` of N texts.
        too_long: `"drop"` or `"truncate"`.

    Returns:
        int array of indices; and the numbers of all pairs, of those with an
        empty side, and of those that are too long.
    """
    is_empty = source.is_empty | target.is_empty
    is_long = (source.is_too_long | target.is_too_long) & ~is_empty
    is_used = ~(is_empty | is_long) if too_long == "drop" else ~is_empty
    counts = np.array([len(is_empty), is_empty.sum(), is_long.sum()])
    indices = np.flatnonzero(is_used)
    return (indices.astype("int32") if len(is_used) < 2**31 else indices), counts


def pair_batch(
    source: np.ndarray, target: np.ndarray, batch_size: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Builds an element of `Batches` or `stream`.

    Args:
        source: int32 `(n, S)`, n up to `batch_size`.
        target: int32 `(n, T + 1)`, with start and end.
        batch_size: int, B, reached with empty rows.
    """
    empty_rows = ((0, batch_size - len(source)), (0, 0))
    source, target = np.pad(source, empty_rows), np.pad(target, empty_rows)
    labels = target[:, 1:]
    # The end token is predicted, never read.
    target_ids = np.where(labels == 0, 0, target[:, :-1])
    return {"source_ids": source, "target_ids": target_ids}, labels


def pair_signature(tf: Any) -> tuple:
    """Returns the structure of `pair_batch`, of `tf.TensorSpec`."""
    ids = tf.TensorSpec((None, None), "int32")
    return ({"source_ids": ids, "target_ids": ids}, ids)


def _labels_per_batch(buckets, padding):
    positions = sum(b.batch_size * b.num_batches * b.lengths[1] for b in buckets)
    num_batches = sum(bucket.num_batches for bucket in buckets)
    return float((1 - padding["target"]) * positions / num_batches)


def padding_rates(
    buckets: list,
    lengths: np.ndarray,
    groups: list[tuple[int, int, float]] | None = None,
) -> dict[str, float]:
    """Returns the fraction of padding on each side, and of both together.

    Args:
        buckets: list of `Bucket` of two columns.
        lengths: int array `(2, N)`, the real tokens of each pair.
        groups: as of `Bucketing`, whose weights the mean of an epoch has.
    """
    rows = np.array([bucket.batch_size * bucket.num_batches for bucket in buckets])
    positions = rows @ np.array([bucket.lengths for bucket in buckets])  # (2,)
    groups = groups or [(0, lengths.shape[1], 1.0)]
    tokens = sum(weight * lengths[:, i:end].sum(axis=1) for i, end, weight in groups)
    source, target = (1 - tokens / positions).tolist()
    total = float(1 - tokens.sum() / positions.sum())
    return {"source": source, "target": target, "both": total}
