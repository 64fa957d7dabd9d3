"""Repositories are downloaded from a hub by the real client, over HTTP."""

import hashlib
import http.server
import json
import pathlib
import threading
import urllib.parse

import numpy as np
import pytest

from keras_tfm import zoo
from keras_tfm.pipelines import Translator
from keras_tfm.zoo.huggingface import hub
from tests.zoo.checkpoints import write_marian
from tests.zoo.test_pytorch_file import to_pickle

constants = pytest.importorskip("huggingface_hub.constants")
pytestmark = pytest.mark.backend("torch")  # files are read, not run
NAME = "Helsinki-NLP/opus-mt-en-de"
REQUEST = {
    "num": 4,
    "author": {"name": hub.CONVERTER},
    "title": hub.CONVERSION,
    "status": "open",
    "isPullRequest": True,
    "createdAt": "2023-04-01T00:00:00.000Z",
}


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the hub does for one repository."""

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):  # noqa: N802
        self.do_GET()

    def do_GET(self):  # noqa: N802
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        path = path.removeprefix("/api/models").removeprefix(f"/{NAME}/")
        action, _, rest = path.partition("/")
        if action == "resolve":
            commit, _, file = rest.partition("/")
            return self.answer(self.server.revisions[commit][file], commit)
        files = self.server.revisions.get(self.server.commits.get(rest, rest))
        if action == "discussions" and self.server.requests is not None:
            requests = self.server.requests
            return self.send(
                {"discussions": requests, "count": len(requests), "start": 0}
            )
        if files is None:
            return self.send({"error": "not found"}, 404)
        if action == "revision":
            siblings = [{"rfilename": file} for file in files]
            commit = self.server.commits[rest]
            return self.send({"id": NAME, "sha": commit, "siblings": siblings})
        return self.send(
            [
                {"type": "file", "path": n, "size": len(c), "oid": digest(c)}
                for n, c in files.items()
            ]
        )

    def send(self, content, status=200):
        self.answer(json.dumps(content).encode(), "", status)

    def answer(self, content, commit, status=200):
        self.send_response(status)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", digest(content))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.server.sent.append(self.path.rpartition("/")[2])
            self.wfile.write(content)


def digest(content):
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def server(tmp_path, monkeypatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        server.commits = {"main": "a" * 40, "refs/pr/4": "b" * 40}
        server.requests, server.sent = [], []
        yield server
        server.shutdown()


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    write_marian(folder)
    return folder


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def publish(server, folder, converted=True):
    """Publishes pickled weights, and safetensors under a pull request."""
    safetensors = (folder / "model.safetensors").read_bytes()
    to_pickle(folder)
    main = {**content(folder), "tf_model.h5": b"large"}
    server.revisions = {"a" * 40: main, "b" * 40: dict(main)}
    if converted:
        server.revisions["b" * 40]["model.safetensors"] = safetensors
        server.requests = [{**REQUEST, "repo": {"name": NAME, "type": "model"}}]


def test_a_repository_of_safetensors_is_downloaded(server, folder):
    server.revisions = {"a" * 40: {**content(folder), "pytorch_model.bin": b"large"}}
    translator = Translator.from_preset(
        f"hf://{NAME}", target_language="de", max_decoding_length=3
    )
    assert translator("a small boat")
    assert "pytorch_model.bin" not in server.sent


def test_the_automatic_conversion_is_preferred_to_a_pickle(server, folder):
    publish(server, folder)
    models = [zoo.from_hugging_face(name).model for name in (f"hf://{NAME}", folder)]
    for actual, expected in zip(
        *(model.get_weights() for model in models), strict=True
    ):
        np.testing.assert_array_equal(actual, expected)
    assert "model.safetensors" in server.sent
    assert not {"pytorch_model.bin", "tf_model.h5"} & set(server.sent)


@pytest.mark.parametrize(
    "change",
    [
        {"author": {"name": "SFconvertb0t"}},
        {"title": "Adding safetensors"},
        {"status": "closed"},
        {"isPullRequest": False},
        "weights have changed since",
        "none",
        "discussions are disabled",
    ],
)
def test_without_a_trusted_conversion_the_pickle_is_read(change, server, folder):
    publish(server, folder)
    if isinstance(change, dict):
        server.requests[0] |= change
    elif change == "none":
        server.requests = []
    elif change == "discussions are disabled":
        server.requests = None
    else:
        server.revisions["b" * 40]["pytorch_model.bin"] += b"older"
    small, weights = hub.locate(NAME)
    assert small == weights and (weights / "pytorch_model.bin").is_file()
    assert "model.safetensors" not in server.sent
    assert zoo.from_hugging_face(NAME).vocabulary is not None


def test_a_revision_is_taken_as_it_is(server, folder):
    publish(server, folder)
    small, weights = hub.locate(f"hf://{NAME}@refs/pr/4")
    assert small == weights and (weights / "model.safetensors").is_file()
    assert not (weights / "pytorch_model.bin").exists()


def test_a_repository_without_weights_or_without_a_config_is_named(server, folder):
    server.revisions = {"a" * 40: {"config.json": b"{}"}}
    with pytest.raises(FileNotFoundError, match=f"{NAME}.* No weights .*pytorch_model"):
        zoo.from_hugging_face(f"hf://{NAME}")
    with pytest.raises(FileNotFoundError, match="'owner/name' could not be reached"):
        zoo.from_hugging_face("hf://owner/name")


def test_a_downloaded_model_loads_without_a_network(server, folder, monkeypatch):
    publish(server, folder, converted=False)
    first = pathlib.Path(hub.locate(NAME)[1])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    server.shutdown()
    assert hub.locate(NAME) == (first, first)
