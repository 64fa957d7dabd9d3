"""How long a text may be: training pairs, and sources to translate."""

from typing import TYPE_CHECKING

from keras_tfm import decode, pipelines
from keras_tfm.recipes import corpora, multilingual
from keras_tfm.recipes.tokenization import Tokenization
from keras_tfm.recipes.translation_defaults import AnyModel

if TYPE_CHECKING:  # which imports this module
    from keras_tfm.recipes import translation

MAX_LENGTH = 256  # tokens of either side of a training pair
MAX_SOURCE_LENGTH = 1_024  # tokens of a source to translate


def max_positions(
    flags: "translation.Flags", parent: pipelines.Translator | None = None
) -> int | None:
    """Returns the number of learned positions of a model; None if unlimited."""
    return flags.sequence_length if parent is None else parent.decoder.max_positions


def longest_side(
    flags: "translation.Flags", parent: pipelines.Translator | None = None
) -> int:
    """Returns the most tokens of either side of a training pair."""
    return min(MAX_LENGTH, max_positions(flags, parent) or MAX_LENGTH)


def longest_source(model: AnyModel) -> int:
    """Returns the tokens of the longest source that a model translates."""
    limit = decode.Capabilities.of(model).max_positions
    return min(MAX_SOURCE_LENGTH, limit or MAX_SOURCE_LENGTH)


def check_sources(
    flags: "translation.Flags",
    corpus: corpora.Corpus,
    tokens: Tokenization,
    parent: pipelines.Translator | None = None,
) -> None:
    """Rejects, before training, sources that could not be translated after it.

    Args:
        flags: complete `translation.Flags`.
        corpus: `corpora.Corpus`.
        tokens: `Tokenization`.
        parent: translator to fine-tune, or None.

    Raises:
        ValueError: a source of the validation or a test set is too long.
    """
    limit = min(MAX_SOURCE_LENGTH, max_positions(flags, parent) or MAX_SOURCE_LENGTH)
    limit -= tokens.num_source_tokens
    for name, pairs in {"validation": corpus.validation, **corpus.tests}.items():
        tagged = multilingual.tag(flags, pairs, flags.target)
        rows = tokens.source.encode(tagged.source)
        longest = max(range(len(rows)), key=lambda i: len(rows[i]))
        if len(rows[longest]) > limit:
            raise ValueError(
                f"Sources must have at most {limit:,} tokens; got "
                f"{len(rows[longest]):,} in pair {longest + 1} of the {name} set, "
                f"{pairs.source[longest][:60]!r}... Split it or leave it out."
            )
