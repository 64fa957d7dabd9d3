"""Expected calibration error against small examples."""

import numpy as np
import pytest

from keras_tfm.training import expected_calibration_error

pytestmark = pytest.mark.backend("torch")  # NumPy alone


def test_the_error_is_the_weighted_gap_of_each_bin():
    # Two bins: one text at 0.5, correct; three at 0.75, 0.75, 1.0, two correct.
    probabilities = [[0.5, 0.5], [0.25, 0.75], [0.75, 0.25], [1.0, 0.0]]
    labels = [0, 1, 1, 0]
    expected = (abs(0.5 - 1) + abs(2.5 - 2)) / 4
    assert expected_calibration_error(
        probabilities, labels, num_bins=2
    ) == pytest.approx(expected)


def test_with_several_labels_every_class_counts():
    probabilities = [[0.9, 0.2], [0.6, 0.4]]
    labels = [[1, 0], [0, 1]]
    expected = (abs(0.2 + 0.4 - 1) + abs(0.9 + 0.6 - 1)) / 4
    assert expected_calibration_error(
        probabilities, labels, num_bins=2
    ) == pytest.approx(expected)


def test_probabilities_that_match_their_accuracy_have_no_error():
    draw = np.random.default_rng(0)
    confidence = draw.uniform(0.5, 1, 200_000)
    is_correct = draw.uniform(size=len(confidence)) < confidence
    probabilities = np.stack([confidence, 1 - confidence], axis=1)
    assert expected_calibration_error(probabilities, np.where(is_correct, 0, 1)) < 0.01
    assert (
        expected_calibration_error(probabilities, np.zeros(len(confidence), int)) > 0.2
    )


def test_zero_and_one_are_in_the_first_and_the_last_bin():
    assert expected_calibration_error([[0.0], [1.0]], [[0], [1]], num_bins=4) == 0.0
    assert expected_calibration_error([[0.0], [1.0]], [[1], [0]], num_bins=4) == 1.0


@pytest.mark.parametrize(
    ("probabilities", "labels", "bins", "message"),
    [
        (np.zeros((0, 2)), [], 15, r"N and `num_bins` at least 1; got .*\(0, 2\)"),
        ([[0.5, 0.5]], [0, 1], 15, r"labels of shape \(2,\)"),
        ([[0.5, 0.5]], [[1]], 15, r"labels of shape \(1, 1\)"),
        ([[0.5, 0.5]], [0], 0, "num_bins=0"),
        ([[0.5, 0.5]], [2], 15, "`labels` must be from 0 to 1; got labels from 2 to 2"),
        ([[0.5, 0.5]], [[0, -1]], 15, "`labels` must be from 0 to 1; .* -1 to 0"),
        ([[3.0, -2.0]], [0], 15, "from -2.0 to 3.0. Convert logits"),
        ([[float("nan"), 1.0]], [0], 15, "from nan to nan"),
    ],
)
def test_wrong_arguments_are_rejected(probabilities, labels, bins, message):
    with pytest.raises(ValueError, match=message):
        expected_calibration_error(probabilities, labels, bins)
