"""Files of corpora: from a folder at hand, or once by URL with a checksum.

A folder named by the environment variable KERAS_TFM_DATA is looked in first.
Else a file is fetched into the user's cache, and used from there ever after.

What is fetched must have the SHA256 that `<corpus>.sha256` beside this module
gives (`sha256sum --check` reads it). Those of `multi30k.sha256` were taken from
copies of the files, not from the network. For raw German and English others
have published the same sums for the same commit; of raw French the path was
looked up at the publisher, and of the tokenised files the path and the length.
"""

import os
import pathlib

HERE = pathlib.Path(__file__).parent
URLS = {
    "multi30k": (
        "https://raw.githubusercontent.com/multi30k/dataset/"
        "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/"
    ),
}


def find(corpus: str, file: str) -> pathlib.Path:
    """Finds a file of a corpus at hand, or fetches it.

    Args:
        corpus: str, such as `"multi30k"`; the folder it is in.
        file: str. Path inside of that. With and without `.gz` at its end it is
            looked for at hand; it is fetched as it is called.

    Returns:
        `pathlib.Path`.

    Raises:
        NotADirectoryError: KERAS_TFM_DATA names no folder.
        FileNotFoundError: it has no such file, and there is no URL for it.
        ConnectionError: the file could not be fetched.
        ValueError: what was fetched is not the file expected.
    """
    folder = os.environ.get("KERAS_TFM_DATA")
    if folder:
        if not pathlib.Path(folder).is_dir():
            raise NotADirectoryError(
                "KERAS_TFM_DATA must name a folder of corpora. Received: "
                f"{folder!r}. Correct it, or unset it to fetch what has a URL."
            )
        plain = file.removesuffix(".gz")
        for name in dict.fromkeys((file, plain, f"{plain}.gz")):
            path = pathlib.Path(folder, corpus, name)
            if path.is_file():
                return path
    if corpus in URLS and file in checksums(corpus):
        return fetch(corpus, file)
    where = f"in {folder}" if folder else "as KERAS_TFM_DATA is unset"
    raise FileNotFoundError(f"There is no {corpus}/{file} {where}, nor a URL for it.")


def fetch(corpus: str, file: str) -> pathlib.Path:
    """Fetches a file once into the user's cache and checks its SHA256.

    Args:
        corpus: str, a key of `URLS`.
        file: str, a key of `checksums(corpus)`.

    Returns:
        `pathlib.Path` in the cache.

    Raises:
        ConnectionError: the file could not be fetched.
        ValueError: it has another SHA256; nothing of it is kept.
    """
    import pooch
    import requests

    cache = pathlib.Path(pooch.os_cache("keras_tfm"), corpus)
    store = pooch.create(cache, URLS[corpus], registry=checksums(corpus))
    advice = (
        "Or fetch it by other means, and name by KERAS_TFM_DATA the folder in "
        f"which it is {corpus}/{file}."
    )
    try:
        return pathlib.Path(store.fetch(file))
    except requests.RequestException as error:
        raise ConnectionError(
            f"{URLS[corpus]}{file} could not be fetched ({error}). Try again with a "
            f"network. {advice}"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{URLS[corpus]}{file} is not the file expected ({error}). Nothing of it "
            f"was kept. Try again. {advice}"
        ) from error


def checksums(corpus: str) -> dict:
    """Reads which files of a corpus can be fetched.

    Args:
        corpus: str, a key of `URLS`.

    Returns:
        dict: the SHA256, in hexadecimal, of each path.
    """
    lines = (HERE / f"{corpus}.sha256").read_text("utf-8").splitlines()
    return {path: checksum for checksum, path in (line.split() for line in lines)}
