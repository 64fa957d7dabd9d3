"""Encoded corpora in the translation recipe: `--data FOLDER[,FOLDER ...]`."""

import dataclasses
from typing import TYPE_CHECKING

from keras_tfm.recipes import corpora, mixture
from keras_tfm.text import EncodedCorpus, Vocabulary
from keras_tfm.text.encoded_corpus import is_encoded

if TYPE_CHECKING:  # which imports this module
    from keras_tfm.recipes import translation

# Flags that work on text, or belong to `keras-tfm encode`.
NEEDS_TEXT = ("additional_data", "additional_sources", "additional_targets")
NEEDS_TEXT += ("subword_sampling", *mixture.RATES)
OF_ENCODE = ("source_column", "target_column", "held_out", "max_bad_rate")
OF_ENCODE += ("vocabulary_size", "subword_model", "normalization")
OF_ENCODE += ("character_coverage",)


def is_encoded_data(data: str) -> bool:
    """Returns whether `--data` names encoded corpora.

    Args:
        data: str, a folder, or several separated by commas.
    """
    return any(map(is_encoded, data.split(",")))


def load_corpus(flags: "translation.Flags") -> corpora.Corpus:
    """Opens encoded corpora.

    Args:
        flags: `translation.Flags`.

    Returns:
        `corpora.Corpus`, whose training set is a `text.EncodedCorpus`.

    Raises:
        ValueError: a flag needs text or is one of `keras-tfm encode`, or the
            corpus is of other languages, or has no validation or test pairs.
        FileNotFoundError: a folder is no encoded corpus.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(flags)}
    for names, fix in (
        (NEEDS_TEXT, "needs text, which an encoded corpus does not have. Leave it out"),
        (
            OF_ENCODE,
            "is a choice of `keras-tfm encode`, which has made it. Leave it out",
        ),
    ):
        for name in names:
            if getattr(flags, name) != defaults[name]:
                raise ValueError(
                    f"--{name.replace('_', '-')} {fix}; got {getattr(flags, name)!r} "
                    f"with --data {flags.data}."
                )
    train = EncodedCorpus(flags.data.split(","), flags.data_weights or None)
    expected = (flags.source, flags.target)
    if train.languages not in (expected, (None, None)):
        raise ValueError(
            f"--source and --target must be {' and '.join(train.languages)}, the "
            f"languages of --data {flags.data}; got {flags.source} and {flags.target}."
        )
    is_joint = train.vocabulary is train.target_vocabulary
    if flags.init_from is None and not (
        is_joint and isinstance(train.vocabulary, Vocabulary)
    ):
        raise ValueError(
            f"--data {flags.data} has vocabularies of a pretrained model: a new model "
            "needs one SentencePiece vocabulary for both sides. Name the model with "
            "--from, or encode the text again."
        )
    if train.validation is None or train.test is None:
        raise ValueError(
            f"--data {flags.data} must have validation and test pairs. Encode the text "
            "with `keras-tfm encode`, which draws them."
        )
    notes = train.report.splitlines()
    if train.languages == (None, None):
        notes.append("Its languages are taken from --source and --target.")
    return corpora.Corpus(
        train.folders[0].name,
        *expected,
        train,
        train.validation,
        train.test,
        license="the user's own",
        origin=flags.data,
        notes=notes,
    )
