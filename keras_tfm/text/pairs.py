"""Pairs of source and target sentences, from lists or files."""

import itertools
import logging
import os
from collections.abc import Iterable, Iterator
from typing import Any

from keras_tfm.text.checks import check
from keras_tfm.text.csv_jsonl import iterate_columns
from keras_tfm.text.files import is_unicode, iterate_lines, name_of

_log = logging.getLogger(__name__)


class Pairs:
    """Sentence pairs in memory, without those that have an empty side.

    A pair with an empty or blank side is dropped, counted in `report`, and
    logged as a warning. The order stays.

    Args:
        source: list of strings, the sentences to translate.
        target: list of strings of the same length, their translations.
        name: string. The name of these pairs in reports, such as a file name.

    Attributes:
        source: list of strings.
        target: list of strings of the same length.
        dropped: dictionary of counts: `"empty source"`, `"empty target"`,
            `"both empty"`.
        report: string, one line: pairs read, dropped and kept.

    Raises:
        ValueError: a side is one string, or holds something other than strings
            or a lone surrogate; the sides differ in length; or no pair is left.

    Example:
        ```python
        from keras_tfm import text

        pairs = text.Pairs(["one", "two", ""], ["eins", "zwei", "drei"])
        print(len(pairs), list(pairs))
        print(pairs.report)
        ```
    """

    def __init__(
        self, source: Iterable[str], target: Iterable[str], name: str = "pairs"
    ):
        sides = {"source": list(source), "target": list(target)}
        for side, texts in sides.items():
            faulty = [t for t in texts if not isinstance(t, str) or not is_unicode(t)]
            check(
                not faulty,
                f"{name}: `{side}` must hold strings without lone surrogates",
                "Fix or remove the pairs.",
                count=len(faulty),
                first=faulty[:1],
            )
        count = len(sides["source"])
        check(
            len(sides["target"]) == count
            and not isinstance(source, str)
            and not isinstance(target, str),
            f"{name}: `source` and `target` must be lists of the same length",
            "Align the two sides again.",
            source=count,
            target=len(sides["target"]),
        )
        has_text = [
            tuple(bool(text.strip()) for text in pair)
            for pair in zip(*sides.values(), strict=True)
        ]
        self.source, self.target = (
            list(itertools.compress(texts, map(all, has_text)))
            for texts in sides.values()
        )
        self.dropped = {
            "empty source": has_text.count((False, True)),
            "empty target": has_text.count((True, False)),
            "both empty": has_text.count((False, False)),
        }
        reasons = (f"{n:,} {reason}" for reason, n in self.dropped.items() if n)
        total = count - len(self)
        self.report = f"{name}: {count:,} pairs read, {total:,} dropped"
        self.report += f" ({', '.join(reasons)})" if total else ""
        self.report += f", {len(self):,} kept"
        if not len(self):
            raise ValueError(f"No pair has text on both sides; got {self.report}.")
        if total:
            _log.warning(self.report)

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return zip(self.source, self.target, strict=True)

    def __repr__(self) -> str:
        return f"<Pairs: {self.report}>"


def read_pairs(source: str | os.PathLike, target: str | os.PathLike) -> Pairs:
    """Reads two parallel files: line n of one translates line n of the other.

    Args:
        source: string or path of a UTF-8 file, plain or `.gz`.
        target: string or path of a UTF-8 file with as many lines.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is empty, not UTF-8, or the numbers of lines differ.

    Example:
        ```python
        import pathlib
        import tempfile

        from keras_tfm import text

        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            source, target = folder / "train.en", folder / "train.de"
            source.write_text("one\\ntwo\\n")
            target.write_text("eins\\nzwei\\n")
            print(list(text.read_pairs(source, target)))
        ```
    """
    return Pairs(*_columns(iterate_pairs(source, target)), f"{source}, {target}")


def read_pairs_tsv(
    path: str | os.PathLike, source_column: str | int = 0, target_column: str | int = 1
) -> Pairs:
    """Reads pairs from two columns of a tab-separated file.

    Quotes have no meaning: a field is everything between two tabs.

    Args:
        path: string or path of a UTF-8 file, plain or `.gz`.
        source_column: int from 0, or the name of the column; a name makes the
            first line a header.
        target_column: int from 0, or the name of the column.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: a line has too few columns, the header lacks the name, or
            the file is empty or not UTF-8.

    Example:
        ```python
        import pathlib
        import tempfile

        from keras_tfm import text

        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "pairs.tsv")
            file.write_text("en\\tde\\none\\teins\\ntwo\\tzwei\\n")
            print(list(text.read_pairs_tsv(file, "en", "de")))
        ```
    """
    rows = iterate_pairs_tsv(path, source_column, target_column)
    return Pairs(*_columns(rows), str(path))


def read_pairs_jsonl(
    path: str | os.PathLike, source_key: str, target_key: str
) -> Pairs:
    """Reads pairs from a file with one JSON object per line.

    Args:
        path: string or path of a UTF-8 file, plain or `.gz`.
        source_key: string. Key of the source sentence in each object.
        target_key: string. Key of the target sentence in each object.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: a line is no JSON object, lacks a key, or holds something
            else than a string there; or the file is empty or not UTF-8.

    Example:
        ```python
        import pathlib
        import tempfile

        from keras_tfm import text

        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "pairs.jsonl")
            file.write_text('{"en": "one", "de": "eins"}')
            print(list(text.read_pairs_jsonl(file, "en", "de")))
        ```
    """

    def rows():
        for place, pair in iterate_columns(path, "jsonl", [source_key, target_key]):
            check(
                all(isinstance(side, str) and is_unicode(side) for side in pair),
                f"{place}: expected two strings without lone surrogates",
                "Fix or remove the line.",
                pair=pair,
            )
            yield pair

    return Pairs(*_columns(rows()), str(path))


def iterate_pairs(source: Any, target: Any) -> Iterator[tuple[str, str]]:
    """Yields line n of two parallel files as pair n.

    Args:
        source: string or path of a UTF-8 file, plain or `.gz`; or an open file,
            see `iterate_lines`.
        target: path, as `source`, with as many lines.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is empty or not UTF-8, or, after the last pair, the
            numbers of lines differ.

    Example:
        ```python
        import io

        from keras_tfm import text

        source, target = io.BytesIO(b"one\\ntwo"), io.BytesIO(b"eins\\nzwei")
        print(list(text.iterate_pairs(source, target)))
        ```
    """
    counts = [0, 0]
    for pair in itertools.zip_longest(iterate_lines(source), iterate_lines(target)):
        counts = [n + (side is not None) for n, side in zip(counts, pair, strict=True)]
        if None not in pair:
            yield pair
    check(
        counts[0] == counts[1],
        "Line n of one file must translate line n of the other",
        "Align the two files again.",
        **{
            name_of(source): f"{counts[0]:,} lines",
            name_of(target): f"{counts[1]:,} lines",
        },
    )


def iterate_pairs_tsv(
    path: Any, source_column: str | int = 0, target_column: str | int = 1
) -> Iterator[tuple[str, str]]:
    """Yields two columns of a tab-separated file as pairs.

    Args:
        path: string or path of a UTF-8 file, plain or `.gz`; or an open file,
            see `iterate_lines`.
        source_column: int from 0, or the name of the column; a name makes the
            first line a header.
        target_column: int from 0, or the name of the column.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: as in `read_pairs_tsv`.

    Example:
        ```python
        import io

        from keras_tfm import text

        print(list(text.iterate_pairs_tsv(io.BytesIO(b"one\\teins\\ntwo\\tzwei\\n"))))
        ```
    """
    columns = [source_column, target_column]
    for _, pair in iterate_columns(path, "tsv", columns, same_width=False):
        yield tuple(pair)


def _columns(pairs: Iterable) -> tuple[list, list]:
    source, target = [], []
    for first, second in pairs:
        source.append(first)
        target.append(second)
    return source, target
