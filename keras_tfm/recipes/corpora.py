"""Where the text of a run comes from: named corpora, folders, files.

`phrases`   made here from CLDR (see `keras_tfm.recipes.phrases`); no network.
`multi30k`  29,000 captions in English, German and French, by URL.
`tatoeba`   everyday sentences, English with German, French, Spanish, Italian,
            from the folder that the environment variable KERAS_TFM_DATA names.

`recipes.downloads` finds the files of the named ones: in KERAS_TFM_DATA, laid
out as `multi30k/raw/train.de.gz`, `multi30k/tok/train.lc.norm.tok.de.gz`,
`tatoeba/eng-ita.tsv.gz`, `tatoeba/eng-ita.test.tsv.gz`, or by URL.
"""

import dataclasses
import difflib
import os
import pathlib
import random
from collections.abc import Sequence

from keras_tfm.recipes import downloads, user_files
from keras_tfm.text import Pairs, read_pairs, read_pairs_tsv

NAMES = ("phrases", "multi30k", "tatoeba")
MULTI30K_LANGUAGES = ("de", "en", "fr")
MULTI30K_FILES = {
    "raw": "raw/{part}.{language}.gz",
    "tok": "tok/{part}.lc.norm.tok.{language}",
}
MULTI30K_PARTS = ("train", "val", "test_2016_flickr")
# Publishers replace their exports, so no checksum would hold for long.
TATOEBA = (
    "Tatoeba is not offered by URL. Set KERAS_TFM_DATA to a folder with "
    "tatoeba/{file}, or name a file of your own, a pair a line and a tab between "
    "the sides; https://www.manythings.org/anki has such files."
)
TATOEBA_CODES = {"de": "deu", "es": "spa", "fr": "fra", "it": "ita"}


@dataclasses.dataclass
class Corpus:
    """Pairs for one run, and where they come from.

    Args:
        name: str. The corpus, for a report.
        source: str. Language of the sources, such as `"en"`.
        target: str. Language of the targets.
        train: `Pairs` to train on.
        validation: `Pairs` to tune on.
        test: `Pairs` to report.
        licence: str.
        origin: str. The publisher, or the files.
        notes: list of str. Sentences to print: what was drawn, what dropped.
    """

    name: str
    source: str
    target: str
    train: Pairs
    validation: Pairs
    test: Pairs
    licence: str
    origin: str
    notes: list


def load(
    data: str | os.PathLike | Sequence[str] = "phrases",
    source: str = "en",
    target: str = "de",
    form: str = "tok",
    fields: tuple | None = None,
    held_out: int = 1_000,
    seed: int = 0,
    additional: str | None = None,
) -> Corpus:
    """Loads a corpus by its name, from a folder, or from files.

    A folder has `train`, `val` and `test` with the language as suffix, plain
    or `.gz`: `train.de`, `val.en.gz`. A single file is `.tsv` or `.jsonl`,
    plain or `.gz`; two files are parallel, line by line. Where a validation or
    test part is missing it is drawn from the training pairs by `seed`, and
    training pairs that share a side with one of it are dropped and counted.

    Args:
        data: str, path or two paths. `"phrases"`, `"multi30k"`, `"tatoeba"`, a
            folder, a file, or two files (in one string, a comma between them).
        source: str. Language to translate from, such as `"en"`.
        target: str. Language to translate into.
        form: str. Of Multi30k `"tok"`, lower-cased and tokenised by Moses, in
            which papers report BLEU, or `"raw"`.
        fields: pair, or `None` for the usual. Columns of a TSV, as numbers
            from 0 or as names in its header (usual: 0 and 1); keys of a JSONL
            (usual: `source` and `target`).
        held_out: int >= 1. Pairs to draw where a part is missing.
        seed: int. Draws the phrases, and the missing parts.
        additional: str or `None`. A file, or two with a comma between them, of
            pairs more to train on, such as back-translations; what shares a
            side with the validation or the test part is dropped and counted.

    Returns:
        `Corpus`.

    Raises:
        ValueError: the name or the languages are unknown, a downloaded file is
            not the one expected, or a file cannot be read as pairs.
        FileNotFoundError: a file is missing from the folder.
        NotADirectoryError: KERAS_TFM_DATA names no folder.
        ConnectionError: a file could not be fetched.
    """
    if source == target:
        raise ValueError(
            "A corpus has two languages. Received: "
            f"source={source!r}, target={target!r}. Choose two."
        )
    more = _read_more(additional, source, target)  # first: it may not be there
    if data == "phrases":
        corpus = _phrases(source, target, seed)
    elif data == "multi30k":
        corpus = _multi30k(source, target, form)
    elif data == "tatoeba":
        corpus = _tatoeba(source, target, held_out, seed)
    else:
        corpus = _own(data, source, target, fields, held_out, seed)
    return _add(corpus, more, additional) if more else corpus


def hold_out(pairs: Pairs, count: int, seed: int) -> tuple[Pairs, Pairs, int]:
    """Draws pairs by seed and keeps both their sides out of the rest.

    Args:
        pairs: `Pairs`. Repeats are kept on one side of the cut.
        count: int >= 1. Distinct pairs to draw.
        seed: int.

    Returns:
        The drawn pairs; the rest; how many more were dropped from the rest
        because they share a source or a target with a drawn pair.

    Raises:
        ValueError: there are fewer than `2 * count` distinct pairs, or nothing
            is left of them.
    """
    distinct = list(dict.fromkeys(pairs))
    if not 1 <= count <= len(distinct) // 2:
        raise ValueError(
            "At least half of the distinct pairs must be left for training. "
            f"Received: held_out={count:,} of {len(distinct):,} distinct pairs. "
            "Choose another number from 1 on, or name a part of its own."
        )
    drawn = random.Random(seed).sample(distinct, count)
    chosen = set(drawn)
    rest = [pair for pair in pairs if pair not in chosen]
    left = _sharing_no_side(rest, drawn)
    if not left:
        raise ValueError(
            f"Each of the {len(distinct):,} distinct pairs shares a side with one "
            f"of the {count:,} drawn, so none is left to train on. Choose fewer."
        )
    return _pairs(drawn), _pairs(left), len(rest) - len(left)


def apart(corpora: Sequence[Corpus]) -> list[Corpus]:
    """Keeps what one corpus holds out from being trained on with another.

    The test of one language may have sentences that stand, with another
    language beside them, in the training part of the next.

    Args:
        corpora: list of `Corpus`, to be trained on together.

    Returns:
        list of `Corpus`. Of their training parts each pair is dropped that
        shares a side with a validation or test pair of any; a note counts
        them. Each note begins with the languages that it is about.

    Raises:
        ValueError: nothing is left of a training part.
    """
    held_out = [
        pair for c in corpora for part in (c.validation, c.test) for pair in part
    ]
    found = []
    for corpus in corpora:
        rows = _sharing_no_side(corpus.train, held_out)
        languages = f"{corpus.source}-{corpus.target}"
        if not rows:
            raise ValueError(
                f"Each training pair of {languages} shares a side with what is held "
                "out of it or of another, so none is left. Hold out less, or name "
                "other languages."
            )
        note = (
            f"{len(rows):,} pairs are trained on; "
            f"{len(corpus.train) - len(rows):,} that share a side with a validation or "
            "test pair of any of the languages were dropped."
        )
        notes = [f"{languages}: {one}" for one in (*corpus.notes, note)]
        found.append(dataclasses.replace(corpus, train=_pairs(rows), notes=notes))
    return found


def join(pairs: Pairs, count: int, seed: int, spaces: tuple = (" ", " ")) -> Pairs:
    """Makes long pairs of short ones: two to four drawn, one after the other.

    A model of short sentences leaves out much of long texts; Kondo et al. 2021,
    section 3, https://aclanthology.org/2021.naacl-srw.18, train on such pairs.

    Args:
        pairs: `Pairs`, four at least.
        count: int >= 1. How many to make.
        seed: int.
        spaces: pair of str. What stands between sources, and between targets.

    Returns:
        `Pairs`, `count` of them.

    Raises:
        ValueError: there are fewer than four pairs.
    """
    rows = list(pairs)
    if len(rows) < 4:
        raise ValueError(f"Four pairs at least are joined. Received: {len(rows)}.")
    draw = random.Random(seed)
    chosen = (draw.sample(rows, draw.randint(2, 4)) for _ in range(count))
    joined = [zip(*each, strict=True) for each in chosen]
    return _pairs([tuple(map(str.join, spaces, sides)) for sides in joined])


def unpunctuate(pairs: Pairs, count: int, seed: int) -> list[tuple[str, str]]:
    """Makes pairs as people type them: without the mark at their ends.

    Of four of them one has its source in lower case besides, and one is in
    capitals. A model that has never seen such a source goes on and on, as it
    waits for the mark; Belinkov and Bisk 2018, section 6,
    https://arxiv.org/abs/1711.02173, train on the noise that is to come.

    Args:
        pairs: `Pairs`.
        count: int >= 1. How many to make at most: of each pair with marks, one.
        seed: int.

    Returns:
        list of pairs, empty where no pair has marks on both sides.
    """
    draw, rows = random.Random(seed), []
    found = [pair for pair in pairs if all(side != _bare(side) for side in pair)]
    for number, pair in enumerate(draw.sample(found, min(count, len(found)))):
        source, target = map(_bare, pair)
        if number % 4 == 1:
            source = source.lower()
        if number % 4 == 3:
            source, target = source.upper(), target.upper()
        if source and target:
            rows.append((source, target))
    return rows


def _bare(side):
    """A text without the marks of its last sentence."""
    bare = side.rstrip(" \u00a0\u202f.!?\u2026\u3002\uff01\uff1f")
    return bare.lstrip("\u00bf\u00a1") if bare != side else side


def _sharing_no_side(pairs, held_out):
    """The pairs whose source and target are those of no held-out pair."""
    sources, targets = map(set, zip(*held_out, strict=True))
    return [(s, t) for s, t in pairs if s not in sources and t not in targets]


def _pairs(rows):
    return Pairs(*map(list, zip(*rows, strict=True)))


def _phrases(source, target, seed):
    from keras_tfm.recipes.phrases import phrases

    english_first = source == "en"
    if not english_first and target != "en":
        raise ValueError(
            "Phrases are English and another language. Received: "
            f"source={source!r}, target={target!r}. Make one of them 'en'."
        )
    found = phrases(target if english_first else source, seed)
    parts = [
        part if english_first else Pairs(part.target, part.source)
        for part in (found.train, found.validation, found.test)
    ]
    return Corpus(
        "phrases",
        source,
        target,
        *parts,
        licence="Unicode License v3 (CLDR data, through Babel)",
        origin="https://cldr.unicode.org",
        notes=list(found.notes),
    )


def _multi30k(source, target, form):
    if form not in MULTI30K_FILES or not {source, target} <= set(MULTI30K_LANGUAGES):
        raise ValueError(
            f"Multi30k is offered in {', '.join(MULTI30K_LANGUAGES)} and in the forms "
            f"{', '.join(MULTI30K_FILES)}. Received: source={source!r}, "
            f"target={target!r}, form={form!r}."
        )
    parts = []
    for part in MULTI30K_PARTS:
        files = [
            MULTI30K_FILES[form].format(part=part, language=language)
            for language in (source, target)
        ]
        parts.append(read_pairs(*[downloads.find("multi30k", file) for file in files]))
    return Corpus(
        f"multi30k, {form}",
        source,
        target,
        *parts,
        licence="non-commercial research (captions of Flickr30k pictures)",
        origin="https://github.com/multi30k/dataset",
        notes=["The test part is test_2016_flickr.", *_shared_notes(*parts)],
    )


def _tatoeba(source, target, held_out, seed):
    codes = {side: TATOEBA_CODES.get(side) for side in (source, target)}
    other = target if source == "en" else source
    if "en" not in codes or not codes[other]:
        raise ValueError(
            f"Tatoeba pairs English with one of {', '.join(TATOEBA_CODES)}. "
            f"Received: source={source!r}, target={target!r}. For another language "
            "name a file of your own."
        )
    columns = (0, 1) if source == "en" else (1, 0)
    parts = []
    for suffix in (".tsv", ".test.tsv"):
        file = f"eng-{codes[other]}{suffix}.gz"
        try:
            path = downloads.find("tatoeba", file)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{error} {TATOEBA.format(file=file)}") from None
        parts.append(read_pairs_tsv(path, *columns))
    (train, test), notes = parts, []
    validation, train = _draw("validation", train, held_out, seed, notes)
    return Corpus(
        "tatoeba",
        source,
        target,
        train,
        validation,
        test,
        licence="CC-BY 2.0 (Tatoeba)",
        origin="https://tatoeba.org",
        notes=notes + _shared_notes(train, validation, test),
    )


def _draw(part, pairs, held_out, seed, notes):
    """Holds pairs out and notes what it did."""
    drawn, rest, dropped = hold_out(pairs, held_out, seed)
    notes.append(
        f"The {part} part is {len(drawn):,} training pairs drawn by seed {seed}; "
        f"{dropped:,} more that share a side with them were dropped."
    )
    return drawn, rest


def _read_more(additional, source, target):
    """Reads pairs that are to be trained on besides a corpus' own."""
    if additional is None:
        return None
    paths = additional.split(",")
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing or len(paths) > 2:
        raise ValueError(
            "Additional pairs are a .tsv or .jsonl file, or two parallel files with "
            f"a comma between them. Received: {additional!r}; there is no file "
            f"{' and no '.join(map(repr, missing)) or 'for a third side'}."
        )
    return user_files.read_files(paths, source, target, None)


def _add(corpus, more, origin):
    """Adds to the training part what shares no side with a held-out pair."""
    kept = _sharing_no_side(more, [*corpus.validation, *corpus.test])
    dropped = len(more) - len(kept)
    note = (
        f"{len(kept):,} pairs of {origin} are trained on too; {dropped:,} more "
        "that share a side with a validation or test pair were dropped."
    )
    return dataclasses.replace(
        corpus,
        train=_pairs([*corpus.train, *kept]),
        notes=[*corpus.notes, note],
    )


def _own(data, source, target, fields, held_out, seed):
    """Loads a folder or files of the user's own."""
    if isinstance(data, os.PathLike) or isinstance(data, str) and os.path.exists(data):
        paths = [os.fspath(data)]
    else:
        paths = data.split(",") if isinstance(data, str) else list(map(os.fspath, data))
    missing = [repr(path) for path in paths if not os.path.exists(path)]
    if missing or len(paths) > 2:
        near = difflib.get_close_matches(str(data).lower(), NAMES, n=1)
        raise ValueError(
            f"Data are {', '.join(NAMES)}, a folder, a file, or two parallel files. "
            f"Received: {data!r}; there is no {' and no '.join(missing) or 'third'}. "
            + (f"Did you mean {near[0]!r}?" if near else "Check the name.")
        )
    if len(paths) == 1 and pathlib.Path(paths[0]).is_dir():
        parts = user_files.read_folder(pathlib.Path(paths[0]), source, target)
    else:
        parts = [user_files.read_files(paths, source, target, fields), None, None]
    train, validation, test = parts
    notes = []
    if test is None:
        test, train = _draw("test", train, held_out, seed, notes)
    if validation is None:
        validation, train = _draw("validation", train, held_out, seed, notes)
    notes += _shared_notes(train, validation, test)
    return Corpus(
        pathlib.Path(paths[0]).name,
        source,
        target,
        train,
        validation,
        test,
        licence="the user's own",
        origin=", ".join(paths),
        notes=notes,
    )


def _shared_notes(train, validation, test):
    """Says how many held-out sources stand in training too: a leak."""
    known, notes = set(train.source), []
    for part, pairs in (("validation", validation), ("test", test)):
        count = sum(sentence in known for sentence in pairs.source)
        if count:
            notes.append(
                f"{count:,} of {len(pairs):,} {part} sources are in the training "
                "part too."
            )
    return notes
