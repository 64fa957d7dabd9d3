"""The vocabulary of a run, and what its normalization changes in the text."""

import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from keras_tfm import pipelines, text
from keras_tfm.recipes import corpora, multilingual, runs
from keras_tfm.text.normalization import changed_characters, describe_change

if TYPE_CHECKING:  # which imports this module
    from keras_tfm.recipes import translation

MAX_CHANGES = 5  # characters


def make_vocabulary(
    flags: "translation.Flags",
    corpus: corpora.Corpus,
    out: pathlib.Path,
    parent: pipelines.Translator | None = None,
) -> text.Vocabulary:
    """Loads the vocabulary of a resumed run, takes that of the model to
    fine-tune, or trains one on the training pairs.

    Args:
        flags: `translation.Flags`.
        corpus: `corpora.Corpus`.
        out: path of the run folder, where the vocabulary is saved.
        parent: the model to fine-tune, or None.

    Returns:
        `text.Vocabulary`.
    """
    file = out / "vocabulary.model"
    if runs.is_resumable(out):
        return text.Vocabulary.load(file)
    if parent and flags.vocabulary_size is None:
        # `load_parent` accepts no other vocabulary.
        vocabulary = cast(text.Vocabulary, parent.vocabulary)
        multilingual.check_tags(flags, vocabulary)
    else:
        default = "identity" if flags.tokenized else "nmt_nfkc"
        vocabulary = text.Vocabulary.train(
            corpus.train.source + corpus.train.target,
            size=flags.vocabulary_size,
            model_type=flags.subword_model,
            split_digits=flags.data == "phrases",
            languages=multilingual.tagged_languages(flags),
            exact=False,
            **options(flags, corpus.train.target, default),
        )
    out.mkdir(parents=True, exist_ok=True)  # only after the input proved readable
    vocabulary.save(file)
    return vocabulary


def options(flags: Any, texts: Iterable[str], default: str = "nmt_nfkc") -> dict:
    """Returns options of `Vocabulary.train`, and prints what is normalized.

    Args:
        flags: flags with `normalization` and `character_coverage`.
        texts: iterable of str, the texts that a model is to write.
        default: str, the normalization where the flags leave it open.

    Returns:
        dict: `normalization`, and `character_coverage` if it is set.
    """
    normalization = flags.normalization or default
    changes = changed_characters(texts, normalization)
    if changes:
        examples = ", ".join(map(describe_change, changes[:MAX_CHANGES]))
        ending = ", ..." if len(changes) > MAX_CHANGES else ""
        count = sum(change[2] for change in changes)
        print(
            f"Normalization {normalization} changes {count:,} characters of the texts "
            f"to write ({examples}{ending}). --normalization identity keeps them."
        )
    coverage = flags.character_coverage
    return {"normalization": normalization} | (
        {} if coverage is None else {"character_coverage": coverage}
    )
