"""Position encodings: published values, at any length, in every precision."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm.layers import LearnedPositions, SinusoidalPositions
from tests.layers.contract import check_layer
from tests.layers.formulas import draw, draw_weights, numpy


def signal(layer, length, dim, **call):
    """Returns the output of the layer for zeros, `(length, dim)`."""
    return numpy(layer(np.zeros((1, length, dim), "float32"), **call))[0]


def paper(length, dim, first=0):
    """Vaswani et al. 2017, section 3.5: PE(pos, 2i) and PE(pos, 2i + 1)."""
    table = np.zeros((length, dim))
    for position in range(length):
        for i in range(dim // 2):
            angle = (position + first) / 10_000 ** (2 * i / dim)
            table[position, 2 * i] = math.sin(angle)
            table[position, 2 * i + 1] = math.cos(angle)
    return table


def tensor2tensor(length, channels, start_index=0):
    """`get_timing_signal_1d` of tensor2tensor; OpenNMT-tf starts it at 1."""
    position = np.arange(length) + start_index
    num_timescales = channels // 2
    log_timescale_increment = math.log(10_000) / max(num_timescales - 1, 1)
    inv_timescales = np.exp(np.arange(num_timescales) * -log_timescale_increment)
    scaled_time = position[:, None] * inv_timescales[None, :]
    return np.concatenate([np.sin(scaled_time), np.cos(scaled_time)], axis=1)


def fairseq(length, dim, padding_id=1):
    """`SinusoidalPositionalEmbedding`: the first token is `padding_id + 1`."""
    half = dim // 2
    speed = np.exp(np.arange(half) * -(math.log(10_000) / (half - 1)))
    angle = (np.arange(length) + padding_id + 1)[:, None] * speed[None, :]
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)


def marian(length, dim):
    """Marian's C++ loops."""
    scales = dim // 2
    increment = math.log(10_000) / (scales - 1)
    table = np.zeros((length, dim))
    for p in range(length):
        for i in range(scales):
            v = p * math.exp(i * -increment)
            table[p, i] = math.sin(v)
            table[p, scales + i] = math.cos(v)
    return table


def hugging_face_marian(length, dim):
    """Halves as in Marian, but with the wavelengths of the paper."""
    angle = np.array(
        [
            [p / np.power(10_000, 2 * (j // 2) / dim) for j in range(dim)]
            for p in range(length)
        ]
    )
    return np.concatenate([np.sin(angle[:, 0::2]), np.cos(angle[:, 1::2])], axis=1)


CONVENTIONS = {
    "paper": ({}, paper(60, 16)),
    "paper, from 1": ({"first_position": 1}, paper(60, 16, first=1)),
    "tensor2tensor": ({"style": "halves"}, tensor2tensor(60, 16)),
    "OpenNMT-tf": (
        {"style": "halves", "first_position": 1},
        tensor2tensor(60, 16, start_index=1),
    ),
    "fairseq": ({"style": "halves", "first_position": 2}, fairseq(60, 16)),
    "Marian": ({"style": "halves"}, marian(60, 16)),
    "Marian at Hugging Face": (
        {"style": "halves", "reach_max_period": False},
        hugging_face_marian(60, 16),
    ),
}


@pytest.mark.parametrize("library", CONVENTIONS)
def test_sinusoids_match_the_convention_of_each_library(library):
    settings, table = CONVENTIONS[library]
    actual = signal(SinusoidalPositions(**settings), 60, 16)
    np.testing.assert_allclose(actual, table, atol=1e-5)


def test_the_conventions_differ():
    tables = {name: table for name, (_, table) in CONVENTIONS.items()}
    del tables["Marian"]  # equal to tensor2tensor
    for name, table in tables.items():
        distances = [abs(table - tables[key]).max() for key in tables if key != name]
        assert min(distances) > 0.1


def test_sinusoids_of_dimension_4_have_the_published_values():
    table = signal(SinusoidalPositions(), 5, 4)
    np.testing.assert_allclose(table[0], [0, 1, 0, 1], atol=1e-6)
    np.testing.assert_allclose(table[1], [0.84147, 0.5403, 0.01, 0.99995], atol=1e-5)
    np.testing.assert_allclose(table[2, :2], [0.9093, -0.41615], atol=1e-5)


def test_reach_max_period_sets_the_slowest_wave():
    layer = SinusoidalPositions(reach_max_period=True, max_period=100.0)
    table = signal(layer, 30, 6)
    np.testing.assert_allclose(table[:, 4], np.sin(np.arange(30) / 100), atol=1e-6)
    np.testing.assert_allclose(table[:, 2], np.sin(np.arange(30) / 10), atol=1e-6)


def test_dimension_2_is_one_wave():
    for style in ("interleaved", "halves"):
        table = signal(SinusoidalPositions(style), 9, 2)
        np.testing.assert_allclose(table[:, 0], np.sin(np.arange(9)), atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "error"), [("float16", 5e-4), ("bfloat16", 4e-3), ("float32", 3e-4)]
)
def test_half_precision_distinguishes_late_positions(dtype, error):
    actual = signal(SinusoidalPositions(dtype=dtype), 2100, 8)
    np.testing.assert_allclose(actual, paper(2100, 8), atol=error)


def test_sinusoids_extend_to_any_length():
    layer = SinusoidalPositions()
    assert signal(layer, 3, 4).shape == (3, 4)
    long = signal(layer, 5000, 4)
    np.testing.assert_allclose(long[-1], paper(5000, 4)[-1], atol=1e-3)


@pytest.mark.parametrize(
    "make_layer", [SinusoidalPositions, lambda: LearnedPositions(8)]
)
@pytest.mark.parametrize("tensor", [False, True], ids=["int", "tensor"])
def test_an_offset_selects_later_positions(make_layer, tensor):
    layer = make_layer()
    whole = signal(layer, 8, 4)
    offset = ops.convert_to_tensor(5, "int32") if tensor else 5
    np.testing.assert_allclose(signal(layer, 3, 4, offset=offset), whole[5:], atol=1e-6)
    assert abs(whole[5:] - whole[:3]).max() > 0.01  # it can fail


def test_the_signal_is_added_to_the_vectors():
    x = draw(2, 5, 4)
    actual = numpy(SinusoidalPositions()(x))
    np.testing.assert_allclose(actual, x + paper(5, 4), atol=1e-6)


def test_concat_projects_vector_and_signal_to_the_dimension():
    x = draw(2, 5, 4)
    layer = SinusoidalPositions(combine="concat")
    layer(x)
    draw_weights(layer)
    (kernel,) = layer.get_weights()  # no bias
    pairs = np.concatenate([x, np.broadcast_to(paper(5, 4), x.shape)], axis=-1)
    np.testing.assert_allclose(numpy(layer(x)), pairs @ kernel, atol=1e-5)


def test_learned_positions_are_trainable_vectors():
    layer = LearnedPositions(6)
    x = draw(2, 5, 4)
    layer(x)
    table = draw(6, 4, seed=3)
    layer.set_weights([table])
    np.testing.assert_allclose(numpy(layer(x)), x + table[:5], atol=1e-6)
    assert len(layer.trainable_weights) == 1


def test_a_sequence_too_long_for_learned_positions_fails_with_dynamic_lengths():
    x = keras.Input((None, 2))
    model = keras.Model(x, LearnedPositions(4)(x))
    assert model.predict(np.zeros((1, 4, 2)), verbose=0).shape == (1, 4, 2)
    errors = (ValueError,)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        errors += (tf.errors.InvalidArgumentError,)  # incompatible shapes
    with pytest.raises(errors, match="sequence_length=4|[Ii]ncompatible shapes"):
        model.predict(np.zeros((1, 5, 2)), verbose=0)


@pytest.mark.parametrize(
    "make_layer",
    [
        lambda: SinusoidalPositions("halves", 1, 500.0, False, "concat"),
        lambda: LearnedPositions(7, "concat", initializer="ones"),
    ],
    ids=["sinusoidal", "learned"],
)
def test_layer_meets_the_contract(make_layer, tmp_path):
    check_layer(make_layer(), draw(2, 5, 8), folder=tmp_path)
