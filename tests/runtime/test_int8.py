"""Products by weights in 8 bits."""

import types

import keras
import numpy as np
import pytest

from keras_tfm import decode, runtime
from tests.decode.conftest import draw_transformer, redraw
from tests.runtime.test_bulk import as_ids, draw_rows

torch_only = pytest.mark.backend("torch")
OPTIONS = {"beam_size": 3, "max_decoding_length": 12}
OPTIONS |= {"suppress_ids": (), "disable_unk": False}  # as `score` normalizes


@pytest.fixture
def int8(monkeypatch):
    """The module, where the processor supports it; small weights count too."""
    from keras_tfm.runtime import int8, prepacked

    if not int8.is_supported():
        pytest.skip("this processor has no instructions for 8 bits")
    monkeypatch.setattr(prepacked, "MIN_ELEMENTS", 1)
    return int8


def draw(*shape, seed=0):
    import torch

    values = np.random.default_rng(seed).normal(size=shape)
    return torch.tensor(values, dtype=torch.float32)


@torch_only
@pytest.mark.parametrize("shape", [(2, 16, 24), (129, 512, 96), (1, 100, 7)])
def test_products_have_the_error_of_8_bits(int8, shape):
    count, dim, channels = shape
    weight, x = draw(channels, dim), draw(count, dim, seed=1)
    weight *= draw(channels, 1, seed=2)  # each channel has its own scale
    x *= draw(count, 1, seed=3)
    product = int8.Int8Weight(weight).multiply(x)
    expected = x @ weight.T
    # Rounding: half a unit of each factor, of dim independent terms.
    peaks = x.abs().amax(1, keepdim=True) * weight.abs().amax(1)
    error = (product - expected).abs() / peaks / dim**0.5
    assert 1e-5 < error.max() < 3 / 127


@torch_only
def test_a_vector_does_not_depend_on_its_batch(int8):
    import torch

    weight, x = int8.Int8Weight(draw(300, 64)), draw(70, 64, seed=1)
    x[1:] *= 1000
    expected = weight.multiply(x)
    for size in (1, 2, 33):
        assert torch.equal(weight.multiply(x[:size]), expected[:size])
    assert torch.equal(weight.multiply(x.reshape(7, 10, 64)).flatten(0, 1), expected)


@torch_only
def test_zeros_and_missing_numbers_stay(int8):
    import torch

    x = draw(3, 16)
    x[0], x[1, 2] = 0, np.nan
    weight = draw(8, 16)
    weight[4] = 0
    product = int8.Int8Weight(weight).multiply(x)
    assert not product[0].any() and not product[2, 4] and product[2, 0]
    assert torch.isnan(product[1]).all()


@torch_only
@pytest.mark.parametrize("beam_size", [1, 3])
def test_hypotheses_are_near_those_of_float32_and_stay_alone(int8, beam_size):
    model, ids = draw_transformer(), as_ids(draw_rows(5))
    options = {**OPTIONS, "beam_size": beam_size}
    decoder = runtime.Decoder(model, decode.Options(**options, matmul_precision="int8"))
    first, second = decoder(ids), decoder(ids)
    np.testing.assert_array_equal(first.ids, second.ids)
    np.testing.assert_array_equal(first.scores, second.scores)
    for n, row in enumerate(ids):
        alone = decoder(row[None])
        np.testing.assert_array_equal(alone.ids[0], first.ids[n])
        np.testing.assert_array_equal(alone.scores[0], first.scores[n])
    targets = [row[row > 0].tolist() for row in first.ids[:, 0]]
    exact = runtime.Decoder(model, decode.Options(**options)).score(ids, targets)
    assert 0 < np.abs(first.scores[:, 0] - exact.scores.reshape(-1)).max() < 0.1


@torch_only
def test_a_decoder_in_8_bits_follows_training(int8):
    model, ids = draw_transformer(), as_ids(draw_rows(5))
    options = decode.Options(**OPTIONS, matmul_precision="int8")
    decoder = runtime.Decoder(model, options)
    for _ in range(3):
        decoder(ids)
    redraw(model, 7)
    np.testing.assert_array_equal(
        decoder(ids).scores, runtime.Decoder(model, options)(ids).scores
    )


@torch_only
def test_factors_of_lora_stay_in_float32(int8):
    import torch

    from keras_tfm.runtime.capture import CapturedFunction

    layer = keras.layers.Dense(24)
    layer.build((None, 16))
    layer.enable_lora(4)
    layer.set_weights([draw(*weight.shape) for weight in layer.weights])
    call = CapturedFunction(layer, "int8")
    with torch.inference_mode():
        for _ in range(3):
            assert torch.equal(call(draw(5, 16)), layer(draw(5, 16)))
    assert not call.products


@pytest.mark.backend("jax", "tensorflow")
def test_8_bits_need_pytorch():
    message = f"needs PyTorch.*is {keras.config.backend()}.*KERAS_BACKEND=torch"
    with pytest.raises(ValueError, match=message):
        runtime.Decoder(draw_transformer(), decode.Options(matmul_precision="int8"))


@torch_only
@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_weights_on_another_device_are_rejected(precision):
    import torch

    class Model:
        variables = (types.SimpleNamespace(value=torch.empty(1, device="meta")),)

    with pytest.raises(ValueError, match=f"'float32' on meta.*got '{precision}'"):
        runtime.compile.ModelWeights(Model(), precision)


@torch_only
def test_8_bits_need_instructions_of_the_processor(monkeypatch):
    from keras_tfm.runtime import int8

    monkeypatch.setattr(int8, "is_supported", lambda: False)
    with pytest.raises(ValueError, match="one of avx512_vnni, avx_vnni, amx_int8"):
        runtime.Decoder(draw_transformer(), decode.Options(matmul_precision="int8"))


@torch_only
def test_a_processor_or_a_library_without_8_bits_is_not_supported(monkeypatch):
    import torch

    from keras_tfm.runtime import int8

    def support():
        int8.is_supported.cache_clear()
        return int8.is_supported()

    with monkeypatch.context() as patch:
        patch.setattr(torch.cpu, "get_capabilities", dict)
        assert not support()
        patch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_vnni": True})

        def saturated(weight, x):
            return int8.LARGEST * x

        patch.setattr(int8.Int8Weight, "multiply", saturated)
        assert not support()
        patch.delattr(torch.cpu, "get_capabilities")
        assert not support()
    int8.is_supported.cache_clear()


@torch_only
def test_the_reading_of_sources_is_captured_once_for_all_lengths(int8):
    model = draw_transformer()
    options = decode.Options(**OPTIONS, matmul_precision="int8")
    search = runtime.Decoder(model, options).compiled_search
    begin, step = search.get_begin(), search.get_take_step()
    for count in (2, 3, 4):
        ids = np.full((count, 9), 5, "int32")
        for _ in range(2):
            search.decode(ids)
    assert len(begin.graphs) == 3 and begin.products is step.products
    assert all(replay is not None for replay, _ in begin.graphs.values())
    assert 0 < len(begin.products) <= 2 * len(model.weights)


@torch_only
def test_the_reading_of_a_recurrent_network_is_not_captured(int8):
    from keras_tfm import models

    model = models.RecurrentSeq2Seq(20, embedding_dim=8, units=8)
    options = decode.Options(max_decoding_length=3, matmul_precision="int8")
    decoder = runtime.Decoder(model, options)
    decoder(np.full((2, 300), 5, "int32"))
    [(replay, _)] = decoder.compiled_search.get_begin().graphs.values()
    assert replay is None
