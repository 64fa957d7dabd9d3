"""Firefox's models are downloaded by the registry that Mozilla publishes."""

import gzip
import hashlib
import json

import pytest

from keras_tfm.pipelines import Translator
from keras_tfm.pipelines.pretrained import languages_of, locate
from keras_tfm.zoo import from_marian
from keras_tfm.zoo.marian import firefox
from tests.zoo.test_marian import spm, write_bin, write_model  # noqa: F401

pytestmark = pytest.mark.backend("torch")  # test_marian.py reads the files
BASE = "https://models.example/bucket"


@pytest.fixture
def server(spm, tmp_path, monkeypatch):  # noqa: F811
    """Serves a registry of one model in two architectures."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    (tmp_path / "files").mkdir()
    write_model(tmp_path / "files", spm, write=write_bin)
    weights = next((tmp_path / "files").glob("*.bin")).read_bytes()
    vocab = next((tmp_path / "files").glob("*.spm")).read_bytes()
    contents = {}

    def files(architecture):
        model = f"{architecture}/model.enfr.intgemm.alphas.bin.gz"
        paths = {"model": model, "vocab": f"{architecture}/vocab.enfr.spm.gz"}
        contents[f"{BASE}/{model}"] = gzip.compress(weights)
        contents[f"{BASE}/{paths['vocab']}"] = gzip.compress(vocab)
        entries = {role: {"path": path} for role, path in paths.items()}
        entries["model"]["uncompressedHash"] = hashlib.sha256(weights).hexdigest()
        return {"architecture": architecture, "files": entries}

    models = {"en-fr": [files("tiny"), files("base-memory")]}
    registry = {"baseUrl": BASE, "models": models}
    contents[firefox.REGISTRY] = json.dumps(registry).encode()
    requests = []

    def fetch(address):
        requests.append(address)
        return contents[address]

    monkeypatch.setattr(firefox, "_fetch", fetch)
    return contents, requests


def test_the_best_architecture_is_downloaded_once(server, tmp_path):
    contents, requests = server
    folder = locate("firefox://en-fr")
    assert locate("firefox://en-fr") == folder and len(requests) == 3
    assert all("/base-memory/" in address for address in requests[1:])
    assert folder.is_relative_to(tmp_path / "home")
    assert from_marian(folder).model.count_params() > 0
    translator = Translator.from_preset("firefox://en-fr@tiny", max_decoding_length=3)
    assert isinstance(translator("a house"), str)
    assert "/tiny/" in requests[-1]
    assert languages_of("firefox://en-fr@tiny") == ("en", "fr")


def test_unknown_names_are_rejected(server):
    with pytest.raises(ValueError, match="one of en-fr; got 'en-de'"):
        locate("firefox://en-de")
    with pytest.raises(ValueError, match="'base', and there is .*'tiny'"):
        locate("firefox://en-fr@base")
    for name in ("firefox://../en", "firefox://", "firefox://en-fr@huge"):
        with pytest.raises(ValueError, match="must be as 'firefox://en-fr'"):
            locate(name)


def test_a_damaged_download_leaves_nothing(server, tmp_path):
    contents, _ = server
    address = f"{BASE}/base-memory/model.enfr.intgemm.alphas.bin.gz"
    contents[address] = gzip.compress(b"other")
    with pytest.raises(ValueError, match="must have the SHA-256"):
        locate("firefox://en-fr")
    contents[address] = b"no gzip"
    with pytest.raises(ValueError, match="cannot be read as a file compressed by gzip"):
        locate("firefox://en-fr")
    assert list((tmp_path / "home" / "keras_tfm" / "firefox").iterdir()) == []


def test_without_a_network_the_error_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(firefox, "REGISTRY", "https://127.0.0.1:1/models.json")
    with pytest.raises(FileNotFoundError, match="could not be reached"):
        locate("firefox://en-fr")
