"""Reads sentence pairs from a folder or files of the user's own."""

import pathlib

from keras_tfm.text import Pairs, read_pairs
from keras_tfm.text.pair_files import FORMATS

# Names of the training, validation and test files.
SPLIT_NAMES = (("train",), ("val", "valid", "validation", "dev"), ("test",))


def read_folder(
    folder: pathlib.Path, source: str, target: str, max_bad_rate: float
) -> list[Pairs | None]:
    """Reads the splits of a corpus from a folder.

    Args:
        folder: path. Holds `train`, and optionally `val` and `test`, with the
            language as suffix, plain or `.gz`: `train.de`, `val.en.gz`; or one
            file for both languages, such as `train.tsv`.
        source: str, suffix of the sources.
        target: str, suffix of the targets.
        max_bad_rate: float from 0 to 1, as in `keras_tfm.text.read_pairs`.

    Returns:
        list of three `Pairs`; None for a split that has no file.

    Raises:
        FileNotFoundError: the training set or one side of a split is missing.
        ValueError: the files cannot be read as pairs, or a split has files
            under two names.
    """
    options = {"languages": (source, target), "max_bad_rate": max_bad_rate}
    splits = [_find_split(folder, names, source, target) for names in SPLIT_NAMES]
    return [files and read_pairs(*files, **options) for files in splits]


def _find_split(folder, names, source, target):
    """Returns the files of a split, two parallel ones or one, or None."""
    files = {name: _files_of(folder, name, source, target) for name in names}
    files = {name: paths for name, paths in files.items() if paths}
    if len(files) > 1:
        raise ValueError(
            f"{folder} must hold each split under one name; got {', '.join(files)}. "
            "Keep one of them there."
        )
    if not files and names != SPLIT_NAMES[0]:
        return None
    [(name, paths)] = files.items() or [(names[0], [None, None])]
    if None in paths:
        missing = source if paths[0] is None else target
        content = ", ".join(sorted(path.name for path in folder.iterdir())[:8])
        raise FileNotFoundError(
            f"{folder} must hold {name}.{missing}, plain or .gz; got {content}. A "
            "folder holds train, and optionally val and test, for both languages: "
            f"two files, or one {name}.tsv, .csv, .jsonl or .tmx."
        )
    return paths


def _files_of(folder, name, source, target):
    sides = [_existing(folder, name, language) for language in (source, target)]
    if any(sides):
        return sides
    return [file for form in FORMATS if (file := _existing(folder, name, form))][:1]


def _existing(folder, name, suffix):
    for path in (folder / f"{name}.{suffix}", folder / f"{name}.{suffix}.gz"):
        if path.is_file():
            return path
    return None


def parse_column(name: str | None) -> str | int | None:
    """Returns the number of a column that a flag names by number.

    Args:
        name: str or None.
    """
    return int(name) if name is not None and name.strip().isdecimal() else name
