"""Which sources of a job share a batch."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_tfm.runtime.bucketing import batch_sizes, batch_slices

WIDTHS = (16, 32, 64, 128, 256)


def width_of(length):
    return next(width for width in WIDTHS if width >= length)


@given(
    st.lists(st.integers(0, 256), max_size=300),
    st.integers(1, 2_000),
    st.integers(1, 100),
)
def test_each_source_has_one_place_and_most_of_a_batch_is_real(lengths, tokens, size):
    lengths, place = sorted(lengths, reverse=True), 0
    for width, count, group in batch_slices(lengths, width_of, tokens, size):
        own = lengths[group]
        assert group.start == place and own
        assert width == width_of(own[0])
        assert count in batch_sizes(width, tokens, size)
        assert count == 1 or count * width <= tokens
        assert len(own) <= count <= size
        # Of the rows, and of the tokens of a program for half of the width.
        assert sum(2 * width_of(length) > width for length in own) >= 5 * count / 8
        place = group.stop
    assert place == len(lengths)


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
def test_what_is_left_over_is_cut_and_not_filled_up(sources, counts):
    actual = batch_slices([9] * sources, width_of, 2_048, 64)
    assert [count for _, count, _ in actual] == counts


def test_a_long_source_does_not_widen_a_batch_of_short_ones():
    lengths = [200, *[9] * 64]
    actual = [
        (width, count)
        for width, count, _ in batch_slices(lengths, width_of, 16_384, 64)
    ]
    assert actual == [(256, 1), (16, 64)]


def test_a_batch_is_a_quarter_of_the_next():
    for counts in (batch_sizes(16, 2_048, 64), batch_sizes(64, 2_048, 64)):
        assert counts[0] == 1
        for few, more in itertools.pairwise(counts):
            assert few == max(1, more // 4)
    assert batch_sizes(4_096, 2_048, 64) == [1]
    assert batch_sizes(16, 2_048, 64) == [1, 4, 16, 64]
    assert batch_sizes(64, 2_048, 64) == [1, 2, 8, 32]
