"""Finds the files of corpora in a local folder, or downloads them once.

The folder that the environment variable KERAS_TFM_DATA names comes first.
Otherwise a file is downloaded into the user's cache.

A download must have the SHA256 in `<corpus>.sha256` beside this module
(`sha256sum --check` reads it). The checksums of `multi30k.sha256` were taken
from local copies. For raw German and English others have published the same
checksums for the same commit; for raw French the path was checked with the
publisher, and for the tokenized files the path and the length. Those of
`cldr-annotations.sha256` are of the package `cldr-annotations-full` 48.2.0 as
the registry of npm has it, which jsDelivr publishes by file.
"""

import os
import pathlib

FOLDER = pathlib.Path(__file__).parent
URLS = {
    "multi30k": (
        "https://raw.githubusercontent.com/multi30k/dataset/"
        "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/"
    ),
    "cldr-annotations": (
        "https://cdn.jsdelivr.net/npm/cldr-annotations-full@48.2.0/annotations/"
    ),
}


def find(corpus: str, file: str) -> pathlib.Path:
    """Finds a file of a corpus locally, or downloads it.

    Args:
        corpus: str, such as `"multi30k"`; the name of its folder.
        file: str, path in that folder. A local file is accepted with and
            without the suffix `.gz`.

    Returns:
        `pathlib.Path`.

    Raises:
        NotADirectoryError: KERAS_TFM_DATA is not a folder.
        FileNotFoundError: it has no such file, and the file has no URL.
        ConnectionError: the download failed.
        ValueError: the download has another checksum.
    """
    if path := find_local(corpus, file):
        return path
    if corpus in URLS and file in checksums(corpus):
        return download(corpus, file)
    folder = os.environ.get("KERAS_TFM_DATA")
    place = f"in {folder}" if folder else "since KERAS_TFM_DATA is unset"
    raise FileNotFoundError(
        f"{corpus}/{file} was not found {place}, and it has no URL."
    )


def find_local(corpus: str, file: str) -> pathlib.Path | None:
    """Finds a file of a corpus in the folder of KERAS_TFM_DATA.

    Args:
        corpus: str, as in `find`.
        file: str, as in `find`.

    Returns:
        `pathlib.Path`, or None without such a file or without the variable.

    Raises:
        NotADirectoryError: KERAS_TFM_DATA is not a folder.
    """
    folder = os.environ.get("KERAS_TFM_DATA")
    if not folder:
        return None
    if not pathlib.Path(folder).is_dir():
        raise NotADirectoryError(
            f"KERAS_TFM_DATA must be a folder of corpora; got {folder!r}. Correct "
            "it, or unset it to download corpora."
        )
    plain = file.removesuffix(".gz")
    paths = [pathlib.Path(folder, corpus, n) for n in (file, plain, f"{plain}.gz")]
    return next((path for path in paths if path.is_file()), None)


def download(corpus: str, file: str) -> pathlib.Path:
    """Downloads a file once into the user's cache and checks its SHA256.

    Args:
        corpus: str, a key of `URLS`.
        file: str, a key of `checksums(corpus)`.

    Returns:
        `pathlib.Path` in the cache.

    Raises:
        ConnectionError: the download failed.
        ValueError: it has another SHA256; it is not kept.
    """
    import pooch
    import requests

    cache = pathlib.Path(pooch.os_cache("keras_tfm"), corpus)
    store = pooch.create(cache, URLS[corpus], registry=checksums(corpus))
    advice = (
        "Or download it by other means and set KERAS_TFM_DATA to the folder that "
        f"contains {corpus}/{file}."
    )
    try:
        return pathlib.Path(store.fetch(file))
    except requests.RequestException as error:
        raise ConnectionError(
            f"{URLS[corpus]}{file} could not be downloaded ({error}). Try again with "
            f"network access. {advice}"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{URLS[corpus]}{file} has another checksum than expected ({error}), so it "
            f"was not kept. Try again. {advice}"
        ) from error


def checksums(corpus: str) -> dict[str, str]:
    """Reads the checksums of the files that can be downloaded.

    Args:
        corpus: str, a key of `URLS`.

    Returns:
        dict from paths to SHA256, in hexadecimal.
    """
    lines = (FOLDER / f"{corpus}.sha256").read_text("utf-8").splitlines()
    return {path: checksum for checksum, path in (line.split() for line in lines)}
