"""Products in bfloat16: what they give, and that they are there."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm import decode, runtime
from keras_tfm.runtime.compile import Weights, compiled
from tests.decode.conftest import draw_transformer, redraw
from tests.runtime.test_search import draw_sources

LAYERS = {
    "dense": lambda: keras.layers.Dense(130),
    "heads": lambda: keras.layers.EinsumDense("btd,dhk->bthk", (None, 4, 40)),
    "joined": lambda: keras.layers.EinsumDense("bthk,hkd->btd", (None, 130)),
}
SHAPES = {"joined": (3, 5, 4, 40)}


@pytest.fixture(autouse=True)
def small_weights_too(monkeypatch):
    if keras.config.backend() == "jax":
        from keras_tfm.runtime import bfloat16 as narrow

        monkeypatch.setattr(narrow, "LEAST", 1)
    if keras.config.backend() == "torch":
        from keras_tfm.runtime import prepacked as packed

        monkeypatch.setattr(packed, "LEAST", 1)


def drawn(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def rounded(x):
    """To bfloat16, as float64."""
    bits = np.asarray(x, "float32").view("uint32").astype("uint64")
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype("uint32").view("float32").astype("float64")


ALL = {"suppress_ids": (), "disable_unk": False}  # as `score` normalizes


def same_layer(name):
    layer, x = LAYERS[name](), drawn(SHAPES.get(name, (3, 5, 160)))
    layer.build(x.shape)
    layer.set_weights([drawn(w.shape, seed=1) for w in layer.weights])
    return layer, x


@pytest.mark.backend("jax")
@pytest.mark.parametrize("name", LAYERS)
def test_products_are_of_rounded_numbers(name):
    layer, x = same_layer(name)
    weights = Weights(layer, "bfloat16")
    found = ops.convert_to_numpy(compiled(layer, weights)(ops.convert_to_tensor(x)))
    assert found.dtype == "float32"
    kernel = rounded(layer.get_weights()[0])
    wanted = np.tensordot(rounded(x), kernel, {"joined": 2}.get(name, 1))
    if layer.bias is not None:
        wanted = wanted + layer.get_weights()[1]
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    exact = ops.convert_to_numpy(layer(ops.convert_to_tensor(x)))
    assert np.abs(found - exact).max() > 1e-3  # or nothing would be rounded


@pytest.mark.backend("jax")
@pytest.mark.parametrize("shape", [(3, 160), (3, 1, 160), (3, 2, 160)])
@pytest.mark.parametrize(
    "turn",
    [
        lambda x: ops.transpose(ops.reshape(x, (-1, 130))),
        lambda x: ops.moveaxis(ops.reshape(x, (-1, 130)), -1, 0),
        lambda x: ops.vectorized_map(ops.transpose, ops.reshape(x, (1, -1, 130)))[0],
        lambda x: ops.einsum("ij->ji", ops.reshape(x, (-1, 130))),
    ],
)
def test_results_turned(shape, turn):
    layer, x = keras.layers.Dense(130, use_bias=False), drawn(shape)
    layer.build(x.shape)
    program = compiled(lambda x: turn(layer(x)), Weights(layer, "bfloat16"))
    found = ops.convert_to_numpy(program(ops.convert_to_tensor(x)))
    wanted = rounded(x) @ rounded(layer.get_weights()[0])
    np.testing.assert_allclose(found.T, wanted.reshape(-1, 130), atol=1e-4)


@pytest.mark.backend("jax")
def test_table_in_a_loop_and_its_rows():
    table, x = keras.layers.Embedding(200, 160), drawn((3, 1, 160))
    table.build()
    program = compiled(
        lambda x, ids: (
            ops.while_loop(
                lambda i, y: i < 2,
                lambda i, y: (
                    i + 1,
                    y + ops.matmul(x, ops.transpose(table.embeddings)),
                ),
                (0, ops.zeros((3, 1, 200))),
            )[1]
            + ops.sum(table(ids))
        ),
        Weights(table, "bfloat16"),
    )
    ids = np.array([3, 5])
    found = program(ops.convert_to_tensor(x), ops.convert_to_tensor(ids))
    values = table.get_weights()[0]
    wanted = 2 * rounded(x) @ rounded(values).T + values[ids].sum()
    np.testing.assert_allclose(ops.convert_to_numpy(found), wanted, atol=1e-4)


@pytest.mark.backend("jax", "torch")
def test_weights_assigned_later_are_taken():
    transformer = draw_transformer()
    search = runtime.Decoder(
        transformer, decode.Options(matmul_precision="bfloat16", beam_size=2)
    )
    before = search(draw_sources())
    redraw(transformer, seed=5)
    again = search(draw_sources())
    fresh = runtime.Decoder(
        transformer, decode.Options(matmul_precision="bfloat16", beam_size=2)
    )
    wanted = fresh(draw_sources())
    np.testing.assert_array_equal(again.ids, wanted.ids)
    np.testing.assert_allclose(again.scores, wanted.scores, atol=1e-5)
    some = np.isfinite(before.scores)
    assert np.abs(before.scores[some] - again.scores[some]).max() > 0.01


@pytest.mark.backend("jax", "torch")
@pytest.mark.parametrize("beam_size", [1, 3])
def test_scores_are_near_those_of_float32(beam_size):
    transformer, sources = draw_transformer(), draw_sources()
    options = {"beam_size": beam_size, **ALL}
    exact = runtime.Decoder(transformer, decode.Options(**options))(sources)
    search = runtime.Decoder(
        transformer, decode.Options(**options, matmul_precision="bfloat16")
    )
    found = search(sources)
    some = np.isfinite(exact.scores)
    difference = np.abs(found.scores[some] - exact.scores[some])
    assert 0 < difference.max() < 0.05
    scored = search.score(sources, [row[row > 0].tolist() for row in found.ids[:, 0]])
    assert np.abs(scored.scores[some] - found.scores[some]).max() < 0.02


@pytest.mark.backend("tensorflow")
def test_tensorflow_says_that_it_cannot():
    with pytest.raises(ValueError, match="KERAS_BACKEND=jax or torch"):
        runtime.Decoder(draw_transformer(), decode.Options(matmul_precision="bfloat16"))


def test_unknown_precision():
    with pytest.raises(ValueError, match="'float16'"):
        runtime.Decoder(draw_transformer(), decode.Options(matmul_precision="float16"))


@pytest.mark.backend("jax", "torch")
def test_an_ensemble_of_one_model_twice_says_what_it_says():
    transformer, sources = draw_transformer(), draw_sources()
    options = {"beam_size": 2, "matmul_precision": "bfloat16"}
    wanted = runtime.Decoder(transformer, decode.Options(**options))(sources)
    both = decode.Ensemble([transformer, transformer])
    found = runtime.Decoder(both, decode.Options(**options))(sources)
    np.testing.assert_array_equal(found.ids, wanted.ids)
