"""Finds and reads sentence pairs in a folder or files of the user's own."""

import collections
import os
import pathlib
from typing import NamedTuple

from keras_tfm.text import Pairs, read_pairs
from keras_tfm.text.csv_jsonl import extension
from keras_tfm.text.pair_files import EXTENSIONS, FORMATS
from keras_tfm.text.sides import Sides, choose_sides

# Names of the training, validation and test files.
SPLIT_NAMES = (("train",), ("val", "valid", "validation", "dev"), ("test",))


class CorpusFiles(NamedTuple):
    """A file of pairs in a folder, or two parallel ones.

    Attributes:
        name: str, what the files are called without their extensions.
        files: paths, one or two.
        sides: extensions of parallel files, such as `("en", "de")`; else None.
    """

    name: str
    files: tuple[str, ...]
    sides: Sides | None

    @property
    def title(self) -> str:
        """The names of the files."""
        return ", ".join(map(os.path.basename, self.files))


def find_corpora(
    folder: str | os.PathLike, languages: Sides | None
) -> tuple[list[CorpusFiles], dict[str, str]]:
    """Finds the corpora in a folder, by the names of its files.

    Args:
        folder: path.
        languages: extensions of source and target of parallel files; None takes
            the two that name languages, in the order of the alphabet.

    Returns:
        list of `CorpusFiles`; and a dict from the other files and folders to
        the reason why they hold no pairs.
    """
    corpora, reasons = [], {}
    groups: dict = collections.defaultdict(dict)
    for path in sorted(pathlib.Path(folder).iterdir()):
        suffix = extension(path)
        name = path.name.removesuffix(".gz")
        name = name[: -1 - len(suffix)] if suffix else name
        if path.is_dir():
            reasons[path.name] = "a folder, which is not searched"
        elif suffix in (*EXTENSIONS, "txt"):
            corpora.append(CorpusFiles(name, (str(path),), None))
        else:
            groups[name].setdefault(suffix, str(path))
    for name, paths in groups.items():
        sides = choose_sides(paths, languages)
        if sides is not None:
            files = tuple(paths.pop(side) for side in sides)
            corpora.append(CorpusFiles(name, files, sides))
        reason = "no parallel file in another language"
        if sides is not None:
            reason = "a third language; --source-column and --target-column choose two"
        reasons |= {os.path.basename(path): reason for path in paths.values()}
    counts = collections.Counter(corpus.name for corpus in corpora)
    return [
        corpus
        if counts[corpus.name] == 1
        else corpus._replace(name=os.path.basename(corpus.files[0]))
        for corpus in sorted(corpora)
    ], reasons


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
    return [read_pairs(*files, **options) if files else None for files in splits]


def read_more_tests(
    folder: pathlib.Path, source: str, target: str, max_bad_rate: float
) -> dict[str, Pairs]:
    """Reads further test sets of a folder, whose names begin with `test_`.

    Args:
        folder: path, as in `read_folder`. A set that lacks a file of one of
            the languages is left out, since it may be for others.
        source: str, suffix of the sources.
        target: str, suffix of the targets.
        max_bad_rate: float from 0 to 1.

    Returns:
        dict from names such as `"test_2017"` to `Pairs`, in order.

    Raises:
        ValueError: the files cannot be read as pairs.
    """
    options = {"languages": (source, target), "max_bad_rate": max_bad_rate}
    names = {path.name.split(".")[0] for path in folder.glob("test_*.*")}
    files = {name: _files_of(folder, name, source, target) for name in sorted(names)}
    return {
        name: read_pairs(*paths, **options)
        for name, paths in files.items()
        if paths and None not in paths
    }


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
        names = sorted(path.name for path in folder.iterdir())
        content = ", ".join(names[:8]) or "an empty folder"
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


def split_paths(names: str) -> list[str]:
    """Returns the paths that a flag separates by commas.

    Args:
        names: str. The name of a file with a comma stays whole.
    """
    return [names] if os.path.exists(names) else names.split(",")


def parse_column(name: str | None) -> str | int | None:
    """Returns the number of a column that a flag names by number.

    Args:
        name: str or None.
    """
    return int(name) if name is not None and name.strip().isdecimal() else name
