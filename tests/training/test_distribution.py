"""Several devices and replicas: the losses and weights are those of one."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_tfm import models, training

ROOT = pathlib.Path(__file__).parents[2]


def run(module, folder, **variables):
    """Runs a module of the tests in another process; returns its output."""
    command = [sys.executable, "-m", f"tests.training.{module}", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3_000:]
    return result.stdout


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    flags = "--xla_force_host_platform_device_count=4"
    output = run("device_runs", tmp_path_factory.mktemp("runs"), XLA_FLAGS=flags)
    return json.loads(output)


@pytest.mark.backend("jax")
def test_losses_do_not_depend_on_the_number_of_devices(table):
    expected = table["one"]["losses"]
    assert expected[-1] < expected[0]
    for name, kernel in (
        ("4 devices", "P(None, None, None)"),
        ("3 devices, hidden states", "P(None, None, None)"),
        ("2 x 2 devices, hidden states", "P(None, 'model', None)"),
    ):
        np.testing.assert_allclose(table[name]["losses"], expected, rtol=1e-6)
        assert table[name]["sharding"] == kernel


@pytest.mark.backend("jax")
def test_a_run_resumes_on_fewer_devices(table):
    (resumed, resumed_sum), (unbroken, unbroken_sum) = (
        table["resumed"],
        table["unbroken"],
    )
    np.testing.assert_allclose(resumed, unbroken, rtol=1e-6)
    np.testing.assert_allclose(resumed_sum, unbroken_sum, rtol=1e-5)


@pytest.mark.backend("jax")
def test_a_search_divides_its_rows_over_the_devices(table):
    (ids, scores), (expected_ids, expected_scores) = (
        table["search 4"],
        table["search one"],
    )
    assert ids == expected_ids
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
    assert table["rows of a search"] == [["None", 1], ["P('batch',)", 4]]


@pytest.mark.backend("tensorflow", "torch")
@pytest.mark.slow("torch")
def test_the_mean_of_two_replicas_is_over_all_tokens(tmp_path):
    run("replica_runs", tmp_path)
    single, double = (np.load(tmp_path / f"{name}.npz") for name in ("one", "two"))
    for name in single.files:
        np.testing.assert_allclose(double[name], single[name], atol=1e-6)


@pytest.mark.backend("torch")
def test_fit_in_several_processes_of_pytorch_is_rejected(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((4, 2))
    for callback in (
        training.ResumeTraining(tmp_path),
        training.CheckpointAverage(tmp_path),
    ):
        with pytest.raises(ValueError, match="one process with PyTorch; got 2"):
            model.fit(x, x[:, :1], callbacks=[callback], verbose=0)


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"devices": 0}, "`devices` must be 'all' or an int of 1 or more; got 0"),
        ({"devices": True}, "`devices` must be 'all' or an int"),
        ({"devices": "two"}, "`devices` must be 'all' or an int"),
        ({"devices": 2}, "`devices` must be 1 .* KERAS_BACKEND=torch"),
        ({"hosts": ["a:1", "b:1"]}, "`host` must be from 0 to 1, .* got None"),
        ({"hosts": ["a:1"], "host": 1}, "`host` must be from 0 to 0"),
        ({"hosts": ["a:1"], "host": 0, "devices": 2}, "`devices` must be 'all' with"),
        ({"hosts": "a:1", "host": 0}, "`hosts` must be a list of addresses"),
        ({"hosts": "auto", "host": 0}, "`host` must be None with hosts='auto'"),
        ({"host": 0}, "`hosts` must have the addresses"),
        ({"model_devices": 2}, "`model_devices` must be 1, or more with `layouts`"),
        (
            {"model_devices": 2, "devices": 1},
            "`devices` must be a multiple of `model_d",
        ),
    ],
)
def test_wrong_devices_are_rejected(arguments, expected):
    with pytest.raises(ValueError, match=expected):
        training.distribute(**arguments)


@pytest.mark.backend("torch")
def test_one_device_needs_no_distribution():
    assert training.distribute(1, layouts=models.LAYOUTS) is None
    with training.local_devices():
        assert keras.distribution.distribution() is None


def test_tokens_of_unequal_batches_count_the_same():
    """Two batches with one divisor have the mean of the tokens of both."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(2, 6, 9)).astype("float32")
    labels = generator.integers(1, 9, (2, 6))
    labels[1, 2:] = 0  # 6 and 2 tokens
    loss = training.SmoothedCrossentropy(0.1, tokens_per_batch=4.0)
    batches = [float(loss(labels[i : i + 1], logits[i : i + 1])) for i in range(2)]
    together = float(training.SmoothedCrossentropy(0.1)(labels, logits))
    np.testing.assert_allclose(np.mean(batches), together, rtol=1e-6)
    with pytest.raises(ValueError, match="`tokens_per_batch` must be None or greater"):
        training.SmoothedCrossentropy(tokens_per_batch=0)
