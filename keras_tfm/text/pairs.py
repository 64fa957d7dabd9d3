"""Pairs of source and target sentences in memory, from lists or files."""

import logging
from collections.abc import Iterable, Iterator

from keras_tfm.text.files import (
    is_unicode,
    iterate_pairs,
    iterate_pairs_jsonl,
    iterate_pairs_tsv,
)

_log = logging.getLogger(__name__)


class Pairs:
    """Sentence pairs in memory, without those that have an empty side.

    A pair with an empty or blank side is dropped, counted in `report`, and said
    in a logged warning. The rest is kept as it came, in order.

    Args:
        source: list of strings, the sentences to translate.
        target: list of strings of the same length, their translations.
        name: string. What the report calls these pairs, such as a file name.

    Attributes:
        source: list of strings.
        target: list of strings of the same length.
        dropped: dictionary of counts: `"empty source"`, `"empty target"`,
            `"both empty"`.
        report: string, one line: pairs read, dropped and kept.

    Raises:
        ValueError: the sides differ in length, one holds half a character, or
            no pair is left.
        TypeError: a side is one string, or holds something else than strings.
    """

    def __init__(
        self, source: Iterable[str], target: Iterable[str], name: str = "pairs"
    ):
        source, target = _as_texts(source, "source"), _as_texts(target, "target")
        if len(source) != len(target):
            raise ValueError(
                f"{name}: each source needs its target, so both sides must be of "
                f"one length. Received: {len(source):,} source and "
                f"{len(target):,} target sentences. Align the two sides again."
            )
        filled = [
            (bool(first.strip()), bool(second.strip()))
            for first, second in zip(source, target, strict=True)
        ]
        kept = [index for index, sides in enumerate(filled) if all(sides)]
        self.source = [source[index] for index in kept]
        self.target = [target[index] for index in kept]
        self.dropped = {
            "empty source": filled.count((False, True)),
            "empty target": filled.count((True, False)),
            "both empty": filled.count((False, False)),
        }
        self.report = f"{name}: {len(source):,} pairs read, {self._drops()}, "
        self.report += f"{len(self):,} kept"
        if not kept:
            raise ValueError(
                "No pair is left, at least one is wanted. Received: "
                f"{self.report}. Check that both sides hold text."
            )
        if any(self.dropped.values()):
            _log.warning(self.report)

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return zip(self.source, self.target, strict=True)

    def _drops(self) -> str:
        total = sum(self.dropped.values())
        reasons = [f"{count:,} {why}" for why, count in self.dropped.items() if count]
        return f"{total:,} dropped" + (f" ({', '.join(reasons)})" if total else "")


def read_pairs(source, target) -> Pairs:
    """Reads two parallel files: line n of one translates line n of the other.

    Args:
        source: string or path of a UTF-8 file, plain or `.gz`.
        target: string or path of a UTF-8 file with as many lines.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is empty, not UTF-8, or the numbers of lines differ.
    """
    return _collect(iterate_pairs(source, target), f"{source}, {target}")


def read_pairs_tsv(path, source_column=0, target_column=1) -> Pairs:
    """Reads pairs from two columns of a tab-separated file.

    Quotes have no meaning: a field is what stands between two tabs.

    Args:
        path: string or path of a UTF-8 file, plain or `.gz`.
        source_column: int from 0, or the name of the column; a name makes the
            first line a header.
        target_column: int from 0, or the name of the column.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: a line has too few columns, the header lacks the name, or
            the file is empty or not UTF-8.
    """
    return _collect(iterate_pairs_tsv(path, source_column, target_column), path)


def read_pairs_jsonl(path, source_key: str, target_key: str) -> Pairs:
    """Reads pairs from a file with one JSON object a line.

    Args:
        path: string or path of a UTF-8 file, plain or `.gz`.
        source_key: string. Name of the source sentence in each object.
        target_key: string. Name of the target sentence in each object.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: a line is no JSON object, lacks a key, or holds something
            else than a string there; or the file is empty or not UTF-8.
    """
    return _collect(iterate_pairs_jsonl(path, source_key, target_key), path)


def _collect(pairs: Iterator[tuple[str, str]], name) -> Pairs:
    source, target = [], []
    for first, second in pairs:
        source.append(first)
        target.append(second)
    return Pairs(source, target, str(name))


def _as_texts(texts, side: str) -> list[str]:
    if isinstance(texts, str):
        raise TypeError(
            f"`{side}` must be a list of strings. Received one string: "
            f"{texts[:40]!r}. To read a file use `read_pairs`."
        )
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(
                f"`{side}` must hold strings only. Received at index {index}: "
                f"{text!r} of type {type(text).__name__}. Convert or remove it."
            )
        if not is_unicode(text):
            raise ValueError(
                f"`{side}` must hold whole characters. Received at index {index}: "
                f"{text[:80]!r}, with half of one (a lone surrogate). Mend or remove "
                "the pair."
            )
    return texts
