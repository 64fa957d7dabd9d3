"""Masks: True = may be attended to; ambiguous masks are rejected."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm.layers import masks
from keras_tfm.layers.keras_internals import implicit_mask
from tests.layers.formulas import numpy

IDS = np.array([[7, 3, 0], [5, 0, 0]], "int32")


def test_padding_mask_is_true_for_real_tokens():
    assert numpy(masks.padding_mask(IDS)).tolist() == [
        [True, True, False],
        [True, False, False],
    ]
    mask = numpy(masks.padding_mask(IDS, pad_id=3))
    assert mask.tolist() == [[True, False, True], [True, True, True]]


def test_causal_mask_is_a_lower_triangle():
    for length in (3, ops.convert_to_tensor(3)):
        assert numpy(masks.causal_mask(length)).tolist() == [
            [True, False, False],
            [True, True, False],
            [True, True, True],
        ]


def test_combine_allows_what_all_masks_allow():
    attention = np.array([[[1, 0, 1], [1, 1, 1]], [[1, 1, 1], [0, 1, 1]]], bool)
    padding = np.array([[0, 1, 0], [1, 1, 1]], bool)
    causal = np.array([[1, 0, 0], [1, 1, 0]], bool)
    combined = masks.combine(
        ops.convert_to_tensor(attention),
        None,
        padding_mask=ops.convert_to_tensor(padding),
        causal_mask=ops.convert_to_tensor(causal),
    )
    expected = attention & padding[:, None, :] & causal[None]
    np.testing.assert_array_equal(numpy(combined), expected)
    assert not np.array_equal(expected, attention & causal[None])  # it can fail
    assert not np.array_equal(expected, attention & padding[:, None, :])


def test_combine_returns_the_highest_rank():
    heads = np.ones((2, 4, 3, 3), bool)
    heads[:, 1, 2, 0] = False
    rows = np.ones((2, 3, 3), bool)
    rows[1, 2, 1] = False
    padding = np.array([[1, 1, 0], [1, 1, 1]], bool)
    tensors = [ops.convert_to_tensor(mask) for mask in (heads, rows, padding)]
    combined = masks.combine(*tensors[:2], padding_mask=tensors[2])
    expected = heads & rows[:, None] & padding[:, None, None]
    np.testing.assert_array_equal(numpy(combined), expected)
    assert masks.combine(padding_mask=tensors[2]).shape == (2, 1, 3)
    assert masks.combine(causal_mask=tensors[1][0]).shape == (1, 3, 3)
    assert masks.combine(None, padding_mask=None) is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_masked_softmax_computes_in_float32(dtype):
    scores = ops.cast(np.random.default_rng(0).normal(size=(2, 3000)), dtype)
    rounded = numpy(ops.cast(scores, "float32")).astype("float64")
    exact = np.exp(rounded) / np.exp(rounded).sum(axis=-1, keepdims=True)
    actual = masks.masked_softmax(scores)
    assert ops.dtype(actual) == "float32"
    np.testing.assert_allclose(numpy(actual), exact, rtol=1e-5)


def test_a_compiled_model_reads_implicit_masks():
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(9, 2, mask_zero=True)(ids)
    model = keras.Model(ids, ReadMask()(x))
    np.testing.assert_array_equal(model.predict(IDS, verbose=0), IDS != 0)
    assert implicit_mask(ops.zeros((2, 3, 4))) is None
    assert implicit_mask(None) is None


class ReadMask(keras.layers.Layer):
    def call(self, x):
        return ops.cast(implicit_mask(x), "float32")

    def compute_mask(self, x, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return x_shape[:-1]
