"""Bulk translation, serving and training on a Ray cluster of two nodes."""

import os
import subprocess
import sys
import time

import pytest

from keras_tfm import decode
from keras_tfm.cli import main
from keras_tfm.pipelines import Translator
from keras_tfm.text import Vocabulary
from tests.decode.conftest import draw_transformer

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.backend("torch"),
    # Ray raises it when it is imported.
    pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`"),
]
PROGRAM = "import sys; from keras_tfm.cli import main; sys.exit(main())"
WORDS = ["an", "old", "man", "in", "a", "small", "boat", "sees", "the", "garden"]
NUM_FILES, NUM_LINES = 8, 250


def run(*arguments, **options):
    """Starts the command in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("RAY_ADDRESS", None)
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        env=environment | options,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """Returns what a process has printed on standard error, if it succeeds."""
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return errors


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two nodes, with room for one worker each."""
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
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
    vocabulary = Vocabulary.train([" ".join(WORDS)] * 50, size=280)
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


def test_bulk_translation_survives_the_loss_of_a_node(
    cluster, second_node, model, corpus, tmp_path
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
    actual = "".join(file.read_text() for file in sorted(out.glob("part-?")))
    assert actual.count("\n") == NUM_FILES * NUM_LINES
    assert actual == expected.read_text()
