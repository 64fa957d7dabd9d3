"""Batches divide over devices and processes, and the model learns the same."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_tfm.text import (
    Batches,
    LabelBatches,
    LabeledDataset,
    MaskedBatches,
    TokenRows,
)
from keras_tfm.text.division import make_division, part_of_replicas

pytestmark = pytest.mark.backend("torch")


@pytest.fixture(scope="module")
def kinds(pairs, vocabulary):
    """One of each kind of batches, whose sizes few numbers divide."""
    labels = [str(len(source) % 2) for source in pairs.source]
    texts = LabeledDataset(pairs.source, labels)
    labeled = LabelBatches(texts, vocabulary, 500, class_weight="balanced")
    unweighted = LabelBatches(texts, vocabulary, 500)
    options = {"batch_tokens": 300}
    return [
        Batches(pairs, vocabulary, **options),
        Batches(pairs, vocabulary, subword_sampling=0.2, **options),
        Batches(pairs, vocabulary, shuffle=False, **options),
        labeled,
        unweighted,
        MaskedBatches(unweighted),
        TokenRows(pairs.target, vocabulary, length=16, batch_size=7),
    ]


def arrays(batch):
    """Returns the arrays of a batch by name; weights of 1 where it has none."""
    inputs, labels, *weights = batch
    [weights] = weights or [np.ones(len(labels), "float32")]
    return inputs | {"labels": labels, "weights": weights}


@settings(max_examples=60)
@given(
    kind=st.integers(0, 6),
    step=st.integers(0, 90),
    count=st.integers(1, 5),
    multiple=st.none() | st.integers(1, 9),
)
def test_the_parts_of_a_batch_are_the_batch_and_rows_of_no_weight(
    kinds, kind, step, count, multiple
):
    batches = kinds[kind]
    parts = [
        arrays(batches.divided_batch(step, make_division((i, count), multiple)))
        for i in range(count)
    ]
    whole = arrays(batches.batch(step))
    rows = len(whole["labels"])
    sizes = {len(part["labels"]) for part in parts}
    assert len(sizes) == 1
    total = count * sizes.pop()
    assert total % (multiple or 1) == 0 and 0 <= total - rows < count * (multiple or 1)
    for name, expected in whole.items():
        actual = np.concatenate([part[name] for part in parts])
        if name == "weights":
            if isinstance(batches, LabelBatches):
                np.testing.assert_allclose(actual[:rows], expected * total / rows, 1e-6)
                assert not actual[rows:].any()
            continue
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual[:rows], expected)
        if name == "labels":
            assert not actual[rows:].any()


def test_datasets_take_the_part_they_are_asked_for(kinds):
    pytest.importorskip("tensorflow")
    for batches in kinds:
        parts = [
            next(batches.dataset(5, part=(i, 2)).as_numpy_iterator()) for i in (0, 1)
        ]
        labels = np.concatenate([part[1] for part in parts])
        expected = batches.batch(5)[1]
        np.testing.assert_array_equal(labels[: len(expected)], expected)
        dataset = batches.py_dataset(part=(1, 3), rows_multiple=2)
        assert len(dataset[0][1]) % 2 == 0  # of a multiple of 6
    first = batches.ordered()
    assert len(list(first)) == -(-(batches.num_tokens - 1) // 16 // 7)


def test_a_part_out_of_range_raises(kinds):
    with pytest.raises(ValueError, match=r"`part` must be .*got part=\(2, 2\)"):
        kinds[0].dataset(part=(2, 2))
    with pytest.raises(ValueError, match="`rows_multiple` must be 1 or more"):
        kinds[0].py_dataset(rows_multiple=0)


def test_parts_are_counted_by_replica_not_by_process():
    assert part_of_replicas([0, 1], 4) == (0, 2)  # data-parallel, two processes
    assert part_of_replicas([2, 3], 4) == (1, 2)
    # One replica over two processes: both feed the whole batch.
    assert part_of_replicas([0], 1) == (0, 1)
    # Two replicas, each over two of four processes.
    assert part_of_replicas([1], 2) == (1, 2)
    for local in ([0, 2], [1, 2], []):
        with pytest.raises(ValueError, match="`device_mesh` must have the devices"):
            part_of_replicas(local, 4)


def start(file, *arguments, num_devices=4):
    """Starts `divided_training` on some devices of a CPU."""
    environment = os.environ | {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}",
    }
    command = [sys.executable, "-m", "tests.text.divided_training", str(file)]
    return subprocess.Popen([*command, *map(str, arguments)], env=environment)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What one device learns."""
    pytest.importorskip("jax")
    file = tmp_path_factory.mktemp("results") / "expected.npz"
    assert start(file, 1).wait() == 0
    return dict(np.load(file))


def assert_equal_results(actual, expected):
    assert len(actual) > 8
    for name, value in actual.items():
        # Keras weights the mean of batches by their rows, the empty ones too.
        atol = 2e-3 if name.endswith("loss") else 2e-6
        np.testing.assert_allclose(value, expected[name], atol=atol, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(4,), (3,), (2, 2)], ids=str)
def test_devices_learn_what_one_device_learns(expected, counts, tmp_path):
    file = tmp_path / "actual.npz"
    assert start(file, *counts).wait() == 0
    actual = dict(np.load(file))
    assert actual.keys() == expected.keys()
    assert_equal_results(actual, expected)


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(4, 1), (1, 4)], ids=str)
def test_two_processes_learn_what_one_device_learns(expected, counts, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    files = [tmp_path / f"{process}.npz" for process in range(2)]
    processes = [
        start(file, *counts, process, address, num_devices=2)
        for process, file in enumerate(files)
    ]
    assert [process.wait() for process in processes] == [0, 0]
    for file in files:
        assert_equal_results(dict(np.load(file)), expected)
