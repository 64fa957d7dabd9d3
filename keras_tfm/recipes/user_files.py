"""Reads sentence pairs from a folder or files of the user's own."""

import pathlib

from keras_tfm.text import Pairs, read_pairs, read_pairs_jsonl, read_pairs_tsv

# Names of the training, validation and test files.
SPLIT_NAMES = (("train",), ("val", "valid", "validation", "dev"), ("test",))


def read_folder(folder: pathlib.Path, source: str, target: str) -> list[Pairs | None]:
    """Reads the splits of a corpus from a folder.

    Args:
        folder: path. Holds `train`, and optionally `val` and `test`, with the
            language as suffix, plain or `.gz`: `train.de`, `val.en.gz`.
        source: str, suffix of the sources.
        target: str, suffix of the targets.

    Returns:
        list of three `Pairs`; None for a split that has no file.

    Raises:
        FileNotFoundError: the training set or one side of a split is missing.
        ValueError: the files cannot be read as pairs, or a split has files
            under two names.
    """
    return [_read_split(folder, names, source, target) for names in SPLIT_NAMES]


def _read_split(folder, names, source, target):
    files = {
        name: [_existing(folder, name, language) for language in (source, target)]
        for name in names
    }
    files = {name: sides for name, sides in files.items() if any(sides)}
    if len(files) > 1:
        raise ValueError(
            f"{folder} must hold each split under one name; got {', '.join(files)}. "
            "Keep one of them there."
        )
    if not files and names != SPLIT_NAMES[0]:
        return None
    [(name, sides)] = files.items() or [(names[0], [None, None])]
    if None in sides:
        missing = source if sides[0] is None else target
        content = ", ".join(sorted(path.name for path in folder.iterdir())[:8])
        raise FileNotFoundError(
            f"{folder} must hold {name}.{missing}, plain or .gz; got {content}. A "
            "folder holds train, and optionally val and test, for both languages."
        )
    return read_pairs(*sides)


def _existing(folder, name, language):
    for path in (folder / f"{name}.{language}", folder / f"{name}.{language}.gz"):
        if path.is_file():
            return path
    return None


def read_files(paths: list, source: str, target: str, fields: tuple | None) -> Pairs:
    """Reads a TSV or JSONL file, or two parallel files.

    Args:
        paths: list of one or two paths.
        source: str, key of the sources in a JSONL.
        target: str, key of the targets in a JSONL.
        fields: pair, or None for the defaults: other keys; or columns of a TSV,
            as indices from 0 or as names in its header, default 0 and 1.

    Returns:
        `Pairs`.

    Raises:
        ValueError: another extension, or the file holds no such pairs.
    """
    if len(paths) == 2:
        return read_pairs(*paths)
    name = paths[0].removesuffix(".gz")
    if name.endswith(".tsv"):
        return read_pairs_tsv(paths[0], *(fields or (0, 1)))
    if name.endswith(".jsonl"):
        return read_pairs_jsonl(paths[0], *(fields or (source, target)))
    raise ValueError(
        "A file of pairs must be .tsv or .jsonl, plain or .gz; got "
        f"{paths[0]!r}. Convert it, or give two parallel files."
    )
