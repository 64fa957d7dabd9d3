"""Batches from text larger than memory, with `tf.data`."""

import functools
import itertools
import logging
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_tfm.text.batches import pair_batch, pair_signature, select_pairs
from keras_tfm.text.bucketing import assign, check_budget, check_limits, choose_lengths
from keras_tfm.text.checks import check
from keras_tfm.text.files import chunks
from keras_tfm.text.pair_files import iterate_pairs
from keras_tfm.text.special_tokens import SpecialTokens
from keras_tfm.text.tf_data import INFINITE, generated_dataset
from keras_tfm.text.tokenized_column import TokenArray, TokenizedColumn
from keras_tfm.text.vocabulary import Vocabulary

_log = logging.getLogger(__name__)
_CHUNK = 1024  # pairs that are tokenized together
_SAMPLE = 20_000  # pairs that the buckets are chosen from


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
) -> Any:
    """Returns batches of text that need not fit into memory.

    The batches are those of `Batches`, with four differences: the text is
    shuffled within a buffer only; the buckets are chosen from the first 20,000
    pairs; a step cannot be reached without computing those before it; there is
    no subword sampling. Each pass over the dataset is in another order; a pass
    that is not read to its end begins again. Pairs with a side without tokens
    and pairs over the maximum lengths are counted, and the counts are logged at
    the end of each pass over the text.

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
    limits = (max_source_length, max_target_length)
    vocabularies = (vocabulary, target_vocabulary or vocabulary)
    read, special = _reader(pairs), special_tokens or SpecialTokens()

    def tokenize(rows):
        for side, texts in enumerate(zip(*rows, strict=True)):
            vocabulary, limit, is_target = vocabularies[side], limits[side], side == 1
            tokens = special.around_target if is_target else special.around_source
            encoded = TokenArray.encode(texts, vocabulary)
            yield TokenizedColumn(encoded, vocabulary, limit, is_target, *tokens)

    sample = tokenize(itertools.islice(read(), _SAMPLE))
    lengths = _sampled_lengths(*sample, limits, num_buckets)
    sizes = [batch_tokens // target_length for _, target_length in lengths]

    number = 0  # of the next pass

    def generate():
        nonlocal number
        waiting = [None] * len(lengths)  # pairs of a bucket that fill no batch yet
        for current in itertools.count() if repeat else [number]:
            generator = np.random.default_rng([seed, current])
            rows = _shuffled(iter(read()), shuffle_buffer, generator)
            counts = np.zeros(3, "int64")
            for chunk in chunks(rows, _CHUNK):
                source, target = tokenize(chunk)
                indices, added = select_pairs(source, target, too_long)
                counts += added
                bucket_of = assign(lengths, source.lengths, target.lengths)[indices]
                for bucket, (source_length, target_length) in enumerate(lengths):
                    chosen = indices[bucket_of == bucket]
                    ids = source.ids(chosen, source_length)
                    ids = (ids, target.ids(chosen, target_length + 1))
                    if waiting[bucket]:
                        ids = map(
                            np.concatenate, zip(waiting[bucket], ids, strict=True)
                        )
                    waiting[bucket] = yield from _full_batches(*ids, sizes[bucket])
            _log_counts(counts, too_long)
        for ids, size in zip(waiting, sizes, strict=True):
            if ids and len(ids[0]):
                yield pair_batch(*ids, size)
        number += 1

    return generated_dataset(generate, pair_signature, INFINITE if repeat else None)


def _full_batches(source, target, size: int):
    """Yields batches while there are enough pairs; returns the others."""
    while len(source) >= size:
        yield pair_batch(source[:size], target[:size], size)
        source, target = source[size:], target[size:]
    return source, target


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


def _sampled_lengths(source, target, limits, num_buckets: int):
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
    chosen = []
    if num_buckets > 1:
        lengths = (column.lengths[indices] for column in (source, target))
        chosen = choose_lengths(*lengths, num_buckets - 1)
    return sorted({*chosen, limits})


def _log_counts(counts, too_long: str):
    total, empty, long = counts
    if empty or long:
        verb = "dropped" if too_long == "drop" else "truncated"
        _log.warning(
            f"{total:,} pairs read; dropped for a side without tokens: {empty:,}; "
            f"{verb} for their length: {long:,}."
        )
