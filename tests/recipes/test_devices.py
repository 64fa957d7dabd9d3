"""A recipe on several devices and hosts, started as a user starts it."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.recipes.animals import write_tsv

pytestmark = pytest.mark.backend("jax")

ROOT = pathlib.Path(__file__).parents[2]
FLAGS = (
    "--size small --num-layers 1 1 --vocabulary-size 300 --held-out 40 --num-buckets 1 "
    "--batch-tokens 512 --epochs 3 --learning-rate 4e-3 --warmup-steps 20 "
    "--average-last 2 --evaluate-every 2 --beam-size 1 --save-every 5"
)


def start(data, out, *arguments, devices=2, recipe="translation", flags=FLAGS):
    """Starts a run in another process, which has so many devices."""
    command = [sys.executable, "-m", f"keras_tfm.recipes.{recipe}"]
    command += ["--data", str(data), "--out", str(out), *flags.split(), *arguments]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    log = pathlib.Path(f"{out}-{time.monotonic()}.log")
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
    return process, log


def finish(runs):
    """Waits for runs, which must end without an error."""
    statuses = [process.wait() for process, _ in runs]
    texts = [log.read_text("utf-8")[-3_000:] for _, log in runs]
    assert not any(statuses), "\n".join(texts)


def start_hosts(data, out, *arguments, **options):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    hosts = f"127.0.0.1:{port},127.0.0.1:{port + 1}"
    flags = ("--hosts", hosts, *arguments)
    return [start(data, out, *flags, "--host", str(i), **options) for i in range(2)]


def losses(out):
    with np.load(out / "restart" / "training_state.npz") as state:
        return json.loads(str(state["meta"]))["history"].get("loss", [])


def state(out):
    """Returns all variables of the model and of the optimizer."""
    with np.load(out / "restart" / "training_state.npz") as arrays:
        return {name: arrays[name] for name in arrays.files if name != "meta"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tsv(tmp_path_factory.mktemp("data") / "animals.tsv")


@pytest.fixture(scope="module")
def two_hosts(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "hosts"
    finish(start_hosts(data, out))
    return out


@pytest.mark.slow
def test_two_hosts_train_as_one_device(data, two_hosts, tmp_path):
    finish([start(data, tmp_path / "one")])
    np.testing.assert_allclose(losses(two_hosts), losses(tmp_path / "one"), rtol=1e-6)
    results = [
        json.loads((out / "result.json").read_text("utf-8"))
        for out in (two_hosts, tmp_path / "one")
    ]
    assert results[0]["bleu"] == pytest.approx(results[1]["bleu"], abs=5)
    files = [
        {path.name for path in out.iterdir()} for out in (two_hosts, tmp_path / "one")
    ]
    assert files[0] == files[1]


@pytest.mark.slow
def test_two_hosts_resume_after_one_was_killed(data, two_hosts, tmp_path):
    out = tmp_path / "killed"
    runs = start_hosts(data, out)
    while not (out / "restart" / "training_state.npz").exists():
        assert all(process.poll() is None for process, _ in runs)
        time.sleep(0.1)
    runs[1][0].send_signal(signal.SIGKILL)
    time.sleep(1)
    runs[0][0].kill()  # as a launcher does, which stops what is left
    for process, _ in runs:
        process.wait()
    assert len(losses(out)) < 3
    finish(start_hosts(data, out))
    expected = state(two_hosts)
    for name, array in state(out).items():
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.slow
def test_two_hosts_share_the_weights_of_one_model(data, two_hosts, tmp_path):
    out = tmp_path / "sharded"
    finish(start_hosts(data, out, "--model-devices", "4"))
    # Products over a part of the weights are rounded otherwise.
    np.testing.assert_allclose(losses(out), losses(two_hosts), rtol=1e-3)
    # The state is whole, and one device resumes from it.
    finish([start(data, out, "--epochs", "4", devices=1)])
    assert len(losses(out)) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "flags", "file"),
    [
        ("classification", "--size tiny --epochs 2 --max-length 12", "predictions.tsv"),
        ("language_model", "--length 16 --epochs 2 --batch-size 16", "samples.txt"),
    ],
)
def test_other_recipes_train_on_two_hosts(recipe, flags, file, tmp_path):
    lines = [
        f"{word}\tI saw {count} {word}s in the {place}"
        for word in ("dog", "cat", "bird")
        for place in ("garden", "house", "street")
        for count in range(2, 40)
    ]
    data, columns = tmp_path / "data.tsv", "label\ttext"
    if recipe == "language_model":
        data, columns = tmp_path / "data.txt", "text"
    data.write_text("\n".join([columns, *lines]) + "\n", "utf-8")
    options = {"recipe": recipe, "flags": f"{flags} --vocabulary-size 300"}
    finish(start_hosts(data, tmp_path / "hosts", **options))
    finish([start(data, tmp_path / "single", devices=1, **options)])
    hosts, single = tmp_path / "hosts", tmp_path / "single"
    np.testing.assert_allclose(losses(hosts), losses(single), rtol=1e-5)
    assert (hosts / file).read_text("utf-8") == (single / file).read_text("utf-8")


def test_several_devices_need_jax(data, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    process, log = start(data, tmp_path / "run", "--devices", "2")
    assert process.wait() == 1
    assert "Set KERAS_BACKEND=jax" in log.read_text("utf-8")
