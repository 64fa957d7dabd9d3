"""Buckets: few lengths that a corpus is padded to, and the batches of an epoch.

Lengths are chosen so that padding costs least, by dynamic programming. Examples
that fill no batch of their bucket move up to the next one.
"""

import dataclasses

import numpy as np

from keras_tfm.text.checks import check

_MAX_CANDIDATES = 64  # lengths of a column that buckets are chosen from
_CHUNK = 1_000_000  # lengths that are counted at a time


@dataclasses.dataclass(frozen=True)
class Bucket:
    """One shape of batches.

    Args:
        lengths: tuple of ints, the padded length of each column, in tokens:
            `(S, T)` for pairs, `(S,)` for texts with labels.
        batch_size: int, B, examples of a batch.
        num_batches: int, batches of this shape in an epoch.
    """

    lengths: tuple[int, ...]
    batch_size: int
    num_batches: int


class Bucketing:
    """Assigns examples to buckets and lists the batches of an epoch.

    Args:
        lengths: int array `(columns, N)` of one or two columns: the tokens of
            each example. The last column counts against `batch_tokens`.
        num_buckets: int >= 1, buckets at most.
        batch_tokens: int. Positions of the last column in a batch at most,
            padding included.
        source_cost: float >= 0. Cost of a position of the first of two columns,
            in positions of the last.
        batch_size_multiple: int >= 1. Every batch size is a multiple of it.
        min_fill: float from 0 to 1. The lowest fraction of the examples that
            `batch_tokens` allows to which a batch size is reduced, so that
            fewer examples move up a bucket.
        groups: list of the first example of a group, the example after its
            last, and its weight: how often an epoch of `shuffled_batches` has
            each of them. None: all once.

    Attributes:
        buckets: list of `Bucket`, from the shortest to the longest.
        steps_per_epoch: int.

    Raises:
        ValueError: `batch_tokens` is too small for the longest example.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        num_buckets: int,
        batch_tokens: int,
        source_cost: float = 0.0,
        batch_size_multiple: int = 1,
        min_fill: float = 0.75,
        groups: list[tuple[int, int, float]] | None = None,
    ):
        check(
            num_buckets >= 1, "`num_buckets` must be 1 or more", num_buckets=num_buckets
        )
        self._num_columns, self._num_examples = lengths.shape
        # Texts with labels are pairs whose source has one token and no cost.
        target = lengths[-1]
        source = np.broadcast_to(1, target.shape)
        if self._num_columns == 2:
            source = lengths[0]
        chosen = choose_lengths(source, target, num_buckets, source_cost)
        self._bucket_of = assign(chosen, source, target)  # uint8 (N,)
        self._num_chosen, self._groups = len(chosen), groups
        counts = np.bincount(self._bucket_of, minlength=len(chosen))
        if groups is not None:
            counts = sum(self._group_counts(*group) for group in groups)
        self.buckets = [
            dataclasses.replace(bucket, lengths=bucket.lengths[-self._num_columns :])
            for bucket in fill_buckets(
                chosen, counts, batch_tokens, batch_size_multiple, min_fill
            )
        ]
        self.steps_per_epoch = sum(bucket.num_batches for bucket in self.buckets)

    def batches(self, order: np.ndarray) -> list[tuple[Bucket, np.ndarray]]:
        """Splits the examples, taken in an order, into batches.

        Args:
            order: int array `(N,)`, a permutation of the examples.

        Returns:
            list of bucket and indices of examples. Only the last batch of the
            longest bucket may have fewer than `batch_size`.
        """
        bucket_of, leftover, batches = self._bucket_of[order], order[:0], []
        for number, bucket in enumerate(self.buckets):
            indices = np.concatenate([leftover, order[bucket_of == number]])
            size, end = bucket.batch_size, bucket.batch_size * bucket.num_batches
            batches += [(bucket, indices[i : i + size]) for i in range(0, end, size)]
            leftover = indices[end:]
        return batches

    def shuffled_batches(
        self, generator: np.random.Generator
    ) -> list[tuple[Bucket, np.ndarray]]:
        """Splits the examples into batches at random, in random order."""
        # Half the memory of int64, and the same order.
        kind = "int32" if self._num_examples < 2**31 else "int64"
        if self._groups is None:
            order = np.arange(self._num_examples, dtype=kind)
        else:
            order = np.concatenate(
                [self._draw_group(*group, generator) for group in self._groups]
            ).astype(kind)
        generator.shuffle(order)
        batches = self.batches(order)
        generator.shuffle(batches)
        return batches

    def _group_counts(self, first, end, weight):
        """Returns how many examples of a group an epoch has in each bucket."""
        counts = np.bincount(self._bucket_of[first:end], minlength=self._num_chosen)
        return np.ceil(weight * counts - 1e-9).astype("int64")

    def _draw_group(self, first, end, weight, generator):
        """Draws the examples of a group, the same number of each bucket."""
        bucket_of, drawn = self._bucket_of[first:end], []
        for number, count in enumerate(self._group_counts(first, end, weight)):
            members = np.flatnonzero(bucket_of == number) + first
            # Each `count // len(members)` times, and some of them once more.
            drawn.append(np.resize(generator.permutation(members), count))
        return np.concatenate(drawn)

    def report(self, *columns: str) -> str:
        """Returns a table of the buckets, a line for each.

        Args:
            *columns: strings of up to 7 characters, names of the columns.
        """
        lines = [f"{self.steps_per_epoch:,} steps an epoch, in these buckets:"]
        titles = (f"{name:>8}" for name in (*columns, "size", "batches"))
        lines.append("".join(titles))
        for bucket in self.buckets:
            if bucket.num_batches:
                row = (*bucket.lengths, bucket.batch_size, bucket.num_batches)
                lines.append("".join(f"{number:8}" for number in row))
        return "\n".join(lines)


def check_limits(max_source_length: int, max_target_length: int, too_long: str) -> None:
    """Checks the arguments that `Batches` and `stream` share.

    Raises:
        ValueError: an argument is out of its range.
    """
    choices = ("drop", "truncate")
    check(
        too_long in choices, f"`too_long` must be one of {choices}", too_long=too_long
    )
    check(
        max_source_length >= 1 and max_target_length >= 2,
        "`max_source_length` must be at least 1, and `max_target_length` at least 2, "
        "for a token and the end",
        max_source_length=max_source_length,
        max_target_length=max_target_length,
    )


def check_budget(batch_tokens: int, batch_size_multiple: int, longest: int) -> None:
    """Checks that a batch holds the longest example.

    Raises:
        ValueError: it does not.
    """
    check(
        batch_tokens >= longest * batch_size_multiple,
        f"`batch_tokens` must hold {batch_size_multiple} of the longest example, which "
        f"has {longest} tokens",
        "Raise `batch_tokens` or lower the maximum length.",
        batch_tokens=batch_tokens,
    )


def choose_lengths(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    num_buckets: int,
    source_cost: float = 1.0,
) -> list[tuple[int, int]]:
    """Chooses the lengths whose padding costs least.

    Exact, by dynamic programming, among the chains of buckets in which each is
    at least as long as the one before on both sides, so that a batch can always
    be filled from a shorter bucket. Lengths are first rounded up to 64 values a
    side where there are more.

    Args:
        source_lengths: int array `(N,)`, tokens of each source.
        target_lengths: int array `(N,)`, tokens of each target.
        num_buckets: int >= 1, buckets at most.
        source_cost: float >= 0. Cost of a source position, in target positions.

    Returns:
        list of `(S, T)`, growing; the last holds every pair.

    Cost: `num_buckets` times 4,096 minima over up to 4,096 values: 0.1 to 2 s.
    """
    source_lengths, target_lengths, counts = _histogram(source_lengths, target_lengths)
    sources, source_index = _candidates(source_lengths, counts)
    targets, target_index = _candidates(target_lengths, counts)
    size = (len(sources), len(targets))
    pairs = np.zeros(size)  # number of pairs that fit into each (S, T)
    np.add.at(pairs, (source_index, target_index), counts)
    pairs = pairs.cumsum(0).cumsum(1)
    price = source_cost * sources[:, None] + targets[None, :]  # of one pair
    cost = pairs * price  # with one bucket
    steps = []
    for _ in range(num_buckets - 1):
        cost, previous = _add_bucket(cost, pairs, price)
        steps.append(previous)
    corner = (size[0] - 1, size[1] - 1)
    corners = [corner]
    for previous in reversed(steps):
        corner = np.unravel_index(previous[corner], size)
        corners.append(corner)
    return sorted({(int(sources[s]), int(targets[t])) for s, t in corners})


def _add_bucket(cost, pairs, price):
    """Extends each chain that ends in `(S, T)`: its cost and last bucket."""
    extended, previous = np.empty_like(cost), np.empty(cost.shape, "int64")
    for s, t in np.ndindex(*cost.shape):
        # The pairs of a shorter bucket do not pay the price of this one.
        saved = cost[: s + 1, : t + 1] - pairs[: s + 1, : t + 1] * price[s, t]
        best = saved.argmin()
        extended[s, t] = saved.flat[best] + pairs[s, t] * price[s, t]
        previous[s, t] = best // (t + 1) * cost.shape[1] + best % (t + 1)
    return extended, previous


def _histogram(source_lengths, target_lengths):
    """Returns all different pairs of lengths, and how many examples have each.

    A corpus over memory has its lengths in files: they are read in chunks.
    """
    width, keys, counts = int(target_lengths.max()) + 1, [], []
    for first in range(0, len(target_lengths), _CHUNK):
        chunk = slice(first, first + _CHUNK)
        key = source_lengths[chunk].astype("int64") * width + target_lengths[chunk]
        for values, new in zip(
            (keys, counts), np.unique(key, return_counts=True), strict=True
        ):
            values.append(new)
    keys, index = np.unique(np.concatenate(keys), return_inverse=True)
    counts = np.bincount(index, weights=np.concatenate(counts)).astype("int64")
    return keys // width, keys % width, counts


def _candidates(lengths, counts):
    """Returns sorted lengths to choose from, and the index of each length."""
    values = np.unique(lengths)
    if len(values) > _MAX_CANDIDATES:
        # Half by frequency, for dense lengths; half evenly, for rare ones.
        order = np.argsort(lengths, kind="stable")
        totals = np.cumsum(counts[order])
        fractions = np.linspace(0, 1, _MAX_CANDIDATES)[1::2]
        ranks = np.ceil((totals[-1] - 1) * fractions)
        frequent = lengths[order][np.searchsorted(totals, ranks, side="right")]
        even = np.ceil(np.linspace(values[0], values[-1], _MAX_CANDIDATES // 2))
        values = np.unique([*frequent, *even, values[-1]]).astype("int64")
    return values, np.searchsorted(values, lengths)


def assign(
    lengths: list[tuple[int, int]],
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
) -> np.ndarray:
    """Returns the index of the first, so the shortest, bucket for each pair.

    Args:
        lengths: list of `(S, T)` from `choose_lengths`.
        source_lengths: int array `(N,)`.
        target_lengths: int array `(N,)`.
    """
    sources, targets = np.array(lengths).T
    bucket_of = _first_fit(targets, target_lengths)
    return np.maximum(bucket_of, _first_fit(sources, source_lengths), out=bucket_of)


def _first_fit(limits, lengths):
    """Returns the index of the first limit that each length fits, one byte."""
    table = np.searchsorted(limits, np.arange(int(lengths.max(initial=0)) + 1))
    return table.astype(np.min_scalar_type(len(limits)))[lengths]


def fill_buckets(
    lengths: list[tuple[int, int]],
    counts: np.ndarray,
    batch_tokens: int,
    batch_size_multiple: int,
    min_fill: float,
) -> list[Bucket]:
    """Chooses the batch size and the number of batches of each bucket.

    A batch has as many examples as `batch_tokens` allows, or down to `min_fill`
    of that where its examples then divide with fewer left over. Those left over
    move up a bucket. The last bucket takes all, and only its last batch can be
    smaller or have empty rows.

    Args:
        lengths: list of `(S, T)`, growing.
        counts: int array, examples of each bucket.
        batch_tokens: int. Target positions of a batch at most, with padding.
        batch_size_multiple: int. Every batch size is a multiple of it.
        min_fill: float from 0 to 1.

    Raises:
        ValueError: `batch_tokens` is too small for the longest target.
    """
    check_budget(batch_tokens, batch_size_multiple, lengths[-1][1])

    def round_down(number):
        return number // batch_size_multiple * batch_size_multiple

    buckets, leftover = [], 0
    for pair, count in zip(lengths, counts, strict=True):
        max_size = round_down(batch_tokens // pair[1])
        examples = int(count) + leftover
        batches = -(-examples // max_size)
        size = round_down(examples // max(batches, 1))
        if pair == lengths[-1]:
            size = -(-examples // (batches * batch_size_multiple)) * batch_size_multiple
        elif size < max(min_fill * max_size, 1):
            size, batches = max_size, examples // max_size
        leftover = examples - size * batches
        buckets.append(Bucket(pair, size, batches))
    return buckets
