"""Rows of running text: every token once, moving splits, the last row."""

import numpy as np
import pytest

from keras_tfm.text import TokenRows, Vocabulary

pytestmark = pytest.mark.backend("torch")  # fits on all backends: test_fit.py
TEXTS = [
    " ".join("abcde"[(i * j) % 5] * 2 for j in range(i % 7 + 3)) for i in range(40)
]


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.train(TEXTS, size=300, exact=False)


@pytest.fixture(scope="module")
def rows(vocabulary):
    return TokenRows(TEXTS, vocabulary, length=7, batch_size=4, seed=3)


@pytest.fixture(scope="module")
def stream(vocabulary):
    ids = vocabulary.encode(TEXTS)
    return [i for row in ids for i in (2, *row, 3)]


def test_each_row_is_a_section_of_the_running_text(rows, stream):
    assert rows.num_tokens == len(stream)
    assert rows.num_words == sum(len(text.split()) for text in TEXTS)
    text = " ".join(map(str, stream))
    for step in range(2 * rows.steps_per_epoch):
        inputs, labels = rows.batch(step)
        assert inputs["token_ids"].shape == labels.shape == (4, 7)
        next_ids = inputs["token_ids"][:, 1:]
        # A start is no label: it is certain after an end.
        np.testing.assert_array_equal(
            np.where(next_ids == 2, 0, next_ids), labels[:, :-1]
        )
        for ids, last in zip(inputs["token_ids"], labels[:, -1], strict=True):
            assert " ".join(map(str, [*ids, last or 2])) in text


def starts(rows, stream, epoch):
    """Where the rows of an epoch begin, found by their tokens."""
    steps = range(epoch * rows.steps_per_epoch, (epoch + 1) * rows.steps_per_epoch)
    actual = []
    for step in steps:
        for ids in rows.batch(step)[0]["token_ids"]:
            places = range(len(stream) - 6)
            actual.append({p for p in places if stream[p : p + 7] == list(ids)})
    return actual


def test_an_epoch_has_each_position_once_and_its_own_splits():
    texts = [" ".join(f"{i}{j}" for j in range(5)) for i in range(100, 130)]
    vocabulary = Vocabulary.train(texts, size=290, exact=False)
    stream = [i for row in vocabulary.encode(texts) for i in (2, *row, 3)]
    rows = TokenRows(texts, vocabulary, length=7, batch_size=4, seed=3)
    # What is left out is not always the end.
    largest = (len(stream) - 7 - 1) // (2 * 7) + 1
    more = TokenRows(texts, vocabulary, length=7, batch_size=largest, seed=3)
    assert more.steps_per_epoch == 1
    cuts = [next(iter(starts(more, stream, epoch)[0])) // 7 for epoch in range(20)]
    rows_taken = {
        place // 7 for e in range(20) for p in starts(more, stream, e) for place in p
    }
    assert len(set(cuts)) > 1 and max(rows_taken) >= len(stream) // 7 - 2
    # A row of seven tokens may stand at a few places: count those it can be.
    first, second = starts(rows, stream, 0), starts(rows, stream, 1)
    for actual in (first, second):
        sure = [next(iter(places)) for places in actual if len(places) == 1]
        assert len(set(sure)) == len(sure) > 0.9 * len(actual)
        assert len({place % 7 for place in sure}) == 1
    assert {min(p) % 7 for p in first if len(p) == 1} != {
        min(p) % 7 for p in second if len(p) == 1
    }
    left = len(stream) - 7 * 4 * rows.steps_per_epoch
    assert left < 7 * (4 + 2)


def test_an_evaluation_has_every_token_once_in_order(rows, stream):
    labels = np.concatenate([y.ravel() for _, y in rows.ordered().as_numpy_iterator()])
    expected = [token for token in stream if token != 2]
    assert labels[labels != 0].tolist() == expected and rows.num_labels == len(expected)
    inputs = [x["token_ids"].ravel() for x, _ in rows.ordered().as_numpy_iterator()]
    inputs = np.concatenate(inputs)
    assert inputs[inputs != 0].tolist() == stream[:-1]
    assert (inputs == 0).sum() == (labels == 0).sum() - (len(TEXTS) - 1) < 7
    assert rows.ordered().cardinality() == len(list(rows.ordered()))


def test_a_dataset_resumes_at_any_step_and_reads_the_same_twice(rows):
    steps = rows.steps_per_epoch
    data = rows.dataset(first_step=steps - 1).take(2)
    for _ in range(2):
        for place, (inputs, labels) in enumerate(data.as_numpy_iterator()):
            expected = rows.batch(steps - 1 + place)
            np.testing.assert_array_equal(inputs["token_ids"], expected[0]["token_ids"])
            np.testing.assert_array_equal(labels, expected[1])


def test_a_short_text_can_be_evaluated_and_not_trained_on(vocabulary):
    few = TokenRows(["aa bb"], vocabulary, length=7, batch_size=4)
    [(inputs, labels)] = few.ordered().as_numpy_iterator()
    assert (labels != 0).sum() == few.num_labels == (inputs["token_ids"] != 0).sum()
    with pytest.raises(ValueError, match="must have 36 tokens.*got tokens=4"):
        few.dataset()


@pytest.mark.parametrize(
    ("texts", "options", "error", "message"),
    [
        ([], {}, ValueError, "`texts` must hold text"),
        (TEXTS, {"length": 0}, ValueError, "must be 1 or more; got length=0"),
        (TEXTS, {"seed": -1}, ValueError, "seed=-1"),
        ("aa bb", {}, TypeError, "got one string"),
    ],
)
def test_an_argument_out_of_its_range_raises(
    vocabulary, texts, options, error, message
):
    with pytest.raises(error, match=message):
        TokenRows(texts, vocabulary, **options)
