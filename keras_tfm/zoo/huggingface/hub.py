"""Repositories of the Hugging Face hub, downloaded once."""

import os
import pathlib
from collections.abc import Iterable
from typing import Any

from keras_tfm.file_reading import read_json
from keras_tfm.zoo.huggingface.weights_folder import weight_files
from keras_tfm.zoo.repositories import HUB, repository

SMALL_FILES = [
    *("*config.json", "tokenizer.json", "*vocab.json", "vocab-*.json"),
    *("vocab.txt", "merges.txt"),
    *("*.spm", "sentencepiece*.model", "spiece.model", "spm.model"),
    *("special_tokens_map.json", "added_tokens.json"),
]
SAFETENSORS = ["model*.safetensors", "model.safetensors.index.json"]
PICKLES = ["pytorch_model*.bin", "pytorch_model.bin.index.json"]
# The automatic conversion to safetensors, as transformers recognizes it.
CONVERTER = "SFconvertbot"
CONVERSION = "Adding `safetensors` variant of this model"


def locate(source: str | os.PathLike) -> tuple[pathlib.Path, pathlib.Path]:
    """Returns the folder of a model, downloaded where it is a repository.

    Weights are the safetensors of the repository; else those of the pull
    request that converted its weights automatically, if its author is the
    converter and it converted the same file; else `pytorch_model.bin`. Where a
    revision is named, pull requests are not searched.

    Args:
        source: path of a folder; or `"owner/name"`, also with `"hf://"` before
            and `"@revision"` after it.

    Returns:
        The folder of the small files, and that of the weights.

    Raises:
        FileNotFoundError: there is neither a folder nor a repository, or the
            repository has no weights.
        ImportError: `huggingface-hub` is needed and not installed.
    """
    name = os.fspath(source)
    folder = pathlib.Path(name)
    if folder.is_dir() and not name.startswith(HUB):
        return folder, folder
    with repository(name) as (api, name, revision):
        return _download(api, name, revision)


def is_transformers(folder: pathlib.Path) -> bool:
    """Returns whether a folder is of transformers.

    The first configs have no `model_type`; the weights then have its names.

    Args:
        folder: path.
    """
    config = folder / "config.json"
    return config.is_file() and (
        "model_type" in read_json(config) or _matches(folder, [*SAFETENSORS, *PICKLES])
    )


def _download(api, name, revision):
    def _fetch(patterns, revision=revision):
        return pathlib.Path(
            api.snapshot_download(name, revision=revision, allow_patterns=patterns)
        )

    folder = _fetch([*SMALL_FILES, *SAFETENSORS])
    if _matches(folder, SAFETENSORS):
        return folder, folder
    request = None if revision else _conversion(api, name)
    if request is not None:
        converted = _fetch(SAFETENSORS, request)
        if _matches(converted, SAFETENSORS):
            return folder, converted
    folder = _fetch([*SMALL_FILES, *PICKLES])
    weight_files(folder)  # raises where there are none
    return folder, folder


def _matches(folder: pathlib.Path, patterns: Iterable[str]) -> bool:
    return any(any(folder.glob(pattern)) for pattern in patterns)


def _conversion(api: Any, name: str) -> str | None:
    """Returns the revision of the automatic conversion; None without one."""
    try:
        weights = _pickles(api, name, None)
        for request in api.get_repo_discussions(name, author=CONVERTER):
            if (
                request.is_pull_request
                and request.status == "open"
                and request.author == CONVERTER
                and request.title == CONVERSION
                # Weights may have changed since.
                and _pickles(api, name, request.git_reference) == weights
            ):
                return request.git_reference
    except OSError:  # no network, or the repository has no pull requests
        return None
    return None


def _pickles(api, name, revision):
    """Returns the hash of each pickle of weights."""
    entries = api.list_repo_tree(name, revision=revision)
    return {
        entry.path: entry.blob_id
        for entry in entries
        if entry.path.endswith(".bin") and hasattr(entry, "blob_id")
    }
