"""Defaults of the classification recipe: flags for each corpus, and checks."""

import dataclasses
import math
import pathlib
from typing import TYPE_CHECKING

import numpy as np

from keras_tfm import models, text
from keras_tfm.layers.ngram_bag import MAX_BUCKETS, MIN_BUCKETS
from keras_tfm.pipelines.texts import AnyVocabulary
from keras_tfm.recipes import labeled_corpora, runs
from keras_tfm.text.pair_packing import count_special_tokens

if TYPE_CHECKING:  # which imports this module
    from keras_tfm.recipes import classification

NAMED_CORPORA = {
    "imdb": {
        "vocabulary_size": 16_000,
        "max_length": 1_000,
        "batch_tokens": 8_192,
        "epochs": 8,
        "learning_rate": 2e-3,
        "max_ngram": 3,
        "ngram_buckets": 2**20,
    },
    "sst2": {
        "vocabulary_size": 8_000,
        "max_length": 64,
        "batch_tokens": 2_048,
        "epochs": 3,
        "learning_rate": 1e-3,
        "size": "small",
        "pooling": "mean",
        "dropout": 0.1,
        "weight_decay": 0.1,
    },
    "trec": {
        "vocabulary_size": 4_000,
        "max_length": 64,
        "batch_tokens": 1_024,
        "epochs": 12,
        "learning_rate": 2e-3,
        "pooling": "mean",
        "weight_decay": 2.0,
    },
    "ag_news": {
        "vocabulary_size": 16_000,
        "max_length": 128,
        "batch_tokens": 4_096,
        "epochs": 6,
        "learning_rate": 2e-3,
        "pooling": "mean",
    },
}
OTHER_CORPORA = {
    "vocabulary_size": 8_000,
    "max_length": 256,
    "batch_tokens": 4_096,
    "epochs": 10,
    "learning_rate": 1e-3,
}
ANY_CORPUS = {
    "size": "tiny",
    "pooling": "attention",
    "dropout": 0.3,
    "word_dropout": 0.1,
    "average_last": 3,
    "patience": 3,
    "weight_decay": 0.5,
    "max_ngram": 2,
}
NGRAM_BUCKETS = 2**18
# Fine-tuning of a pretrained encoder.
FINE_TUNING = {
    "batch_tokens": 2_048,
    "epochs": 3,
    "learning_rate": 1e-4,
    "dropout": 0.1,
    "word_dropout": 0.0,
    "average_last": 1,
    "patience": 2,
    "weight_decay": 0.01,
    "max_ngram": 0,
}
FINE_TUNING_LENGTH = 256
# Small files: about 20 steps in an epoch and at least 8 texts in a batch; a run
# of at least 300 updates, 100 of them without a better score before it stops.
# With the defaults of larger corpora, few texts got 4 updates.
EPOCH_STEPS, BATCH_TEXTS = 20, 8
MIN_UPDATES, MIN_PATIENCE = 300, 100
MINIMUMS = {
    1: (
        *("epochs", "average_last", "patience", "batch_tokens", "max_length"),
        *("lora_rank", "save_every"),
    )
}
MINIMUMS[0] = ("frozen_layers", "pretraining_epochs", "max_ngram")


def check(flags: "classification.Flags") -> None:
    """Rejects flags that are wrong for every corpus.

    Args:
        flags: `classification.Flags`.

    Raises:
        ValueError: a flag is out of its range, or two exclude each other.
    """
    for minimum, names in MINIMUMS.items():
        runs.check_at_least(flags, minimum, names)
    runs.check_ranges(flags)
    buckets = flags.ngram_buckets
    if buckets is not None and not MIN_BUCKETS <= buckets <= MAX_BUCKETS:
        raise ValueError(
            f"--ngram-buckets must be {MIN_BUCKETS} to {MAX_BUCKETS:,}; got {buckets}."
        )
    if flags.hosts is not None and flags.model_devices > 1:
        raise ValueError(
            "--model-devices must be 1 with --hosts, since each host keeps the weights "
            f"of the best epoch; got {flags.model_devices}. Leave it out."
        )
    for name in ("subword_sampling", "normalization", "character_coverage"):
        value = getattr(flags, name)
        if value is not None and flags.subword_model == "wordpiece":
            raise ValueError(
                f"--{name.replace('_', '-')} needs SentencePiece; got "
                "--subword-model wordpiece. Leave out one of them."
            )
    frozen = flags.lora_rank or flags.frozen_layers
    if frozen and flags.init_from is None:
        raise ValueError(
            "--lora-rank and --frozen-layers need --from; got --lora-rank "
            f"{flags.lora_rank}, --frozen-layers {flags.frozen_layers}. Name a "
            "pretrained encoder."
        )
    if frozen and flags.pretraining_epochs:
        raise ValueError(
            "--pretraining-epochs trains all weights, which --lora-rank and "
            "--frozen-layers exclude. Leave out one of them."
        )
    names = ("size", "vocabulary_size", "normalization", "character_coverage")
    fixed = {name: getattr(flags, name) for name in names}
    fixed = {name: value for name, value in fixed.items() if value is not None}
    if flags.init_from is not None and fixed:
        raise ValueError(
            f"--from brings its own architecture and vocabulary; got {fixed} too. "
            "Leave these out."
        )


def check_labels(flags: "classification.Flags", train: text.LabeledDataset) -> None:
    """Rejects labels that cannot be told apart, and a separator without use.

    Args:
        flags: `classification.Flags`.
        train: `text.LabeledDataset`.

    Raises:
        ValueError: one class only, or no text has two labels.
    """
    if not train.multi_label:
        return
    if len(train.classes) < 2:
        raise ValueError(
            "Texts must have at least two different labels; got "
            f"{train.classes}. Label each text with one of two classes, such as yes "
            "and no, and leave --label-separator out."
        )
    if flags.label_separator is None:
        return
    if all(len(labels) == 1 for labels in train.labels):
        raise ValueError(
            f"--label-separator {flags.label_separator!r} must occur between the "
            f"labels of a text; got {len(train):,} texts with one label each, such as "
            f"{train.classes[:3]}. Name the separator of the file, or leave it out."
        )


def check_test_texts(vocabulary: AnyVocabulary, test: text.LabeledDataset) -> None:
    """Rejects, before training, texts that could not be classified after it."""
    sides = list(zip(*test.texts, strict=True)) if test.paired else [test.texts]
    for side in sides:
        for number, ids in enumerate(vocabulary.encode(list(side))):
            if not len(ids):
                raise ValueError(
                    "Each test text must have a token of the vocabulary; got "
                    f"{test.texts[number]!r}, which has none. Leave it out."
                )


def complete(flags: "classification.Flags") -> "classification.Flags":
    """Replaces each None by the default for the corpus.

    Args:
        flags: `classification.Flags`.

    Returns:
        `classification.Flags`.
    """
    defaults = {**ANY_CORPUS, **NAMED_CORPORA.get(flags.data, OTHER_CORPORA)}
    corpus = pathlib.Path(flags.data).resolve().name.split(".")[0]
    defaults["out"] = f"runs/{corpus}"
    if flags.init_from is not None:
        defaults |= FINE_TUNING
        defaults["max_length"] = min(defaults["max_length"], FINE_TUNING_LENGTH)
        defaults["out"] += f"-{pathlib.Path(flags.init_from).name}"
    unset = {k: v for k, v in defaults.items() if getattr(flags, k) is None}
    return dataclasses.replace(flags, **unset)


def fit_positions(
    flags: "classification.Flags", encoder: models.Encoder, requested: int | None
) -> "classification.Flags":
    """Lowers the default length to the learned positions of a pretrained
    encoder.

    Args:
        flags: `classification.Flags`, completed.
        encoder: `models.Encoder`.
        requested: int or None, `--max-length` of the command line.

    Returns:
        `classification.Flags`.

    Raises:
        ValueError: the requested length exceeds the learned positions.
    """
    positions = encoder.config["sequence_length"]
    if positions is None or flags.max_length <= positions:
        return flags
    if requested is None:
        return dataclasses.replace(flags, max_length=positions)
    raise ValueError(
        f"--max-length must be at most {positions}, the learned positions of "
        f"{flags.init_from!r}; got {requested}. Lower it, or leave it out."
    )


def fit_small_corpus(
    requested: "classification.Flags",
    flags: "classification.Flags",
    corpus: labeled_corpora.LabeledCorpus,
    vocabulary: AnyVocabulary,
) -> "classification.Flags":
    """Chooses batch size, epochs and patience so that small files are learned
    too.

    Flags of the command line stay.

    Args:
        requested: `classification.Flags` of the command line.
        flags: `classification.Flags`, completed.
        corpus: `labeled_corpora.LabeledCorpus`.
        vocabulary: of the texts.

    Returns:
        `classification.Flags`.
    """
    if flags.data in NAMED_CORPORA:
        return flags
    counts = [
        count_tokens(dataset, vocabulary, flags.max_length)
        for dataset in (corpus.train, corpus.validation)
    ]
    tokens, longest = int(counts[0].sum()), int(np.concatenate(counts).max())
    batch_tokens, changes = flags.batch_tokens, {}
    if requested.batch_tokens is None:
        few_texts = BATCH_TEXTS * tokens // len(corpus.train)
        least = max(tokens // EPOCH_STEPS, few_texts, longest, 1)
        batch_tokens = changes["batch_tokens"] = min(batch_tokens, least)
    steps = max(math.ceil(tokens / batch_tokens), 1)
    for name, updates in (("epochs", MIN_UPDATES), ("patience", MIN_PATIENCE)):
        if getattr(requested, name) is None:
            changes[name] = max(getattr(flags, name), math.ceil(updates / steps))
    return dataclasses.replace(flags, **changes)


def count_tokens(
    dataset: text.LabeledDataset, vocabulary: AnyVocabulary, max_length: int
) -> np.ndarray:
    """Counts the tokens of each text or pair, up to a maximum.

    Args:
        dataset: `text.LabeledDataset`.
        vocabulary: of the texts.
        max_length: int.

    Returns:
        int `(N,)`.
    """
    paired = dataset.paired
    sides = list(zip(*dataset.texts, strict=True)) if paired else [dataset.texts]
    counts = [[len(ids) for ids in vocabulary.encode(list(side))] for side in sides]
    special = count_special_tokens(vocabulary, len(sides))
    return np.minimum(np.sum(counts, axis=0) + special, max_length)


def warn_of_few_updates(updates: int) -> None:
    """Warns of a run that can hardly learn."""
    if updates < MIN_PATIENCE:
        print(
            f"Warning: the run has {updates:,} updates; a model learns little in fewer "
            f"than {MIN_PATIENCE}. Increase --epochs, or lower --batch-tokens."
        )
