"""TokenRows: every token once, splits that change, the last row."""

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
        # A start token is not a label: it is certain after an end.
        np.testing.assert_array_equal(
            np.where(next_ids == 2, 0, next_ids), labels[:, :-1]
        )
        for ids, last in zip(inputs["token_ids"], labels[:, -1], strict=True):
            assert " ".join(map(str, [*ids, last or 2])) in text


def starts(rows, stream, epoch):
    """Finds the possible starts of each row of an epoch by its tokens."""
    steps = range(epoch * rows.steps_per_epoch, (epoch + 1) * rows.steps_per_epoch)
    starts_of_rows = []
    for step in steps:
        for ids in rows.batch(step)[0]["token_ids"]:
            positions = range(len(stream) - 6)
            starts_of_rows.append(
                {p for p in positions if stream[p : p + 7] == list(ids)}
            )
    return starts_of_rows


def test_an_epoch_has_each_position_once_and_epochs_differ():
    texts = [" ".join(f"{i}{j}" for j in range(5)) for i in range(100, 130)]
    vocabulary = Vocabulary.train(texts, size=290, exact=False)
    stream = [i for row in vocabulary.encode(texts) for i in (2, *row, 3)]
    rows = TokenRows(texts, vocabulary, length=7, batch_size=4, seed=3)
    # The tokens that are left out are not always the last.
    largest = (len(stream) - 7 - 1) // (2 * 7) + 1
    large = TokenRows(texts, vocabulary, length=7, batch_size=largest, seed=3)
    assert large.steps_per_epoch == 1
    first_rows = [
        next(iter(starts(large, stream, epoch)[0])) // 7 for epoch in range(20)
    ]
    rows_taken = {
        position // 7
        for e in range(20)
        for p in starts(large, stream, e)
        for position in p
    }
    assert len(set(first_rows)) > 1 and max(rows_taken) >= len(stream) // 7 - 2
    # A row of seven tokens may occur several times: use rows that occur once.
    first, second = starts(rows, stream, 0), starts(rows, stream, 1)
    for actual in (first, second):
        unique = [next(iter(positions)) for positions in actual if len(positions) == 1]
        assert len(set(unique)) == len(unique) > 0.9 * len(actual)
        assert len({position % 7 for position in unique}) == 1
    assert {min(p) % 7 for p in first if len(p) == 1} != {
        min(p) % 7 for p in second if len(p) == 1
    }
    num_left_out = len(stream) - 7 * 4 * rows.steps_per_epoch
    assert num_left_out < 7 * (4 + 2)


def test_an_evaluation_has_every_token_once_in_order(rows, stream):
    labels = np.concatenate([y.ravel() for _, y in rows.ordered().as_numpy_iterator()])
    expected = [token for token in stream if token != 2]
    assert labels[labels != 0].tolist() == expected and rows.num_labels == len(expected)
    inputs = [x["token_ids"].ravel() for x, _ in rows.ordered().as_numpy_iterator()]
    inputs = np.concatenate(inputs)
    assert inputs[inputs != 0].tolist() == stream[:-1]
    assert (inputs == 0).sum() == (labels == 0).sum() - (len(TEXTS) - 1) < 7
    assert rows.ordered().cardinality() == len(list(rows.ordered()))


def test_a_dataset_resumes_at_any_step_and_repeats(rows):
    steps = rows.steps_per_epoch
    data = rows.dataset(first_step=steps - 1, repeat=True).take(2)
    for _ in range(2):
        for i, (inputs, labels) in enumerate(data.as_numpy_iterator()):
            expected = rows.batch(steps - 1 + i)
            np.testing.assert_array_equal(inputs["token_ids"], expected[0]["token_ids"])
            np.testing.assert_array_equal(labels, expected[1])


def test_a_short_text_can_be_evaluated_but_not_trained_on(vocabulary):
    short = TokenRows(["aa bb"], vocabulary, length=7, batch_size=4)
    [(inputs, labels)] = short.ordered().as_numpy_iterator()
    assert (labels != 0).sum() == short.num_labels == (inputs["token_ids"] != 0).sum()
    with pytest.raises(ValueError, match="must have 36 tokens.*got tokens=4"):
        short.dataset()


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
