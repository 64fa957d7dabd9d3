"""Rounds lengths and batch sizes up, so that few functions are compiled."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_tfm.decode.inputs import LENGTHS, rounded_up

# A cache holds so many tokens, and more only when they are needed: the time of
# a step grows with the capacity.
CACHE_CAPACITIES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
CACHE_CAPACITIES += (768, 1024, 1536, 2048, 4096)
FEW_CAPACITIES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
SPECIAL_TOKENS = 4  # language tags, start and end, beside the tokens of a text


class LengthBuckets:
    """Limits and rounds the lengths of sources and hypotheses.

    Args:
        length_rule: pair of ints (m, c): a hypothesis has at most m times the
            tokens of its source plus c.
        max_positions: int or None: tokens that the model has positions for.
        continues_source: bool. A hypothesis continues its source, as that of a
            language model, and has the positions that are left.
        few_buckets: bool. Round up to fewer lengths, see `decode.Options`.

    Raises:
        ValueError: hypotheses would exceed the positions.

    Example:
        ```python
        from keras_tfm.runtime.bucketing import LengthBuckets

        buckets = LengthBuckets((2, 16))
        assert buckets.length_limit(5) == 26
        assert buckets.source_bucket(5) == 16
        ```
    """

    def __init__(
        self,
        length_rule: tuple[int, int],
        max_positions: int | None = None,
        continues_source: bool = False,
        few_buckets: bool = False,
    ):
        self.continues_source, self.max_positions = continues_source, max_positions
        self._sources = LENGTHS
        self._capacities = CACHE_CAPACITIES
        if few_buckets:
            self._sources = [size + SPECIAL_TOKENS for size in FEW_CAPACITIES]
            self._capacities = FEW_CAPACITIES
        self.factor, self.constant = map(int, length_rule)
        if max_positions and not self.factor and self.constant > max_positions:
            raise ValueError(
                "`max_decoding_length` must be at most the positions of the model; got "
                f"max_decoding_length={self.constant}, sequence_length={max_positions}."
            )

    def max_length(self, source_length: Any) -> Any:
        """Returns the most tokens of hypotheses in a batch.

        Args:
            source_length: int or int tensor, in tokens, padding included.
        """
        return _minimum(self.factor * source_length + self.constant, self.max_positions)

    def length_limit(self, source_length: Any) -> Any:
        """Returns the most tokens of hypotheses of a source.

        Args:
            source_length: int or int tensor, in tokens, without padding.
        """
        limit = self.max_length(source_length)
        if self.max_positions is None or not self.continues_source:
            return limit
        # A last token is generated that no step reads.
        return _minimum(limit, self.max_positions + 1 - source_length)

    def length_limits(self, source_ids: np.ndarray) -> list[int]:
        """Returns the limit of each source, 0 where it is empty.

        Args:
            source_ids: integers `(B, S)`, padded with 0.
        """
        counts = np.count_nonzero(source_ids, axis=1).tolist()
        return [self.length_limit(count) if count else 0 for count in counts]

    def next_capacity(self, capacity: int) -> int:
        """Returns the next larger capacity of a cache, in tokens."""
        larger = (size for size in self._capacities if size > capacity)
        larger = next(larger, 2 * capacity)
        limits = [] if self.factor else [self.constant]
        limits += [self.max_positions] if self.max_positions else []
        return min([larger, *limits])

    def source_bucket(self, source_length: int) -> int:
        """Returns the padded length of sources, in tokens."""
        bucket = rounded_up(source_length, self._sources)
        return max(source_length, min(bucket, self.max_positions or bucket))

    def read_length(self, source_length: int) -> int:
        """Returns how many columns of a bucket the encoder reads.

        Args:
            source_length: int, in tokens.

        Returns:
            int >= 1, above the length by at most an eighth, or 3 tokens.
        """
        length = max(1, source_length)
        step = max(4, (1 << (length - 1).bit_length()) // 8)
        return min(-(-length // step) * step, self.source_bucket(length))

    def padded(self, source_ids: np.ndarray) -> np.ndarray:
        """Pads integers `(B, S)` to the bucket of S."""
        length = source_ids.shape[1]
        padding = (0, 0), (0, self.source_bucket(length) - length)
        return np.pad(source_ids, padding)


def batch_sizes(bucket: int, batch_tokens: int, batch_size: int) -> list[int]:
    """Returns the numbers of rows for which functions are compiled.

    Each is a quarter of the next, since rows leave a batch.

    Args:
        bucket: int, padded tokens of a row.
        batch_tokens, batch_size: as in `Decoder.bulk`.

    Returns:
        list of int, ascending from 1.

    Example:
        ```python
        from keras_tfm.runtime.bucketing import batch_sizes

        assert batch_sizes(16, 2048, batch_size=64) == [1, 4, 16, 64]
        ```
    """
    size, sizes = max(1, min(batch_size, batch_tokens // bucket)), {1}
    while size:
        sizes.add(size)
        size //= 4
    return sorted(sizes)


def batch_slices(
    lengths: Sequence[int],
    bucket_of: Callable[[int], int],
    batch_tokens: int,
    batch_size: int,
) -> Iterator[tuple[int, int, slice]]:
    """Splits sorted sources into batches with little padding.

    A batch is the largest of which five eighths are sources of its bucket. What
    remains makes smaller batches, which take less time than a large one that is
    filled up, especially on many cores.

    Args:
        lengths: ints, in tokens, descending.
        bucket_of: `length -> bucket`, in tokens.
        batch_tokens, batch_size: as in `Decoder.bulk`.

    Yields:
        The bucket, the number of rows, and the slice of the sources that are
        its first rows.
    """
    start = 0
    while start < len(lengths):
        bucket = bucket_of(lengths[start])
        for size in reversed(batch_sizes(bucket, batch_tokens, batch_size)):
            last = start - (-5 * size // 8) - 1
            fits = last < len(lengths) and 2 * bucket_of(lengths[last]) > bucket
            if size == 1 or fits:
                break
        stop = min(start + size, len(lengths))
        yield bucket, size, slice(start, stop)
        start = stop


def _minimum(length, limit):
    if limit is None:
        return length
    is_static = isinstance(length, int) and isinstance(limit, int)
    return min(length, limit) if is_static else ops.minimum(length, limit)
