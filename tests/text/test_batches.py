"""Batches: every pair once an epoch, one run from one seed, honest counts."""

import collections
import itertools
import logging
import types

import keras
import numpy as np
import pytest

from keras_tfm.text import Batches, Pairs, Vocabulary, read_pairs
from keras_tfm.text.tokenized_column import TokenizedColumn


def contents(batches):
    """Counts the pairs in batches, as tuples of source, target and labels."""
    found = collections.Counter()
    for inputs, labels in batches:
        rows = (inputs["source_ids"], inputs["target_ids"], labels)
        for row in zip(*map(np.asarray, rows), strict=True):
            found[tuple(tuple(side[side != 0].tolist()) for side in row)] += 1
    found.pop(((), (), ()), None)  # empty rows
    return found


def wanted(pairs, vocabulary, other=None):
    """Counts the pairs as a first-year student would encode them."""
    targets = (other or vocabulary).encode(pairs.target)
    return collections.Counter(
        (tuple(source), (2, *target), (*target, 3))
        for source, target in zip(vocabulary.encode(pairs.source), targets, strict=True)
    )


def epoch(batches, number=0):
    steps = batches.steps_per_epoch
    return [batches.batch(step) for step in range(number * steps, (number + 1) * steps)]


def same(first, second):
    """Tells whether two lists of batches are equal, array by array."""
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
def test_an_epoch_holds_every_pair_once(pairs, vocabulary, batch_tokens, shuffle):
    batches = Batches(
        pairs, vocabulary, batch_tokens=batch_tokens, seed=3, shuffle=shuffle
    )
    assert len(batches) == len(pairs)
    for number in (0, 1, 5):
        assert contents(epoch(batches, number)) == wanted(pairs, vocabulary)


def test_batches_keep_to_few_shapes_and_the_budget(pairs, vocabulary):
    batches = Batches(pairs, vocabulary, batch_tokens=300, num_buckets=4)
    shapes = collections.Counter()
    for inputs, labels in epoch(batches):
        assert labels.dtype == "int32" and labels.shape == inputs["target_ids"].shape
        assert inputs["source_ids"].dtype == inputs["target_ids"].dtype == "int32"
        assert labels.size <= 300
        shapes[inputs["source_ids"].shape + labels.shape[1:]] += 1
    assert shapes == {
        (s.rows, s.source_length, s.target_length): s.batches for s in batches.shapes
    }
    assert 2 <= len(shapes) <= 4


def test_only_one_batch_has_empty_rows_and_it_is_of_the_longest(pairs, vocabulary):
    seen = 0
    for batch_tokens in (200, 250, 300, 350, 400):
        batches = Batches(pairs, vocabulary, batch_tokens=batch_tokens)
        partial = [each for each in epoch(batches) if not np.all(each[1][:, 0])]
        seen += len(partial)
        assert len(partial) <= 1
        for inputs, labels in partial:
            empty = labels[:, 0] == 0
            assert labels.shape[1] == batches.shapes[-1].target_length
            assert not inputs["source_ids"][empty].any()
            assert not inputs["target_ids"][empty].any() and not labels[empty].any()
    assert seen >= 2


def test_epochs_and_seeds_differ_and_steps_do_not(pairs, vocabulary):
    batches = Batches(pairs, vocabulary, batch_tokens=300)
    again = Batches(pairs, vocabulary, batch_tokens=300)
    other = Batches(pairs, vocabulary, batch_tokens=300, seed=1)
    assert batches.steps_per_epoch == other.steps_per_epoch
    assert same(epoch(batches), epoch(again))
    assert not same(epoch(batches), epoch(batches, 1))
    assert not same(epoch(batches), epoch(other))
    usual = Batches(pairs, vocabulary, batch_tokens=300, shuffle=False)
    assert same(epoch(usual), epoch(usual, 1))


def test_the_order_of_shapes_is_shuffled_too(pairs, vocabulary):
    lengths = [
        labels.shape[1]
        for _, labels in epoch(Batches(pairs, vocabulary, batch_tokens=100))
    ]
    rises = np.mean(np.diff(lengths) > 0)
    assert 0.2 < rises < 0.7  # sorted by length it is near 0


def test_a_dataset_goes_on_at_any_step(pairs, vocabulary):
    batches = Batches(pairs, vocabulary, batch_tokens=500)
    steps = batches.steps_per_epoch
    whole = as_numpy(batches.dataset().take(2 * steps + 3))
    assert same(whole, [batches.batch(step) for step in range(2 * steps + 3)])
    for first in (1, steps - 1, steps, steps + 2):
        assert same(
            as_numpy(batches.dataset(first_step=first).take(steps)),
            whole[first : first + steps],
        )
    with pytest.raises(ValueError, match="counted from 0. Received: first_step=-1"):
        batches.dataset(first_step=-1)


def test_reading_a_dataset_twice_gives_the_same_batches(pairs, vocabulary):
    dataset = Batches(
        pairs, vocabulary, batch_tokens=500, subword_sampling=0.2
    ).dataset()
    next(iter(dataset))  # Keras peeks at one batch and then starts again
    assert same(as_numpy(dataset.take(9)), as_numpy(dataset.take(9)))


def test_an_evaluation_ends_after_every_pair(pairs, vocabulary):
    batches = Batches(pairs, vocabulary, batch_tokens=500, shuffle=False)
    once = as_numpy(batches.dataset(repeat=False))
    assert len(once) == batches.steps_per_epoch
    assert contents(once) == wanted(pairs, vocabulary)


def test_each_side_can_have_its_own_vocabulary(pairs, vocabulary):
    other = Vocabulary.train(pairs.target, size=300, model_type="bpe")
    batches = Batches(pairs, vocabulary, other)
    assert contents(epoch(batches)) == wanted(pairs, vocabulary, other)
    assert wanted(pairs, vocabulary, other) != wanted(pairs, vocabulary)


def test_pairs_too_long_are_dropped_counted_and_said(pairs, vocabulary, caplog):
    with caplog.at_level(logging.WARNING):
        batches = Batches(pairs, vocabulary, max_source_length=12, max_target_length=30)
    short = collections.Counter(
        row
        for row in wanted(pairs, vocabulary).elements()
        if len(row[0]) <= 12 and len(row[2]) <= 30
    )
    assert 50 < short.total() < 450
    assert contents(epoch(batches)) == short
    words = (
        f"500 pairs, {short.total()} kept; dropped for a side without tokens: 0; "
        f"dropped for over 12 source or 30 target tokens: {500 - short.total()}."
    )
    assert caplog.messages == [words]
    assert batches.report.startswith(words)


def test_pairs_too_long_can_be_truncated_instead(pairs, vocabulary, caplog):
    with caplog.at_level(logging.WARNING):
        batches = Batches(
            pairs,
            vocabulary,
            max_source_length=12,
            max_target_length=30,
            too_long="truncate",
        )
    cut = collections.Counter(
        (row[0][:12], row[1][:30], row[2][:30])
        for row in wanted(pairs, vocabulary).elements()
    )
    assert contents(epoch(batches)) == cut
    assert any(row[2][-1] != 3 for row in cut)  # no end where there is none
    assert "500 pairs, 500 kept" in caplog.text
    assert "truncated for over 12 source or 30 target tokens: " in caplog.text


def test_text_that_normalises_to_nothing_is_dropped_and_said(vocabulary, caplog):
    pairs = Pairs(["ba be", "\u200b", "bi"], ["baba", "bebe", "\u200b"])
    with caplog.at_level(logging.WARNING):
        batches = Batches(pairs, vocabulary)
    assert len(batches) == 1
    assert "3 pairs, 1 kept; dropped for a side without tokens: 2;" in caplog.text


def test_nothing_left_is_refused(vocabulary):
    pairs = Pairs(["ba be bi"], ["baba"])
    with pytest.raises(ValueError, match="No pair is left.* 0 kept.*over 1 source"):
        Batches(pairs, vocabulary, max_source_length=1)


def test_settings_that_cannot_work_are_refused(pairs, vocabulary):
    for settings, words in (
        ({"too_long": "cut"}, '"drop" or "truncate". Received: too_long=\'cut\''),
        ({"num_buckets": 0}, "at least 1.*num_buckets=0"),
        ({"max_target_length": 1}, "at least 2.*max_target_length=1"),
        ({"seed": -1}, "`seed` must be 0 or more. Received: seed=-1"),
        ({"batch_tokens": 8}, "batch_tokens=8, and a target of"),
        ({"rows_multiple": 0}, "rows_multiple=0"),
        ({"subword_sampling": 0.0}, "subword_sampling=0.0"),
    ):
        with pytest.raises(ValueError, match=words):
            Batches(pairs, vocabulary, **settings)
    with pytest.raises(TypeError, match="must be `Pairs`. Received: list"):
        Batches([("a", "b")], vocabulary)


def test_rows_are_a_multiple_of_the_devices(pairs, vocabulary):
    batches = Batches(pairs, vocabulary, batch_tokens=1000, rows_multiple=4)
    assert all(len(labels) % 4 == 0 for _, labels in epoch(batches))
    assert contents(epoch(batches)) == wanted(pairs, vocabulary)
    usual = Batches(pairs, vocabulary, batch_tokens=1000)
    assert any(len(labels) % 4 for _, labels in epoch(usual))


def test_sampled_subwords_say_the_same_text_in_other_pieces(pairs, vocabulary):
    usual = Batches(pairs, vocabulary, batch_tokens=500)
    sampled = Batches(pairs, vocabulary, batch_tokens=500, subword_sampling=0.2)
    changed = 0
    for step in range(sampled.steps_per_epoch):
        (inputs, labels), (plain, plain_labels) = sampled.batch(step), usual.batch(step)
        assert labels.shape == plain_labels.shape
        for name in ("source_ids", "target_ids"):
            assert vocabulary.decode(inputs[name]) == vocabulary.decode(plain[name])
        read = inputs["target_ids"]
        said = np.where(labels == 3, 0, labels)
        assert np.array_equal(read[:, 1:], said[:, :-1])  # shifted by one
        changed += np.sum(np.any(labels != plain_labels, axis=1))
    assert 100 < changed < 500  # the others are too long for their batch
    assert same(epoch(sampled, 1), epoch(sampled, 1))
    fixed = Batches(
        pairs, vocabulary, batch_tokens=500, subword_sampling=0.2, shuffle=False
    )
    assert not same(epoch(fixed), epoch(fixed, 1))


def test_a_sampled_cut_replaces_the_usual_one_where_it_fits(vocabulary):
    side = TokenizedColumn(["ba be", "bi bo"], vocabulary, longest=9, marked=True)
    ids = side.rows(np.array([0, 1]), 6)
    usual = ids.copy()
    cuts = {0.1: [[7], [7] * 5], 0.2: [[7] * 4, [8, 9]]}
    side.vocabulary = types.SimpleNamespace(
        start_id=2, end_id=3, encode_sampled=lambda texts, alpha, seed: cuts[alpha]
    )
    side.resample(ids, [0, 1], 0.1, seed=0)
    assert ids.tolist() == [[2, 7, 3, 0, 0, 0], usual[1].tolist()]
    side.resample(ids, [0, 1], 0.2, seed=0)
    assert ids.tolist() == [[2, 7, 7, 7, 7, 3], [2, 8, 9, 3, 0, 0]]


def test_the_reported_padding_is_that_of_the_batches(pairs, vocabulary):
    batches = Batches(pairs, vocabulary, batch_tokens=300, num_buckets=5)
    real, all_positions = np.zeros(2), np.zeros(2)
    for inputs, labels in epoch(batches):
        for side, ids in enumerate((inputs["source_ids"], labels)):
            real[side] += np.count_nonzero(ids)
            all_positions[side] += ids.size
    shares = [*(1 - real / all_positions), 1 - real.sum() / all_positions.sum()]
    np.testing.assert_allclose(list(batches.padding.values()), shares)
    assert f"{shares[2]:.1%} of both" in batches.report
    assert f"{batches.steps_per_epoch} steps an epoch" in batches.report


@pytest.mark.backend("tensorflow")
def test_multi30k_is_padded_little(data):
    files = (
        data / f"multi30k/tok/train.lc.norm.tok.{side}.gz" for side in ("en", "de")
    )
    pairs = read_pairs(*files)
    joint = Vocabulary.train(pairs.source + pairs.target, 10_000, "bpe")
    # The budget is one of target tokens, and so is the bound.
    assert 0.08 < Batches(pairs, joint, num_buckets=8).padding["target"] < 0.1
    for num_buckets, most in ((8, 0.125), (11, 0.1)):
        batches = Batches(pairs, joint, num_buckets=num_buckets, source_cost=1.0)
        assert most - 0.02 < batches.padding["both"] < most


def test_the_same_batches_feed_fit_on_every_backend(pairs, vocabulary):
    source = keras.Input((None,), dtype="int32", name="source_ids")
    target = keras.Input((None,), dtype="int32", name="target_ids")
    embed = keras.layers.Embedding(vocabulary.size, 16)
    summary = keras.layers.GlobalAveragePooling1D(keepdims=True)(embed(source))
    x = keras.layers.Dense(16, activation="relu")(embed(target) + summary)
    logits = keras.layers.Dense(vocabulary.size)(x)
    model = keras.Model({"source_ids": source, "target_ids": target}, logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile(keras.optimizers.Adam(0.01), loss)
    batches = Batches(pairs, vocabulary, batch_tokens=1500, num_buckets=3)
    held = Batches(pairs, vocabulary, batch_tokens=1500, num_buckets=3, shuffle=False)
    steps = batches.steps_per_epoch
    history = model.fit(
        batches.dataset(),
        steps_per_epoch=steps,
        epochs=3,
        shuffle=False,
        verbose=0,
        validation_data=held.dataset(repeat=False),
    ).history
    assert model.optimizer.iterations == 3 * steps
    assert history["loss"][-1] < 0.9 * history["loss"][0]
    assert np.isfinite(history["val_loss"]).all()
