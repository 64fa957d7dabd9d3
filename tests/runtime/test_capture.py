"""Replays of a captured function return what the function returns."""

import sys
import time

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm import decode, runtime
from keras_tfm.runtime.compile import optional_module
from tests.decode.conftest import draw_transformer
from tests.runtime.test_bulk import as_ids, draw_rows

pytestmark = pytest.mark.backend("torch")


def counted_capture(function):
    """Returns a captured function, and a list of the calls of the original."""
    from keras_tfm.runtime.capture import CapturedFunction

    calls = []

    def call(*arguments):
        calls.append(len(calls))
        return function(*arguments)

    return CapturedFunction(call), calls


def test_a_function_is_called_twice_for_each_shape():
    dense = keras.layers.Dense(3)
    dense.build((None, 4))
    captured, calls = counted_capture(
        lambda inputs: {"y": dense(inputs["x"]) + inputs["add"]}
    )
    draw = np.random.default_rng(0)
    for size in (2, 5, 2, 5):
        for _ in range(3):
            x = ops.convert_to_tensor(draw.normal(size=(size, 4)), "float32")
            add = ops.convert_to_tensor(draw.normal(), "float32")
            result = captured({"x": x, "add": add})["y"]
            np.testing.assert_array_equal(
                ops.convert_to_numpy(result), ops.convert_to_numpy(dense(x) + add)
            )
    assert len(calls) == 4
    dense.set_weights([np.ones((4, 3)), np.ones(3)])  # in place
    x = np.ones((2, 4), "float32")
    x, zero = ops.convert_to_tensor(x), ops.convert_to_tensor(0.0)
    assert captured({"x": x, "add": zero})["y"].tolist() == [[5.0] * 3] * 2
    assert len(calls) == 4


def test_an_argument_is_written_in_place_once_in_each_call():
    captured, _ = counted_capture(lambda x: x.add_(1.0))
    x = ops.zeros((2,))
    for number in range(1, 6):
        assert captured(x).tolist() == [number] * 2 == x.tolist()


def test_a_replay_writes_to_its_arguments_in_place():
    def function(x, index):
        x[index] = 7.0
        return x, index + 1

    captured, calls = counted_capture(function)
    x, index = ops.zeros((6,)), ops.convert_to_tensor([0])
    for _ in range(5):
        x, index = captured(x, index)
    assert x.tolist() == [7.0] * 5 + [0.0]
    assert len(calls) == 2


def test_one_tensor_in_two_arguments_may_become_two_tensors():
    captured, calls = counted_capture(lambda x, y: x - 2 * y)
    ones, threes = ops.ones((2,)), 3 * ops.ones((2,))
    for x, y in ((ones, ones), (ones, ones), (ones, threes), (threes, ones)):
        assert captured(x, y).tolist() == (x - 2 * y).tolist()
    assert len(calls) == 2


def test_the_memory_layout_of_an_argument_does_not_matter():
    captured, calls = counted_capture(lambda x: x.view(-1) * 2)
    for _ in range(2):
        captured(ops.reshape(ops.arange(6), (2, 3)))
    result = captured(ops.transpose(ops.reshape(ops.arange(6), (3, 2))))
    assert result.tolist() == [0, 4, 8, 2, 6, 10]
    assert len(calls) == 2


def written_constant(x, index):
    import torch

    constant = torch.tensor([0.0] * 6)
    constant[ops.maximum(index - 1, 0).reshape(1).long()] = 7.0
    return x + constant[:2], constant


NOT_REPLAYABLE = {
    "number": lambda x, index: x * 2 if int(index) < 3 else x,
    "truth": lambda x, index: x * 2 if index < 3 else x,
    "array": lambda x, index: x * 2 if ops.convert_to_numpy(index) < 3 else x,
    "list": lambda x, index: x * 2 if index.tolist() < 3 else x,
    "equal": lambda x, index: x * 2 if index.equal(0 * index + 4) else x,
    "DLPack": lambda x, index: x * 2 if np.from_dlpack(index) < 3 else x,
    "no tensor": lambda x, index: (x, 3.0),
    "constant": lambda x, index: x + ops.convert_to_tensor(np.array(index) * 2),
    "written": written_constant,
    "drawn": lambda x, index: x + keras.random.normal((2,), seed=5),
    "size": lambda x, index: x + len(ops.nonzero(ops.arange(8) < index)[0]),
    "chosen": lambda x, index: x + ops.arange(8)[ops.arange(8) < index].sum(),
    "where": lambda x, index: x + len(ops.where(ops.arange(8) < index)[0]),
    "repeated": lambda x, index: x + len(x.repeat_interleave(index)),
}


@pytest.mark.parametrize("name", NOT_REPLAYABLE)
def test_a_function_that_cannot_be_replayed_is_called(name):
    function = NOT_REPLAYABLE[name]
    captured, calls = counted_capture(function)
    for index in range(6):
        arguments = ops.ones((2,)), ops.convert_to_tensor(index)
        result, expected = captured(*arguments), function(*arguments)
        result, expected = map(ops.convert_to_numpy, (result[0], expected[0]))
        np.testing.assert_array_equal(result, expected)
    assert len(calls) in (6, 7)  # once more, if it was stopped at a read


def test_a_check_of_values_may_be_skipped():
    def function(x, index):
        try:
            if ops.convert_to_numpy(index) > 100:
                raise ValueError(index)
        except RuntimeError:  # as `host_values` does
            pass
        return x.add_(index)

    captured, calls = counted_capture(function)
    for index in range(6):
        result = captured(ops.ones((2,)), ops.convert_to_tensor(index))
        assert result.tolist() == [1.0 + index] * 2
    assert len(calls) == 2


def test_integers_are_compared_exactly():
    captured, calls = counted_capture(
        lambda x: x + ops.convert_to_tensor(30_000 + len(calls))
    )
    result = [int(captured(ops.zeros((1,), "int32"))) for _ in range(5)]
    assert result == [30_001, 30_002, 30_003, 30_004, 30_005]


def test_the_oldest_of_too_many_graphs_is_dropped(monkeypatch):
    from keras_tfm.runtime import capture

    monkeypatch.setattr(capture, "MAX_GRAPHS", 3)
    captured, calls = counted_capture(lambda x: x + 1)
    for size in (1, 2, 3, 4, 5, 5, 5, 1):
        assert captured(ops.ones((size,))).tolist() == [2.0] * size
    assert len(captured.graphs) == 3
    assert len(calls) == 7


def test_threads_share_a_graph():
    import threading

    def function(x, index):
        time.sleep(0.01)
        return x + ops.convert_to_tensor(np.array(index) * 2)

    captured, _ = counted_capture(function)
    wrong_indices = []

    def replay():
        for index in range(6):
            result = captured(ops.zeros((1,)), ops.convert_to_tensor([index]))
            wrong_indices.extend([index] if result.tolist() != [2.0 * index] else [])

    threads = [threading.Thread(target=replay) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong_indices


def test_autocast_has_separate_graphs():
    import torch

    captured, _ = counted_capture(lambda x: x @ x)
    x = ops.ones((2, 2))
    for _ in range(3):
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype=dtype):
                assert captured(x).dtype == dtype
        assert captured(x).dtype == torch.float32


@pytest.mark.parametrize(
    ("beam_size", "positions"),
    [(1, "sinusoidal"), (3, "sinusoidal"), (3, "rotary"), (3, "t5"), (3, "shaw")],
)
def test_decoding_replays_its_steps(beam_size, positions, monkeypatch):
    model = draw_transformer(positions=positions)
    steps, step = [], model.step
    monkeypatch.setattr(model, "step", lambda *a: steps.append(1) or step(*a))
    decoder = runtime.Decoder(
        model, decode.Options(beam_size=beam_size, max_decoding_length=20)
    )
    ids = as_ids(draw_rows(5))
    expected = decoder(ids)
    num_steps = len(steps)
    assert 2 <= num_steps <= 4  # two for each capacity of the cache
    hypotheses = decoder(ids)
    assert len(steps) == num_steps
    np.testing.assert_array_equal(hypotheses.ids, expected.ids)
    np.testing.assert_array_equal(hypotheses.scores, expected.scores)


def test_the_private_api_of_pytorch_is_as_expected():
    from keras_tfm.runtime import capture

    capture.probe()
    assert optional_module("capture") is capture


@pytest.mark.parametrize("missing", ["import", "tree_flatten", "agreement"])
def test_without_the_private_api_the_same_ids_are_decoded(missing, monkeypatch):
    from keras_tfm.runtime import capture

    model, ids = draw_transformer(), as_ids(draw_rows(5))
    options = decode.Options(beam_size=2, max_decoding_length=12)
    expected = runtime.Decoder(model, options)(ids)

    if missing == "import":
        monkeypatch.setitem(sys.modules, "torch.utils._python_dispatch", None)
        monkeypatch.delitem(sys.modules, "keras_tfm.runtime.capture")
    elif missing == "agreement":  # an operation is captured wrongly
        monkeypatch.setattr(capture, "_agrees", lambda *arguments: False)
    else:
        monkeypatch.setattr(capture, missing, None)
    optional_module.cache_clear()
    with pytest.warns(RuntimeWarning, match="capture.* version of torch") as warned:
        decoders = [runtime.Decoder(model, options) for _ in range(2)]
    assert sum("version of torch" in str(w.message) for w in warned) == 1
    monkeypatch.undo()
    for decoder in decoders:
        for _ in range(3):
            hypotheses = decoder(ids)
            np.testing.assert_array_equal(hypotheses.ids, expected.ids)
            np.testing.assert_allclose(hypotheses.scores, expected.scores, atol=1e-5)
    optional_module.cache_clear()
