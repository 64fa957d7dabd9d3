"""Hidden tokens: which, how many, by what they are replaced."""

import numpy as np
import pytest

from keras_tfm.text import (
    LabelBatches,
    LabeledDataset,
    MaskedBatches,
    TokenizersVocabulary,
    Vocabulary,
)

pytestmark = pytest.mark.backend("tensorflow")
WORDS = [a + b for a in "bdfgk" for b in "aeiou"]


def texts(count, seed=0):
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, n)) for n in draw.integers(1, 30, count)]


@pytest.fixture(scope="module", params=["sentencepiece", "wordpiece"])
def vocabulary(request):
    if request.param == "wordpiece":
        return TokenizersVocabulary.train(texts(400), size=90)
    return Vocabulary.train(texts(400), size=300, exact=False)


def make(vocabulary, count=600, share=0.15, **settings):
    labelled = LabeledDataset(texts(count), ["x", "y"] * (count // 2))
    batches = LabelBatches(labelled, vocabulary, batch_tokens=512, **settings)
    return MaskedBatches(batches, share)


@pytest.fixture(scope="module")
def masked(vocabulary):
    return make(vocabulary)


def test_a_share_of_each_row_is_asked_for_and_nothing_else_changed(masked, vocabulary):
    kinds = {"mask": 0, "same": 0, "other": 0}
    marks = [vocabulary.pad_id, vocabulary.start_id, vocabulary.end_id]
    for step in range(masked.steps_per_epoch):
        before = masked.batches.batch(step)[0]["token_ids"]
        inputs, labels = masked.batch(step)
        ids, places = inputs["token_ids"], inputs["mask_positions"]
        assert places.shape == labels.shape == (len(ids), -(-15 * ids.shape[1] // 100))
        for row in range(len(ids)):
            real = int((~np.isin(before[row], marks)).sum())
            asked = labels[row] != 0
            assert asked.sum() == np.ceil(0.15 * real)
            chosen = places[row][asked]
            assert len(set(chosen)) == len(chosen)
            np.testing.assert_array_equal(labels[row][asked], before[row][chosen])
            assert not np.isin(before[row][chosen], marks).any()
            rest = np.setdiff1d(np.arange(ids.shape[1]), chosen)
            np.testing.assert_array_equal(ids[row][rest], before[row][rest])
            assert (places[row][~asked] == 0).all()
            for shown, wanted in zip(ids[row][chosen], labels[row][asked], strict=True):
                same = "same" if shown == wanted else "other"
                kinds["mask" if shown == vocabulary.mask_id else same] += 1
                assert shown not in marks
    total = sum(kinds.values())
    assert total > 1_000
    assert abs(kinds["mask"] / total - 0.8) < 0.04
    assert abs(kinds["same"] / total - 0.1) < 0.03
    assert abs(kinds["other"] / total - 0.1) < 0.03


def test_each_epoch_hides_others_and_a_step_always_the_same(masked):
    first, again = masked.batch(0), masked.batch(0)
    np.testing.assert_array_equal(first[1], again[1])
    wanted = masked.steps_per_epoch
    data = masked.dataset(first_step=wanted).take(1)
    [(inputs, labels)] = data.as_numpy_iterator()
    np.testing.assert_array_equal(labels, masked.batch(wanted)[1])
    np.testing.assert_array_equal(
        inputs["token_ids"], masked.batch(wanted)[0]["token_ids"]
    )

    def hidden(epoch):
        found = set()
        for step in range(epoch * wanted, (epoch + 1) * wanted):
            rows = masked.batches._batches_of(epoch)[step % wanted][1]
            inputs, labels = masked.batch(step)
            for row, places, asked in zip(
                rows, inputs["mask_positions"], labels, strict=True
            ):
                found |= {(row, place) for place in places[asked != 0]}
        return found

    one, two = hidden(0), hidden(1)
    assert len(one & two) < 0.35 * len(one)


def test_pairs_keep_their_segments(vocabulary):
    sides = list(zip(texts(40), texts(40, seed=1), strict=True))
    labelled = LabeledDataset(sides, ["x", "y"] * 20)
    batches = LabelBatches(labelled, vocabulary, batch_tokens=512)
    inputs, _ = MaskedBatches(batches).batch(0)
    np.testing.assert_array_equal(
        inputs["segment_ids"], batches.batch(0)[0]["segment_ids"]
    )
    assert set(inputs) == {"token_ids", "segment_ids", "mask_positions"}


def test_everything_can_be_asked_for(vocabulary):
    masked = make(vocabulary, share=1.0)
    before = masked.batches.batch(0)[0]["token_ids"]
    labels = masked.batch(0)[1]
    marks = [vocabulary.pad_id, vocabulary.start_id, vocabulary.end_id]
    for row, asked in zip(before, labels, strict=True):
        assert sorted(asked[asked != 0]) == sorted(row[~np.isin(row, marks)])


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
def test_no_share_is_refused(vocabulary, share):
    with pytest.raises(ValueError, match="`share` must be above 0"):
        make(vocabulary, share=share)


def test_a_vocabulary_without_a_mask_is_refused(monkeypatch, masked):
    monkeypatch.setattr(masked.batches.vocabulary, "mask_id", None, raising=False)
    with pytest.raises(ValueError, match="without one. Add the token"):
        MaskedBatches(masked.batches)
