"""What a decoder is asked for: checked once, and padded to few lengths."""

from collections.abc import Collection, Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from keras import ops

from keras_tfm.decode.options import Options

# Lengths are rounded up to these, so that few functions are compiled.
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
PREFIX_LENGTHS = (0, 4, 8, *LENGTHS)
PHRASE_COUNTS = (0, 1, 2, 4, 8, 16)


def rounded_up(size: int, buckets: Sequence[int]) -> int:
    """Returns the smallest bucket that is large enough, or else the size."""
    return next((bucket for bucket in buckets if bucket >= size), size)


def id_lists(
    name: str,
    rows: Any,
    vocabulary_size: int | None = None,
    excluded: Collection[int] = (),
    count: int | None = None,
) -> list[list[int]]:
    """Returns token ids as lists of int, without padding at their ends.

    Args:
        name: str, the parameter that holds them.
        rows: lists or arrays of integers, one for each sequence; or a tensor.
        vocabulary_size: int or None, unknown.
        excluded: ids that the parameter must not hold.
        count: int or None: how many lists there must be.

    Raises:
        ValueError: anything else, such as text or a single list; or an id that
            is padding, excluded or outside the vocabulary.
    """
    rows = ops.convert_to_numpy(rows) if hasattr(rows, "shape") else rows
    if not isinstance(rows, Iterable):
        raise ValueError(f"`{name}` must hold lists of token ids; got {rows!r}.")
    lists, limit = [], vocabulary_size or float("inf")
    for index, row in enumerate(rows):
        row = row.tolist() if isinstance(row, np.ndarray) else row
        is_list = isinstance(row, (list, tuple))
        if not is_list or not all(isinstance(token, Integral) for token in row):
            raise ValueError(
                f"`{name}` must hold lists of token ids, as `Vocabulary.encode` "
                f"returns them; got {row!r} at index {index}."
            )
        ids = [int(token) for token in row]
        while ids and ids[-1] == 0:
            ids.pop()
        wrong = [t for t in ids if t < 1 or t >= limit or t in excluded]
        if wrong:
            exception = f", apart from {sorted(excluded)}" if excluded else ""
            raise ValueError(
                f"`{name}` must hold ids from 1 to the vocabulary size - 1{exception}, "
                f"padded with 0 at the end; got {wrong} at index {index}, "
                f"vocabulary_size={vocabulary_size}."
            )
        lists.append(ids)
    if count is not None and len(lists) != count:
        raise ValueError(
            f"`{name}` must hold one item for each source, which may be empty; got "
            f"{len(lists)} for {count} sources."
        )
    return lists


def source_array(source_ids: Any, vocabulary_size: int | None = None) -> np.ndarray:
    """Returns source ids as an array.

    Args:
        source_ids: integers `(B, S)`, NumPy or tensor, padded with 0 at the
            end; or B lists of ids, of any length.
        vocabulary_size: int or None, unknown.

    Returns:
        integers `(B, S)`.

    Raises:
        ValueError: another rank or dtype, padding before a token, or an id
            outside the vocabulary.
    """
    if isinstance(source_ids, (list, tuple)):
        rows = id_lists("source_ids", source_ids, vocabulary_size)
        return padded_rows(rows, max(map(len, rows), default=0), "int64")
    source_ids = np.asarray(ops.convert_to_numpy(source_ids))
    if source_ids.ndim != 2 or source_ids.dtype.kind not in "iu":
        raise ValueError(
            "`source_ids` must be integers of shape (batch, length); got shape="
            f"{source_ids.shape}, dtype={source_ids.dtype}."
        )
    if ((source_ids[:, :-1] == 0) & (source_ids[:, 1:] != 0)).any():
        raise ValueError(
            "`source_ids` must be padded with 0 at the end; got a row with 0 before "
            "another id."
        )
    # Checked as one array: a batch may hold many thousand ids.
    low, high = source_ids.min(initial=0), source_ids.max(initial=0)
    if vocabulary_size and (low < 0 or high >= vocabulary_size):
        raise ValueError(
            "`source_ids` must be from 0 to the vocabulary size - 1; got ids from "
            f"{low} to {high}, vocabulary_size={vocabulary_size}. Use the vocabulary "
            "of the model."
        )
    return source_ids


def padded_rows(
    rows: Sequence[Sequence[int]], length: int, dtype: str = "int32"
) -> np.ndarray:
    """Pads lists of ids with 0, to integers `(B, length)`.

    Args:
        rows: lists of ids.
        length: int, at least that of the longest.
        dtype: str, of integers.
    """
    ids = np.zeros((len(rows), length), dtype)
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = tokens
    return ids


def prefix_array(
    target_prefix: Any,
    limits: Sequence[int],
    options: Options,
    vocabulary_size: int | None,
) -> np.ndarray:
    """Returns the tokens that hypotheses have to begin with.

    Args:
        target_prefix: lists of ids, one for each source; or None.
        limits: int for each source, the tokens that its hypotheses may have; 0
            where it is not decoded.
        options: `Options`.
        vocabulary_size: int or None, unknown.

    Returns:
        int32 `(B, P)`, padded with 0.

    Raises:
        ValueError: see `id_lists` and `check_prefix_length`.
    """
    if target_prefix is None:
        return np.zeros((len(limits), 0), "int32")
    excluded = {options.end_id}
    rows = id_lists(
        "target_prefix", target_prefix, vocabulary_size, excluded, len(limits)
    )
    for index, (row, limit) in enumerate(zip(rows, limits, strict=True)):
        if limit:
            check_prefix_length(row, limit, index)
    longest = max(map(len, rows), default=0)
    return padded_rows(rows, rounded_up(longest, PREFIX_LENGTHS))


def check_prefix_length(prefix: Sequence[int], limit: int, index: int = 0) -> None:
    """Rejects a prefix after which no token may follow.

    Args:
        prefix: ids.
        limit: int, the tokens that hypotheses may have.
        index: int, of the source, for the error.

    Raises:
        ValueError: the prefix has `limit` tokens or more.
    """
    if len(prefix) >= limit:
        raise ValueError(
            "`target_prefix` must be shorter than the limit of hypotheses; got "
            f"{len(prefix)} tokens at index {index}, and a limit of {limit}. Increase "
            "`max_decoding_length`."
        )


def constraint_array(
    constraints: Any,
    limits: Sequence[int],
    options: Options,
    vocabulary_size: int | None,
) -> np.ndarray:
    """Returns the phrases that hypotheses must contain.

    Args:
        constraints: a list of phrases, which are lists of ids, for each source;
            or None.
        limits, options, vocabulary_size: as in `prefix_array`.

    Returns:
        int32 `(B, J, P)`, padded with 0.

    Raises:
        ValueError: options without a beam, see `id_lists`, a suppressed token,
            or a phrase that is empty or as long as the limit.
    """
    if constraints is None:
        return np.zeros((len(limits), 0, 0), "int32")
    if options.samples or options.beam_size == 1:
        raise ValueError(
            "`constraints` need beam search; got constraints with beam_size="
            f"{options.beam_size}, sampling_topk={options.sampling_topk}. Set "
            "beam_size, best to 5 or more, and sampling_topk=1."
        )
    excluded = {options.end_id, *options.suppressed_ids}
    if not isinstance(constraints, Sequence) or len(constraints) != len(limits):
        raise ValueError(
            "`constraints` must hold one list of phrases for each source; got "
            f"{constraints!r} for {len(limits)} sources."
        )
    rows = [
        id_lists(
            f"constraints[{i}]", () if row is None else row, vocabulary_size, excluded
        )
        for i, row in enumerate(constraints)
    ]
    lengths = [len(phrase) for row in rows for phrase in row]
    for index, (row, limit) in enumerate(zip(rows, limits, strict=True)):
        wrong = [phrase for phrase in row if not 0 < len(phrase) < (limit or np.inf)]
        if wrong:
            raise ValueError(
                "`constraints` must hold phrases of 1 token or more, shorter than the "
                f"limit of hypotheses; got {wrong} at index {index}, and a limit of "
                f"{limit}. Increase `max_decoding_length`."
            )
    # (B, J, P), each of J and P one of few sizes
    count = rounded_up(max(map(len, rows), default=0), PHRASE_COUNTS)
    length = rounded_up(max(lengths, default=0), PREFIX_LENGTHS)
    empty = [[]] * count
    phrases = [padded_rows([*row, *empty][:count], length) for row in rows]
    return np.reshape(phrases, (len(rows), count, length)).astype("int32")


def target_array(
    target_ids: Any,
    source_ids: np.ndarray,
    vocabulary_size: int | None = None,
    max_positions: int | None = None,
    continues_source: bool = False,
) -> np.ndarray:
    """Returns targets to be scored, padded to few lengths.

    Args:
        target_ids: lists of ids, one for each source.
        source_ids: integers `(B, S)`, padded with 0.
        vocabulary_size: int or None, unknown.
        max_positions: int or None: tokens that the model has positions for.
        continues_source: bool. Source and target share these positions.

    Returns:
        int32 `(B, T)`, padded with 0.

    Raises:
        ValueError: see `id_lists`; or a target that is too long.
    """
    rows = id_lists("target_ids", target_ids, vocabulary_size, count=len(source_ids))
    sources = np.count_nonzero(source_ids, axis=1).tolist()
    for index, (row, source) in enumerate(zip(rows, sources, strict=True)):
        # The last token of a target is not read.
        length = source + len(row) - 1 if continues_source else len(row)
        if max_positions and length > max_positions:
            raise ValueError(
                "`target_ids` must fit into the positions of the model; got "
                f"{len(row)} tokens for a source of {source} at index {index}, "
                f"max_positions={max_positions}."
            )
    longest = max(1, *map(len, rows)) if rows else 1
    # No longer than the positions, unless a target is.
    bucket = rounded_up(longest, LENGTHS)
    return padded_rows(rows, max(longest, min(bucket, max_positions or bucket)))


def prefix_length_array(
    prefix_lengths: Sequence[int] | None, targets: np.ndarray
) -> np.ndarray:
    """Returns how many tokens of each target are a prefix.

    Args:
        prefix_lengths: B ints, or None for zeros.
        targets: int32 `(B, T)`, padded with 0.

    Returns:
        int32 `(B,)`.

    Raises:
        ValueError: another number of them, or more than the target has.
    """
    if prefix_lengths is None:
        return np.zeros(len(targets), "int32")
    lengths, limits = np.asarray(prefix_lengths), np.count_nonzero(targets, axis=1)
    is_valid = lengths.shape == limits.shape and lengths.dtype.kind in "iu"
    if lengths.size and not (is_valid and ((lengths >= 0) & (lengths <= limits)).all()):
        raise ValueError(
            "`prefix_lengths` must be one number of tokens for each target, at most "
            f"its length; got {prefix_lengths!r} for targets of {limits.tolist()} "
            "tokens."
        )
    return lengths.astype("int32")
