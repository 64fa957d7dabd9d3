"""Batches: every pair once per epoch, reproducible steps, correct counts."""

import collections
import itertools
import logging
import types

import numpy as np
import pytest

from keras_tfm.text import Batches, Pairs, SpecialTokens, Vocabulary, read_pairs
from keras_tfm.text.batches import padding_rates
from keras_tfm.text.bucketing import Bucketing
from keras_tfm.text.tokenized_column import TokenArray, TokenizedColumn

pytestmark = pytest.mark.backend("torch")  # fits on all backends: test_fit.py


def contents(batches):
    """Counts the pairs in batches, as tuples of source, target and labels."""
    counts = collections.Counter()
    for inputs, labels in batches:
        rows = (inputs["source_ids"], inputs["target_ids"], labels)
        for row in zip(*map(np.asarray, rows), strict=True):
            counts[tuple(tuple(side[side != 0].tolist()) for side in row)] += 1
    counts.pop(((), (), ()), None)  # empty examples
    return counts


def expected_counts(pairs, vocabulary, target_vocabulary=None):
    """Counts the pairs, encoded without batching."""
    targets = (target_vocabulary or vocabulary).encode(pairs.target)
    return collections.Counter(
        (tuple(source), (2, *target), (*target, 3))
        for source, target in zip(vocabulary.encode(pairs.source), targets, strict=True)
    )


def epoch(batches, number=0):
    steps = batches.steps_per_epoch
    return [batches.batch(step) for step in range(number * steps, (number + 1) * steps)]


def are_equal(first, second):
    """Returns whether two lists of batches are equal, array by array."""
    pairs = itertools.zip_longest(first, second, fillvalue=({}, None))
    return all(
        np.array_equal(a[0].get(name), b[0].get(name)) and np.array_equal(a[1], b[1])
        for a, b in pairs
        for name in ("source_ids", "target_ids")
    )


def as_numpy(dataset):
    return list(dataset.as_numpy_iterator())


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("batch_tokens", [64, 300, 10_000])
def test_an_epoch_has_every_pair_once(pairs, vocabulary, batch_tokens, shuffle):
    batches = Batches(
        pairs, vocabulary, batch_tokens=batch_tokens, seed=3, shuffle=shuffle
    )
    assert len(batches) == len(pairs)
    for number in (0, 1, 5):
        assert contents(epoch(batches, number)) == expected_counts(pairs, vocabulary)


def test_batches_have_few_shapes_and_stay_within_the_budget(pairs, vocabulary):
    batches = Batches(pairs, vocabulary, batch_tokens=300, num_buckets=4)
    shapes = collections.Counter()
    for inputs, labels in epoch(batches):
        assert labels.dtype == "int32" and labels.shape == inputs["target_ids"].shape
        assert inputs["source_ids"].dtype == inputs["target_ids"].dtype == "int32"
        assert labels.size <= 300
        shapes[inputs["source_ids"].shape + labels.shape[1:]] += 1
    assert shapes == {
        (bucket.batch_size, *bucket.lengths): bucket.num_batches
        for bucket in batches.buckets
    }
    assert 2 <= len(shapes) <= 4


def test_only_one_batch_of_the_longest_bucket_has_empty_examples(pairs, vocabulary):
    num_partial = 0
    for batch_tokens in (200, 250, 300, 350, 400):
        batches = Batches(pairs, vocabulary, batch_tokens=batch_tokens)
        partial = [batch for batch in epoch(batches) if not np.all(batch[1][:, 0])]
        num_partial += len(partial)
        assert len(partial) <= 1
        for inputs, labels in partial:
            empty = labels[:, 0] == 0
            assert labels.shape[1] == batches.buckets[-1].lengths[1]
            assert not inputs["source_ids"][empty].any()
            assert not inputs["target_ids"][empty].any() and not labels[empty].any()
    assert num_partial >= 2


def test_epochs_and_seeds_differ_and_steps_repeat(pairs, vocabulary):
    batches = Batches(pairs, vocabulary, batch_tokens=300)
    repeated = Batches(pairs, vocabulary, batch_tokens=300)
    other_seed = Batches(pairs, vocabulary, batch_tokens=300, seed=1)
    assert batches.steps_per_epoch == other_seed.steps_per_epoch
    assert are_equal(epoch(batches), epoch(repeated))
    assert not are_equal(epoch(batches), epoch(batches, 1))
    assert not are_equal(epoch(batches), epoch(other_seed))
    unshuffled = Batches(pairs, vocabulary, batch_tokens=300, shuffle=False)
    assert are_equal(epoch(unshuffled), epoch(unshuffled, 1))


def test_the_order_of_buckets_is_shuffled(pairs, vocabulary):
    lengths = [
        labels.shape[1]
        for _, labels in epoch(Batches(pairs, vocabulary, batch_tokens=100))
    ]
    rises = np.mean(np.diff(lengths) > 0)
    assert 0.2 < rises < 0.7  # near 0 if sorted by length


def test_a_dataset_resumes_at_any_step(pairs, vocabulary):
    batches = Batches(pairs, vocabulary, batch_tokens=500)
    steps = batches.steps_per_epoch
    whole = as_numpy(batches.dataset(repeat=True).take(2 * steps + 3))
    assert are_equal(whole, [batches.batch(step) for step in range(2 * steps + 3)])
    for first in (1, steps - 1, steps, steps + 2):
        assert are_equal(
            as_numpy(batches.dataset(first_step=first, repeat=True).take(steps)),
            whole[first : first + steps],
        )
    with pytest.raises(
        ValueError, match="`first_step` must be 0 or more; got first_step=-1"
    ):
        batches.dataset(first_step=-1)


def test_a_dataset_read_twice_has_the_same_batches(pairs, vocabulary):
    dataset = Batches(
        pairs, vocabulary, batch_tokens=500, subword_sampling=0.2
    ).dataset(repeat=True)
    next(iter(dataset))  # Keras reads one batch and then restarts
    assert are_equal(as_numpy(dataset.take(9)), as_numpy(dataset.take(9)))


def test_a_dataset_ends_with_its_epoch_and_the_next_pass_is_the_next(pairs, vocabulary):
    batches = Batches(pairs, vocabulary, batch_tokens=300)
    dataset, steps = batches.dataset(), batches.steps_per_epoch
    assert dataset.cardinality() == steps > 12
    as_numpy(dataset.take(2))  # Keras reads one batch and then restarts
    for number in range(3):
        actual = as_numpy(dataset)
        assert are_equal(actual, epoch(batches, number))
    assert contents(actual) == expected_counts(pairs, vocabulary)
    resumed = batches.dataset(first_step=steps + 2)
    assert are_equal(as_numpy(resumed), epoch(batches, 1)[2:])
    assert are_equal(as_numpy(resumed), epoch(batches, 2))


@pytest.mark.backend("torch")
def test_a_py_dataset_has_each_batch_of_an_epoch_once(pairs, vocabulary):
    batches = Batches(pairs, vocabulary, batch_tokens=300)
    dataset = batches.py_dataset(first_epoch=1)
    assert len(dataset) == batches.steps_per_epoch
    for number in (1, 2):
        actual = [dataset[index] for index in range(len(dataset))]
        dataset.on_epoch_begin()
        assert contents(actual) == contents(epoch(batches, number))
        shapes = [labels.shape[1] for _, labels in actual]
        assert shapes[0] == min(shapes) < shapes[1] == max(shapes)
        num_moved = sum(
            x.shape != y.shape or bool((x != y).any())
            for (_, x), (_, y) in zip(actual, epoch(batches, number), strict=True)
        )
        assert num_moved <= 4  # two swaps
        dataset.on_epoch_end()
        dataset.on_epoch_begin()
        dataset[0]
        dataset.on_epoch_end()  # of an epoch that was not read
    assert repr(dataset).startswith("<EpochDataset: epoch 3 of <Batches: 500 pairs")
    with pytest.raises(IndexError, match=f"from 0 to {len(dataset) - 1}; got"):
        dataset[len(dataset)]
    with pytest.raises(ValueError, match="`first_epoch` must be 0 or more"):
        batches.py_dataset(-1)


@pytest.mark.backend("torch")
def test_texts_can_have_special_tokens_around_them(pairs, vocabulary):
    options = {"batch_tokens": 300, "shuffle": False, "max_source_length": 40}
    special = SpecialTokens((7,), (vocabulary.end_id, 8), (9,))
    plain = Batches(pairs, vocabulary, **options)
    tagged = Batches(pairs, vocabulary, **options, special_tokens=special)
    assert len(plain) == len(tagged)

    def rows(batches, name):
        ids = [row for x, _ in epoch(batches) for row in x[name].tolist()]
        return sorted([i for i in row if i] for row in ids if any(row))

    def tag(row):
        return [7, *row, vocabulary.end_id, 8]

    expected = sorted(map(tag, rows(plain, "source_ids")))
    assert rows(tagged, "source_ids") == expected
    targets = rows(plain, "target_ids")
    assert rows(tagged, "target_ids") == sorted([2, 9, *row[1:]] for row in targets)
    for _, labels in epoch(tagged):
        assert {row[0] for row in labels.tolist() if any(row)} == {9}
    # A truncated source keeps the tokens around it.
    longest = max(map(len, expected))
    options |= {"max_source_length": longest - 1, "too_long": "truncate"}
    batches = Batches(pairs, vocabulary, **options, special_tokens=special)
    truncated = sorted(tag(row[1:-2][: longest - 4]) for row in expected)
    assert rows(batches, "source_ids") == truncated
    sampled = Batches(
        pairs, vocabulary, subword_sampling=0.3, special_tokens=special, **options
    )
    for row in rows(sampled, "source_ids"):
        assert row[0] == 7 and row[-2:] == [3, 8]


def test_source_and_target_can_have_different_vocabularies(pairs, vocabulary):
    target_vocabulary = Vocabulary.train(pairs.target, size=300, model_type="bpe")
    batches = Batches(pairs, vocabulary, target_vocabulary)
    assert contents(epoch(batches)) == expected_counts(
        pairs, vocabulary, target_vocabulary
    )
    assert expected_counts(pairs, vocabulary, target_vocabulary) != expected_counts(
        pairs, vocabulary
    )


def test_too_long_pairs_are_dropped_counted_and_logged(pairs, vocabulary, caplog):
    with caplog.at_level(logging.WARNING):
        batches = Batches(pairs, vocabulary, max_source_length=12, max_target_length=30)
    short = collections.Counter(
        row
        for row in expected_counts(pairs, vocabulary).elements()
        if len(row[0]) <= 12 and len(row[2]) <= 30
    )
    assert 50 < short.total() < 450
    assert contents(epoch(batches)) == short
    words = (
        f"500 pairs, {short.total()} used; dropped for a side without tokens: 0; "
        f"dropped for over 12 source or 30 target tokens: {500 - short.total()}."
    )
    assert caplog.messages == [words]
    assert batches.report.startswith(words)


def test_too_long_pairs_can_be_truncated(pairs, vocabulary, caplog):
    with caplog.at_level(logging.WARNING):
        batches = Batches(
            pairs,
            vocabulary,
            max_source_length=12,
            max_target_length=30,
            too_long="truncate",
        )
    truncated = collections.Counter(
        (row[0][:12], row[1][:30], row[2][:30])
        for row in expected_counts(pairs, vocabulary).elements()
    )
    assert contents(epoch(batches)) == truncated
    assert any(row[2][-1] != 3 for row in truncated)  # targets without an end token
    assert "500 pairs, 500 used" in caplog.text
    assert "truncated for over 12 source or 30 target tokens: " in caplog.text


def test_pairs_without_tokens_are_dropped_and_logged(vocabulary, caplog):
    pairs = Pairs(["ba be", "\u200b", "bi"], ["baba", "bebe", "\u200b"])
    with caplog.at_level(logging.WARNING):
        batches = Batches(pairs, vocabulary)
    assert len(batches) == 1
    assert "3 pairs, 1 used; dropped for a side without tokens: 2;" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_source_length": 1}, "a pair that fits; got .* 0 used.*over 1 source"),
        ({"too_long": "cut"}, "`too_long` must be .*'truncate'.*too_long='cut'"),
        ({"num_buckets": 0}, "1 or more; got num_buckets=0"),
        ({"max_target_length": 1}, "at least 2.*max_target_length=1"),
        ({"seed": -1}, "`seed` must be 0 or more; got seed=-1"),
        ({"batch_tokens": 2}, "`batch_tokens` must hold .* tokens; got batch_tokens=2"),
        ({"subword_sampling": 0.0}, "subword_sampling=0.0"),
    ],
)
def test_an_argument_out_of_its_range_raises(vocabulary, options, message):
    pairs = Pairs(["ba be bi"] * 9, ["baba bebe bibi bobo"] * 9)
    with pytest.raises(ValueError, match=message):
        Batches(pairs, vocabulary, **options)


def test_batch_sizes_are_multiples_of_batch_size_multiple(pairs, vocabulary):
    batches = Batches(pairs, vocabulary, batch_tokens=1000, batch_size_multiple=4)
    assert all(len(labels) % 4 == 0 for _, labels in epoch(batches))
    assert contents(epoch(batches)) == expected_counts(pairs, vocabulary)
    without_multiple = Batches(pairs, vocabulary, batch_tokens=1000)
    assert any(len(labels) % 4 for _, labels in epoch(without_multiple))


def test_subword_sampling_changes_the_tokens_and_not_the_text(pairs, vocabulary):
    usual = Batches(pairs, vocabulary, batch_tokens=500)
    sampled = Batches(pairs, vocabulary, batch_tokens=500, subword_sampling=0.2)
    changed = 0
    for step in range(sampled.steps_per_epoch):
        (inputs, labels), (plain, plain_labels) = sampled.batch(step), usual.batch(step)
        assert labels.shape == plain_labels.shape
        for name in ("source_ids", "target_ids"):
            assert vocabulary.decode(inputs[name]) == vocabulary.decode(plain[name])
        tokens = np.where(labels == 3, 0, labels)[:, :-1]
        assert np.array_equal(inputs["target_ids"][:, 1:], tokens)  # shifted by one
        changed += np.sum(np.any(labels != plain_labels, axis=1))
    assert 100 < changed < 500  # other samples are too long for their batch
    assert are_equal(epoch(sampled, 1), epoch(sampled, 1))
    fixed = Batches(
        pairs, vocabulary, batch_tokens=500, subword_sampling=0.2, shuffle=False
    )
    assert not are_equal(epoch(fixed), epoch(fixed, 1))


def test_a_sampled_segmentation_is_used_if_it_fits_the_bucket(vocabulary):
    texts = ["ba be", "bi bo"]
    column = TokenizedColumn(
        TokenArray.encode(texts, vocabulary),
        vocabulary,
        max_length=9,
        is_target=True,
        texts=texts,
    )
    ids = column.ids(np.array([0, 1]), 6)
    usual = ids.copy()
    samples = {0.1: [[7], [7] * 5], 0.2: [[7] * 4, [8, 9]]}
    column.vocabulary = types.SimpleNamespace(
        start_id=2, end_id=3, encode_sampled=lambda texts, alpha, seed: samples[alpha]
    )
    column.resample(ids, [0, 1], 0.1, seed=0)
    assert ids.tolist() == [[2, 7, 3, 0, 0, 0], usual[1].tolist()]
    column.resample(ids, [0, 1], 0.2, seed=0)
    assert ids.tolist() == [[2, 7, 7, 7, 7, 3], [2, 8, 9, 3, 0, 0]]


def test_the_reported_padding_is_that_of_the_batches(pairs, vocabulary):
    batches = Batches(pairs, vocabulary, batch_tokens=300, num_buckets=5)
    real, all_positions = np.zeros(2), np.zeros(2)
    for inputs, labels in epoch(batches):
        for side, ids in enumerate((inputs["source_ids"], labels)):
            real[side] += np.count_nonzero(ids)
            all_positions[side] += ids.size
    rates = [*(1 - real / all_positions), 1 - real.sum() / all_positions.sum()]
    np.testing.assert_allclose(list(batches.padding.values()), rates)
    assert f"{rates[2]:.1%} of both" in batches.report
    assert f"{batches.steps_per_epoch} steps an epoch" in batches.report


def test_multi30k_has_little_padding(data):
    files = (
        data / f"multi30k/tok/train.lc.norm.tok.{side}.gz" for side in ("en", "de")
    )
    pairs = read_pairs(*files)
    joint = Vocabulary.train(pairs.source + pairs.target, 10_000, "bpe")
    batches = Batches(pairs, joint, num_buckets=8)
    # The budget counts target tokens, and so does the bound.
    assert 0.08 < batches.padding["target"] < 0.1
    columns = (batches._source, batches._target)
    lengths = np.stack([column.lengths[batches._selected] for column in columns])
    for num_buckets, bound in ((8, 0.125), (11, 0.1)):
        bucketing = Bucketing(lengths, num_buckets, 4096, source_cost=1.0)
        padding = padding_rates(bucketing.buckets, lengths)["both"]
        assert bound - 0.02 < padding < bound
