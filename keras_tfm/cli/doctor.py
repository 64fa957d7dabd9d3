"""`keras-tfm doctor`."""

import collections
import gzip
import math
import os
import pathlib
import re
import unicodedata

import numpy as np

from keras_tfm.cli import lines
from keras_tfm.cli.options import Doctor
from keras_tfm.text.files import iterate_lines
from keras_tfm.text.normalization import (
    changed_characters,
    describe_change,
    normalizer,
)
from keras_tfm.text.tokenizers_vocabulary import load_vocabulary

# Factor by which a pair's length ratio differs from the median of the corpus.
UNUSUAL_RATIO = 3.0
# Log-likelihood ratio, in nats, from which two sides count as swapped.
SWAPPED = 8.0
# Control characters, private use, and replacements of undecodable bytes.
NOT_TEXT = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\ue000-\uf8ff\ufffd]")
MIN_CHARACTERS = 20  # of a copy, or of a pair that is judged by its lengths
AMBIGUOUS = "the source has another target in an earlier pair"
CHANGES = 10  # characters to list that the normalization changes


def run(flags: Doctor) -> int:
    """Counts the faults of a parallel corpus, and writes what has none.

    Args:
        flags: `options.Doctor`.

    Returns:
        int: 1 if there is a fault and `--strict` is set.
    """
    vocabulary = None if flags.vocabulary is None else _load(flags.vocabulary)
    _check_output(flags)
    normalizer(flags.normalization)  # rejects an unknown one
    report, rows = _read(flags)
    pairs = [pair for _, pair in rows]
    faults = find_faults(pairs, flags)
    print(f"{len(pairs):,} pairs")
    for note in report.notes:
        print(note)
    for description in report.descriptions():
        print(f"cannot be read, {description}")
    for title, indices in faults.items():
        percent = 100 * len(indices) / max(1, len(pairs))
        print(f"{title}: {len(indices):,} ({percent:.2f}%)")
        for index in indices[: flags.examples]:
            source, target = map(_shorten, pairs[index])
            print(f"    line {rows[index][0]}: {source!r} | {target!r}")
    for side, name in enumerate(("source", "target")):
        _report_changes([pair[side] for pair in pairs], name, flags.normalization)
    if vocabulary is not None and pairs:
        _report_tokens(pairs, vocabulary, flags.max_length)
    del faults[AMBIGUOUS]  # not a fault: a text has many translations
    if flags.output is not None:
        dropped = set().union(*faults.values())
        clean_pairs = [pair for n, pair in enumerate(pairs) if n not in dropped]
        write_pairs(flags.output, clean_pairs)
        print(f"{flags.output}: {len(clean_pairs):,} pairs without a fault")
    return int(flags.strict and any([*faults.values(), report.counts]))


def _read(flags):
    """Returns the report of the reader, and the pairs with their lines."""
    files = [flags.source] if flags.target is None else [flags.source, flags.target]
    report, rows = lines.pairs(files, flags)
    rows = list(report.readable(rows))
    if not report.rows:
        raise ValueError(f"FILE must hold at least one pair; got none in {files}.")
    return report, rows


def find_faults(pairs: list, flags: Doctor) -> dict[str, list[int]]:
    """Returns the indices of the pairs with each kind of fault.

    Args:
        pairs: list of pairs of str.
        flags: `options.Doctor`, with the files of the test set.
    """
    faults = {
        "a side is empty": empty(pairs),
        "both sides are equal": copies(pairs),
        "the pair is a repetition": repeated(pairs),
        AMBIGUOUS: ambiguous(pairs),
        "the lengths differ unusually": uneven(pairs),
        "the sides look swapped": swapped(pairs),
        "characters that are not text": not_text(pairs),
    }
    for side, name in enumerate(("source", "target")):
        file = getattr(flags, f"test_{name}")
        if file is not None:
            [path] = lines.check_files([file])
            texts = iterate_lines(lines.source(path), allow_empty=True)
            test = {normalize(line) for line in texts if line.strip()}
            faults[f"the {name} is in the test set"] = [
                n for n, pair in enumerate(pairs) if normalize(pair[side]) in test
            ]
    return faults


def write_pairs(path: str, pairs: list) -> None:
    """Writes pairs with tabs between their sides, whole or not at all.

    Args:
        path: str, compressed if it ends in `.gz`.
        pairs: list of pairs of str. A tab or line ending in them becomes a
            space.
    """
    partial = f"{path}.part"
    opener = gzip.open if path.endswith(".gz") else open
    with opener(partial, "wt", encoding="utf-8", newline="\n") as file:
        for pair in pairs:
            file.write("\t".join(re.sub("[\t\r\n]+", " ", s) for s in pair) + "\n")
    os.replace(partial, path)


def _check_output(flags):
    """Rejects an output that is an input, or no table with tabs."""
    if flags.output is None:
        return
    if not flags.output.removesuffix(".gz").endswith(".tsv"):
        raise ValueError(
            f"--output must end in .tsv or .tsv.gz; got {flags.output!r}. The cleaned "
            "corpus is a table with tabs."
        )
    inputs = [flags.source, flags.target, flags.test_source, flags.test_target]
    paths = [pathlib.Path(name).resolve() for name in inputs if name is not None]
    if pathlib.Path(flags.output).resolve() in paths:
        raise ValueError(
            f"--output must not be a file to read; got {flags.output!r}. Name another."
        )


def _report_changes(texts, name, normalization):
    changes = changed_characters(texts, normalization)
    count = sum(change[2] for change in changes)
    print(f"{name}: {normalization} changes {count:,} characters")
    for change in changes[:CHANGES]:
        print(f"    {describe_change(change)}")
    if len(changes) > CHANGES:
        print(f"    and {len(changes) - CHANGES:,} other characters")


def empty(pairs: list) -> list[int]:
    """Returns the indices of pairs with a blank side."""
    return [n for n, pair in enumerate(pairs) if not all(s.strip() for s in pair)]


def copies(pairs: list) -> list[int]:
    """Returns the indices of pairs that are not translated."""
    return [
        n
        for n, (source, target) in enumerate(pairs)
        if len(source) >= MIN_CHARACTERS and normalize(source) == normalize(target)
    ]


def repeated(pairs: list) -> list[int]:
    """Returns the indices of repetitions of an earlier pair."""
    unique: set = set()
    indices = []
    for index, pair in enumerate(pairs):
        if pair in unique:
            indices.append(index)
        unique.add(pair)
    return indices


def ambiguous(pairs: list) -> list[int]:
    """Returns the indices of pairs whose source had another target before."""
    targets: dict = {}
    indices = []
    for index, (source, target) in enumerate(pairs):
        if source.strip() and targets.setdefault(source, target) != target:
            indices.append(index)
    return indices


def uneven(pairs: list) -> list[int]:
    """Returns the indices of pairs with an unusual ratio of lengths."""
    lengths = np.array([[len(side.strip()) for side in pair] for pair in pairs])
    lengths = lengths.reshape(-1, 2)
    judged = (lengths > 0).all(axis=1) & (lengths.max(axis=1) >= MIN_CHARACTERS)
    if not judged.any():
        return []
    ratios = np.log(np.maximum(lengths[:, 0], 1) / np.maximum(lengths[:, 1], 1))
    distance = np.abs(ratios - np.median(ratios[judged]))
    return np.flatnonzero(judged & (distance > math.log(UNUSUAL_RATIO))).tolist()


def swapped(pairs: list) -> list[int]:
    """Returns the indices of pairs whose words are those of the other sides."""
    counts = [collections.Counter(), collections.Counter()]
    for pair in pairs:
        for counter, side in zip(counts, pair, strict=True):
            counter.update(normalize(side).split())
    words = set(counts[0]) | set(counts[1])
    totals = [counter.total() + len(words) for counter in counts]

    def log_ratio(word):
        """How much likelier a word is in sources than in targets, in nats."""
        source, target = (
            math.log((counter[word] + 1) / total)
            for counter, total in zip(counts, totals, strict=True)
        )
        return source - target

    ratios = {word: log_ratio(word) for word in words}
    indices = []
    for index, pair in enumerate(pairs):
        source, target = (normalize(side) for side in pair)
        evidence = sum(ratios[word] for word in target.split())
        evidence -= sum(ratios[word] for word in source.split())
        if source != target and evidence > SWAPPED:
            indices.append(index)
    return indices


def not_text(pairs: list) -> list[int]:
    """Returns the indices of pairs with control or undecodable characters."""
    return [n for n, pair in enumerate(pairs) if any(map(NOT_TEXT.search, pair))]


def normalize(text: str) -> str:
    """Removes differences of case, width and whitespace."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _load(name):
    if not pathlib.Path(name).is_file():
        raise FileNotFoundError(
            f"--vocabulary must be a file; got {name!r}, which is not one. A run has "
            "`vocabulary.model`, a preset `sentencepiece.model` in its folder."
        )
    return load_vocabulary(name)


def _report_tokens(pairs, vocabulary, max_length):
    for side, name in enumerate(("source", "target")):
        texts = [pair[side] for pair in pairs]
        rows = vocabulary.encode(texts)
        lengths = np.array([len(row) for row in rows])
        num_words = max(1, sum(len(text.split()) for text in texts))
        num_tokens = max(1, int(lengths.sum()))
        unknown = sum(row.count(vocabulary.unknown_id) for row in rows)
        num_bytes = sum(
            token.startswith("<0x") for row in rows for token in vocabulary.tokens(row)
        )
        longer = int((lengths > max_length).sum())
        print(
            f"{name}: {num_tokens / num_words:.2f} tokens per word, at most "
            f"{lengths.max():,} in a text, {longer:,} texts of more than {max_length} "
            f"tokens; {100 * unknown / num_tokens:.2f}% unknown, "
            f"{100 * num_bytes / num_tokens:.2f}% bytes"
        )


def _shorten(text):
    return text if len(text) <= 60 else text[:57] + "..."
