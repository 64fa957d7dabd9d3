"""What a search is given: checked, and padded to one of a few sizes."""

from collections.abc import Iterable
from numbers import Integral

import numpy as np
from keras import ops

# Source lengths are rounded up to these, so that few programs are compiled.
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
PREFIX_LENGTHS = (0, 4, 8, *LENGTHS)
PHRASES = (0, 1, 2, 4, 8, 16)


def rounded_up(size, sizes):
    """Gives the least of some sizes that is enough, or else the size itself."""
    return next((one for one in sizes if one >= size), size)


def check_sources(source_ids, vocabulary_size=None):
    """Gives source ids as an array.

    Args:
        source_ids: integers `(B, S)`, NumPy or tensor; or B lists of ids, of
            any length.
        vocabulary_size: int or None, unknown.

    Returns:
        integers `(B, S)`.

    Raises:
        ValueError: another rank or dtype, padding before a token, or an id
            outside the vocabulary.
    """
    if isinstance(source_ids, (list, tuple)):
        rows = as_rows("source", source_ids)
        source_ids = padded_rows(rows, max(map(len, rows), default=0), "int64")
    source_ids = np.asarray(ops.convert_to_numpy(source_ids))
    if source_ids.ndim != 2 or source_ids.dtype.kind not in "iu":
        raise ValueError(
            "Source ids are integers of shape (batch, length). Received: "
            f"shape={source_ids.shape}, dtype={source_ids.dtype}."
        )
    if ((source_ids[:, :-1] == 0) & (source_ids[:, 1:] != 0)).any():
        raise ValueError(
            "Padding, the id 0, stands at the ends of rows. Received: a row with 0 "
            "before another id. Pad on the right."
        )
    if vocabulary_size is None or not source_ids.size:
        return source_ids
    low, high = source_ids.min(), source_ids.max()
    if low < 0 or high >= vocabulary_size:
        raise ValueError(
            "Source ids are from 0 to the vocabulary size - 1. Received: ids "
            f"from {low} to {high}; vocabulary_size={vocabulary_size}. Use the "
            "vocabulary the model was trained with."
        )
    return source_ids


def check_seed(seed):
    """Rejects a seed that is no integer of at least 0, or None."""
    if seed is not None and (not isinstance(seed, Integral) or seed < 0):
        raise ValueError(
            f"`seed` must be None or an integer of at least 0; got {seed!r}."
        )


def as_rows(name, rows):
    """Gives lists of ids, of any length, as lists of int.

    Args:
        name: str, what a row is called in an error.
        rows: lists or arrays of integers, one for each row; or a tensor.

    Returns:
        List of lists of int.

    Raises:
        ValueError: something else, such as text or one list alone.
    """
    found = []
    rows = ops.convert_to_numpy(rows) if hasattr(rows, "shape") else rows
    if not isinstance(rows, Iterable):
        raise ValueError(f"Each {name} is one of a list of them. Received: {rows!r}.")
    for number, row in enumerate(rows):
        row = row.tolist() if isinstance(row, np.ndarray) else row
        fits = isinstance(row, (list, tuple))
        if not fits or not all(isinstance(one, Integral) for one in row):
            raise ValueError(
                f"Each {name} is a list of ids, as `Vocabulary.encode` gives them for "
                f"lines. Received: {name} {number} is {row!r}."
            )
        found.append([int(one) for one in row])
    return found


def stripped(rows):
    """Takes the padding off the ends of sources.

    Args:
        rows: lists of int.

    Returns:
        List of lists of int, none of them 0.

    Raises:
        ValueError: padding before a token.
    """
    found = []
    for number, row in enumerate(rows):
        end = len(row)
        while end and row[end - 1] == 0:
            end -= 1
        if 0 in row[:end]:
            raise ValueError(
                "Padding, the id 0, stands at the ends of rows. Received: row "
                f"{number} with 0 before another id. Pad on the right."
            )
        found.append(row[:end])
    return found


def padded_rows(rows, width, dtype="int32"):
    """Pads lists of ids with 0.

    Args:
        rows: lists of ids.
        width: int, no less than the longest has.
        dtype: str, of integers.

    Returns:
        integers `(B, width)`.
    """
    ids = np.zeros((len(rows), width), dtype)
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = tokens
    return ids


def check_prefixes(target_prefix, limits, vocabulary_size, end_id):
    """Gives what hypotheses have to begin with, padded.

    Args:
        target_prefix: lists of ids, one for each row; or None.
        limits: int for each row, the tokens that it may have; 0 where it is
            not decoded.
        vocabulary_size: int or None, unknown.
        end_id: int.

    Returns:
        int32 `(B, P)`.

    Raises:
        ValueError: another number of rows, a token that no prefix has, or a
            prefix that leaves no room.
    """
    if target_prefix is None:
        return np.zeros((len(limits), 0), "int32")
    rows = as_rows("prefix", target_prefix)
    check_count("prefix", rows, len(limits))
    for number, (row, limit) in enumerate(zip(rows, limits, strict=True)):
        _check_tokens("prefix", number, row, vocabulary_size, end_id)
        if limit:
            check_room(row, limit, number)
    longest = max(map(len, rows), default=0)
    return padded_rows(rows, rounded_up(longest, PREFIX_LENGTHS))


def check_prefix(target_prefix, vocabulary_size, end_id):
    """Gives what all hypotheses have to begin with.

    Args:
        target_prefix: list of ids.
        vocabulary_size, end_id: of `check_prefixes`.

    Returns:
        List of int.

    Raises:
        ValueError: a token that no prefix has.
    """
    [row] = as_rows("prefix", [target_prefix])
    _check_tokens("prefix", 0, row, vocabulary_size, end_id)
    return row


def check_room(prefix, limit, number=0):
    """Refuses a prefix that leaves no room.

    Args:
        prefix: list of ids.
        limit: int, the tokens that its row may have.
        number: int, of the row.

    Raises:
        ValueError: there is no room for a token.
    """
    if len(prefix) >= limit:
        raise ValueError(
            "A prefix must leave room for a token. Received: prefix "
            f"{number} of {len(prefix)} tokens, and a limit of {limit}. Raise "
            "`max_decoding_length`."
        )


def check_constraints(
    constraints, limits, vocabulary_size, end_id, target_prefix=None, suppressed=()
):
    """Gives the phrases that hypotheses must contain, padded.

    Args:
        constraints: a list of phrases, lists of ids, for each row; or None.
        limits, vocabulary_size, end_id, target_prefix: of `check_prefixes`.
        suppressed: ints. Tokens that are never generated.

    Returns:
        int32 `(B, J, P)`.

    Raises:
        ValueError: another number of rows, an empty phrase, a token that no
            phrase has or that is suppressed, or phrases that do not fit between
            the prefix and the limit.
    """
    if constraints is None:
        return np.zeros((len(limits), 0, 0), "int32")
    if not isinstance(constraints, Iterable):
        raise ValueError(
            "Constraints are a list of phrases for each source. Received: "
            f"{constraints!r}."
        )
    rows = [as_rows("phrase", () if row is None else row) for row in constraints]
    check_count("list of constraints", rows, len(limits))
    for number, (row, limit) in enumerate(zip(rows, limits, strict=True)):
        for phrase in row:
            if not phrase:
                raise ValueError(
                    f"A constraint has a token at least. Received: [] in row {number}."
                )
            _check_tokens("constraint", number, phrase, vocabulary_size, end_id)
            never = sorted(set(phrase) & set(suppressed))
            if never:
                raise ValueError(
                    "A constraint is of tokens that may be generated. Received: "
                    f"suppressed tokens {never} in constraint {number}."
                )
        prefix = [] if target_prefix is None else list(map(int, target_prefix[number]))
        length = sum(map(len, row))
        if limit and len(prefix) + length >= limit:
            length = _least_to_say(row, prefix)
        if limit and len(prefix) + length >= limit:
            raise ValueError(
                "Constraints must leave room for the end. Received: constraints of "
                f"{length} tokens in row {number}, and a limit of {limit}. Raise "
                "`max_decoding_length`."
            )
    count = rounded_up(max(map(len, rows), default=0), PHRASES)
    lengths = [len(phrase) for row in rows for phrase in row]
    width = rounded_up(max(lengths, default=0), PREFIX_LENGTHS)
    phrases = np.zeros((len(rows), count, width), "int32")
    for row, given in zip(phrases, rows, strict=True):
        for place, phrase in zip(row, given, strict=False):
            place[: len(phrase)] = phrase
    return phrases


def _least_to_say(phrases, prefix):
    """The fewest tokens after a prefix in which all phrases are said.

    Phrases may share tokens. Of more than 8 it is no more than these.
    """
    left = []
    for phrase in sorted(map(tuple, phrases), key=len, reverse=True):
        if not any(_is_within(phrase, other) for other in (tuple(prefix), *left)):
            left.append(phrase)
    count = len(left)
    first = [len(phrase) - _overlap(prefix, phrase) for phrase in left]
    more = [[len(b) - _overlap(a, b) for b in left] for a in left]
    if count > 8:
        after = ([more[a][b] for a in range(count) if a != b] for b in range(count))
        return sum(min(one, *some) for one, some in zip(first, after, strict=True))
    # By the set of those that are said, as bits, and the last of them.
    least = {(1 << one, one): first[one] for one in range(count)}
    for said in range(1, 1 << count):
        for last in range(count):
            so_far = least.get((said, last))
            for new in range(count) if so_far is not None else ():
                key = said | 1 << new, new
                if not said >> new & 1:
                    far = so_far + more[last][new]
                    least[key] = min(far, least.get(key, far))
    every = (1 << count) - 1
    return min((least[every, last] for last in range(count)), default=0)


def _is_within(phrase, tokens):
    size = len(phrase)
    places = range(len(tokens) - size + 1)
    return any(tuple(tokens[i : i + size]) == phrase for i in places)


def _overlap(before, phrase):
    """Tokens with which one ends and a phrase begins."""
    most = min(len(before), len(phrase))
    fits = (n for n in range(most, 0, -1) if tuple(before[-n:]) == phrase[:n])
    return next(fits, 0)


def check_targets(target_ids, count, vocabulary_size=None, longest=None):
    """Gives targets to be scored, padded.

    Args:
        target_ids: lists of ids, one for each source; padding at their ends is
            left out.
        count: int, how many sources there are.
        vocabulary_size: int or None, unknown.
        longest: int or None: tokens that the model has positions for.

    Returns:
        int32 `(B, T)`.

    Raises:
        ValueError: another number of rows, a token outside the vocabulary, or
            a target that is too long.
    """
    rows = as_rows("target", target_ids)
    check_count("target", rows, count)
    for number, row in enumerate(rows):
        while row and row[-1] == 0:
            row.pop()
        wrong = [t for t in row if t < 1 or (vocabulary_size and t >= vocabulary_size)]
        if wrong or (longest and len(row) > longest):
            raise ValueError(
                "A target is of tokens of the target vocabulary, without padding, as "
                f"many as the model has positions for. Received: {len(row)} tokens in "
                f"target {number}, positions={longest}, outside the vocabulary {wrong}."
            )
    size = max(1, *map(len, rows)) if rows else 1
    width = rounded_up(size, LENGTHS)
    return padded_rows(rows, max(size, min(width, longest or width)))


def check_prefix_lengths(lengths, targets):
    """Gives how many tokens of each target are a prefix.

    Args:
        lengths: B ints, or None for zeros.
        targets: int32 `(B, T)`, padded with 0.

    Returns:
        int32 `(B,)`.

    Raises:
        ValueError: another number of them, or one that its target has not.
    """
    most = np.count_nonzero(targets, axis=1)
    if lengths is None:
        return np.zeros(len(targets), "int32")
    found = np.asarray(lengths)
    fits = found.shape == most.shape and (not found.size or found.dtype.kind in "iu")
    if not fits or (found < 0).any() or (found > most).any():
        raise ValueError(
            "A prefix is of so many tokens of its target, 0 or more, one number for "
            f"each. Received: {lengths!r}, of targets of {most.tolist()} tokens."
        )
    return found.astype("int32")


def check_together(source_ids, target_ids, longest):
    """Refuses prompts and targets that a table of positions does not hold.

    Args:
        source_ids, target_ids: int `(B, S)` and `(B, T)`, padded with 0.
        longest: int or None: tokens that the model has positions for.

    Raises:
        ValueError: a target that is too long after its prompt.
    """
    both = [np.count_nonzero(ids, axis=1) for ids in (source_ids, target_ids)]
    tokens = both[0] + both[1] - 1  # the last is not read
    if longest and tokens.size and tokens.max() > longest:
        row = int(tokens.argmax())
        raise ValueError(
            "A prompt and what follows it are no longer than the table of learned "
            f"positions. Received: {both[0][row]} and {both[1][row]} tokens in row "
            f"{row}; sequence_length={longest}."
        )


def check_count(name, rows, count):
    """Refuses what is not one for each source.

    Args:
        name: str, what it is called.
        rows: list.
        count: int, how many sources there are.

    Raises:
        ValueError: there are more or fewer.
    """
    if len(rows) != count:
        raise ValueError(
            f"Each source has its {name}, an empty one if need be. Received: "
            f"{len(rows)} for {count} sources."
        )


def _check_tokens(name, number, tokens, size, end_id):
    wrong = [t for t in tokens if t < 1 or t == end_id or (size and t >= size)]
    if wrong:
        raise ValueError(
            f"A {name} is of tokens of the target vocabulary, without padding and "
            f"end. Received: {wrong} in {name} {number}."
        )
