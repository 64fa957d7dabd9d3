"""Parallel corpora for the recipes: named corpora, folders, files.

`phrases`   made from CLDR, see `recipes.phrases`; needs no network.
`multi30k`  29,000 captions in English, German and French, downloaded by URL.
`tatoeba`   everyday sentences, English with German, French, Spanish, Italian,
            from the folder that the environment variable KERAS_TFM_DATA names.

`recipes.downloads` looks for named files in KERAS_TFM_DATA first, laid out as
`multi30k/raw/train.de.gz`, `multi30k/tok/train.lc.norm.tok.de.gz`,
`tatoeba/eng-ita.tsv.gz`, `tatoeba/eng-ita.test.tsv.gz`; then it downloads them.
"""

import dataclasses
import difflib
import os
import pathlib
import random
from collections.abc import Iterable, Sequence

from keras_tfm.recipes import downloads, user_files
from keras_tfm.text import EncodedCorpus, Pairs, read_pairs
from keras_tfm.text.reading import MAX_BAD_RATE

NAMES = ("phrases", "multi30k", "tatoeba")
MULTI30K_LANGUAGES = ("de", "en", "fr")
MULTI30K_FILES = {
    "raw": "raw/{split}.{language}.gz",
    "tokenized": "tok/{split}.lc.norm.tok.{language}",
}
MULTI30K_SPLITS = ("train", "val", "test_2016_flickr")
# Scored too where they are beside the other files. They are not downloaded.
MULTI30K_MORE_TESTS = ("test_2017_flickr", "test_2018_flickr", "test_2017_mscoco")
# Its publisher replaces the exports, so that no checksum would hold for long.
TATOEBA_ADVICE = (
    "Tatoeba cannot be downloaded by URL. Set KERAS_TFM_DATA to a folder with "
    "tatoeba/{file}, or name a file of your own with a tab-separated pair on each "
    "line; https://www.manythings.org/anki offers such files."
)
TATOEBA_CODES = {"de": "deu", "es": "spa", "fr": "fra", "it": "ita"}


@dataclasses.dataclass
class Corpus:
    """Sentence pairs for one run, and where they come from.

    Attributes:
        name: str, the name in reports.
        source: str, source language such as `"en"`.
        target: str, target language.
        train: `Pairs` to train on, or an `EncodedCorpus`.
        validation: `Pairs` to tune on.
        test: `Pairs` to report.
        license: str.
        origin: str, the publisher or the files.
        notes: list of str, sentences to print: pairs drawn or dropped.
        more_tests: dict from the names of further test sets to their `Pairs`.
    """

    name: str
    source: str
    target: str
    train: Pairs | EncodedCorpus
    validation: Pairs
    test: Pairs
    license: str
    origin: str
    notes: list[str]
    more_tests: dict[str, Pairs] = dataclasses.field(default_factory=dict)

    @property
    def tests(self) -> dict[str, Pairs]:
        """All test sets by name, the reported one first."""
        return {"test": self.test, **self.more_tests}

    @property
    def held_out(self) -> list[tuple[str, str]]:
        """The pairs of the validation set and of all test sets."""
        sets = (self.validation, *self.tests.values())
        return [pair for pairs in sets for pair in pairs]


def load(
    data: str | os.PathLike | Sequence[str] = "phrases",
    source: str = "en",
    target: str = "de",
    multi30k_format: str = "tokenized",
    source_column: str | int | None = None,
    target_column: str | int | None = None,
    max_bad_rate: float = MAX_BAD_RATE,
    held_out: int = 1_000,
    seed: int = 0,
    additional: str | None = None,
) -> Corpus:
    """Loads a corpus by name, from a folder, or from files.

    A folder has `train`, `val` and `test` with the language as suffix, plain
    or `.gz`: `train.de`, `val.en.gz`. A single file is read by
    `keras_tfm.text.read_pairs`: `.tsv`, `.csv`, `.jsonl` or `.tmx`, plain or
    `.gz`; two files are parallel, line by line. A missing validation
    or test set is drawn from the training pairs by `seed`; training pairs that
    share a side with a drawn pair are dropped and counted. A folder may hold
    further test sets, such as `test_2017.de` and `test_2017.en`; so may the
    local folder of `multi30k`, as its publisher names them.

    Args:
        data: str, path or two paths: `"phrases"`, `"multi30k"`, `"tatoeba"`, a
            folder, a file, or two files (in one string, separated by a comma).
        source: str, source language such as `"en"`.
        target: str, target language.
        multi30k_format: `"tokenized"`, lower-cased and tokenized by Moses, as
            papers report BLEU, or `"raw"`.
        source_column: str, int or None, as in `read_pairs`, of a single file.
        target_column: str, int or None.
        max_bad_rate: float from 0 to 1, as in `read_pairs`.
        held_out: int >= 1, pairs to draw for a missing set.
        seed: int, draws the phrases and the missing sets.
        additional: str or None: a file, or two separated by a comma, of more
            training pairs such as back-translations. Pairs that share a side
            with the validation or test set are dropped and counted.

    Returns:
        `Corpus`.

    Raises:
        ValueError: an unknown name or language, a download with another
            checksum, or a file that cannot be read as pairs.
        FileNotFoundError: a file is missing.
        NotADirectoryError: KERAS_TFM_DATA is not a folder.
        ConnectionError: a download failed.
    """
    if source == target:
        raise ValueError(
            f"`source` and `target` must be different languages; got {source!r} twice."
        )
    if source_column is not None and (data in NAMES or os.path.isdir(str(data))):
        raise ValueError(
            "`source_column` and `target_column` are for a file with both languages; "
            f"got source_column={source_column!r} with data={data!r}. Leave them out."
        )
    options = {"languages": (source, target), "max_bad_rate": max_bad_rate}
    more_pairs = _read_additional(additional, options)
    if data == "phrases":
        corpus = _phrases(source, target, seed)
    elif data == "multi30k":
        corpus = _multi30k(source, target, multi30k_format)
    elif data == "tatoeba":
        corpus = _tatoeba(source, target, held_out, seed)
    else:
        columns = {"source_column": source_column, "target_column": target_column}
        corpus = _from_files(data, options | columns, held_out, seed)
    return _add(corpus, more_pairs, additional) if more_pairs else corpus


def hold_out(pairs: Pairs, count: int, seed: int) -> tuple[Pairs, Pairs, int]:
    """Draws pairs by seed, and keeps both of their sides out of the rest.

    Args:
        pairs: `Pairs`. All copies of a pair stay on one side of the split.
        count: int >= 1, distinct pairs to draw.
        seed: int.

    Returns:
        The drawn pairs; the rest; the number of pairs that were dropped from
        the rest because they share a source or a target with a drawn pair.

    Raises:
        ValueError: there are fewer than `2 * count` distinct pairs, or no pair
            would be left to train on.
    """
    distinct = list(dict.fromkeys(pairs))
    if not 1 <= count <= len(distinct) // 2:
        raise ValueError(
            "`held_out` must leave at least half of the distinct pairs for training; "
            f"got held_out={count:,} of {len(distinct):,} distinct pairs. Decrease "
            "it, or provide validation and test files."
        )
    drawn = random.Random(seed).sample(distinct, count)
    drawn_set = set(drawn)
    rest = [pair for pair in pairs if pair not in drawn_set]
    disjoint = _without_shared_sides(rest, drawn)
    if not disjoint:
        raise ValueError(
            f"`held_out` leaves no pair to train on: each of the {len(distinct):,} "
            f"distinct pairs shares a side with one of the {count:,} drawn. Choose "
            "fewer."
        )
    return _pairs(drawn), _pairs(disjoint), len(rest) - len(disjoint)


def separate(corpora: Sequence[Corpus]) -> list[Corpus]:
    """Drops training pairs that share a side with a held-out pair of any.

    A test sentence of one language pair may stand in the training set of
    another one.

    Args:
        corpora: list of `Corpus`, to be trained on together.

    Returns:
        list of `Corpus`. Each note starts with its languages.

    Raises:
        ValueError: a training set would be empty.
    """
    held_out = [pair for corpus in corpora for pair in corpus.held_out]
    separated = []
    for corpus in corpora:
        rows = _without_shared_sides(corpus.train, held_out)
        languages = f"{corpus.source}-{corpus.target}"
        if not rows:
            raise ValueError(
                f"No training pair of {languages} is left: each shares a side with a "
                "held-out pair of one of the languages. Hold out fewer, or name other "
                "languages."
            )
        note = (
            f"{len(rows):,} training pairs; {len(corpus.train) - len(rows):,} that "
            "share a side with a validation or test pair of any language were dropped."
        )
        notes = [f"{languages}: {sentence}" for sentence in (*corpus.notes, note)]
        separated.append(dataclasses.replace(corpus, train=_pairs(rows), notes=notes))
    return separated


def _without_shared_sides(pairs: Iterable, held_out: Iterable) -> list:
    """Returns the pairs that share neither side with a held-out pair."""
    sources, targets = map(set, zip(*held_out, strict=True))
    return [(s, t) for s, t in pairs if s not in sources and t not in targets]


def _pairs(rows):
    return Pairs(*map(list, zip(*rows, strict=True)))


def _phrases(source, target, seed):
    from keras_tfm.recipes.phrases import phrases

    english_first = source == "en"
    if not english_first and target != "en":
        raise ValueError(
            "`phrases` pairs English with another language; got "
            f"source={source!r}, target={target!r}. Make one of them 'en'."
        )
    corpus = phrases(target if english_first else source, seed)
    splits = [
        pairs if english_first else Pairs(pairs.target, pairs.source)
        for pairs in (corpus.train, corpus.validation, corpus.test)
    ]
    return Corpus(
        "phrases",
        source,
        target,
        *splits,
        license="Unicode License v3 (CLDR data, through Babel)",
        origin="https://cldr.unicode.org",
        notes=list(corpus.notes),
    )


def _multi30k(source, target, text_format):
    are_known = {source, target} <= set(MULTI30K_LANGUAGES)
    if text_format not in MULTI30K_FILES or not are_known:
        raise ValueError(
            f"`multi30k` has the languages {', '.join(MULTI30K_LANGUAGES)} in the "
            f"formats {', '.join(MULTI30K_FILES)}; got source={source!r}, "
            f"target={target!r}, multi30k_format={text_format!r}."
        )

    def _read(split, find=downloads.find):
        form = MULTI30K_FILES[text_format]
        names = [form.format(split=split, language=code) for code in (source, target)]
        files = [find("multi30k", name) for name in names]
        return None if None in files else read_pairs(*files)

    splits = [_read(split) for split in MULTI30K_SPLITS]
    tests = {name: _read(name, downloads.find_local) for name in MULTI30K_MORE_TESTS}
    tests = {name: pairs for name, pairs in tests.items() if pairs}
    return Corpus(
        f"multi30k, {text_format}",
        source,
        target,
        *splits,
        license="non-commercial research (captions of Flickr30k pictures)",
        origin="https://github.com/multi30k/dataset",
        notes=["The test set is test_2016_flickr.", *_overlap_notes(*splits, tests)],
        more_tests=tests,
    )


def _tatoeba(source, target, held_out, seed):
    codes = {side: TATOEBA_CODES.get(side) for side in (source, target)}
    foreign = target if source == "en" else source
    if "en" not in codes or not codes[foreign]:
        raise ValueError(
            f"`tatoeba` pairs English with one of {', '.join(TATOEBA_CODES)}; got "
            f"source={source!r}, target={target!r}. For another language name a file "
            "of your own."
        )
    columns = (0, 1) if source == "en" else (1, 0)
    splits = []
    for suffix in (".tsv", ".test.tsv"):
        file = f"eng-{codes[foreign]}{suffix}.gz"
        try:
            path = downloads.find("tatoeba", file)
        except FileNotFoundError as error:
            advice = TATOEBA_ADVICE.format(file=file)
            raise FileNotFoundError(f"{error} {advice}") from None
        splits.append(
            read_pairs(path, source_column=columns[0], target_column=columns[1])
        )
    (train, test), notes = splits, []
    validation, train = _draw("validation", train, held_out, seed, notes)
    return Corpus(
        "tatoeba",
        source,
        target,
        train,
        validation,
        test,
        license="CC-BY 2.0 (Tatoeba)",
        origin="https://tatoeba.org",
        notes=notes + _overlap_notes(train, validation, test),
    )


def _draw(split, pairs, held_out, seed, notes):
    """Holds out pairs, and adds a note that says so."""
    drawn, rest, dropped = hold_out(pairs, held_out, seed)
    notes.append(
        f"The {split} set is {len(drawn):,} training pairs drawn by seed {seed}; "
        f"{dropped:,} more that share a side with them were dropped."
    )
    return drawn, rest


def _read_additional(additional, options):
    """Reads additional training pairs."""
    if additional is None:
        return None
    paths = user_files.split_paths(additional)
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing or len(paths) > 2:
        problem = f"missing: {', '.join(missing)}" if missing else "more than two files"
        raise ValueError(
            "`additional` must be a .tsv, .csv, .jsonl or .tmx file, or two parallel "
            f"files separated by a comma; got {additional!r} ({problem})."
        )
    return read_pairs(*paths, **options)


def _add(corpus, more_pairs, origin):
    """Adds training pairs that share no side with a held-out pair."""
    rows = _without_shared_sides(more_pairs, corpus.held_out)
    note = (
        f"{len(rows):,} training pairs come from {origin}; "
        f"{len(more_pairs) - len(rows):,} more that share a side with a validation or "
        "test pair were dropped."
    )
    return dataclasses.replace(
        corpus,
        train=_pairs([*corpus.train, *rows]),
        notes=[*corpus.notes, note],
    )


def _from_files(data, options, held_out, seed):
    source, target = options["languages"]
    paths = user_files.split_paths(data) if isinstance(data, str) else data
    paths = [
        os.fspath(p) for p in (paths if isinstance(paths, list | tuple) else [paths])
    ]
    missing = [path for path in paths if not os.path.exists(path)]
    if missing or len(paths) > 2:
        nearest = difflib.get_close_matches(str(data).lower(), NAMES, n=1)
        problem = f"missing: {', '.join(missing)}" if missing else "more than two files"
        raise ValueError(
            f"`data` must be one of {', '.join(NAMES)}, a folder, a file, or two "
            f"parallel files; got {data!r} ({problem})."
            + (f" Did you mean {nearest[0]!r}?" if nearest else "")
        )
    tests = {}
    if len(paths) == 1 and pathlib.Path(paths[0]).is_dir():
        folder = (pathlib.Path(paths[0]), source, target, options["max_bad_rate"])
        splits = user_files.read_folder(*folder)
        tests = user_files.read_more_tests(*folder)
    else:
        splits = [read_pairs(*paths, **options), None, None]
    train, validation, test = splits
    notes = []
    if test is None:
        test, train = _draw("test", train, held_out, seed, notes)
    if validation is None:
        validation, train = _draw("validation", train, held_out, seed, notes)
    return Corpus(
        pathlib.Path(paths[0]).name,
        source,
        target,
        train,
        validation,
        test,
        license="the user's own",
        origin=", ".join(paths),
        notes=notes + _overlap_notes(train, validation, test, tests),
        more_tests=tests,
    )


def _overlap_notes(train, validation, test, more_tests=None):
    """Counts held-out sources that the training set contains too: a leak."""
    train_sources, notes = set(train.source), []
    sets = {"validation": validation, "test": test} | (more_tests or {})
    for split, pairs in sets.items():
        count = sum(sentence in train_sources for sentence in pairs.source)
        if count:
            notes.append(
                f"{count:,} of {len(pairs):,} {split} sources are in the training set "
                "too."
            )
    return notes
