"""Special tokens become ids 0 to 3; the others follow in their order."""

import numpy as np
import pytest

from keras_tfm.zoo.token_permutation import NEVER_LOGIT, TokenPermutation

pytestmark = pytest.mark.backend("torch")
MATRIX = np.arange(12.0).reshape(6, 2)


def test_special_tokens_come_first_and_the_others_in_their_order():
    ids = TokenPermutation(6, pad_id=5, unknown_id=1, start_id=2, end_id=0)
    assert ids.order.tolist() == [5, 1, 2, 0, 3, 4]
    assert [ids.to_ours(i) for i in range(6)] == [3, 1, 2, 4, 5, 0]
    np.testing.assert_array_equal(ids.rows(MATRIX), MATRIX[[5, 1, 2, 0, 3, 4]])
    np.testing.assert_array_equal(ids.bias(MATRIX[:, 0]), MATRIX[[5, 1, 2, 0, 3, 4], 0])
    assert ids.never_generated == [] and ids.size == 6


@pytest.mark.parametrize("start", [5, 0])
def test_a_start_equal_to_padding_or_end_becomes_a_new_token(start):
    ids = TokenPermutation(6, pad_id=5, unknown_id=1, start_id=start, end_id=0)
    assert ids.order.tolist() == [5, 1, start, 0, 2, 3, 4]
    assert (ids.to_ours(5), ids.to_ours(0)) == (0, 3)
    assert ids.bias().tolist() == [0, 0, NEVER_LOGIT, 0, 0, 0, 0]


def test_absent_tokens_have_zeros_and_are_never_generated():
    ids = TokenPermutation(6, pad_id=None, unknown_id=None, start_id=None, end_id=2)
    assert ids.order.tolist() == [-1, -1, -1, 2, 0, 1, 3, 4, 5]
    rows = ids.rows(MATRIX)
    assert not rows[:3].any()
    np.testing.assert_array_equal(rows[3:], MATRIX[[2, 0, 1, 3, 4, 5]])
    assert ids.bias(np.ones(6)).tolist() == [NEVER_LOGIT] * 3 + [1] * 6
    assert MATRIX[5].tolist() == [10, 11]  # the argument is unchanged


def test_the_bias_of_absent_tokens_survives_half_precision():
    ids = TokenPermutation(6, 4, 1, 4, 0)
    actual = ids.bias(np.ones(6, "float16"))
    assert actual.dtype == "float32" and np.isfinite(actual).all()
    assert actual[2] < -9e3 and (actual[[0, 1, 3]] == 1).all()


def test_a_matrix_of_another_size_is_rejected():
    # With padding there are 6 ids, as many as rows.
    ids = TokenPermutation(5, None, 1, 2, 0)
    with pytest.raises(ValueError, match="6 rows, and 5 tokens"):
        ids.rows(MATRIX)


@pytest.mark.parametrize("special_ids", [(6, 1, 2, 0), (5, 1, -1, 0), (5, "1", 2, 0)])
def test_ids_outside_the_vocabulary_are_rejected(special_ids):
    with pytest.raises(ValueError, match="must be tokens of the vocabulary"):
        TokenPermutation(6, *special_ids)


def test_one_token_may_have_several_roles():
    ids = TokenPermutation(6, pad_id=0, unknown_id=1, start_id=0, end_id=0)
    assert ids.order.tolist() == [-1, 1, 0, 0, 2, 3, 4, 5]  # the end
    assert ids.to_ours(0) == 3 and ids.never_generated == [0, 2]
    ids = TokenPermutation(6, pad_id=1, unknown_id=0, start_id=0, end_id=2)
    assert ids.order.tolist() == [1, 0, 0, 2, 3, 4, 5]  # of MADLAD-400
    assert ids.to_ours(0) == 1 and ids.never_generated == [2]
    ids = TokenPermutation(6, pad_id=1, unknown_id=1, start_id=2, end_id=1)
    assert ids.order.tolist() == [-1, -1, 2, 1, 0, 3, 4, 5]


def test_without_an_end_no_token_ends_a_sequence():
    ids = TokenPermutation(6, pad_id=0, unknown_id=1, start_id=0, end_id=None)
    assert ids.order.tolist() == [0, 1, 0, -1, 2, 3, 4, 5]
    assert ids.never_generated == [3, 2] and ids.bias()[3] == NEVER_LOGIT
