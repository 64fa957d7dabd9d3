"""Products by prepacked weights use the current values of the weights."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm import decode, layers, runtime
from tests.decode.conftest import draw_transformer, redraw
from tests.runtime.test_bulk import as_ids, draw_rows

pytestmark = pytest.mark.backend("torch")
DTYPES = ("float32", "bfloat16")


@pytest.fixture(autouse=True)
def packs(monkeypatch):
    """Packs small weights too; returns a list that gets every packed weight."""
    from keras_tfm.runtime import prepacked

    for dtype in DTYPES:  # before packing is counted
        supports(dtype)
    monkeypatch.setattr(prepacked, "MIN_ELEMENTS", 1)
    packs, reorder = [], prepacked.reorder
    monkeypatch.setattr(
        prepacked, "reorder", lambda weight: packs.append(weight) or reorder(weight)
    )
    return packs


def supports(dtype):
    """Returns whether this processor can prepack weights of a dtype."""
    import torch

    from keras_tfm.runtime import prepacked

    return prepacked.supports_dtype(getattr(torch, dtype))


def captured_layer(layer):
    """Returns a captured layer, and an input of three rows."""
    from keras_tfm.runtime.capture import CapturedFunction

    x = np.random.default_rng(0).normal(size=(3, 5, 8)).astype("float32")
    layer.build(x.shape)
    layer.set_weights(
        [np.random.default_rng(1).normal(size=w.shape) for w in layer.weights]
    )
    return CapturedFunction(layer), ops.convert_to_tensor(x)


def call_without_gradients(function, x):
    """Calls a function without gradients, as a decoder does."""
    import torch

    with torch.inference_mode():
        return ops.convert_to_numpy(function(x))


LAYERS = {
    "dense": lambda: keras.layers.Dense(7),
    "no bias": lambda: keras.layers.Dense(7, use_bias=False, activation="relu"),
    "heads": lambda: keras.layers.EinsumDense("btd,dhk->bthk", (None, 2, 3)),
    "transposed": lambda: keras.layers.EinsumDense("btd,kd->btk", (None, 6)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_multiplies_by_its_prepacked_weight(name, packs):
    layer = LAYERS[name]()
    call, x = captured_layer(layer)
    kernel = layer.weights[0].numpy().astype("float64")
    if name == "transposed":
        kernel = kernel.T
    expected = np.einsum("btd,d...->bt...", x.numpy().astype("float64"), kernel)
    if len(layer.weights) > 1:
        expected = expected + layer.weights[1].numpy()
    if name == "no bias":
        expected = np.maximum(expected, 0)
    for times in (0, 0, 1, 1):  # capture, check, replay
        np.testing.assert_allclose(
            call_without_gradients(call, x), expected, rtol=1e-5, atol=1e-5
        )
        assert len(packs) == times
    call.clear()
    assert not call.products


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16"])
def test_half_precision_is_prepacked_where_the_processor_supports_it(policy, packs):
    layer = keras.layers.Dense(7, dtype=policy)
    call, x = captured_layer(layer)
    x = ops.cast(x, "bfloat16")
    expected = call_without_gradients(layer, x)
    for _ in range(4):
        np.testing.assert_allclose(
            call_without_gradients(call, x), expected, rtol=0.02, atol=0.02
        )
    assert len(packs) == supports("bfloat16")


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_changed_weight_is_packed_again(policy, packs):
    layer = keras.layers.Dense(7, dtype=policy)
    call, x = captured_layer(layer)
    x = ops.cast(x, layer.compute_dtype)
    for _ in range(3):
        call_without_gradients(call, x)
    for times in (2, 3):
        layer.kernel.assign(layer.kernel * 2.0)
        for _ in range(2):
            np.testing.assert_allclose(
                call_without_gradients(call, x),
                call_without_gradients(layer, x),
                atol=0.1,
            )
        can_pack = supports(layer.compute_dtype)
        assert len(packs) == (times if can_pack else 0)


def test_graphs_of_several_shapes_share_prepacked_weights(packs):
    call, x = captured_layer(keras.layers.Dense(7))
    for rows in (1, 2, 3):
        for _ in range(3):
            call_without_gradients(call, x[:rows])
    assert len(packs) == 1


def test_one_weight_may_be_used_in_several_layouts(packs):
    import torch

    from keras_tfm.runtime.capture import CapturedFunction

    kernel = torch.arange(16.0).reshape(4, 4)

    def function(x):
        return x @ kernel + x @ kernel.T + x @ kernel.reshape(2, 8).T.reshape(4, 4)

    call, x = CapturedFunction(function), ops.ones((3, 4))
    for _ in range(4):
        np.testing.assert_allclose(
            call_without_gradients(call, x), call_without_gradients(function, x)
        )
    assert len(packs) == 3


def test_a_single_text_and_a_batch_share_prepacked_weights(packs):
    layer = layers.MultiHeadAttention(8, 2)
    call, x = captured_layer(layer)
    for rows in (1, 3, 1, 3, 1, 3):
        np.testing.assert_allclose(
            call_without_gradients(call, x[:rows]),
            call_without_gradients(layer, x[:rows]),
            rtol=1e-5,
            atol=1e-5,
        )
    # The output projection of a single text sums in another order.
    assert len(packs) == 5


def test_only_weights_are_packed(packs):
    import torch

    from keras_tfm.runtime.capture import CapturedFunction

    constant = ops.ones((4, 4))
    buffer, batch = torch.ones((4, 4)), torch.ones((2, 4, 4))

    def function(x):
        copy = constant.reshape(2, 8).reshape(4, 4) + 0.0
        computed = buffer.to(torch.float64).to(torch.float32)
        computed.mul_(x[0, 0])
        batched = ops.stack([x, x]) @ batch
        return x @ copy + x @ computed + x @ x + batched[0]

    call, x = CapturedFunction(function), ops.ones((4, 4))
    for value in (1.0, 1.0, 3.0, 4.0):
        result = call_without_gradients(call, x * value)
        np.testing.assert_allclose(result, call_without_gradients(function, x * value))
    assert not packs


def test_weights_without_a_version_are_not_packed(packs):
    import torch

    with torch.inference_mode():
        layer = keras.layers.Dense(7)
        call, x = captured_layer(layer)
        for _ in range(3):
            call_without_gradients(call, x)
        layer.kernel.assign(layer.kernel * 2.0)
        np.testing.assert_allclose(
            call_without_gradients(call, x), call_without_gradients(layer, x), rtol=1e-5
        )
    assert not packs


def fused_step(weight):
    import torch

    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], 0.5, fused=True).step()


UNVERSIONED_WRITES = {
    "fused optimizer": fused_step,
    "data written": lambda weight: weight.data.mul_(2.0),
    "data assigned": lambda weight: setattr(weight, "data", weight.data * 2.0),
}


@pytest.mark.parametrize("name", UNVERSIONED_WRITES)
def test_a_decoder_notices_writes_that_do_not_change_the_version(name, packs):
    model, ids = draw_transformer(), as_ids(draw_rows(5))
    decoder = runtime.Decoder(
        model, decode.Options(beam_size=2, max_decoding_length=12)
    )
    for _ in range(3):
        stale = decoder(ids)
    count = len(packs)
    for weight in model.weights:
        UNVERSIONED_WRITES[name](weight.value)
    hypotheses = decoder(ids)
    assert len(packs) == 2 * count > 0
    fresh = runtime.Decoder(model, decode.Options(beam_size=2, max_decoding_length=12))(
        ids
    )
    assert not np.allclose(stale.scores, fresh.scores)
    np.testing.assert_array_equal(hypotheses.ids, fresh.ids)
    np.testing.assert_allclose(hypotheses.scores, fresh.scores, rtol=1e-5)


def test_no_weight_is_packed_where_onednn_is_disabled(packs, monkeypatch):
    import torch

    call, x = captured_layer(keras.layers.Dense(7))
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    for _ in range(3):
        call_without_gradients(call, x)
    assert not packs


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_decoder_follows_training(beam_size, packs):
    model, ids = draw_transformer(), as_ids(draw_rows(5))
    decoder = runtime.Decoder(
        model, decode.Options(beam_size=beam_size, max_decoding_length=12)
    )
    for _ in range(3):
        decoder(ids)
    assert packs
    optimizer = keras.optimizers.Adam(0.3)
    model.compile(optimizer, loss="sparse_categorical_crossentropy")
    model.fit(
        {"source_ids": ids, "target_ids": ids}, np.ones_like(ids), epochs=2, verbose=0
    )
    trained = decoder(ids)
    fresh = runtime.Decoder(
        model, decode.Options(beam_size=beam_size, max_decoding_length=12)
    )(ids)
    np.testing.assert_array_equal(trained.ids, fresh.ids)
    np.testing.assert_allclose(trained.scores, fresh.scores, rtol=1e-5)
    redraw(model, 7)
    redrawn = decoder(ids)
    fresh = runtime.Decoder(
        model, decode.Options(beam_size=beam_size, max_decoding_length=12)
    )(ids)
    assert not np.array_equal(redrawn.ids, trained.ids)
    np.testing.assert_array_equal(redrawn.ids, fresh.ids)


def test_the_private_operations_of_pytorch_are_as_expected():
    import torch

    if torch.backends.mkldnn.is_available():
        assert supports("float32")
    assert not supports("float16")


@pytest.mark.parametrize("precision", DTYPES)
def test_without_the_private_operations_the_same_ids_are_decoded(
    precision, monkeypatch
):
    from keras_tfm.runtime import prepacked

    def missing(*arguments):
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute")

    model, ids = draw_transformer(), as_ids(draw_rows(5))
    options = decode.Options(
        beam_size=2, max_decoding_length=12, matmul_precision=precision
    )
    expected = runtime.Decoder(model, options)(ids)
    monkeypatch.setattr(prepacked, "reorder", missing)
    prepacked.supports_dtype.cache_clear()
    decoder = runtime.Decoder(model, options)
    with pytest.warns(RuntimeWarning, match="no prepacked weights.*slower") as warned:
        for _ in range(3):
            hypotheses = decoder(ids)
    assert sum("no prepacked" in str(w.message) for w in warned) == 1
    np.testing.assert_array_equal(hypotheses.ids, expected.ids)
    np.testing.assert_allclose(hypotheses.scores, expected.scores, atol=2e-3)
    monkeypatch.undo()
    prepacked.supports_dtype.cache_clear()
