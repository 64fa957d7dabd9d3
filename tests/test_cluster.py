"""Bulk translation, serving and training on a Ray cluster of two nodes.

The GPUs of the nodes are pretended: they are claimed, and not used.
"""

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import httpx
import pytest

from keras_tfm import decode
from keras_tfm.cli import main
from keras_tfm.pipelines import Translator
from keras_tfm.recipes import translation as recipe
from keras_tfm.text import Vocabulary
from tests.decode.conftest import draw_transformer
from tests.recipes.animals import flags_for, write_tsv

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.backend("torch"),
    # Ray raises it when it is imported.
    pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`"),
]
PROGRAM = "import sys; from keras_tfm.cli import main; sys.exit(main())"
WORDS = ["an", "old", "man", "in", "a", "small", "boat", "sees", "the", "garden"]
NUM_FILES, NUM_LINES = 8, 250
PORT = 18_431


@pytest.fixture
def run():
    """Returns a function that starts the command in a process of its own."""
    processes = []

    def run(*arguments, program=PROGRAM, backend="torch"):
        process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "KERAS_BACKEND": backend},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def finish(process, seconds=300):
    """Returns what a process has printed, if it succeeds."""
    output, errors = process.communicate(timeout=seconds)
    assert process.returncode == 0, errors
    return output + errors


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two nodes, with room for one worker each."""
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 80 * 2**20}
    head = {**size, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.size = size
    yield cluster
    cluster.shutdown()


@pytest.fixture
def second_node(cluster):
    node = cluster.add_node(**cluster.size)
    yield node
    if node in cluster.worker_nodes:
        cluster.remove_node(node)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    vocabulary = Vocabulary.train([" ".join(WORDS)] * 50, size=275)
    network = draw_transformer(seed=6, vocabulary_size=vocabulary.size)
    options = decode.Options(beam_size=2, max_decoding_length=4)
    folder = tmp_path_factory.mktemp("model") / "animals"
    Translator(network, vocabulary, options=options).save(folder)
    return str(folder)


@pytest.fixture
def corpus(tmp_path):
    """2,000 lines in eight files."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for file in range(NUM_FILES):
        lines = (
            " ".join(WORDS[(file + line * k) % len(WORDS)] for k in range(2 + line % 7))
            for line in range(NUM_LINES)
        )
        (folder / f"part-{file}").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.slow
def test_bulk_translation_survives_the_loss_of_a_node(
    cluster, second_node, model, corpus, tmp_path, run
):
    files = sorted(corpus.iterdir())
    expected = tmp_path / "expected"
    assert main(["translate", model, *map(str, files), "--output", str(expected)]) == 0
    out = tmp_path / "out"
    process = run(
        "translate",
        model,
        corpus / "part-*",
        "--cluster",
        cluster.address,
        "--workers",
        "2",
        "--output",
        out,
    )
    while process.poll() is None and not list(out.glob("part-?")):
        time.sleep(0.01)
    assert process.poll() is None, process.stderr.read()
    cluster.remove_node(second_node, allow_graceful=False)
    assert len(list(out.glob("part-?"))) < NUM_FILES  # the node is lost in the middle
    errors = finish(process)
    assert [file.name for file in sorted(out.glob("*"))][1:] == [
        file.name for file in files
    ], errors
    actual = b"".join(file.read_bytes() for file in sorted(out.glob("part-?")))
    assert actual.count(b"\n") == NUM_FILES * NUM_LINES
    assert actual == expected.read_bytes()


@contextlib.contextmanager
def connected(cluster):
    """Connects this process to the cluster."""
    import ray

    ray.init(cluster.address, logging_level="error", log_to_driver=False)
    try:
        yield ray
    finally:
        ray.shutdown()


def translation(path, text, seconds=300):
    """Asks the server, as soon as its replicas have started."""
    url = f"http://127.0.0.1:{PORT}{path}/translate"
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.post(url, json={"text": text}, timeout=seconds)
            if answer.status_code == 200:
                return answer.json()["translations"][0]["text"]
            assert time.monotonic() < deadline, answer.text
        time.sleep(0.5)


SERVE = "from ray.serve.scripts import cli; cli()"
SERVER = ["--port", str(PORT), "--warm-up", "8", "--gpus-per-worker", "1"]


@pytest.mark.slow
def test_a_configuration_is_deployed_and_answers(
    cluster, second_node, model, tmp_path, run
):
    twin = tmp_path / "twin"
    shutil.copytree(model, twin)
    config = tmp_path / "serve.yaml"
    assert (
        main(["serve", model, str(twin), "--write-config", str(config), *SERVER]) == 0
    )
    arguments = ["run", config, "--address", cluster.address, "--non-blocking"]
    finish(run(*arguments, program=SERVE))
    with connected(cluster) as ray:
        from ray import serve

        try:
            expected = Translator.from_preset(model)("a small boat")
            assert translation("/animals", "a small boat") == expected
            assert translation("/twin", "a small boat") == expected
            assert ray.available_resources().get("GPU", 0) == 0  # a GPU each
            status = serve.status()
            assert len(status.proxies) == 2  # on every node
            assert set(status.applications) == {"animals", "twin"}
        finally:
            serve.shutdown()


@pytest.mark.slow
def test_the_server_leaves_the_cluster_as_it_was(cluster, second_node, model, run):
    with connected(cluster) as ray:
        from ray import serve

        free = ray.available_resources()
        process = run("serve", model, "--cluster", cluster.address, *SERVER)
        line = process.stdout.readline()
        assert line == f"animals at http://127.0.0.1:{PORT} of each node\n", line
        expected = Translator.from_preset(model)("a small boat")
        assert translation("", "a small boat") == expected
        assert ray.available_resources()["GPU"] == 1
        process.send_signal(signal.SIGTERM)
        finish(process)
        status = serve.status()
        assert not status.applications and not status.proxies
        names = ("CPU", "GPU")
        free_again = ray.available_resources()
        assert [free_again[name] for name in names] == [free[name] for name in names]


def flags_of(flags):
    """Returns the command line of flags that differ from the defaults."""
    arguments = []
    for field in dataclasses.fields(flags):
        value = getattr(flags, field.name)
        if value != field.default:
            values = value if isinstance(value, tuple) else (value,)
            arguments += [f"--{field.name.replace('_', '-')}", *map(str, values)]
    return arguments


def kill_worker():
    """Kills a process of Ray Train that this process's cluster has started."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "RayTrainWorker" in " ".join(child.cmdline()):
                child.kill()
                return
    pytest.fail("no worker of Ray Train")


@pytest.mark.slow
def test_training_restarts_after_a_lost_worker(cluster, tmp_path, run):
    changes = {"num_layers": (1, 1), "epochs": 3, "save_every": 5, "beam_size": 1}
    data = write_tsv(tmp_path / "animals.tsv")
    whole = flags_for(data, tmp_path / "whole", **changes)
    killed = dataclasses.replace(whole, out=str(tmp_path / "killed"))
    on_cluster = ["--cluster", cluster.address, "--", *flags_of(killed)]
    process = run("train", "translation", *on_cluster)
    state = tmp_path / "killed" / "restart" / "training_state.npz"
    while process.poll() is None and not state.exists():
        time.sleep(0.05)
    assert process.poll() is None, process.stderr.read()
    kill_worker()
    output, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    assert "Resuming the run in" in output + errors
    recipe.main(whole)
    results = [
        out / "translations.tsv" for out in (tmp_path / "whole", state.parents[1])
    ]
    assert results[0].read_bytes() == results[1].read_bytes()


@pytest.mark.slow
def test_two_workers_train_one_model(tmp_path, run):
    pytest.importorskip("jax")
    changes = {"num_layers": (1, 1), "epochs": 2, "dropout": 0.0, "beam_size": 1}
    data = write_tsv(tmp_path / "animals.tsv")
    flags = flags_for(data, tmp_path / "two", **changes)
    on_cluster = ["--cluster", "local", "--workers", "2", "--", *flags_of(flags)]
    printed = [
        finish(run("train", "translation", *on_cluster, backend="jax"), seconds=1_200)
    ]
    single = dataclasses.replace(flags, out=str(tmp_path / "single"))
    printed.append(
        finish(run("train", "translation", *flags_of(single), backend="jax"))
    )
    losses = [
        list(map(float, re.findall(r" loss: ([\d.]+)", text))) for text in printed
    ]
    assert len(losses[0]) == 2
    # The loss of an epoch counts batches by their rows, not by their tokens.
    assert losses[0] == pytest.approx(losses[1], rel=3e-3)
