"""Batches of labelled texts: every text once, in order when it is asked for."""

import collections
import logging
import re

import keras
import numpy as np
import pytest

from keras_tfm.models import Encoder, SequenceClassifier
from keras_tfm.text import LabelBatches, LabeledDataset, Vocabulary


@pytest.fixture(scope="module")
def labelled(pairs):
    """Texts whose label says whether the word "ba" stands in them."""
    labels = ["with" if "ba" in text.split() else "less" for text in pairs.source]
    return LabeledDataset(pairs.source, labels)


@pytest.fixture(scope="module")
def paired(pairs):
    labels = ["long" if len(text) > 60 else "short" for text in pairs.target]
    return LabeledDataset(list(pairs), labels)


def wanted(labelled, vocabulary):
    """Counts the texts as a first-year student would encode them."""
    texts = vocabulary.encode(labelled.texts)
    labels = [labelled.classes.index(label) for label in labelled.labels]
    rows = zip(texts, labels, strict=True)
    return collections.Counter(((2, *ids, 3), label) for ids, label in rows)


def contents(batches):
    found = collections.Counter()
    for inputs, labels, *_ in batches:
        for ids, label in zip(inputs["token_ids"], labels, strict=True):
            found[tuple(ids[ids != 0].tolist()), int(label)] += 1
    return found


def epoch(batches, number=0):
    steps = batches.steps_per_epoch
    return [batches.batch(step) for step in range(number * steps, (number + 1) * steps)]


def in_order(batches):
    return [batches.ordered_batch(step) for step in range(batches.steps_per_epoch)]


def same(first, second):
    """Tells whether two lists of batches are equal, array by array."""
    flat = [
        [(*each[0].values(), *each[1:]) for each in part] for part in (first, second)
    ]
    return len(first) == len(second) and all(
        len(a) == len(b) and all(map(np.array_equal, a, b))
        for a, b in zip(*flat, strict=True)
    )


def sides(ids, vocabulary):
    """Reads the two texts of a row of ids, by their ends."""
    first, second = np.flatnonzero(ids == 3)
    return vocabulary.decode([ids[:first], ids[first + 1 : second]])


@pytest.mark.parametrize("batch_tokens", [64, 300, 10_000])
def test_an_epoch_holds_every_text_once(labelled, vocabulary, batch_tokens):
    batches = LabelBatches(labelled, vocabulary, batch_tokens, seed=3)
    assert len(batches) == 500
    for number in (0, 1, 5):
        assert contents(epoch(batches, number)) == wanted(labelled, vocabulary)
    assert contents(in_order(batches)) == wanted(labelled, vocabulary)


def test_batches_keep_to_few_shapes_and_the_budget(labelled, vocabulary):
    for batch_tokens in (200, 250, 300, 350):
        batches = LabelBatches(labelled, vocabulary, batch_tokens, num_buckets=4)
        shapes = collections.Counter()
        for inputs, labels in epoch(batches):
            ids = inputs["token_ids"]
            assert (
                list(inputs) == ["token_ids"] and ids.dtype == labels.dtype == "int32"
            )
            assert ids.size <= batch_tokens and labels.shape == ids.shape[:1]
            assert np.all(ids[:, 0] == 2)  # no row is empty, each begins with start
            shapes[ids.shape] += 1
        told = {(s.rows, s.length): s.batches for s in batches.shapes if s.batches}
        last = (batches.shapes[-1].rows, batches.shapes[-1].length)
        smaller = {shape: n for shape, n in shapes.items() if shape not in told}
        assert sum(smaller.values()) <= 1
        assert all(s[1] == last[1] and s[0] < last[0] for s in smaller)
        told[last] -= len(smaller)
        assert shapes == collections.Counter(told) + collections.Counter(smaller)
        assert 2 <= len(batches.shapes) <= 4


def test_epochs_and_seeds_differ_and_steps_do_not(labelled, vocabulary):
    first, again, other = (
        LabelBatches(labelled, vocabulary, 300, seed=seed) for seed in (0, 0, 1)
    )
    assert same(epoch(first), epoch(again))
    assert not same(epoch(first), epoch(first, 1))
    assert not same(epoch(first), epoch(other))
    assert same(in_order(first), in_order(other))
    lengths = [inputs["token_ids"].shape[1] for inputs, _ in epoch(first)]
    assert 0.15 < np.mean(np.diff(lengths) > 0) < 0.7  # shapes are mixed too


def test_datasets_are_these_batches_and_go_on_at_any_step(labelled, vocabulary):
    batches = LabelBatches(labelled, vocabulary, 500, word_dropout=0.1)
    steps = batches.steps_per_epoch
    whole = [batches.batch(step) for step in range(2 * steps)]
    dataset = batches.dataset()
    for _ in range(2):  # reading it again begins again
        assert same(list(dataset.take(2 * steps).as_numpy_iterator()), whole)
    later = batches.dataset(first_step=steps - 2).take(4).as_numpy_iterator()
    assert same(list(later), whole[steps - 2 : steps + 2])
    once = batches.dataset(first_step=3, repeat=False)
    assert int(once.cardinality()) == steps - 3
    assert same(list(once.as_numpy_iterator()), whole[3:steps])
    ordered = batches.ordered()
    assert int(ordered.cardinality()) == steps
    assert same(list(ordered.as_numpy_iterator()), in_order(batches))
    with pytest.raises(ValueError, match="counted from 0. Received: first_step=-1"):
        batches.dataset(first_step=-1)


def test_what_is_said_in_order_comes_back_to_its_text(labelled, vocabulary):
    batches = LabelBatches(labelled, vocabulary, 300)
    ids = [row for inputs, _ in in_order(batches) for row in inputs["token_ids"]]
    said = np.array([np.count_nonzero(row) - 2 for row in ids])
    lengths = [len(row) for row in vocabulary.encode(labelled.texts)]
    assert batches.restore(said).tolist() == lengths != said.tolist()
    labels = np.concatenate([labels for _, labels in in_order(batches)])
    assert batches.restore(labels).tolist() == labelled.encoded_labels().tolist()
    assert sorted(batches.ordered_rows) == list(range(500))
    assert batches.restore(np.ones((500, 3))).shape == (500, 3)
    with pytest.raises(ValueError, match=r"each of 500 texts.*shape \(499,\)"):
        batches.restore(said[:-1])


def test_pairs_have_two_ends_and_two_segments(paired, vocabulary):
    batches = LabelBatches(paired, vocabulary, 600)
    seen, rows = 0, iter(batches.ordered_rows)
    for inputs, _ in in_order(batches):
        for ids, segments in zip(*inputs.values(), strict=True):
            first, second = vocabulary.encode(list(paired.texts[next(rows)]))
            plain = [2, *first, 3, *second, 3]
            empty = [0] * (len(ids) - len(plain))
            assert ids.tolist() == plain + empty
            ones = [0] * (len(first) + 2) + [1] * (len(second) + 1)
            assert segments.tolist() == ones + empty
            seen += 1
    assert seen == 500
    inputs, _ = next(batches.dataset().as_numpy_iterator())
    assert inputs["segment_ids"].dtype == "int32" and inputs["segment_ids"].any()


def test_long_texts_are_cut_counted_and_said(labelled, vocabulary, caplog):
    with caplog.at_level(logging.WARNING):
        batches = LabelBatches(labelled, vocabulary, max_length=12)
    whole = wanted(labelled, vocabulary)
    cut = collections.Counter()
    for (ids, label), count in whole.items():
        cut[ids if len(ids) <= 12 else (*ids[:11], 3), label] += count
    assert contents(epoch(batches)) == cut == contents(in_order(batches))
    long = sum(count for (ids, _), count in whole.items() if len(ids) > 12)
    lost = sum(max(len(ids) - 12, 0) * count for (ids, _), count in whole.items())
    tokens = sum((len(ids) - 2) * count for (ids, _), count in whole.items())
    assert batches.truncated == long and 100 < long < 450
    words = (
        f"500 texts; truncated for over 12 tokens: {long} ({lost / tokens:.1%} of all "
        "tokens); with a side without tokens: 0."
    )
    assert caplog.messages == [words] and batches.report.startswith(words)


def test_nothing_is_said_when_nothing_is_cut(labelled, vocabulary, caplog):
    batches = LabelBatches(labelled, vocabulary)
    assert batches.truncated == 0 and not caplog.messages


def test_of_a_pair_the_longer_text_is_cut_first(vocabulary):
    texts = [("ba " * 9, "bo"), ("bo", "ba " * 9), ("ba " * 9, "bo " * 9)]
    batches = LabelBatches(
        LabeledDataset(texts, ["x", "y", "x"]), vocabulary, max_length=9
    )
    ids = {}
    for inputs, _ in in_order(batches):
        for row in inputs["token_ids"]:
            ids[len(ids)] = row[row != 0].tolist()
    rows = [ids[place] for place in np.argsort(batches.ordered_rows)]
    long, short = vocabulary.encode(["ba " * 9, "bo " * 9])
    (alone,) = vocabulary.encode(["bo"])
    left = 6 - len(alone)
    assert rows[0] == [2, *long[:left], 3, *alone, 3]
    assert rows[1] == [2, *alone, 3, *long[:left], 3]
    assert rows[2] == [2, *long[:3], 3, *short[:3], 3]
    assert batches.truncated == 3


def test_a_text_without_tokens_stays_and_is_said(vocabulary, caplog):
    labelled = LabeledDataset(["ba be", "\u200b", "bi"], ["x", "y", "x"])
    batches = LabelBatches(labelled, vocabulary)
    assert (2, 3) in {ids for ids, _ in contents(in_order(batches))}
    assert "with a side without tokens: 1." in caplog.text
    with pytest.raises(ValueError, match="One text at least must have a token"):
        LabelBatches(LabeledDataset(["\u200b", "\u200b"], ["x", "y"]), vocabulary)


def test_several_labels_come_as_zeros_and_ones(pairs, vocabulary):
    words = ("ba", "be", "dan")
    labels = [[word for word in words if word in text.split()] for text in pairs.source]
    labelled = LabeledDataset(pairs.source, labels)
    batches = LabelBatches(labelled, vocabulary, 300)
    said = np.concatenate([labels for _, labels in in_order(batches)])
    assert said.dtype == "float32" and said.shape == (500, 3)
    assert np.array_equal(batches.restore(said), labelled.encoded_labels())
    _, some = next(batches.dataset().as_numpy_iterator())
    assert some.dtype == "float32" and some.shape[1] == 3
    with pytest.raises(ValueError, match="one label a text.*Weigh classes in the loss"):
        LabelBatches(labelled, vocabulary, class_weight="balanced")


def test_sampled_subwords_say_the_same_text_in_other_pieces(paired, vocabulary):
    usual = LabelBatches(paired, vocabulary, 600)
    sampled = LabelBatches(paired, vocabulary, 600, subword_sampling=0.2)
    changed = 0
    for (inputs, labels), (plain, plain_labels) in zip(
        epoch(sampled), epoch(usual), strict=True
    ):
        assert np.array_equal(labels, plain_labels)
        for row, other in zip(inputs["token_ids"], plain["token_ids"], strict=True):
            assert sides(row, vocabulary) == sides(other, vocabulary)
            changed += not np.array_equal(row, other)
    assert 100 < changed < 500  # the others are too long for their batch
    assert not same(epoch(sampled), epoch(sampled, 1))
    assert same(epoch(sampled, 1), epoch(sampled, 1))
    assert same(in_order(sampled), in_order(usual))
    cut = LabelBatches(paired, vocabulary, 600, max_length=20, subword_sampling=0.2)
    assert all(len(ids) <= 20 for i, _ in epoch(cut) for ids in i["token_ids"])


def test_dropped_words_become_unknown_in_training_only(labelled, vocabulary):
    usual = LabelBatches(labelled, vocabulary, 600)
    batches = LabelBatches(labelled, vocabulary, 600, word_dropout=0.2)
    dropped = tokens = 0
    for (inputs, _), (plain, _) in zip(epoch(batches), epoch(usual), strict=True):
        ids, other = inputs["token_ids"], plain["token_ids"]
        lost = ids != other
        assert np.all(ids[lost] == 1) and not np.isin(other[lost], [0, 2, 3]).any()
        dropped += lost.sum()
        tokens += (other > 3).sum()
    assert 0.17 < dropped / tokens < 0.23
    assert not same(epoch(batches), epoch(batches, 1))
    assert same(in_order(batches), in_order(usual))


def test_what_is_dropped_is_masked_where_nothing_is_unknown(labelled, vocabulary):
    class Masked(Vocabulary):
        unknown_id = 0  # as padding is named by those that have none
        mask_id = 5

    masked = Masked(vocabulary.model)
    batches = LabelBatches(labelled, masked, 600, word_dropout=0.2)
    usual = LabelBatches(labelled, masked, 600)
    dropped = 0
    for (inputs, _), (plain, _) in zip(epoch(batches), epoch(usual), strict=True):
        lost = inputs["token_ids"] != plain["token_ids"]
        assert np.all(inputs["token_ids"][lost] == 5)
        dropped += lost.sum()
    assert dropped
    Masked.mask_id = None
    with pytest.raises(ValueError, match="a vocabulary with neither"):
        LabelBatches(labelled, masked, 600, word_dropout=0.2)


def test_weights_are_those_of_the_classes(labelled, vocabulary):
    counts = labelled.counts
    balanced = {each: 500 / (2 * counts[each]) for each in labelled.classes}
    for class_weight, want in (
        ("balanced", balanced),
        ({"with": 3.0, "less": 0}, {"with": 3.0, "less": 0.0}),
    ):
        batches = LabelBatches(labelled, vocabulary, 300, class_weight=class_weight)
        total = 0.0
        for _, labels, weights in epoch(batches):
            assert weights.dtype == "float32"
            named = [want[labelled.classes[label]] for label in labels]
            np.testing.assert_allclose(weights, named, rtol=1e-6)
            total += weights.sum()
        if class_weight == "balanced":
            assert abs(total - 500) < 0.01
        assert len(next(batches.dataset().as_numpy_iterator())) == 3
        assert len(next(batches.ordered().as_numpy_iterator())) == 2


def test_settings_that_cannot_work_are_refused(labelled, paired, vocabulary):
    missing = LabeledDataset(
        ["ba", "bo"], ["x", "y"], ["x", "y", "z"], allow_missing=True
    )
    for texts, settings, words in (
        (labelled, {"num_buckets": 0}, "at least 1.*num_buckets=0"),
        (labelled, {"max_length": 2}, "at least 3.*max_length=2"),
        (paired, {"max_length": 4}, "at least 5.*max_length=4"),
        (labelled, {"seed": -1}, "seed=-1"),
        (labelled, {"batch_tokens": 8}, "batch_tokens=8, and a text of"),
        (labelled, {"subword_sampling": 0.0}, "subword_sampling=0.0"),
        (labelled, {"word_dropout": 1.0}, "below 1. Received.*word_dropout=1.0"),
        (labelled, {"class_weight": "even"}, "a dictionary of ['less', 'with']"),
        (labelled, {"class_weight": {"with": 1.0}}, "Give each class its weight"),
        (labelled, {"class_weight": {"with": 1, "less": -1}}, "must be 0 or more"),
        (missing, {"class_weight": "balanced"}, "no text of ['z']"),
    ):
        pattern = re.escape(words).replace(r"\.\*", ".*")
        with pytest.raises(ValueError, match=pattern):
            LabelBatches(texts, vocabulary, **settings)
    with pytest.raises(TypeError, match="must be `LabeledDataset`. Received: list"):
        LabelBatches([("a", "b")], vocabulary)


def test_the_report_lists_no_shape_without_batches(vocabulary):
    texts = ["ba", "ba ke", "ba ke do", *["ba ke do ri mu la"] * 6]
    labelled = LabeledDataset(texts, ["a", "b", "a"] * 3)
    batches = LabelBatches(labelled, vocabulary, 200, num_buckets=4)
    assert any(not shape.batches for shape in batches.shapes)
    first = batches.report.index("batches\n") + len("batches\n")
    table = batches.report[first:].splitlines()[:-1]
    listed = [tuple(map(int, line.split())) for line in table]
    wanted = [(s.length, s.rows, s.batches) for s in batches.shapes if s.batches]
    assert listed == wanted


def test_the_reported_padding_is_that_of_the_batches(labelled, vocabulary):
    batches = LabelBatches(labelled, vocabulary, 300, num_buckets=5)
    ids = [inputs["token_ids"] for inputs, _ in epoch(batches)]
    real, places = sum(map(np.count_nonzero, ids)), sum(each.size for each in ids)
    np.testing.assert_allclose(batches.padding, 1 - real / places)
    assert f"Padding: {1 - real / places:.1%}" in batches.report
    assert f"{batches.steps_per_epoch} steps an epoch" in batches.report
    assert batches.padding < LabelBatches(labelled, vocabulary, 300, 1).padding / 2


def test_a_classifier_takes_their_inputs(paired, vocabulary):
    encoder = Encoder(vocabulary.size, 1, 8, 8, 2, num_segments=2)
    model = SequenceClassifier(encoder, 2, pooling="first")
    inputs, _ = LabelBatches(paired, vocabulary, 300).ordered_batch(0)
    assert {t.name: t.dtype for t in model.inputs} == {
        name: ids.dtype for name, ids in inputs.items()
    }


def test_the_same_batches_feed_fit_and_predict_on_every_backend(paired, vocabulary):
    inputs = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("token_ids", "segment_ids")
    }
    x = keras.layers.Embedding(vocabulary.size, 8)(inputs["token_ids"])
    x = x + keras.layers.Embedding(2, 8)(inputs["segment_ids"])
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, keras.layers.Dense(2)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.05), loss, weighted_metrics=["accuracy"])
    batches = LabelBatches(paired, vocabulary, 4000, 1, class_weight="balanced")
    history = model.fit(
        batches.dataset(),
        steps_per_epoch=batches.steps_per_epoch,
        epochs=3,
        shuffle=False,
        verbose=0,
        validation_data=batches.ordered(),
    ).history
    assert model.optimizer.iterations == 3 * batches.steps_per_epoch
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    logits = batches.restore(model.predict(batches.ordered(), verbose=0))
    right = np.mean(logits.argmax(1) == paired.encoded_labels())
    # What is asked again, text by text, is what `fit` counted.
    np.testing.assert_allclose(right, history["val_accuracy"][-1], atol=1e-6)
    assert right > 0.8
