"""Batches from text larger than memory, made by tf.data."""

import functools
import itertools
import logging
import os
from collections.abc import Callable, Iterable

import numpy as np

from keras_tfm.text.bucketing import check_budget, check_settings, choose_lengths
from keras_tfm.text.files import iterate_pairs
from keras_tfm.text.tf_data import import_tensorflow
from keras_tfm.text.tokenized_column import TokenizedColumn
from keras_tfm.text.vocabulary import Vocabulary

_log = logging.getLogger(__name__)
_CHUNK = 1024  # pairs that are read and tokenised together
_SAMPLE = 20_000  # pairs that the shapes are chosen from


def stream(
    pairs,
    vocabulary: Vocabulary,
    target_vocabulary: Vocabulary | None = None,
    batch_tokens: int = 4096,
    num_buckets: int = 8,
    max_source_length: int = 256,
    max_target_length: int = 256,
    too_long: str = "drop",
    seed: int = 0,
    shuffle_buffer: int = 100_000,
    repeat: bool = True,
):
    """Gives batches of text that need not fit into memory.

    The batches are those of `Batches`, with four differences: the text is
    shuffled within a buffer only; the shapes are chosen from the first 20,000
    pairs; a step cannot be reached without making those before it; there is no
    subword sampling. Reading it twice gives the same batches twice. Pairs
    with a side without tokens and pairs over the lengths are counted, and the
    counts are logged at the end of each pass over the text that has any.

    Args:
        pairs: a `tf.data.Dataset` of `(source, target)` scalar strings; or a
            function without arguments that gives an iterable of such pairs,
            `functools.partial(iterate_pairs_tsv, path)` for example; or a tuple
            of the paths of two parallel files.
        vocabulary: `Vocabulary` of the source, and of the target if there is no
            other.
        target_vocabulary: `Vocabulary` of the target, or None for a joint one.
        batch_tokens: int. Target positions of a batch at most, with padding.
        num_buckets: int. Different shapes of batches at most.
        max_source_length: int, tokens, S of the longest shape.
        max_target_length: int, tokens with start or end, T of the longest one.
        too_long: what happens to a pair over these: `"drop"` or `"truncate"`.
        seed: int from 0, of the order; each pass has another order.
        shuffle_buffer: int. Pairs held in memory to draw the next one from; 0
            keeps the order of the text.
        repeat: bool. False ends after one pass, its last batch of each shape
            filled up with empty rows.

    Returns:
        `tf.data.Dataset` of `({"source_ids": (B, S), "target_ids": (B, T)},
        labels (B, T))`, int32. Give it to `fit` with `shuffle=False`.

    Raises:
        ImportError: `tensorflow-text` is not installed.
        TypeError: `pairs` is none of the three.
        ValueError: an argument is out of its range, or the first 20,000 pairs
            have a fault. A fault further on comes as
            `tf.errors.InvalidArgumentError`, with the same words, when it is
            reached.
    """
    tf = import_tensorflow()
    check_settings(num_buckets, max_source_length, max_target_length, too_long, seed)
    check_budget(batch_tokens, 1, max_target_length)
    limits = (max_source_length, max_target_length)
    vocabularies = (vocabulary, target_vocabulary or vocabulary)
    replay, texts = _opened(pairs)
    lengths = _sampled_lengths(replay(), vocabularies, limits, num_buckets)
    tokenize = _tokenizer(vocabularies, limits, too_long == "drop")
    nothing = tf.constant([], "string")
    end_of_pass = tf.data.Dataset.from_tensors((nothing, nothing))

    def one_pass(number):
        chosen = texts
        if shuffle_buffer:
            chosen = texts.unbatch()
            chosen = chosen.shuffle(
                shuffle_buffer, seed=seed + number, reshuffle_each_iteration=False
            )
            chosen = chosen.batch(_CHUNK)
        chunks = chosen.concatenate(end_of_pass)
        chunks = chunks.map(tokenize, num_parallel_calls=tf.data.AUTOTUNE)
        start = tf.zeros(3, "int64")
        return chunks.scan(start, functools.partial(_count, too_long)).unbatch()

    passes = tf.data.Dataset.counter() if repeat else tf.data.Dataset.range(1)
    batches = _bucketed(passes.flat_map(one_pass), lengths, batch_tokens)
    if repeat:
        endless = tf.data.INFINITE_CARDINALITY
        batches = batches.apply(tf.data.experimental.assert_cardinality(endless))
    return batches.prefetch(tf.data.AUTOTUNE)


def _opened(pairs) -> tuple[Callable[[], Iterable], object]:
    """Gives a function that reads pairs in Python, and a dataset of chunks."""
    import tensorflow as tf

    text = tf.TensorSpec((), "string")
    if isinstance(pairs, tf.data.Dataset):
        if pairs.element_spec != (text, text):
            raise TypeError(
                "`pairs` must hold (source, target) scalar strings. Received a "
                f"dataset of {pairs.element_spec}. Map it to such pairs."
            )
        return pairs.as_numpy_iterator, pairs.batch(_CHUNK)
    if _are_paths(pairs):
        pairs = functools.partial(iterate_pairs, *pairs)
    if not callable(pairs):
        raise TypeError(
            "`pairs` must be a tf.data.Dataset, a function that gives an iterable "
            f"of pairs, or the paths of two files. Received: {type(pairs).__name__}."
            " Text in memory goes to `Batches`."
        )

    def chunks():
        rows = iter(pairs())
        while chunk := list(itertools.islice(rows, _CHUNK)):
            yield tuple(
                [side.encode() for side in sides] for sides in zip(*chunk, strict=True)
            )

    column = tf.TensorSpec((None,), "string")
    return pairs, tf.data.Dataset.from_generator(
        chunks, output_signature=(column, column)
    )


def _are_paths(pairs) -> bool:
    return (
        isinstance(pairs, (tuple, list))
        and len(pairs) == 2
        and all(isinstance(path, (str, os.PathLike)) for path in pairs)
    )


def _sampled_lengths(rows, vocabularies, limits, num_buckets: int):
    """Chooses shapes from the first pairs; the last is that of the limits."""
    sample = list(itertools.islice(rows, _SAMPLE))
    sides = []
    for index in range(2):
        texts = [_decoded(pair[index], n) for n, pair in enumerate(sample)]
        marked = index == 1
        sides.append(TokenizedColumn(texts, vocabularies[index], limits[index], marked))
    filled = (sides[0].tokens > 0) & (sides[1].tokens > 0)
    fitting = filled & ~sides[0].too_long & ~sides[1].too_long
    if not fitting.any():
        raise ValueError(
            f"None of the first {len(sample):,} pairs can be used: "
            f"{(~filled).sum():,} have a side without tokens, the others are over "
            f"{limits[0]} source or {limits[1]} target tokens. Check the text, or "
            "raise `max_source_length` and `max_target_length`."
        )
    chosen = []
    if num_buckets > 1:
        source, target = (side.length[fitting] for side in sides)
        chosen = choose_lengths(source, target, num_buckets - 1)
    return sorted({*chosen, limits})


def _decoded(text: str | bytes, index: int) -> str:
    try:
        return text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Pair {index} (counted from 0) is not valid UTF-8: {text[:40]!r}. "
            "Decode the text before it comes here."
        ) from error


def _tokenizer(vocabularies, limits, drop: bool):
    """Gives a function from a chunk of texts to ragged ids and three counts."""
    import tensorflow as tf

    source_tokenizer, target_tokenizer = (
        vocabulary.tensorflow_tokenizer() for vocabulary in vocabularies
    )
    start, end = vocabularies[1].start_id, vocabularies[1].end_id

    def tokenize(source, target):
        source, target = (
            tf.strings.unicode_transcode(side, "UTF-8", "UTF-8", errors="strict")
            for side in (source, target)
        )
        source = source_tokenizer.tokenize(source)
        target = target_tokenizer.tokenize(target)
        source_length, target_length = source.row_lengths(), target.row_lengths() + 1
        blank = (source_length == 0) | (target_length == 1)
        long = (source_length > limits[0]) | (target_length > limits[1])
        long = long & ~blank
        kept = ~(blank | long) if drop else ~blank
        starts, ends = (tf.fill([target.nrows(), 1], each) for each in (start, end))
        target = tf.concat([starts, target, ends], axis=1)
        if not drop:
            source, target = source[:, : limits[0]], target[:, : limits[1] + 1]
        counts = [tf.size(blank), *map(tf.math.count_nonzero, (blank, long))]
        return (
            tf.ragged.boolean_mask(source, kept),
            tf.ragged.boolean_mask(target, kept),
            tf.stack([tf.cast(count, "int64") for count in counts]),
        )

    return tokenize


def _count(too_long: str, counts, chunk):
    """Adds up the counts of a pass and logs them at its end, an empty chunk."""
    import tensorflow as tf

    def say(total, blank, long):
        done = "dropped" if too_long == "drop" else "truncated"
        if blank or long:
            _log.warning(
                f"{total:,} pairs read; dropped for a side without tokens: "
                f"{blank:,}; {done} for their length: {long:,}."
            )
        return np.int64(0)

    source, target, new = chunk
    counts = counts + new
    if new[0] == 0:
        tf.numpy_function(say, tf.unstack(counts), "int64")
    return counts, (source, target)


def _bucketed(rows, lengths, batch_tokens: int):
    """Collects rows into batches of their shape."""
    import tensorflow as tf

    sources, targets = (tf.constant(side, "int64") for side in np.transpose(lengths))
    most = batch_tokens // targets

    def shape_of(source, target):
        fits = (tf.size(source, "int64") <= sources) & (
            tf.size(target, "int64") <= targets + 1
        )
        return tf.argmax(fits)

    def batch(index, window):
        window = window.batch(most[index])
        return window.map(lambda source, target: padded(index, source, target))

    def padded(index, source, target):
        # Rows that a last batch lacks come as zeros.
        source = source.to_tensor(shape=[most[index], sources[index]])
        target = target.to_tensor(shape=[most[index], targets[index] + 1])
        labels = target[:, 1:]
        target_ids = tf.where(labels == 0, 0, target[:, :-1])
        return {"source_ids": source, "target_ids": target_ids}, labels

    return rows.group_by_window(
        shape_of, batch, window_size_func=lambda index: most[index]
    )
