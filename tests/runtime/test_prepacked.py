"""Products by packed weights are products by the weights as they are now."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm import decode, runtime
from tests.decode.conftest import draw_transformer, redraw
from tests.runtime.test_bulk import as_ids, draw_rows

pytestmark = pytest.mark.backend("torch")


@pytest.fixture(autouse=True)
def packs(monkeypatch):
    """Small weights are packed too; gives how many were, each time."""
    import torch

    from keras_tfm.runtime import prepacked as packed

    monkeypatch.setattr(packed, "LEAST", 1)
    packs, namespace = [], torch.ops.mkldnn
    pack = namespace._reorder_linear_weight
    monkeypatch.setattr(
        namespace,
        "_reorder_linear_weight",
        lambda weight: packs.append(weight) or pack(weight),
    )
    return packs


def recorded(layer):
    """A layer as it is recorded, for three rows; and what it is given."""
    from keras_tfm.runtime.capture import Recorded

    x = np.random.default_rng(0).normal(size=(3, 5, 8)).astype("float32")
    layer.build(x.shape)
    layer.set_weights(
        [np.random.default_rng(1).normal(size=w.shape) for w in layer.weights]
    )
    return Recorded(layer), ops.convert_to_tensor(x)


def called(function, x):
    """What a function gives without gradients, as a search calls it."""
    import torch

    with torch.inference_mode():
        return ops.convert_to_numpy(function(x))


LAYERS = {
    "dense": lambda: keras.layers.Dense(7),
    "no bias": lambda: keras.layers.Dense(7, use_bias=False, activation="relu"),
    "heads": lambda: keras.layers.EinsumDense("btd,dhk->bthk", (None, 2, 3)),
    "joined": lambda: keras.layers.EinsumDense("btd,kd->btk", (None, 6)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_multiplies_by_its_packed_weight(name, packs):
    layer = LAYERS[name]()
    call, x = recorded(layer)
    kernel = layer.weights[0].numpy().astype("float64")
    if name == "joined":
        kernel = kernel.T
    wanted = np.einsum("btd,d...->bt...", x.numpy().astype("float64"), kernel)
    if len(layer.weights) > 1:
        wanted = wanted + layer.weights[1].numpy()
    if name == "no bias":
        wanted = np.maximum(wanted, 0)
    for times in (0, 0, 1, 1):  # the first two calls are as they were
        np.testing.assert_allclose(called(call, x), wanted, rtol=1e-5, atol=1e-5)
        assert len(packs) == times
    call.forget()
    assert not call.packed


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16"])
def test_half_precision_is_packed(policy, packs):
    layer = keras.layers.Dense(7, dtype=policy)
    call, x = recorded(layer)
    x = ops.cast(x, "bfloat16")
    wanted = called(layer, x)
    for _ in range(4):
        np.testing.assert_allclose(called(call, x), wanted, rtol=0.02, atol=0.02)
    assert len(packs) == 1


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_weights_that_were_written_to_are_packed_again(policy, packs):
    layer = keras.layers.Dense(7, dtype=policy)
    call, x = recorded(layer)
    x = ops.cast(x, layer.compute_dtype)
    for _ in range(3):
        called(call, x)
    for times in (2, 3):
        layer.kernel.assign(layer.kernel * 2.0)
        for _ in range(2):
            np.testing.assert_allclose(called(call, x), called(layer, x), atol=0.1)
        assert len(packs) == times


def test_records_of_several_shapes_share_packed_weights(packs):
    call, x = recorded(keras.layers.Dense(7))
    for rows in (1, 2, 3):
        for _ in range(3):
            called(call, x[:rows])
    assert len(packs) == 1


def test_one_weight_may_stand_in_several_ways(packs):
    import torch

    from keras_tfm.runtime.capture import Recorded

    kernel = torch.arange(16.0).reshape(4, 4)

    def function(x):
        return x @ kernel + x @ kernel.T + x @ kernel.reshape(2, 8).T.reshape(4, 4)

    call, x = Recorded(function), ops.ones((3, 4))
    for _ in range(4):
        np.testing.assert_allclose(called(call, x), called(function, x))
    assert len(packs) == 3


def test_what_is_no_weight_is_not_packed(packs):
    import torch

    from keras_tfm.runtime.capture import Recorded

    constant = ops.ones((4, 4))
    made, batch = torch.ones((4, 4)), torch.ones((2, 4, 4))

    def function(x):
        copy = constant.reshape(2, 8).reshape(4, 4) + 0.0
        written = made.to(torch.float64).to(torch.float32)
        written.mul_(x[0, 0])
        several = ops.stack([x, x]) @ batch
        return x @ copy + x @ written + x @ x + several[0]

    call, x = Recorded(function), ops.ones((4, 4))
    for value in (1.0, 1.0, 3.0, 4.0):
        found = called(call, x * value)
        np.testing.assert_allclose(found, called(function, x * value))
    assert not packs


def test_weights_whose_writes_cannot_be_seen_are_not_packed(packs):
    import torch

    with torch.inference_mode():
        layer = keras.layers.Dense(7)
        call, x = recorded(layer)
        for _ in range(3):
            called(call, x)
        layer.kernel.assign(layer.kernel * 2.0)
        np.testing.assert_allclose(called(call, x), called(layer, x), rtol=1e-5)
    assert not packs


def fused_step(weight):
    import torch

    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], 0.5, fused=True).step()


UNCOUNTED = {
    "fused optimizer": fused_step,
    "data written": lambda weight: weight.data.mul_(2.0),
    "data assigned": lambda weight: setattr(weight, "data", weight.data * 2.0),
}


@pytest.mark.parametrize("name", UNCOUNTED)
def test_a_search_sees_writes_that_no_version_counts(name, packs):
    model, ids = draw_transformer(), as_ids(draw_rows(5))
    search = runtime.Decoder(model, decode.Options(beam_size=2, max_decoding_length=12))
    for _ in range(3):
        before = search(ids)
    count = len(packs)
    for weight in model.weights:
        UNCOUNTED[name](weight.value)
    found = search(ids)
    assert len(packs) == 2 * count
    fresh = runtime.Decoder(model, decode.Options(beam_size=2, max_decoding_length=12))(
        ids
    )
    assert not np.allclose(before.scores, fresh.scores)
    np.testing.assert_array_equal(found.ids, fresh.ids)
    np.testing.assert_allclose(found.scores, fresh.scores, rtol=1e-5)


def test_no_weight_is_packed_where_onednn_is_switched_off(packs, monkeypatch):
    import torch

    call, x = recorded(keras.layers.Dense(7))
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    for _ in range(3):
        called(call, x)
    assert not packs


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_search_after_training_is_by_the_weights_after_it(beam_size, packs):
    model, ids = draw_transformer(), as_ids(draw_rows(5))
    search = runtime.Decoder(
        model, decode.Options(beam_size=beam_size, max_decoding_length=12)
    )
    for _ in range(3):
        search(ids)
    assert packs
    optimizer = keras.optimizers.Adam(0.3)
    model.compile(optimizer, loss="sparse_categorical_crossentropy")
    model.fit(
        {"source_ids": ids, "target_ids": ids}, np.ones_like(ids), epochs=2, verbose=0
    )
    before = search(ids)
    fresh = runtime.Decoder(
        model, decode.Options(beam_size=beam_size, max_decoding_length=12)
    )(ids)
    np.testing.assert_array_equal(before.ids, fresh.ids)
    np.testing.assert_allclose(before.scores, fresh.scores, rtol=1e-5)
    redraw(model, 7)
    drawn = search(ids)
    fresh = runtime.Decoder(
        model, decode.Options(beam_size=beam_size, max_decoding_length=12)
    )(ids)
    assert not np.array_equal(drawn.ids, before.ids)
    np.testing.assert_array_equal(drawn.ids, fresh.ids)
