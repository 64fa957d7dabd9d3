"""Batches from text larger than memory, with `tf.data`."""

import functools
import itertools
import logging
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_tfm.text.batches import pair_batch, pair_signature, select_pairs
from keras_tfm.text.bucketing import (
    Bucket,
    assign,
    check_budget,
    check_limits,
    choose_lengths,
)
from keras_tfm.text.checks import check
from keras_tfm.text.division import Part, make_division
from keras_tfm.text.files import chunks
from keras_tfm.text.pair_files import iterate_pairs
from keras_tfm.text.special_tokens import SpecialTokens
from keras_tfm.text.tf_data import INFINITE, generated_dataset
from keras_tfm.text.tokenized_column import TokenArray, TokenizedColumn
from keras_tfm.text.vocabulary import Vocabulary

_log = logging.getLogger(__name__)
_CHUNK = 1024  # pairs that are tokenized together
_SAMPLE = 20_000  # pairs that the buckets are chosen from
_WAITING = 16_384  # pairs that wait at most until a bucket is drawn


def stream(
    pairs: Any,
    vocabulary: Vocabulary,
    target_vocabulary: Vocabulary | None = None,
    batch_tokens: int = 4096,
    num_buckets: int = 8,
    max_source_length: int = 256,
    max_target_length: int = 256,
    too_long: str = "drop",
    seed: int = 0,
    shuffle_buffer: int = 100_000,
    repeat: bool = False,
    special_tokens: SpecialTokens | None = None,
    first_step: int = 0,
    part: Part | None = None,
    rows_multiple: int | None = None,
) -> Any:
    """Returns batches of text that need not fit into memory.

    This is for text that cannot be encoded first, because it is made as it is
    read; else take an `EncodedCorpus`. The batches are those of `Batches`, with
    four differences: the text is shuffled within a buffer only; the buckets are
    chosen from the first 20,000 pairs; a step cannot be reached without reading
    and tokenizing the text before it; there is no subword sampling. Each pass
    over the dataset is in another order; a pass that is not read to its end
    begins again. Pairs with a side without tokens and pairs over the maximum
    lengths are counted, and the counts are logged at the end of each pass over
    the text.

    With several processes each one tokenizes its own pairs, every n-th. So that
    the batches of a step have one shape everywhere, their buckets are drawn in
    the proportions of the first 20,000 pairs; where a bucket has too few pairs
    the batch is filled with shorter ones, or with empty rows.

    Args:
        pairs: a `tf.data.Dataset` of `(source, target)` scalar strings; or a
            function without arguments that returns an iterable of such pairs,
            `functools.partial(iterate_pairs, path)` for example; or a tuple
            of the paths of two parallel files.
        vocabulary: `Vocabulary` of the source, and of the target if there is no
            other.
        target_vocabulary: `Vocabulary` of the target, or None for a joint one.
        batch_tokens: int. Target positions of a batch at most, padding
            included.
        num_buckets: int. Different shapes of batches at most.
        max_source_length: int, tokens, S of the longest bucket.
        max_target_length: int, tokens with start or end, T of the longest one.
        too_long: what happens to a longer pair: `"drop"` or `"truncate"`.
        seed: int from 0. The order of a pass is drawn from `[seed, pass]`.
        shuffle_buffer: int. Pairs held in memory to draw the next one from; 0
            keeps the order of the text.
        repeat: bool. False ends after one pass, its last batch of each bucket
            filled up with empty rows. True never ends; pass `steps_per_epoch`
            to `fit`.
        special_tokens: `SpecialTokens` around each text, see `Batches`.
        first_step: int from 0. Batches of the first pass to leave out, when a
            run resumes.
        part: `(index, count)`: this process takes pairs `index`, `index +
            count`, ... of the text. None: those of this process under a
            distribution of Keras, see `text.local_part`. More than one part
            needs `repeat=True`, for none may end before the others.
        rows_multiple: int >= 1. Each batch is filled up with empty rows to a
            multiple of it, all parts together. None: the width of the
            distribution of Keras, see `text.data_parallel_width`.

    Returns:
        `tf.data.Dataset` of `({"source_ids": (B, S), "target_ids": (B, T)},
        labels (B, T))`, int32. Pass it to `fit` with `shuffle=False`.

    Raises:
        ImportError: TensorFlow is not installed.
        ValueError: an argument is out of its range, `pairs` has another type,
            or the first 20,000 pairs have a fault. A later fault is raised when
            it is reached, as `tf.errors.InvalidArgumentError` with the same
            words.

    Example:
        ```python
        # requires: tensorflow
        from keras_tfm import text

        pairs = [("a cat", "eine Katze"), ("a dog", "ein Hund")]
        texts = [side for pair in pairs for side in pair]
        vocabulary = text.Vocabulary.train(texts, 300, exact=False)
        batches = text.stream(lambda: pairs, vocabulary)
        inputs, labels = next(batches.as_numpy_iterator())
        ```
    """
    check_limits(max_source_length, max_target_length, too_long)
    check_budget(batch_tokens, 1, max_target_length)
    check(first_step >= 0, "`first_step` must be 0 or more", first_step=first_step)
    check(seed >= 0, "`seed` must be 0 or more", seed=seed)
    division = _division(part, rows_multiple, repeat)
    limits = (max_source_length, max_target_length)
    read = _reader(pairs)

    tokenize = functools.partial(
        _tokenized,
        vocabularies=(vocabulary, target_vocabulary or vocabulary),
        limits=limits,
        special=special_tokens or SpecialTokens(),
    )

    def read_pass(number, waiting):
        """Tokenizes the text, and yields after each chunk that now waits."""
        generator = np.random.default_rng([seed, number])
        rows = itertools.islice(read(), division.index, None, division.count)
        rows = _shuffled(rows, shuffle_buffer, generator)
        counts = np.zeros(3, "int64")
        for chunk in chunks(rows, _CHUNK):
            columns = tokenize(chunk)
            indices, added = select_pairs(*columns, too_long)
            counts += added
            waiting.add(columns, indices)
            yield
        _log_counts(counts, too_long)

    sample = tokenize(itertools.islice(read(), _SAMPLE))
    buckets = _sampled_buckets(*sample, limits, num_buckets, batch_tokens)
    number = 0  # of the next pass

    def generate():
        nonlocal number
        waiting = _Waiting(buckets)
        numbers = itertools.count() if repeat else [number]
        reading = (None for n in numbers for _ in read_pass(n, waiting))
        if division.count > 1:
            generator = np.random.default_rng([seed, 0, 1])
            batches = _scheduled(reading, waiting, division, generator)
        else:
            batches = _as_filled(reading, waiting, division)
        yield from itertools.islice(batches, 0 if number else first_step, None)
        number += 1

    return generated_dataset(generate, pair_signature, INFINITE if repeat else None)


def _division(part, rows_multiple, repeat):
    division = make_division(part, rows_multiple)
    check(
        repeat or division.count == 1,
        "`repeat` must be True with more than one part: a part may end earlier",
        "Pass repeat=True, and `steps_per_epoch` to `fit`.",
        parts=division.count,
    )
    return division


def _tokenized(pairs, vocabularies, limits, special):
    """Returns the columns of source and target of some pairs."""
    columns = []
    for side, texts in enumerate(zip(*pairs, strict=True)):
        around = special.around_target if side else special.around_source
        tokens = TokenArray.encode(texts, vocabularies[side])
        columns.append(
            TokenizedColumn(
                tokens, vocabularies[side], limits[side], side == 1, *around
            )
        )
    return columns


class _Waiting:
    """Pairs that fill no batch yet, by bucket.

    Args:
        buckets: list of `Bucket`.
    """

    def __init__(self, buckets):
        self.buckets = buckets
        self._lengths = [bucket.lengths for bucket in buckets]
        self._rows = [
            [np.zeros((0, source), "int32"), np.zeros((0, target + 1), "int32")]
            for source, target in self._lengths
        ]

    def __len__(self):
        return sum(map(self.count, range(len(self._rows))))

    def count(self, number):
        """Returns how many pairs wait in a bucket."""
        return len(self._rows[number][0])

    def add(self, columns, indices):
        """Adds the pairs of two columns that `indices` select."""
        lengths = (column.lengths for column in columns)
        bucket_of = assign(self._lengths, *lengths)[indices]
        for number, rows in enumerate(self._rows):
            chosen = indices[bucket_of == number]
            for side, column in enumerate(columns):
                ids = column.ids(chosen, rows[side].shape[1])
                rows[side] = np.concatenate([rows[side], ids])

    def take(self, number, count):
        """Removes and returns up to `count` pairs of a bucket."""
        rows = self._rows[number]
        self._rows[number] = [ids[count:] for ids in rows]
        return [ids[:count] for ids in rows]

    def take_up_to(self, number, count):
        """Removes and returns pairs of a bucket, or of shorter ones."""
        rows = self.take(number, count)
        widths = [ids.shape[1] for ids in rows]
        for shorter in range(number - 1, -1, -1):
            shorter_rows = self.take(shorter, count - len(rows[0]))
            for side, (ids, width) in enumerate(zip(shorter_rows, widths, strict=True)):
                ids = np.pad(ids, ((0, 0), (0, width - ids.shape[1])))
                rows[side] = np.concatenate([rows[side], ids])
        return rows


def _as_filled(reading, waiting, division):
    """Yields each batch when its bucket has enough pairs, and then the rest."""
    for _ in reading:
        for number, bucket in enumerate(waiting.buckets):
            size = bucket.batch_size
            while waiting.count(number) >= size:
                yield pair_batch(*waiting.take(number, size), division.num_rows(size))
    for number, bucket in enumerate(waiting.buckets):
        if waiting.count(number):
            size = bucket.batch_size
            yield pair_batch(*waiting.take(number, size), division.num_rows(size))


def _scheduled(reading, waiting, division, generator):
    """Yields batches of the same buckets in each process, without end."""
    frequencies = np.array([bucket.num_batches for bucket in waiting.buckets], float)
    frequencies /= frequencies.sum()
    while True:
        number = int(generator.choice(len(frequencies), p=frequencies))
        first, end = division.rows(waiting.buckets[number].batch_size)
        size = end - first
        while waiting.count(number) < size and len(waiting) < _WAITING + size:
            next(reading)
        yield pair_batch(*waiting.take_up_to(number, size), size)


def _reader(pairs):
    """Returns a function that returns an iterable of pairs of strings."""
    if isinstance(pairs, tuple | list) and all(
        isinstance(path, str | os.PathLike) for path in pairs
    ):
        return functools.partial(iterate_pairs, *pairs)
    if hasattr(pairs, "as_numpy_iterator"):
        return functools.partial(_decoded, pairs)
    check(
        callable(pairs),
        "`pairs` must be a tf.data.Dataset, a function that returns an iterable of "
        "pairs, or the paths of two files",
        "Text in memory goes to `Batches`.",
        pairs=type(pairs).__name__,
    )
    return pairs


def _decoded(dataset) -> Iterator[tuple[str, str]]:
    for index, pair in enumerate(dataset.as_numpy_iterator()):
        try:
            source, target = (side.decode() for side in pair)
        except (TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"`pairs` must hold (source, target) strings in UTF-8; got {pair!r} at "
                f"index {index}."
            ) from error
        yield source, target


def _shuffled(rows: Iterator, buffer_size: int, generator) -> Iterator:
    """Yields rows in random order, each drawn from a buffer."""
    buffer = list(itertools.islice(rows, buffer_size))
    for row in rows:
        if buffer:
            index = generator.integers(buffer_size)
            buffer[index], row = row, buffer[index]
        yield row
    generator.shuffle(buffer)
    yield from buffer


def _sampled_buckets(source, target, limits, num_buckets: int, batch_tokens: int):
    """Chooses buckets from the first pairs; the last is that of the limits."""
    indices, counts = select_pairs(source, target, "drop")
    total, empty, long = counts.tolist()
    check(
        len(indices),
        f"`pairs` must begin with pairs that fit {limits} source and target tokens",
        "Check the text, or raise `max_source_length` and `max_target_length`.",
        pairs=total,
        without_tokens=empty,
        too_long=long,
    )
    chosen, columns = [], [column.lengths[indices] for column in (source, target)]
    if num_buckets > 1:
        chosen = choose_lengths(*columns, num_buckets - 1)
    chosen = sorted({*chosen, limits})
    pairs_of = np.bincount(assign(chosen, *columns), minlength=len(chosen))
    buckets = []
    for lengths, count in zip(chosen, pairs_of.tolist(), strict=True):
        size = batch_tokens // lengths[1]
        buckets.append(Bucket(lengths, size, -(-count // size)))
    return buckets


def _log_counts(counts, too_long: str):
    total, empty, long = counts
    if empty or long:
        verb = "dropped" if too_long == "drop" else "truncated"
        _log.warning(
            f"{total:,} pairs read; dropped for a side without tokens: {empty:,}; "
            f"{verb} for their length: {long:,}."
        )
