"""`keras-tfm encode`."""

import dataclasses
import itertools
import os
import pathlib
import sys
import time
from collections.abc import Iterator

from keras_tfm.cli import output
from keras_tfm.cli.options import Encode
from keras_tfm.recipes.user_files import parse_column
from keras_tfm.text.encoded_corpus import EncodedCorpus
from keras_tfm.text.encoding import CorpusWriter, draw_held_out, find_corpus
from keras_tfm.text.pair_files import iterate_pairs, read_pairs
from keras_tfm.text.pairs import Pairs
from keras_tfm.text.tokenizers_vocabulary import load_vocabulary
from keras_tfm.text.vocabulary import Vocabulary

HELD_OUT = ("validation", "test")  # flags


def run(flags: Encode) -> None:
    """Tokenizes a corpus into a folder, or resumes what was stopped.

    Args:
        flags: `options.Encode`.
    """
    check(flags)
    identity = dataclasses.asdict(flags) | {"files": _fingerprints(flags)}
    del identity["out"]
    corpus = find_corpus(flags.out, identity)
    if corpus is not None:
        print(f"Complete already. {corpus.report}")
        return
    if os.path.exists(flags.out):
        raise FileExistsError(
            f"--out must not exist; got {flags.out!r}, which holds other content, or a "
            "corpus of other files or flags. Name another folder, or remove it."
        )
    with CorpusWriter(flags.out, identity) as writer:
        if writer.num_read:
            print(f"Resuming after {writer.num_read:,} pairs")
        writer.save_vocabularies(lambda: _vocabularies(flags))
        writer.save_held_out(lambda: _held_out(flags))
        writer.write(read(flags), Progress(writer.num_read))
        corpus = writer.finish(_languages(flags))
    _report(corpus)


def check(flags: Encode) -> None:
    """Rejects flags that exclude each other, before any text is read.

    Raises:
        ValueError: they do.
    """
    if (flags.vocabulary is None) == (flags.vocabulary_size is None):
        raise ValueError(
            "--vocabulary names a vocabulary, and --vocabulary-size learns one: give "
            f"one of them; got {flags.vocabulary!r} and {flags.vocabulary_size!r}."
        )
    if flags.target_vocabulary is not None and flags.vocabulary is None:
        raise ValueError(
            "--target-vocabulary needs --vocabulary; got --vocabulary-size "
            f"{flags.vocabulary_size}, which learns one for both sides."
        )
    if (flags.source_language is None) != (flags.target_language is None):
        raise ValueError(
            "--source-language and --target-language must be set together; got "
            f"{flags.source_language!r} and {flags.target_language!r}."
        )
    if flags.held_out < 1:
        raise ValueError(f"--held-out must be at least 1; got {flags.held_out}.")
    for name in HELD_OUT:
        files = getattr(flags, name)
        if files is not None and len(files.split(",")) > 2:
            raise ValueError(
                f"--{name} must be a file, or two separated by a comma; got {files!r}."
            )


def read(flags: Encode) -> Iterator[tuple[str, str]]:
    """Returns an iterator of the pairs of the files."""
    return iterate_pairs(
        flags.source,
        flags.target,
        **_columns(flags),
        languages=_languages(flags),
        max_bad_rate=flags.max_bad_rate,
    )


class Progress:
    """Prints on a terminal how many pairs are done.

    Args:
        first: int, pairs that were done before.
    """

    def __init__(self, first: int):
        self._first, self._start = first, time.monotonic()

    def __call__(self, count: int) -> None:
        if sys.stderr.isatty():
            rate = (count - self._first) / (time.monotonic() - self._start)
            line = f"\r{count:,} pairs, {rate:,.0f} per second"
            print(line, end="", file=sys.stderr, flush=True)


def _columns(flags):
    """The columns of a file with both sides."""
    names = ("source_column", "target_column")
    return {name: parse_column(getattr(flags, name)) for name in names}


def _languages(flags):
    languages = (flags.source_language, flags.target_language)
    return None if None in languages else languages


def _fingerprints(flags):
    """Returns names, sizes and times of all files that are read."""
    names = [flags.source, flags.target, flags.vocabulary, flags.target_vocabulary]
    for split in (flags.validation, flags.test):
        names += [] if split is None else split.split(",")
    names = [name for name in names if name is not None]
    for name in names:
        if not os.path.isfile(name):
            raise FileNotFoundError(
                f"FILE must be a file; got {name!r}. Check the name and the folder."
            )
    return output.fingerprints(*names)


def _vocabularies(flags):
    if flags.vocabulary is None:
        texts = itertools.chain.from_iterable(read(flags))
        source = Vocabulary.train(
            texts, flags.vocabulary_size, max_texts=flags.vocabulary_texts, exact=False
        )
        return source, source
    source = load_vocabulary(pathlib.Path(flags.vocabulary))
    if flags.target_vocabulary is None:
        return source, source
    return source, load_vocabulary(pathlib.Path(flags.target_vocabulary))


def _held_out(flags) -> dict[str, Pairs]:
    """Reads the validation and test pairs, and draws what is missing."""
    pairs = {}
    for name in HELD_OUT:
        if (value := getattr(flags, name)) is not None:
            files = value.split(",")
            columns = _columns(flags) if len(files) == 1 else {}
            pairs[name] = read_pairs(*files, languages=_languages(flags), **columns)
    if len(pairs) < 2:
        pairs = draw_held_out(read(flags), flags.held_out, flags.seed) | pairs
    return pairs


def _report(corpus: EncodedCorpus):
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(corpus.report)
    print(f"validation: {len(corpus.validation):,} pairs; test: {len(corpus.test):,}")
