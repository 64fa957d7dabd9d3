"""Which few shapes a corpus is padded to, and how many rows each batch has."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Shape:
    """One shape of batches in an epoch.

    Args:
        source_length: int, S, tokens.
        target_length: int, T, tokens.
        rows: int, B, pairs in each batch.
        batches: int, batches of this shape in an epoch.
    """

    source_length: int
    target_length: int
    rows: int
    batches: int


def check_settings(num_buckets, max_source_length, max_target_length, too_long, seed):
    """Refuses settings of batches that cannot work.

    Args:
        num_buckets: int, 1 or more.
        max_source_length: int, 1 or more.
        max_target_length: int, 2 or more: a token and its end.
        too_long: `"drop"` or `"truncate"`.
        seed: int, 0 or more.

    Raises:
        ValueError: one of them is out of its range.
    """
    if too_long not in ("drop", "truncate"):
        raise ValueError(
            f'`too_long` must be "drop" or "truncate". Received: too_long={too_long!r}.'
        )
    if seed < 0:
        raise ValueError(f"`seed` must be 0 or more. Received: seed={seed}.")
    if num_buckets < 1 or max_source_length < 1 or max_target_length < 2:
        raise ValueError(
            "`num_buckets` and `max_source_length` must be at least 1, "
            "`max_target_length` at least 2 (one token and its end). Received: "
            f"num_buckets={num_buckets}, max_source_length={max_source_length}, "
            f"max_target_length={max_target_length}."
        )


def choose_lengths(
    source_lengths, target_lengths, count: int, source_cost: float = 1.0
) -> list[tuple[int, int]]:
    """Chooses the lengths whose padding costs least.

    Exact, by dynamic programming, among the chains of shapes in which each is
    at least as long as the one before on both sides, so that a batch can always
    be filled from a smaller shape. Lengths are first rounded up to 64 values a
    side where there are more.

    Args:
        source_lengths: int array `(N,)`, tokens of each source.
        target_lengths: int array `(N,)`, tokens of each target.
        count: int, 1 or more, shapes at most.
        source_cost: float >= 0. What a source position costs, in target
            positions.

    Returns:
        list of `(S, T)`, growing; the last holds every pair.

    Cost: `count` times 4,096 minima over up to 4,096 values: 0.1 to 2 s.
    """
    sources, source_index = _rounded_up(source_lengths)
    targets, target_index = _rounded_up(target_lengths)
    size = (len(sources), len(targets))
    held = np.zeros(size)  # pairs that fit into each (S, T)
    np.add.at(held, (source_index, target_index), 1)
    held = held.cumsum(0).cumsum(1)
    width = source_cost * sources[:, None] + targets[None, :]
    cost = held * width  # if one shape holds all
    steps = []
    for _ in range(count - 1):
        cost, previous = _one_shape_more(cost, held, width)
        steps.append(previous)
    corner = (size[0] - 1, size[1] - 1)
    corners = [corner]
    for previous in reversed(steps):
        corner = np.unravel_index(previous[corner], size)
        corners.append(corner)
    lengths = {(int(sources[s]), int(targets[t])) for s, t in corners}
    return sorted(lengths)


def _one_shape_more(cost, held, width):
    """Extends every chain that ends in `(S, T)`: new cost, and from where."""
    new, previous = np.empty_like(cost), np.empty(cost.shape, "int64")
    for s, t in np.ndindex(*cost.shape):
        saved = cost[: s + 1, : t + 1] - held[: s + 1, : t + 1] * width[s, t]
        best = saved.argmin()
        new[s, t] = saved.flat[best] + held[s, t] * width[s, t]
        previous[s, t] = best // (t + 1) * cost.shape[1] + best % (t + 1)
    return new, previous


def _rounded_up(lengths, most: int = 64):
    """Gives at most `most` sorted lengths, and the index of each pair's."""
    values = np.unique(lengths)
    if len(values) > most:
        shares = np.linspace(0, 1, most)
        spread = np.linspace(values[0], values[-1], most // 2)
        common = np.quantile(lengths, shares[1::2], method="higher")
        values = np.unique(np.concatenate([common, np.ceil(spread)])).astype("int64")
        values = np.unique(np.append(values, np.max(lengths)))
    return values, np.searchsorted(values, lengths)


def assign(lengths: list[tuple[int, int]], source_lengths, target_lengths):
    """Gives each pair the first, and so the smallest, shape that holds it.

    Args:
        lengths: list of `(S, T)` from `choose_lengths`.
        source_lengths: int array `(N,)`.
        target_lengths: int array `(N,)`.

    Returns:
        int array `(N,)`, index into `lengths`.
    """
    sources, targets = np.array(lengths).T
    return np.maximum(
        np.searchsorted(sources, source_lengths),
        np.searchsorted(targets, target_lengths),
    )


def share_out(
    lengths, counts, batch_tokens: int, rows_multiple: int, fullness: float
) -> list[Shape]:
    """Decides rows and batches of each shape so that few pairs are left over.

    A shape takes as many rows as `batch_tokens` allows, or down to `fullness`
    of that where its pairs then divide with fewer left over. What is left over
    goes up to the next shape. The last shape takes all, and only its last batch
    can have empty rows.

    Args:
        lengths: list of `(S, T)`, growing.
        counts: pairs of each shape.
        batch_tokens: int. Target positions of a batch at most, with padding.
        rows_multiple: int. The rows of every batch are a multiple of this.
        fullness: float from 0 to 1.

    Raises:
        ValueError: `batch_tokens` is too small for `rows_multiple` of the
            longest target.
    """
    check_budget(batch_tokens, rows_multiple, lengths[-1][1])
    shapes, waiting = [], 0
    for (source_length, target_length), count in zip(lengths, counts, strict=True):
        most = _round_down(batch_tokens // target_length, rows_multiple)
        pairs = int(count) + waiting
        batches = -(-pairs // most)
        rows = _round_down(pairs // max(batches, 1), rows_multiple)
        if (source_length, target_length) == lengths[-1]:
            rows = -(-pairs // (batches * rows_multiple)) * rows_multiple
        elif rows < max(fullness * most, 1):
            rows, batches = most, pairs // most
        waiting = pairs - rows * batches
        shapes.append(Shape(source_length, target_length, rows, batches))
    return shapes


def check_budget(batch_tokens: int, rows_multiple: int, longest: int):
    if batch_tokens < longest * rows_multiple:
        raise ValueError(
            f"A batch must hold at least {rows_multiple} of the longest target. "
            f"Received: batch_tokens={batch_tokens}, and a target of {longest} "
            "tokens. Raise `batch_tokens` or lower `max_target_length`."
        )


def _round_down(number: int, multiple: int) -> int:
    return number // multiple * multiple
