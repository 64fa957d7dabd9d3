"""LabelBatches: every text once, in an order that can be restored."""

import collections
import logging

import numpy as np
import pytest

from keras_tfm.text import LabelBatches, LabeledDataset, Vocabulary

pytestmark = pytest.mark.backend("torch")  # fits on all backends: test_fit.py


@pytest.fixture(scope="module")
def examples(pairs):
    """Texts labeled by whether they contain the word "ba"."""
    labels = ["with" if "ba" in text.split() else "less" for text in pairs.source]
    return LabeledDataset(pairs.source, labels)


@pytest.fixture(scope="module")
def paired(pairs):
    labels = ["long" if len(text) > 60 else "short" for text in pairs.target]
    return LabeledDataset(list(pairs), labels)


def expected_counts(examples, vocabulary):
    """Counts the texts, encoded without batching."""
    texts = vocabulary.encode(examples.texts)
    labels = [examples.classes.index(label) for label in examples.labels]
    rows = zip(texts, labels, strict=True)
    return collections.Counter(((2, *ids, 3), label) for ids, label in rows)


def contents(batches):
    counts = collections.Counter()
    for inputs, labels, *_ in batches:
        for ids, label in zip(inputs["token_ids"], labels, strict=True):
            counts[tuple(ids[ids != 0].tolist()), int(label)] += 1
    return counts


def epoch(batches, number=0):
    steps = batches.steps_per_epoch
    return [batches.batch(step) for step in range(number * steps, (number + 1) * steps)]


def ordered_batches(batches):
    return [batches.ordered_batch(step) for step in range(batches.steps_per_epoch)]


def are_equal(first, second):
    """Returns whether two lists of batches are equal, array by array."""
    flat = [
        [(*batch[0].values(), *batch[1:]) for batch in batches]
        for batches in (first, second)
    ]
    return len(first) == len(second) and all(
        len(a) == len(b) and all(map(np.array_equal, a, b))
        for a, b in zip(*flat, strict=True)
    )


def sides(ids, vocabulary):
    """Decodes the two texts of a sequence, separated by end tokens."""
    first, second = np.flatnonzero(ids == 3)
    return vocabulary.decode([ids[:first], ids[first + 1 : second]])


@pytest.mark.parametrize("batch_tokens", [64, 300, 10_000])
def test_an_epoch_has_every_text_once(examples, vocabulary, batch_tokens):
    batches = LabelBatches(examples, vocabulary, batch_tokens, seed=3)
    assert len(batches) == 500
    for number in (0, 1, 5):
        assert contents(epoch(batches, number)) == expected_counts(examples, vocabulary)
    assert contents(ordered_batches(batches)) == expected_counts(examples, vocabulary)


def test_batches_have_few_shapes_and_stay_within_the_budget(examples, vocabulary):
    for batch_tokens in (200, 250, 300, 350):
        batches = LabelBatches(examples, vocabulary, batch_tokens, num_buckets=4)
        shapes = collections.Counter()
        for inputs, labels in epoch(batches):
            ids = inputs["token_ids"]
            assert (
                list(inputs) == ["token_ids"] and ids.dtype == labels.dtype == "int32"
            )
            assert ids.size <= batch_tokens and labels.shape == ids.shape[:1]
            assert np.all(ids[:, 0] == 2)  # no sequence is empty
            shapes[ids.shape] += 1
        expected_shapes = {
            (b.batch_size, *b.lengths): b.num_batches
            for b in batches.buckets
            if b.num_batches
        }
        last = (batches.buckets[-1].batch_size, *batches.buckets[-1].lengths)
        smaller = {
            shape: n for shape, n in shapes.items() if shape not in expected_shapes
        }
        assert sum(smaller.values()) <= 1
        assert all(s[1] == last[1] and s[0] < last[0] for s in smaller)
        expected_shapes[last] -= len(smaller)
        assert shapes == collections.Counter(expected_shapes) + collections.Counter(
            smaller
        )
        assert 2 <= len(batches.buckets) <= 4


def test_epochs_and_seeds_differ_and_steps_repeat(examples, vocabulary):
    first, repeated, other_seed = (
        LabelBatches(examples, vocabulary, 300, seed=seed) for seed in (0, 0, 1)
    )
    assert are_equal(epoch(first), epoch(repeated))
    assert not are_equal(epoch(first), epoch(first, 1))
    assert not are_equal(epoch(first), epoch(other_seed))
    assert are_equal(ordered_batches(first), ordered_batches(other_seed))
    lengths = [inputs["token_ids"].shape[1] for inputs, _ in epoch(first)]
    assert 0.15 < np.mean(np.diff(lengths) > 0) < 0.7  # shapes are shuffled too


def test_a_dataset_has_the_same_batches_and_resumes_at_any_step(examples, vocabulary):
    batches = LabelBatches(examples, vocabulary, 500, word_dropout=0.1)
    steps = batches.steps_per_epoch
    whole = [batches.batch(step) for step in range(2 * steps)]
    dataset = batches.dataset(repeat=True)
    for _ in range(2):  # a second iteration restarts
        assert are_equal(list(dataset.take(2 * steps).as_numpy_iterator()), whole)
    later = (
        batches.dataset(first_step=steps - 2, repeat=True).take(4).as_numpy_iterator()
    )
    assert are_equal(list(later), whole[steps - 2 : steps + 2])
    single_epoch = batches.dataset(first_step=3)
    assert int(single_epoch.cardinality()) == -2  # unknown: the next is longer
    assert are_equal(list(single_epoch.as_numpy_iterator()), whole[3:steps])
    ordered = batches.ordered()
    assert int(ordered.cardinality()) == steps
    assert are_equal(list(ordered.as_numpy_iterator()), ordered_batches(batches))
    with pytest.raises(
        ValueError, match="`first_step` must be 0 or more; got first_step=-1"
    ):
        batches.dataset(first_step=-1)


def test_predictions_are_restored_to_the_order_of_the_texts(examples, vocabulary):
    batches = LabelBatches(examples, vocabulary, 300)
    ids = [row for inputs, _ in ordered_batches(batches) for row in inputs["token_ids"]]
    outputs = np.array([np.count_nonzero(row) - 2 for row in ids])
    lengths = [len(row) for row in vocabulary.encode(examples.texts)]
    assert batches.restore(outputs).tolist() == lengths != outputs.tolist()
    labels = np.concatenate([labels for _, labels in ordered_batches(batches)])
    assert batches.restore(labels).tolist() == examples.encoded_labels().tolist()
    assert sorted(batches.ordered_indices) == list(range(500))
    assert batches.restore(np.ones((500, 3))).shape == (500, 3)
    with pytest.raises(ValueError, match=r"each of 500 texts; got shape=\(499,\)"):
        batches.restore(outputs[:-1])


def test_pairs_have_two_end_tokens_and_two_segments(paired, vocabulary):
    batches = LabelBatches(paired, vocabulary, 600)
    num_pairs, indices = 0, iter(batches.ordered_indices)
    for inputs, _ in ordered_batches(batches):
        for ids, segments in zip(*inputs.values(), strict=True):
            first, second = vocabulary.encode(list(paired.texts[next(indices)]))
            expected_ids = [2, *first, 3, *second, 3]
            padding = [0] * (len(ids) - len(expected_ids))
            assert ids.tolist() == expected_ids + padding
            expected_segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
            assert segments.tolist() == expected_segments + padding
            num_pairs += 1
    assert num_pairs == 500
    inputs, _ = next(batches.dataset().as_numpy_iterator())
    assert inputs["segment_ids"].dtype == "int32" and inputs["segment_ids"].any()


def test_long_texts_are_truncated_counted_and_logged(examples, vocabulary, caplog):
    with caplog.at_level(logging.WARNING):
        batches = LabelBatches(examples, vocabulary, max_length=12)
    whole = expected_counts(examples, vocabulary)
    truncated = collections.Counter()
    for (ids, label), count in whole.items():
        truncated[ids if len(ids) <= 12 else (*ids[:11], 3), label] += count
    assert contents(epoch(batches)) == truncated == contents(ordered_batches(batches))
    num_truncated = sum(count for (ids, _), count in whole.items() if len(ids) > 12)
    num_dropped = sum(
        max(len(ids) - 12, 0) * count for (ids, _), count in whole.items()
    )
    tokens = sum((len(ids) - 2) * count for (ids, _), count in whole.items())
    assert batches.truncated == num_truncated and 100 < num_truncated < 450
    words = (
        f"500 texts; truncated for over 12 tokens: {num_truncated} "
        f"({num_dropped / tokens:.1%} of all tokens); with a side without tokens: 0."
    )
    assert caplog.messages == [words] and batches.report.startswith(words)


def test_nothing_is_logged_when_nothing_is_truncated(examples, vocabulary, caplog):
    batches = LabelBatches(examples, vocabulary)
    assert batches.truncated == 0 and not caplog.messages


def test_the_longer_text_of_a_pair_is_truncated_first(vocabulary):
    texts = [("ba " * 9, "bo"), ("bo", "ba " * 9), ("ba " * 9, "bo " * 9)]
    batches = LabelBatches(
        LabeledDataset(texts, ["x", "y", "x"]), vocabulary, max_length=9
    )
    ids = {}
    for inputs, _ in ordered_batches(batches):
        for row in inputs["token_ids"]:
            ids[len(ids)] = row[row != 0].tolist()
    rows = [ids[i] for i in np.argsort(batches.ordered_indices)]
    long, short = vocabulary.encode(["ba " * 9, "bo " * 9])
    (alone,) = vocabulary.encode(["bo"])
    capacity = 6 - len(alone)
    assert rows[0] == [2, *long[:capacity], 3, *alone, 3]
    assert rows[1] == [2, *alone, 3, *long[:capacity], 3]
    assert rows[2] == [2, *long[:3], 3, *short[:3], 3]
    assert batches.truncated == 3


def test_a_text_without_tokens_is_kept_and_logged(vocabulary, caplog):
    examples = LabeledDataset(["ba be", "\u200b", "bi"], ["x", "y", "x"])
    batches = LabelBatches(examples, vocabulary)
    assert (2, 3) in {ids for ids, _ in contents(ordered_batches(batches))}
    assert "with a side without tokens: 1." in caplog.text
    with pytest.raises(ValueError, match="a text with tokens on each side"):
        LabelBatches(LabeledDataset(["\u200b", "\u200b"], ["x", "y"]), vocabulary)


def test_several_labels_become_rows_of_zeros_and_ones(pairs, vocabulary):
    words = ("ba", "be", "dan")
    labels = [[word for word in words if word in text.split()] for text in pairs.source]
    examples = LabeledDataset(pairs.source, labels)
    batches = LabelBatches(examples, vocabulary, 300)
    outputs = np.concatenate([labels for _, labels in ordered_batches(batches)])
    assert outputs.dtype == "float32" and outputs.shape == (500, 3)
    assert np.array_equal(batches.restore(outputs), examples.encoded_labels())
    _, labels = next(batches.dataset().as_numpy_iterator())
    assert labels.dtype == "float32" and labels.shape[1] == 3
    with pytest.raises(ValueError, match="each text must have one label"):
        LabelBatches(examples, vocabulary, class_weight="balanced")


def test_subword_sampling_changes_the_tokens_and_not_the_text(paired, vocabulary):
    usual = LabelBatches(paired, vocabulary, 600)
    sampled = LabelBatches(paired, vocabulary, 600, subword_sampling=0.2)
    changed = 0
    for (inputs, labels), (plain, plain_labels) in zip(
        epoch(sampled), epoch(usual), strict=True
    ):
        assert np.array_equal(labels, plain_labels)
        for row, usual_row in zip(inputs["token_ids"], plain["token_ids"], strict=True):
            assert sides(row, vocabulary) == sides(usual_row, vocabulary)
            changed += not np.array_equal(row, usual_row)
    assert 100 < changed < 500  # other samples are too long for their batch
    assert not are_equal(epoch(sampled), epoch(sampled, 1))
    assert are_equal(epoch(sampled, 1), epoch(sampled, 1))
    assert are_equal(ordered_batches(sampled), ordered_batches(usual))
    truncated = LabelBatches(
        paired, vocabulary, 600, max_length=20, subword_sampling=0.2
    )
    assert all(len(ids) <= 20 for i, _ in epoch(truncated) for ids in i["token_ids"])


def test_dropped_words_become_unknown_in_training_only(examples, vocabulary):
    usual = LabelBatches(examples, vocabulary, 600)
    batches = LabelBatches(examples, vocabulary, 600, word_dropout=0.2)
    dropped = tokens = 0
    for (inputs, _), (plain, _) in zip(epoch(batches), epoch(usual), strict=True):
        ids, usual_ids = inputs["token_ids"], plain["token_ids"]
        is_dropped = ids != usual_ids
        assert (
            np.all(ids[is_dropped] == 1)
            and not np.isin(usual_ids[is_dropped], [0, 2, 3]).any()
        )
        dropped += is_dropped.sum()
        tokens += (usual_ids > 3).sum()
    assert 0.17 < dropped / tokens < 0.23
    assert not are_equal(epoch(batches), epoch(batches, 1))
    assert are_equal(ordered_batches(batches), ordered_batches(usual))


def test_dropped_words_become_the_mask_without_an_unknown_token(examples, vocabulary):
    class Masked(Vocabulary):
        unknown_id = 0  # vocabularies without an unknown token use padding
        mask_id = 5

    masked = Masked(vocabulary.model)
    batches = LabelBatches(examples, masked, 600, word_dropout=0.2)
    usual = LabelBatches(examples, masked, 600)
    dropped = 0
    for (inputs, _), (plain, _) in zip(epoch(batches), epoch(usual), strict=True):
        is_dropped = inputs["token_ids"] != plain["token_ids"]
        assert np.all(inputs["token_ids"][is_dropped] == 5)
        dropped += is_dropped.sum()
    assert dropped
    Masked.mask_id = None
    with pytest.raises(ValueError, match="an unknown token or a mask"):
        LabelBatches(examples, masked, 600, word_dropout=0.2)


def test_each_text_has_the_weight_of_its_class(examples, vocabulary):
    counts = examples.counts
    balanced = {name: 500 / (2 * counts[name]) for name in examples.classes}
    for class_weight, expected_weights in (
        ("balanced", balanced),
        ({"with": 3.0, "less": 0}, {"with": 3.0, "less": 0.0}),
    ):
        batches = LabelBatches(examples, vocabulary, 300, class_weight=class_weight)
        total = 0.0
        for _, labels, weights in epoch(batches):
            assert weights.dtype == "float32"
            expected = [expected_weights[examples.classes[label]] for label in labels]
            np.testing.assert_allclose(weights, expected, rtol=1e-6)
            total += weights.sum()
        if class_weight == "balanced":
            assert abs(total - 500) < 0.01
        assert len(next(batches.dataset().as_numpy_iterator())) == 3
        assert len(next(batches.ordered().as_numpy_iterator())) == 2


@pytest.mark.parametrize(
    ("is_paired", "options", "message"),
    [
        (False, {"num_buckets": 0}, "`num_buckets` must be 1 or more"),
        (False, {"max_length": 2}, "at least 3.*max_length=2"),
        (True, {"max_length": 4}, "at least 5.*max_length=4"),
        (False, {"seed": -1}, "seed=-1"),
        (False, {"batch_tokens": 8}, "the longest example.*batch_tokens=8"),
        (False, {"subword_sampling": 0.0}, "subword_sampling=0.0"),
        (False, {"word_dropout": 1.0}, "below 1; got word_dropout=1.0"),
        (False, {"class_weight": "even"}, "each of .'less', 'with'.*'even'"),
        (False, {"class_weight": {"with": 1.0}}, "each of .'less', 'with'."),
        (False, {"class_weight": {"with": 1, "less": -1}}, "0 or more"),
    ],
)
def test_an_argument_out_of_its_range_raises(
    examples, paired, vocabulary, is_paired, options, message
):
    with pytest.raises(ValueError, match=message):
        LabelBatches(paired if is_paired else examples, vocabulary, **options)


def test_the_report_omits_buckets_without_batches(vocabulary):
    texts = ["ba", "ba ke", "ba ke do", *["ba ke do ri mu la"] * 6]
    examples = LabeledDataset(texts, ["a", "b", "a"] * 3)
    batches = LabelBatches(examples, vocabulary, 200, num_buckets=4)
    assert any(not bucket.num_batches for bucket in batches.buckets)
    first = batches.report.index("batches\n") + len("batches\n")
    table = batches.report[first:].splitlines()[:-1]
    actual = [tuple(map(int, line.split())) for line in table]
    expected_rows = [
        (*b.lengths, b.batch_size, b.num_batches)
        for b in batches.buckets
        if b.num_batches
    ]
    assert actual == expected_rows


def test_the_reported_padding_is_that_of_the_batches(examples, vocabulary):
    batches = LabelBatches(examples, vocabulary, 300, num_buckets=5)
    ids = [inputs["token_ids"] for inputs, _ in epoch(batches)]
    real, total = sum(map(np.count_nonzero, ids)), sum(x.size for x in ids)
    np.testing.assert_allclose(batches.padding, 1 - real / total)
    assert f"Padding: {1 - real / total:.1%}" in batches.report
    assert f"{batches.steps_per_epoch} steps an epoch" in batches.report
    assert batches.padding < LabelBatches(examples, vocabulary, 300, 1).padding / 2
