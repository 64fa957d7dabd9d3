"""Repositories of the Hugging Face hub: names, downloads and uploads."""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

HUB = "hf://"  # before the name of a repository
CARD = "README.md"


@contextlib.contextmanager
def repository(source: str, argument: str = "source") -> Iterator[tuple[Any, ...]]:
    """Opens a repository for downloads or uploads.

    Args:
        source: str, `"owner/name"`, also with `"hf://"` before it and
            `"@revision"` after it.
        argument: str, the name of the argument, for errors.

    Yields:
        `HfApi`, the name, and the revision or None.

    Raises:
        FileNotFoundError: `source` is no such name, or an access fails inside.
        ImportError: `huggingface-hub` is not installed.
    """
    name, _, revision = source.removeprefix(HUB).partition("@")
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise FileNotFoundError(
            f"`{argument}` must be a folder, or a repository as 'owner/name'; got "
            f"{name!r}, which is neither. Check the path."
        )
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(
            f"`{argument}` is not a folder, and the repository {name!r} needs "
            f"huggingface-hub ({error}). Install `keras-tfm[zoo]`."
        ) from error
    try:
        yield huggingface_hub.HfApi(), name, revision or None
    except OSError as error:
        raise FileNotFoundError(
            f"The repository {name!r} could not be reached: {error}. Check its name, "
            "the network and the token of huggingface-hub."
        ) from error


def download(
    source: str, patterns: list[str], argument: str = "source"
) -> pathlib.Path:
    """Downloads files of a repository once.

    Args:
        source: str, as of `repository`.
        patterns: list of str, such as `"*.json"`.
        argument: str, the name of the argument, for errors.

    Returns:
        The folder of the files.

    Raises:
        FileNotFoundError, ImportError: see `repository`.
    """
    with repository(source, argument) as (api, name, revision):
        return pathlib.Path(
            api.snapshot_download(name, revision=revision, allow_patterns=patterns)
        )


def upload(
    folder: pathlib.Path,
    target: str,
    patterns: list[str],
    card: str,
    private: bool = False,
) -> None:
    """Uploads files of a folder, and a model card, to a repository.

    Args:
        folder: path.
        target: str, as of `repository`; the repository is created if missing.
        patterns: list of str, of the files.
        card: str, the content of `README.md`.
        private: bool. A new repository is private.

    Raises:
        FileNotFoundError, ImportError: see `repository`.
    """
    with repository(target, "name") as (api, name, revision):
        api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=name,
            folder_path=folder,
            allow_patterns=patterns,
            ignore_patterns=[CARD],
            revision=revision,
        )
        api.upload_file(
            repo_id=name,
            path_or_fileobj=card.encode("utf-8"),
            path_in_repo=CARD,
            revision=revision,
        )
