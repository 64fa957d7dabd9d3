"""Sentence pairs from a folder or files of the user's own."""

import pathlib

from keras_tfm.text import Pairs, read_pairs, read_pairs_jsonl, read_pairs_tsv

# What the three parts may be called.
NAMES = (("train",), ("val", "valid", "validation", "dev"), ("test",))


def read_folder(folder: pathlib.Path, source: str, target: str) -> list:
    """Reads the parts of a corpus from a folder.

    Args:
        folder: path. Holds `train`, and maybe `val` and `test`, with a suffix
            for the language, plain or `.gz`: `train.de`, `val.en.gz`.
        source: str. Suffix of the sources.
        target: str. Suffix of the targets.

    Returns:
        list of three `Pairs`, `None` for a part of which there is nothing.

    Raises:
        FileNotFoundError: there is no training part, or half of a part.
        ValueError: the files cannot be read as pairs, or a part is there by
            two names.
    """
    parts = []
    for names in NAMES:
        found = [
            (name, [_at_hand(folder, name, side) for side in (source, target)])
            for name in names
        ]
        found = [(name, sides) for name, sides in found if any(sides)]
        if len(found) > 1:
            raise ValueError(
                f"{folder} has this part by {len(found)} names: "
                f"{', '.join(name for name, _ in found)}. Keep one of them there."
            )
        if not found and names == NAMES[0]:
            found = [(names[0], [None, None])]
        if not found:
            parts.append(None)
            continue
        [(name, sides)] = found
        if None in sides:
            lost = source if sides[0] is None else target
            raise FileNotFoundError(
                f"{folder} has no {name}.{lost}, plain or .gz. Received: "
                f"{', '.join(sorted(p.name for p in folder.iterdir())[:8])}. A folder "
                "holds train, and if you like val and test, for both languages."
            )
        parts.append(read_pairs(*sides))
    return parts


def _at_hand(folder, name, language):
    for path in (folder / f"{name}.{language}", folder / f"{name}.{language}.gz"):
        if path.is_file():
            return path
    return None


def read_files(paths: list, source: str, target: str, fields: tuple | None) -> Pairs:
    """Reads one TSV or JSONL, or two parallel files.

    Args:
        paths: list of one or two paths.
        source: str. The key of the sources in a JSONL.
        target: str. The key of the targets in a JSONL.
        fields: pair, or `None` for the usual. Other keys; or columns of a TSV,
            as numbers from 0 or as names in its header, usually 0 and 1.

    Returns:
        `Pairs`.

    Raises:
        ValueError: the name ends otherwise, or the file has no such pairs.
    """
    if len(paths) == 2:
        return read_pairs(*paths)
    name = paths[0].removesuffix(".gz")
    if name.endswith(".tsv"):
        return read_pairs_tsv(paths[0], *(fields or (0, 1)))
    if name.endswith(".jsonl"):
        return read_pairs_jsonl(paths[0], *(fields or (source, target)))
    raise ValueError(
        "A single file of pairs is .tsv or .jsonl, plain or .gz. Received: "
        f"{paths[0]!r}. Rename it, or give two parallel files."
    )
