"""What PyTorch plays again is what Keras does."""

import time

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm import decode, runtime
from tests.decode.conftest import draw_transformer
from tests.runtime.test_bulk import as_ids, draw_rows

pytestmark = pytest.mark.backend("torch")


def counted(function):
    """A recorded function, and how often it is called itself."""
    from keras_tfm.runtime.capture import Recorded

    calls = []

    def call(*arguments):
        calls.append(len(calls))
        return function(*arguments)

    return Recorded(call), calls


def test_a_function_is_called_twice_for_each_shape():
    dense = keras.layers.Dense(3)
    dense.build((None, 4))
    recorded, calls = counted(lambda parts: {"y": dense(parts["x"]) + parts["add"]})
    draw = np.random.default_rng(0)
    for size in (2, 5, 2, 5):
        for _ in range(3):
            x = ops.convert_to_tensor(draw.normal(size=(size, 4)), "float32")
            add = ops.convert_to_tensor(draw.normal(), "float32")
            found = recorded({"x": x, "add": add})["y"]
            np.testing.assert_array_equal(
                ops.convert_to_numpy(found), ops.convert_to_numpy(dense(x) + add)
            )
    assert len(calls) == 4
    dense.set_weights([np.ones((4, 3)), np.ones(3)])  # where the others stood
    x = np.ones((2, 4), "float32")
    x, none = ops.convert_to_tensor(x), ops.convert_to_tensor(0.0)
    assert recorded({"x": x, "add": none})["y"].tolist() == [[5.0] * 3] * 2
    assert len(calls) == 4


def test_what_is_written_in_place_is_written_once_a_call():
    recorded, _ = counted(lambda x: x.add_(1.0))
    x = ops.zeros((2,))
    for number in range(1, 6):
        assert recorded(x).tolist() == [number] * 2 == x.tolist()


def test_what_is_written_in_place_is_written_when_played():
    def function(x, index):
        x[index] = 7.0
        return x, index + 1

    recorded, calls = counted(function)
    x, index = ops.zeros((6,)), ops.convert_to_tensor([0])
    for _ in range(5):
        x, index = recorded(x, index)
    assert x.tolist() == [7.0] * 5 + [0.0]
    assert len(calls) == 2


def test_one_tensor_in_two_places_may_become_two():
    recorded, calls = counted(lambda x, y: x - 2 * y)
    one, three = ops.ones((2,)), 3 * ops.ones((2,))
    for x, y in ((one, one), (one, one), (one, three), (three, one)):
        assert recorded(x, y).tolist() == (x - 2 * y).tolist()
    assert len(calls) == 2


def test_the_order_in_memory_does_not_matter():
    recorded, calls = counted(lambda x: x.view(-1) * 2)
    for _ in range(2):
        recorded(ops.reshape(ops.arange(6), (2, 3)))
    found = recorded(ops.transpose(ops.reshape(ops.arange(6), (3, 2))))
    assert found.tolist() == [0, 4, 8, 2, 6, 10]
    assert len(calls) == 2


def written_constant(x, index):
    import torch

    constant = torch.tensor([0.0] * 6)
    constant[ops.maximum(index - 1, 0).reshape(1).long()] = 7.0
    return x + constant[:2], constant


CHANGING = {
    "number": lambda x, index: x * 2 if int(index) < 3 else x,
    "truth": lambda x, index: x * 2 if index < 3 else x,
    "array": lambda x, index: x * 2 if ops.convert_to_numpy(index) < 3 else x,
    "list": lambda x, index: x * 2 if index.tolist() < 3 else x,
    "equal": lambda x, index: x * 2 if index.equal(0 * index + 4) else x,
    "no tensor": lambda x, index: (x, 3.0),
    "constant": lambda x, index: x + ops.convert_to_tensor(np.array(index) * 2),
    "written": written_constant,
    "drawn": lambda x, index: x + keras.random.normal((2,), seed=5),
    "size": lambda x, index: x + len(ops.nonzero(ops.arange(8) < index)[0]),
    "chosen": lambda x, index: x + ops.arange(8)[ops.arange(8) < index].sum(),
    "where": lambda x, index: x + len(ops.where(ops.arange(8) < index)[0]),
    "repeated": lambda x, index: x + len(x.repeat_interleave(index)),
}


@pytest.mark.parametrize("name", CHANGING)
def test_what_cannot_be_played_is_called(name):
    function = CHANGING[name]
    recorded, calls = counted(function)
    for index in range(6):
        arguments = ops.ones((2,)), ops.convert_to_tensor(index)
        found, wanted = recorded(*arguments), function(*arguments)
        found, wanted = ops.convert_to_numpy(found[0]), ops.convert_to_numpy(wanted[0])
        np.testing.assert_array_equal(found, wanted)
    assert len(calls) == 6


def test_whole_numbers_are_held_to_be_equal_as_they_are():
    recorded, calls = counted(lambda x: x + ops.convert_to_tensor(30_000 + len(calls)))
    found = [int(recorded(ops.zeros((1,), "int32"))) for _ in range(5)]
    assert found == [30_001, 30_002, 30_003, 30_004, 30_005]


def test_records_are_so_many_at_most(monkeypatch):
    from keras_tfm.runtime import capture as record

    monkeypatch.setattr(record, "MOST", 3)
    recorded, calls = counted(lambda x: x + 1)
    for size in (1, 2, 3, 4, 5, 5, 5, 1):
        assert recorded(ops.ones((size,))).tolist() == [2.0] * size
    assert len(recorded.records) == 3
    assert len(calls) == 7


def test_threads_share_a_record():
    import threading

    def function(x, index):
        time.sleep(0.01)
        return x + ops.convert_to_tensor(np.array(index) * 2)

    recorded, _ = counted(function)
    wrong = []

    def play():
        for index in range(6):
            found = recorded(ops.zeros((1,)), ops.convert_to_tensor([index]))
            wrong.extend([index] if found.tolist() != [2.0 * index] else [])

    threads = [threading.Thread(target=play) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_autocast_has_records_of_its_own():
    import torch

    recorded, _ = counted(lambda x: x @ x)
    x = ops.ones((2, 2))
    for _ in range(3):
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype=dtype):
                assert recorded(x).dtype == dtype
        assert recorded(x).dtype == torch.float32


@pytest.mark.parametrize(
    ("beam_size", "positions"),
    [(1, "sinusoidal"), (3, "sinusoidal"), (3, "rotary"), (3, "t5"), (3, "shaw")],
)
def test_a_search_plays_its_steps(beam_size, positions, monkeypatch):
    model = draw_transformer(positions=positions)
    steps, step = [], model.step
    monkeypatch.setattr(model, "step", lambda *a: steps.append(1) or step(*a))
    search = runtime.Decoder(
        model, decode.Options(beam_size=beam_size, max_decoding_length=20)
    )
    ids = as_ids(draw_rows(5))
    wanted = search(ids)
    taken = len(steps)
    assert 2 <= taken <= 4  # two for each room that was made
    found = search(ids)
    assert len(steps) == taken
    np.testing.assert_array_equal(found.ids, wanted.ids)
    np.testing.assert_array_equal(found.scores, wanted.scores)
