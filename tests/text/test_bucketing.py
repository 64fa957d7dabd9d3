"""Buckets have the least padding, and every example is in a batch."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_tfm.text.bucketing import Bucketing, assign, choose_lengths, fill_buckets

pytestmark = pytest.mark.backend("torch")  # no backend is involved


def count_positions(lengths, source, target, source_cost=1.0):
    """Counts positions with each pair in the cheapest bucket that fits it."""
    total = 0
    for s, t in zip(source, target, strict=True):
        total += min(source_cost * a + b for a, b in lengths if s <= a and t <= b)
    return total


@pytest.mark.parametrize(
    ("num_buckets", "source_cost"), [(1, 1.0), (2, 1.0), (3, 1.0), (3, 0.25)]
)
def test_no_chain_of_buckets_costs_less(num_buckets, source_cost):
    generator = np.random.default_rng(3)
    source = generator.integers(2, 9, 60)
    target = np.maximum(source + generator.integers(-2, 3, 60), 1)
    chosen = choose_lengths(source, target, num_buckets, source_cost)
    corner = (source.max(), target.max())
    corners = list(itertools.product(range(1, corner[0] + 1), range(1, corner[1] + 1)))
    least = min(
        count_positions([*chain, corner], source, target, source_cost)
        for chain in itertools.combinations(corners, num_buckets - 1)
        if len(chain) < 2 or np.all(np.diff(chain, axis=0) >= 0)
    )
    assert count_positions(chosen, source, target, source_cost) == least
    assert len(chosen) == num_buckets and chosen[-1] == corner


@pytest.mark.parametrize("longest", [5, 40, 3000])
def test_buckets_grow_and_fit_every_pair(longest):
    source, target = np.random.default_rng(4).integers(1, longest, (2, 400))
    lengths = choose_lengths(source, target, 6)
    assert 1 < len(lengths) <= 6
    assert np.all(np.diff(lengths, axis=0) >= 0)
    lengths_of_pairs = np.array(lengths)[assign(lengths, source, target)]
    assert np.all(lengths_of_pairs >= np.transpose([source, target]))
    assert lengths_of_pairs.sum() == count_positions(lengths, source, target)


def test_one_length_needs_one_bucket():
    assert choose_lengths(np.full(9, 7), np.full(9, 4), 8) == [(7, 4)]


bucket_steps = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 300)), min_size=1
)


@given(
    steps=bucket_steps,
    batch_tokens=st.integers(150, 500),
    multiple=st.sampled_from([1, 2, 8]),
    min_fill=st.sampled_from([0.0, 0.75]),
)
def test_batches_have_all_pairs_within_the_budget(
    steps, batch_tokens, multiple, min_fill
):
    steps = steps[:8]
    lengths = np.cumsum([step[:2] for step in steps], axis=0).tolist()
    lengths = [tuple(pair) for pair in lengths]
    counts = [step[2] for step in steps[:-1]] + [steps[-1][2] + 1]
    while lengths[-1][1] * multiple > batch_tokens:
        batch_tokens *= 2
    buckets = fill_buckets(lengths, counts, batch_tokens, multiple, min_fill)
    leftover = 0
    for bucket, count in zip(buckets, counts, strict=True):
        max_size = batch_tokens // bucket.lengths[1]
        assert bucket.batch_size <= max_size
        assert bucket.batch_size % multiple == 0
        if bucket is not buckets[-1] and bucket.num_batches:
            fullest = max_size // multiple * multiple
            assert bucket.batch_size >= min_fill * fullest
        leftover += count - bucket.batch_size * bucket.num_batches
        assert leftover >= 0 or bucket is buckets[-1]
    assert -buckets[-1].batch_size < leftover <= 0  # fewer empty examples than a batch


def test_few_pairs_remain_outside_full_batches():
    buckets = fill_buckets([(10, 10), (20, 20)], [1000, 1000], 800, 1, 0.75)
    assert [(b.batch_size, b.num_batches) for b in buckets] == [(76, 13), (39, 26)]


@pytest.mark.parametrize("columns", [1, 2])
def test_the_batches_of_an_epoch_have_every_example_once(columns):
    lengths = np.random.default_rng(5).integers(1, 40, (columns, 300))
    bucketing = Bucketing(lengths, num_buckets=5, batch_tokens=200)
    batches = bucketing.shuffled_batches(np.random.default_rng(0))
    assert len(batches) == bucketing.steps_per_epoch
    assert sorted(np.concatenate([indices for _, indices in batches])) == [*range(300)]
    for bucket, indices in batches:
        assert len(bucket.lengths) == columns
        assert np.all(bucket.lengths >= lengths[:, indices].T)
        assert len(indices) == bucket.batch_size or bucket is bucketing.buckets[-1]
        assert bucket.batch_size * bucket.lengths[-1] <= 200


@pytest.mark.parametrize(
    ("batch_tokens", "multiple", "message"),
    [(29, 1, "hold 1 of .* 30 tokens; got batch_tokens=29"), (59, 2, "hold 2 of")],
)
def test_a_budget_below_the_longest_target_raises(batch_tokens, multiple, message):
    with pytest.raises(ValueError, match=message):
        fill_buckets([(9, 30)], [1], batch_tokens, multiple, 0.75)
