"""How offline batch decoding groups sources in batches."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_tfm.runtime.bucketing import batch_sizes, batch_slices

BUCKETS = (16, 32, 64, 128, 256)


def bucket_of(length):
    return next(bucket for bucket in BUCKETS if bucket >= length)


@given(
    st.lists(st.integers(0, 256), max_size=300),
    st.integers(1, 2_000),
    st.integers(1, 100),
)
def test_each_source_is_in_one_batch_and_most_of_a_batch_is_real(lengths, tokens, size):
    lengths, start = sorted(lengths, reverse=True), 0
    for bucket, count, group in batch_slices(lengths, bucket_of, tokens, size):
        batch_lengths = lengths[group]
        assert group.start == start and batch_lengths
        assert bucket == bucket_of(batch_lengths[0])
        assert count in batch_sizes(bucket, tokens, size)
        assert count == 1 or count * bucket <= tokens
        assert len(batch_lengths) <= count <= size
        # Most sequences are longer than half of the bucket.
        assert (
            sum(2 * bucket_of(length) > bucket for length in batch_lengths)
            >= 5 * count / 8
        )
        start = group.stop
    assert start == len(lengths)


@pytest.mark.parametrize(
    ("sources", "counts"),
    [
        (200, [64, 64, 64, 4, 4]),
        (104, [64, 64]),
        (103, [64, 16, 16, 4, 4]),
        (32, [16, 16]),
        (5, [4, 1]),
        (3, [4]),
        (2, [1, 1]),
    ],
)
def test_remaining_sources_are_split_into_smaller_batches(sources, counts):
    actual = batch_slices([9] * sources, bucket_of, 2_048, 64)
    assert [count for _, count, _ in actual] == counts


def test_a_long_source_does_not_lengthen_a_batch_of_short_ones():
    lengths = [200, *[9] * 64]
    actual = [
        (bucket, count)
        for bucket, count, _ in batch_slices(lengths, bucket_of, 16_384, 64)
    ]
    assert actual == [(256, 1), (16, 64)]


def test_a_batch_size_is_a_quarter_of_the_next():
    for counts in (batch_sizes(16, 2_048, 64), batch_sizes(64, 2_048, 64)):
        assert counts[0] == 1
        for smaller, larger in itertools.pairwise(counts):
            assert smaller == max(1, larger // 4)
    assert batch_sizes(4_096, 2_048, 64) == [1]
    assert batch_sizes(16, 2_048, 64) == [1, 4, 16, 64]
    assert batch_sizes(64, 2_048, 64) == [1, 2, 8, 32]
