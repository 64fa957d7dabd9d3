"""Firefox's translation models, downloaded by Mozilla's public registry."""

import gzip
import hashlib
import json
import os
import pathlib
import re
import tempfile
import urllib.request
from typing import Any

from keras_tfm.file_reading import Config, reading

FIREFOX = "firefox://"  # before two languages, as "en-fr"
REGISTRY = (
    "https://storage.googleapis.com/moz-fx-translations-data--303e-prod-translations"
    "-data/db/models.json"
)
ARCHITECTURES = ("base", "base-memory", "tiny")  # the best first
FILES = ("model", "lexicalShortlist", "vocab", "srcVocab", "trgVocab")
TIMEOUT = 60  # seconds without an answer


def download_firefox(name: str) -> pathlib.Path:
    """Downloads a model of Firefox once.

    The registry is an object with `baseUrl`, and `models`: for each pair of
    languages a list of models, each with its `architecture` and, of each file,
    a `path` under `baseUrl`, compressed by gzip. Only the weights have a hash
    there, `uncompressedHash`, which is checked; all files come by HTTPS.

    Args:
        name: str, such as `"firefox://en-fr"`, or `"firefox://en-fr@tiny"` for
            one of `ARCHITECTURES`; the best otherwise.

    Returns:
        The folder of the files, below that of Keras.

    Raises:
        FileNotFoundError: the registry or a file could not be reached.
        ValueError: there is no such model, or a file is damaged.
    """
    pair, _, architecture = name.removeprefix(FIREFOX).partition("@")
    if not re.fullmatch(r"[A-Za-z0-9_-]+", pair) or architecture not in (
        "",
        *ARCHITECTURES,
    ):
        raise ValueError(
            f"`name` must be as '{FIREFOX}en-fr', or as '{FIREFOX}en-fr@tiny' for one "
            f"of {ARCHITECTURES}; got {name!r}."
        )
    home = pathlib.Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser()
    folder = home / "keras_tfm" / "firefox" / f"{pair}@{architecture or 'best'}"
    if folder.is_dir():  # it appears whole or not at all
        return folder
    registry = _read_registry()
    entry = _choose(registry, pair, architecture)
    base = registry.string("baseUrl").rstrip("/")
    if not base.startswith("https://"):
        raise ValueError(f"{REGISTRY}: `baseUrl` must be an HTTPS address; got {base}.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        for role in FILES:
            file = entry.get(role)
            if file is None:
                continue
            file = Config(file, REGISTRY)
            path = file.string("path")
            content = _fetch(f"{base}/{path}")
            with reading(path, "a file compressed by gzip"):
                content = gzip.decompress(content)
            _check_hash(path, content, file.string("uncompressedHash", ""))
            target = pathlib.PurePath(path).name.removesuffix(".gz")
            (pathlib.Path(scratch) / target).write_bytes(content)
        os.rename(scratch, folder)
        os.mkdir(scratch)  # for the context to remove
    return folder


def _read_registry() -> Config:
    with reading(REGISTRY, "the registry of Firefox's models"):
        return Config(json.loads(_fetch(REGISTRY)), REGISTRY)


def _choose(registry: Config, pair: str, architecture: str) -> Config:
    """Returns the files of the best model of a pair."""
    models = registry.typed("models", dict)
    with reading(REGISTRY, "the registry of Firefox's models"):
        ranked: dict[str, Any] = {}
        for model in models.get(pair, []):
            ranked.setdefault(model["architecture"], model["files"])
    order = [architecture] if architecture else ARCHITECTURES
    files = next((ranked[kind] for kind in order if kind in ranked), None)
    if files is None:
        raise ValueError(
            f"`name` must be '{FIREFOX}' and one of {', '.join(sorted(models))}; got "
            f"{pair!r} with {architecture or 'any architecture'!r}, and there is "
            f"{sorted(ranked) or 'none'}."
        )
    return Config(files, REGISTRY)


def _check_hash(path: str, content: bytes, expected: str) -> None:
    received = hashlib.sha256(content).hexdigest()
    if expected and received != expected:
        raise ValueError(
            f"{path} must have the SHA-256 {expected}; got {received}. Download it "
            "again."
        )


def _fetch(address: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
            return answer.read()
    except OSError as error:
        raise FileNotFoundError(
            f"{address} could not be reached: {error}. Check the network, or download "
            "the files of the model into a folder and name the folder."
        ) from error
