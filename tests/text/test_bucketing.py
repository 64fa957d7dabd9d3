"""Shapes of batches: the least padding, and every pair placed."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_tfm.text.bucketing import assign, choose_lengths, share_out

pytestmark = pytest.mark.backend("torch")  # of no backend: once is enough


def positions(lengths, source, target, source_cost=1.0):
    """Counts positions, each pair in the cheapest shape that holds it."""
    total = 0
    for s, t in zip(source, target, strict=True):
        total += min(source_cost * a + b for a, b in lengths if s <= a and t <= b)
    return total


@pytest.mark.parametrize(
    ("count", "source_cost"), [(1, 1.0), (2, 1.0), (3, 1.0), (3, 0.25)]
)
def test_no_chain_of_shapes_costs_less(count, source_cost):
    draw = np.random.default_rng(3)
    source = draw.integers(2, 9, 60)
    target = np.maximum(source + draw.integers(-2, 3, 60), 1)
    chosen = choose_lengths(source, target, count, source_cost)
    corner = (source.max(), target.max())
    corners = list(itertools.product(range(1, corner[0] + 1), range(1, corner[1] + 1)))
    least = min(
        positions([*chain, corner], source, target, source_cost)
        for chain in itertools.combinations(corners, count - 1)
        if len(chain) < 2 or np.all(np.diff(chain, axis=0) >= 0)
    )
    assert positions(chosen, source, target, source_cost) == least
    assert len(chosen) == count and chosen[-1] == corner


@pytest.mark.parametrize("longest", [5, 40, 3000])
def test_shapes_grow_and_hold_every_pair(longest):
    draw = np.random.default_rng(4)
    source, target = draw.integers(1, longest, (2, 400))
    lengths = choose_lengths(source, target, 6)
    assert 1 < len(lengths) <= 6
    assert np.all(np.diff(lengths, axis=0) >= 0)
    which = np.array(lengths)[assign(lengths, source, target)]
    assert np.all(which >= np.transpose([source, target]))
    assert which.sum() == positions(lengths, source, target)


def test_one_length_needs_one_shape():
    assert choose_lengths(np.full(9, 7), np.full(9, 4), 8) == [(7, 4)]


lengths_and_counts = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 300)), min_size=1
)


@given(
    steps=lengths_and_counts,
    budget=st.integers(150, 500),
    multiple=st.sampled_from([1, 2, 8]),
    fullness=st.sampled_from([0.0, 0.75]),
)
def test_batches_hold_all_pairs_within_the_budget(steps, budget, multiple, fullness):
    steps = steps[:8]
    lengths = np.cumsum([step[:2] for step in steps], axis=0).tolist()
    counts = [step[2] for step in steps[:-1]] + [steps[-1][2] + 1]
    while lengths[-1][1] * multiple > budget:
        budget *= 2
    shapes = share_out([tuple(x) for x in lengths], counts, budget, multiple, fullness)
    waiting = 0
    for shape, count in zip(shapes, counts, strict=True):
        most = budget // shape.target_length
        assert shape.rows <= most
        assert shape.rows % multiple == 0
        if shape is not shapes[-1] and shape.batches:
            assert shape.rows >= fullness * (most // multiple * multiple)
        waiting += count - shape.rows * shape.batches
        assert waiting >= 0 or shape is shapes[-1]
    assert -shapes[-1].rows < waiting <= 0  # empty rows: less than a batch


def test_few_pairs_are_left_over():
    shapes = share_out([(10, 10), (20, 20)], [1000, 1000], 800, 1, 0.75)
    assert [(s.rows, s.batches) for s in shapes] == [(76, 13), (39, 26)]


def test_a_budget_below_one_sentence_is_refused():
    with pytest.raises(ValueError, match=r"batch_tokens=29, and a target of 30"):
        share_out([(9, 30)], [1], 29, 1, 0.75)
    with pytest.raises(ValueError, match=r"at least 2 of .*batch_tokens=59"):
        share_out([(9, 30)], [1], 59, 2, 0.75)
