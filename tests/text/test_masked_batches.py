"""MaskedBatches: which tokens are masked, how many, and replacements."""

import numpy as np
import pytest

from keras_tfm.text import (
    LabelBatches,
    LabeledDataset,
    MaskedBatches,
    TokenizersVocabulary,
    Vocabulary,
)

pytestmark = pytest.mark.backend("torch")  # no backend is involved
WORDS = [a + b for a in "bdfgk" for b in "aeiou"]


def texts(count, seed=0):
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, n)) for n in draw.integers(1, 30, count)]


@pytest.fixture(scope="module", params=["sentencepiece", "wordpiece"])
def vocabulary(request):
    if request.param == "wordpiece":
        return TokenizersVocabulary.train(texts(400), size=90)
    return Vocabulary.train(texts(400), size=300, exact=False)


def masked_batches(vocabulary, count=600, mask_rate=0.15):
    examples = LabeledDataset(texts(count), ["x", "y"] * (count // 2))
    batches = LabelBatches(examples, vocabulary, batch_tokens=512)
    return MaskedBatches(batches, mask_rate)


@pytest.fixture(scope="module")
def masked(vocabulary):
    return masked_batches(vocabulary)


def test_a_fraction_of_each_sequence_is_masked_and_nothing_else_changes(
    masked, vocabulary
):
    kinds = {"mask": 0, "unchanged": 0, "random": 0}
    special_ids = [vocabulary.pad_id, vocabulary.start_id, vocabulary.end_id]
    for step in range(masked.steps_per_epoch):
        original = masked.batches.batch(step)[0]["token_ids"]
        inputs, labels = masked.batch(step)
        ids, positions = inputs["token_ids"], inputs["mask_positions"]
        assert (
            positions.shape == labels.shape == (len(ids), -(-15 * ids.shape[1] // 100))
        )
        for row in range(len(ids)):
            real = int((~np.isin(original[row], special_ids)).sum())
            is_masked = labels[row] != 0
            assert is_masked.sum() == np.ceil(0.15 * real)
            masked_positions = positions[row][is_masked]
            assert len(set(masked_positions)) == len(masked_positions)
            np.testing.assert_array_equal(
                labels[row][is_masked], original[row][masked_positions]
            )
            assert not np.isin(original[row][masked_positions], special_ids).any()
            rest = np.setdiff1d(np.arange(ids.shape[1]), masked_positions)
            np.testing.assert_array_equal(ids[row][rest], original[row][rest])
            assert (positions[row][~is_masked] == 0).all()
            for token, label in zip(
                ids[row][masked_positions], labels[row][is_masked], strict=True
            ):
                kind = "unchanged" if token == label else "random"
                kinds["mask" if token == vocabulary.mask_id else kind] += 1
                assert token not in special_ids
    total = sum(kinds.values())
    assert total > 1_000
    assert abs(kinds["mask"] / total - 0.8) < 0.04
    assert abs(kinds["unchanged"] / total - 0.1) < 0.03
    assert abs(kinds["random"] / total - 0.1) < 0.03


def test_epochs_mask_different_tokens_and_steps_repeat(masked):
    first, repeated = masked.batch(0), masked.batch(0)
    np.testing.assert_array_equal(first[1], repeated[1])
    steps = masked.steps_per_epoch
    data = masked.dataset(first_step=steps).take(1)
    [(inputs, labels)] = data.as_numpy_iterator()
    np.testing.assert_array_equal(labels, masked.batch(steps)[1])
    np.testing.assert_array_equal(
        inputs["token_ids"], masked.batch(steps)[0]["token_ids"]
    )

    def positions_of(epoch):
        masked_positions = set()
        for step in range(epoch * steps, (epoch + 1) * steps):
            rows = masked.batches._at_step(step)[1]
            inputs, labels = masked.batch(step)
            for row, positions, is_masked in zip(
                rows, inputs["mask_positions"], labels, strict=True
            ):
                masked_positions |= {(row, p) for p in positions[is_masked != 0]}
        return masked_positions

    first, second = positions_of(0), positions_of(1)
    assert len(first & second) < 0.35 * len(first)


def test_pairs_keep_their_segments(vocabulary):
    sides = list(zip(texts(40), texts(40, seed=1), strict=True))
    examples = LabeledDataset(sides, ["x", "y"] * 20)
    batches = LabelBatches(examples, vocabulary, batch_tokens=512)
    inputs, _ = MaskedBatches(batches).batch(0)
    np.testing.assert_array_equal(
        inputs["segment_ids"], batches.batch(0)[0]["segment_ids"]
    )
    assert set(inputs) == {"token_ids", "segment_ids", "mask_positions"}


def test_all_tokens_can_be_masked(vocabulary):
    masked = masked_batches(vocabulary, mask_rate=1.0)
    original = masked.batches.batch(0)[0]["token_ids"]
    labels = masked.batch(0)[1]
    special_ids = [vocabulary.pad_id, vocabulary.start_id, vocabulary.end_id]
    for row, is_masked in zip(original, labels, strict=True):
        assert sorted(is_masked[is_masked != 0]) == sorted(
            row[~np.isin(row, special_ids)]
        )


@pytest.mark.parametrize("mask_rate", [0.0, -0.1, 1.1, float("nan")])
def test_a_mask_rate_out_of_its_range_raises(vocabulary, mask_rate):
    with pytest.raises(ValueError, match="`mask_rate` must be above 0"):
        masked_batches(vocabulary, mask_rate=mask_rate)


def test_a_vocabulary_without_a_mask_raises(monkeypatch, masked):
    monkeypatch.setattr(masked.batches.vocabulary, "mask_id", None, raising=False)
    with pytest.raises(ValueError, match="a vocabulary with a mask.*Add the token"):
        MaskedBatches(masked.batches)
