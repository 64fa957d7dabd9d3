"""Products in bfloat16: their results, and that they are used."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm import decode, runtime
from keras_tfm.runtime.compile import ModelWeights, compiled, optional_module
from tests.decode.conftest import draw_transformer, redraw
from tests.runtime.test_decoder import draw_sources

LAYERS = {
    "dense": lambda: keras.layers.Dense(130),
    "heads": lambda: keras.layers.EinsumDense("btd,dhk->bthk", (None, 4, 40)),
    "output": lambda: keras.layers.EinsumDense("bthk,hkd->btd", (None, 130)),
}
SHAPES = {"output": (3, 5, 4, 40)}


@pytest.fixture(autouse=True)
def multiply_small_weights_too(monkeypatch):
    if keras.config.backend() == "jax":
        from keras_tfm.runtime import bfloat16

        monkeypatch.setattr(bfloat16, "MIN_ELEMENTS", 1)
    if keras.config.backend() == "torch":
        from keras_tfm.runtime import prepacked

        monkeypatch.setattr(prepacked, "MIN_ELEMENTS", 1)


def draw(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def rounded(x):
    """Rounds to bfloat16; returns float64."""
    bits = np.asarray(x, "float32").view("uint32").astype("uint64")
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype("uint32").view("float32").astype("float64")


ALL = {"suppress_ids": (), "disable_unk": False}  # as `score` normalizes


def make_layer(name):
    layer, x = LAYERS[name](), draw(SHAPES.get(name, (3, 5, 160)))
    layer.build(x.shape)
    layer.set_weights([draw(w.shape, seed=1) for w in layer.weights])
    return layer, x


@pytest.mark.backend("jax")
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_multiplies_in_bfloat16(name):
    layer, x = make_layer(name)
    weights = ModelWeights(layer, "bfloat16")
    result = ops.convert_to_numpy(compiled(layer, weights)(ops.convert_to_tensor(x)))
    assert result.dtype == "float32"
    kernel = rounded(layer.get_weights()[0])
    expected = np.tensordot(rounded(x), kernel, {"output": 2}.get(name, 1))
    if layer.bias is not None:
        expected = expected + layer.get_weights()[1]
    np.testing.assert_allclose(result, expected, atol=1e-4)
    exact = ops.convert_to_numpy(layer(ops.convert_to_tensor(x)))
    assert np.abs(result - exact).max() > 1e-3  # it can fail


@pytest.mark.backend("jax")
@pytest.mark.parametrize("shape", [(3, 160), (3, 1, 160), (3, 2, 160)])
@pytest.mark.parametrize(
    "transpose",
    [
        lambda x: ops.transpose(ops.reshape(x, (-1, 130))),
        lambda x: ops.moveaxis(ops.reshape(x, (-1, 130)), -1, 0),
        lambda x: ops.vectorized_map(ops.transpose, ops.reshape(x, (1, -1, 130)))[0],
        lambda x: ops.einsum("ij->ji", ops.reshape(x, (-1, 130))),
    ],
)
def test_a_product_may_be_transposed(shape, transpose):
    layer, x = keras.layers.Dense(130, use_bias=False), draw(shape)
    layer.build(x.shape)
    compiled_product = compiled(
        lambda x: transpose(layer(x)), ModelWeights(layer, "bfloat16")
    )
    result = ops.convert_to_numpy(compiled_product(ops.convert_to_tensor(x)))
    expected = rounded(x) @ rounded(layer.get_weights()[0])
    np.testing.assert_allclose(result.T, expected.reshape(-1, 130), atol=1e-4)


@pytest.mark.backend("jax")
def test_an_embedding_matrix_is_multiplied_in_a_loop_and_looked_up():
    embedding, x = keras.layers.Embedding(200, 160), draw((3, 1, 160))
    embedding.build()
    compiled_function = compiled(
        lambda x, ids: (
            ops.while_loop(
                lambda i, y: i < 2,
                lambda i, y: (
                    i + 1,
                    y + ops.matmul(x, ops.transpose(embedding.embeddings)),
                ),
                (0, ops.zeros((3, 1, 200))),
            )[1]
            + ops.sum(embedding(ids))
        ),
        ModelWeights(embedding, "bfloat16"),
    )
    ids = np.array([3, 5])
    result = compiled_function(ops.convert_to_tensor(x), ops.convert_to_tensor(ids))
    values = embedding.get_weights()[0]
    expected = 2 * rounded(x) @ rounded(values).T + values[ids].sum()
    np.testing.assert_allclose(ops.convert_to_numpy(result), expected, atol=1e-4)


@pytest.mark.backend("jax", "torch")
def test_newly_assigned_weights_are_used():
    transformer = draw_transformer()
    decoder = runtime.Decoder(
        transformer, decode.Options(matmul_precision="bfloat16", beam_size=2)
    )
    first = decoder(draw_sources())
    redraw(transformer, seed=5)
    second = decoder(draw_sources())
    fresh = runtime.Decoder(
        transformer, decode.Options(matmul_precision="bfloat16", beam_size=2)
    )
    expected = fresh(draw_sources())
    np.testing.assert_array_equal(second.ids, expected.ids)
    np.testing.assert_allclose(second.scores, expected.scores, atol=1e-5)
    is_finite = np.isfinite(first.scores)
    assert np.abs(first.scores[is_finite] - second.scores[is_finite]).max() > 0.01


@pytest.mark.backend("jax", "torch")
@pytest.mark.parametrize("beam_size", [1, 3])
def test_scores_are_close_to_those_of_float32(beam_size):
    transformer, sources = draw_transformer(), draw_sources()
    options = {"beam_size": beam_size, **ALL}
    exact = runtime.Decoder(transformer, decode.Options(**options))(sources)
    decoder = runtime.Decoder(
        transformer, decode.Options(**options, matmul_precision="bfloat16")
    )
    result = decoder(sources)
    is_finite = np.isfinite(exact.scores)
    difference = np.abs(result.scores[is_finite] - exact.scores[is_finite])
    assert 0 < difference.max() < 0.05
    scored = decoder.score(sources, [row[row > 0].tolist() for row in result.ids[:, 0]])
    assert np.abs(scored.scores[is_finite] - result.scores[is_finite]).max() < 0.02


@pytest.mark.backend("tensorflow")
def test_tensorflow_rejects_bfloat16():
    with pytest.raises(ValueError, match="KERAS_BACKEND=jax or torch"):
        runtime.Decoder(draw_transformer(), decode.Options(matmul_precision="bfloat16"))


def test_an_unknown_precision_is_rejected():
    with pytest.raises(ValueError, match="'float16'"):
        runtime.Decoder(draw_transformer(), decode.Options(matmul_precision="float16"))


@pytest.mark.backend("jax", "torch")
def test_an_ensemble_of_one_model_twice_decodes_like_the_model():
    transformer, sources = draw_transformer(), draw_sources()
    options = {"beam_size": 2, "matmul_precision": "bfloat16"}
    expected = runtime.Decoder(transformer, decode.Options(**options))(sources)
    ensemble = decode.Ensemble([transformer, transformer])
    result = runtime.Decoder(ensemble, decode.Options(**options))(sources)
    np.testing.assert_array_equal(result.ids, expected.ids)


@pytest.mark.backend("jax")
def test_the_private_api_of_jax_is_as_expected():
    from keras_tfm.runtime import bfloat16

    bfloat16.probe()
    assert optional_module("bfloat16") is bfloat16


@pytest.mark.backend("jax")
@pytest.mark.parametrize("missing", ["core", "_evaluate_equation"])
def test_without_the_private_api_of_jax_decoding_is_in_float32(missing, monkeypatch):
    from keras_tfm.runtime import bfloat16

    transformer, sources = draw_transformer(), draw_sources()
    exact = runtime.Decoder(transformer, decode.Options(beam_size=2))(sources)
    monkeypatch.setattr(bfloat16, missing, None)
    optional_module.cache_clear()
    options = decode.Options(beam_size=2, matmul_precision="bfloat16")
    with pytest.warns(RuntimeWarning, match="version of jax.*in float32") as warned:
        decoders = [runtime.Decoder(transformer, options) for _ in range(2)]
    assert sum("version of jax" in str(w.message) for w in warned) == 1
    hypotheses = decoders[1](sources)
    np.testing.assert_array_equal(hypotheses.ids, exact.ids)
    np.testing.assert_array_equal(hypotheses.scores, exact.scores)
    monkeypatch.undo()
    optional_module.cache_clear()
