"""`keras-tfm doctor`."""

import contextlib
import gzip
import os
import pathlib
import re
from typing import Any, NamedTuple

import numpy as np

from keras_tfm.cli import lines
from keras_tfm.cli.options import Doctor
from keras_tfm.cli.pair_faults import AMBIGUOUS, HeldOut, find_faults, normalize
from keras_tfm.file_reading import read_json
from keras_tfm.recipes.user_files import SPLIT_NAMES, find_corpora
from keras_tfm.text.files import iterate_lines
from keras_tfm.text.normalization import (
    changed_characters,
    describe_change,
    normalizer,
)
from keras_tfm.text.reading import ReadingReport
from keras_tfm.text.sides import Sides, is_header
from keras_tfm.text.tokenizers_vocabulary import load_vocabulary

CHANGES = 10  # characters to list that the normalization changes
MAX_REASONS = 10  # files of a folder to list that hold no pairs


class Examination(NamedTuple):
    """What was found in a corpus.

    Attributes:
        pairs: list of pairs of str, those without a fault.
        sides: names of both sides, or None.
        is_faulty: bool. A pair has a fault, or a row cannot be read.
    """

    pairs: list
    sides: Sides | None
    is_faulty: bool


def run(flags: Doctor) -> int:
    """Counts the faults of parallel corpora, and writes what has none.

    Args:
        flags: `options.Doctor`.

    Returns:
        int: 1 if there is a fault and `--strict` is set.
    """
    vocabulary = None if flags.vocabulary is None else _load(flags.vocabulary)
    _check_output(flags)
    normalizer(flags.normalization)  # rejects an unknown one
    if os.path.isdir(flags.source):
        is_faulty = _examine_folder(flags, vocabulary)
    else:
        files = [name for name in (flags.source, flags.target) if name is not None]
        held_out = _test_set(flags)
        report, rows = _read(files, flags)
        if not report.rows and not report.counts:
            raise ValueError(
                f"FILE must hold at least one pair; got none in {files}. "
                "Check that it was written completely."
            )
        examination = examine(flags, report, rows, held_out, vocabulary)
        is_faulty = examination.is_faulty
        if flags.output is not None:
            write_pairs(flags.output, examination.pairs, examination.sides)
    return int(flags.strict and is_faulty)


def _examine_folder(flags, vocabulary):
    """Examines each corpus of a folder, and counts the other files."""
    corpora, reasons = _corpora(flags)
    tests = _test_set(flags)
    for corpus in corpora:
        if corpus.name in (*SPLIT_NAMES[1], *SPLIT_NAMES[2]):
            # A fault that ends it is reported when the corpus is examined.
            with contextlib.suppress(ValueError, OSError):
                _, rows = _read(corpus.files, flags)
                tests[corpus.title] = _normalized(pair for _, pair in rows)
    num_read, is_faulty = 0, False
    for corpus in corpora:
        try:
            report, rows = _read(corpus.files, flags)
        except (ValueError, OSError) as error:
            reasons[corpus.title] = str(error)
            continue
        if not rows:
            reasons[corpus.title] = report.descriptions()[0]
            continue
        num_read += 1
        print(f"{corpus.title}:")
        held_out = tests if corpus.name in SPLIT_NAMES[0] else {}
        examination = examine(flags, report, rows, held_out, vocabulary)
        is_faulty |= examination.is_faulty
        if flags.output is not None:
            os.makedirs(flags.output, exist_ok=True)
            file = os.path.join(flags.output, f"{corpus.name}.tsv")
            write_pairs(file, examination.pairs, corpus.sides or examination.sides)
        print()
    print(f"{num_read:,} corpora, and {len(reasons):,} other files without pairs")
    for name, reason in list(reasons.items())[:MAX_REASONS]:
        print(f"    {name}: {reason}")
    if not num_read:
        raise ValueError(f"No file in {flags.source!r} has pairs that can be read.")
    return is_faulty


def _corpora(flags):
    """Returns the corpora of a folder, and why other files hold none."""
    languages = (flags.source_column, flags.target_column)
    corpora, reasons = find_corpora(
        flags.source, None if None in languages else languages
    )
    run_flags = pathlib.Path(flags.source, "flags.json")
    if not corpora or run_flags.is_file():
        content = ", ".join(sorted(os.listdir(flags.source))[:8]) or "an empty folder"
        fix = "Name the folder or the files of a corpus."
        if run_flags.is_file():
            data = read_json(run_flags).get("data")
            fix = f"It is the folder of a run; its corpus is {data!r}."
        raise ValueError(
            "FILE must be a corpus, or a folder with .tsv, .csv, .jsonl or .tmx files, "
            "or with parallel files such as train.en and train.de; got "
            f"{flags.source!r} with {content}. {fix}"
        )
    return corpora, reasons


def examine(
    flags: Doctor, report: ReadingReport, rows: list, held_out: HeldOut, vocabulary: Any
) -> Examination:
    """Prints what is wrong with a corpus.

    Args:
        flags: `options.Doctor`.
        report: `ReadingReport` of its reader.
        rows: list of pairs of str, each with its line.
        held_out: as in `find_faults`.
        vocabulary: to report how it tokenizes the texts, or None.

    Returns:
        `Examination`.
    """
    pairs = [pair for _, pair in rows]
    faults = find_faults(pairs, held_out)
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
    for side, name in enumerate(lines.SIDES):
        _report_changes([pair[side] for pair in pairs], name, flags.normalization)
    if vocabulary is not None and pairs:
        _report_tokens(pairs, vocabulary, flags.max_length)
    del faults[AMBIGUOUS]  # not a fault: a text has many translations
    dropped = set().union(*faults.values())
    clean_pairs = [pair for n, pair in enumerate(pairs) if n not in dropped]
    return Examination(clean_pairs, report.sides, bool(dropped or report.counts))


def _read(files, flags):
    """Returns the report of the reader, and the pairs with their lines."""
    # In a folder the columns are also the languages of parallel files.
    is_folder = os.path.isdir(flags.source)
    columns = None if is_folder and len(files) > 1 else flags
    report, rows = lines.pairs(files, columns)
    return report, list(report.readable(rows))


def _test_set(flags):
    """Returns the texts of `--test-source` and `--test-target`, normalized."""
    sides = []
    for file in (flags.test_source, flags.test_target):
        texts = []
        if file is not None:
            [name] = lines.check_files([file])
            texts = iterate_lines(lines.source(name), allow_empty=True)
        sides.append({normalize(text) for text in texts if text.strip()})
    return {"the test set": tuple(sides)}


def _normalized(pairs):
    sides = [*zip(*pairs, strict=True)] or [(), ()]
    return tuple({normalize(text) for text in side if text.strip()} for side in sides)


def write_pairs(path: str, pairs: list, sides: Sides | None = None) -> None:
    """Writes pairs with tabs between their sides, whole or not at all.

    Args:
        path: str, compressed if it ends in `.gz`.
        pairs: list of pairs of str. A tab or line ending in them becomes a
            space.
        sides: names of both sides. They become a header if a reader of pairs
            recognizes it.
    """
    header = [sides] if sides is not None and is_header(sides, None) else []
    partial = f"{path}.part"
    opener = gzip.open if path.endswith(".gz") else open
    with opener(partial, "wt", encoding="utf-8", newline="\n") as file:
        for pair in (*header, *pairs):
            file.write("\t".join(re.sub("[\t\r\n]+", " ", s) for s in pair) + "\n")
    os.replace(partial, path)
    print(f"{path}: {len(pairs):,} pairs without a fault")


def _check_output(flags):
    """Rejects an output that is an input, or of another kind."""
    is_folder = os.path.isdir(flags.source)
    if is_folder and flags.target is not None:
        raise ValueError(
            "FILE must be one folder, or two parallel files; got the folder "
            f"{flags.source!r} and {flags.target!r}. Leave out one of them."
        )
    if flags.output is None:
        return
    is_table = flags.output.removesuffix(".gz").endswith(".tsv")
    if is_table == is_folder or (is_folder and os.path.isfile(flags.output)):
        expected = "a folder" if is_folder else "a file that ends in .tsv or .tsv.gz"
        raise ValueError(
            f"--output must be {expected} for {flags.source!r}; got {flags.output!r}. "
            "A cleaned corpus is a table with tabs."
        )
    inputs = [flags.source, flags.target, flags.test_source, flags.test_target]
    paths = [pathlib.Path(name).resolve() for name in inputs if name is not None]
    path = pathlib.Path(flags.output).resolve()
    if path in paths:
        raise ValueError(
            f"--output must not be what is read; got {flags.output!r}. Name another."
        )
    if not is_folder and not path.parent.is_dir():
        raise FileNotFoundError(
            f"--output must be in an existing folder; got {flags.output!r}. Create "
            f"{os.fspath(path.parent)!r} first."
        )


def _report_changes(texts, name, normalization):
    changes = changed_characters(texts, normalization)
    count = sum(change[2] for change in changes)
    noun = "character" if count == 1 else "characters"
    print(f"{name}: {normalization} changes {count:,} {noun}")
    for change in changes[:CHANGES]:
        print(f"    {describe_change(change)}")
    if len(changes) > CHANGES:
        print(f"    and {len(changes) - CHANGES:,} more")


def _load(name):
    if not pathlib.Path(name).is_file():
        raise FileNotFoundError(
            f"--vocabulary must be a file; got {name!r}, which is not one. A run has "
            "`vocabulary.model`, a preset `sentencepiece.model` in its folder."
        )
    return load_vocabulary(name)


def _report_tokens(pairs, vocabulary, max_length):
    for side, name in enumerate(lines.SIDES):
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
