"""The bag of n-grams: which n-grams count, and in which rows."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm.layers import NGramBag
from tests.layers.contract import check_layer
from tests.layers.formulas import draw_weights, numpy

IDS = np.array([[5, 8, 5, 9, 0, 0], [7, 0, 0, 0, 0, 0], [5, 8, 6, 4, 3, 2]], "int32")
MASK = IDS > 0


def make_bag(**options):
    layer = NGramBag(**{"units": 3, "max_n": 3, "num_buckets": 101, **options})
    layer.build(IDS.shape)
    return draw_weights(layer)


def row_of(layer, ngram):
    """The row of an n-gram: a polynomial hash, in Python's integers."""
    value = 0
    for token in ngram:
        value = (value * layer.factor + token) % layer.num_rows
    return value


def expected(layer, ids):
    """The formula, for a sequence without padding."""
    kernel, bias = numpy(layer.kernel), numpy(layer.bias)
    rows = [
        row
        for n in range(1, layer.max_n + 1)
        for row in {row_of(layer, ids[i : i + n]) for i in range(len(ids) - n + 1)}
    ]
    return kernel[rows].sum(axis=0) / np.sqrt(len(rows)) + bias


@pytest.mark.parametrize("num_buckets", [101, 2**18, 2**20])
def test_different_ngrams_are_summed_in_their_rows(num_buckets):
    layer = make_bag(num_buckets=num_buckets)
    outputs = numpy(layer(IDS, padding_mask=MASK))
    for row, mask, output in zip(IDS, MASK, outputs, strict=True):
        np.testing.assert_allclose(output, expected(layer, row[mask]), atol=1e-5)


def test_large_ids_do_not_overflow():
    layer = make_bag(num_buckets=2**20)
    ids = np.array([[2**31 - 1, 2**20, 999_999, 2**20 - 1]], "int32")
    output = numpy(layer(ids))[0]
    np.testing.assert_allclose(output, expected(layer, ids[0].tolist()), atol=1e-5)


def test_the_order_inside_an_ngram_matters_and_that_of_ngrams_does_not():
    layer = make_bag(max_n=2)
    a, b, c, d = (
        numpy(layer(np.array([ids], "int32")))
        for ids in ([1, 2, 3, 1], [2, 3, 1, 2], [1, 3, 2, 1], [1, 2, 3, 1, 2, 3])
    )
    # Three tokens and the pairs 12, 23 and 31, twice or not
    np.testing.assert_allclose(a, b, atol=1e-6)
    np.testing.assert_allclose(a, d, atol=1e-6)
    assert np.abs(a - c).max() > 0.1


def test_padding_does_not_count():
    layer = make_bag()
    longer = np.pad(IDS, ((0, 0), (2, 3)))
    outputs = [numpy(layer(ids, padding_mask=ids > 0)) for ids in (IDS, longer)]
    np.testing.assert_allclose(*outputs, atol=1e-6)
    empty = numpy(layer(IDS, padding_mask=np.zeros_like(MASK)))
    np.testing.assert_allclose(empty, np.broadcast_to(layer.bias, (3, 3)))


@pytest.mark.parametrize("num_buckets", [2**12, 2**16, 2**18, 2**20])
def test_few_ngrams_share_a_row(num_buckets):
    """As few as with random rows, though ids are a range of numbers."""
    layer = NGramBag(1, max_n=2, num_buckets=num_buckets)
    ids = np.random.default_rng(0).integers(4, 8000, (1, 20_000))
    rows, is_counted = map(numpy, layer.rows(ops.convert_to_tensor(ids))[1])
    rows = rows[is_counted]
    pairs = len(set(zip(ids[0, :-1].tolist(), ids[0, 1:].tolist(), strict=True)))
    random = layer.num_rows * (1 - (1 - 1 / layer.num_rows) ** pairs)
    assert abs(len(set(rows.tolist())) / random - 1) < 0.02


def test_it_meets_the_contract_of_layers(tmp_path):
    layer = NGramBag(3, 2, 101, "ones", name="ngrams")
    check_layer(layer, IDS, folder=tmp_path, padding_mask=MASK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": 0}, "`units` must be at least 1"),
        ({"units": 2, "max_n": 0}, "`max_n` must be at least 1"),
        ({"units": 2, "num_buckets": 2}, "must be an int from 3 to 1,048,576"),
        ({"units": 2, "num_buckets": 2**21}, "must be an int from 3 to 1,048,576"),
        ({"units": 2, "num_buckets": 99.5}, "must be an int from 3 to 1,048,576"),
    ],
)
def test_arguments_out_of_range_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        NGramBag(**options)


@pytest.mark.parametrize(
    "x", [np.ones((2, 3, 4), "int32"), keras.KerasTensor((None, 3, 4), "int32")]
)
def test_vectors_instead_of_ids_are_rejected(x):
    with pytest.raises(ValueError, match=r"must have shape \(batch, length\)"):
        NGramBag(2)(x)
