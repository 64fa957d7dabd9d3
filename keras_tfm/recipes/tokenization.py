"""How a translation run tokenizes: vocabularies and special tokens."""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_tfm import decode, pipelines, text
from keras_tfm.models import RecurrentSeq2Seq, Transformer
from keras_tfm.pipelines.texts import AnyVocabulary
from keras_tfm.recipes import corpora, multilingual, vocabularies

if TYPE_CHECKING:  # which imports this module
    from keras_tfm.recipes import translation


@dataclasses.dataclass(frozen=True)
class Tokenization:
    """Vocabularies of both sides, and the tokens around each text.

    Attributes:
        source: vocabulary of the sources.
        target: vocabulary of the targets, the same object for a joint one.
        special_tokens: `text.SpecialTokens` that batches add to each text.
        tag: ids of the language tag before each source to translate, which
            training texts spell out.
        options: `decode.Options` to translate with.
    """

    source: AnyVocabulary
    target: AnyVocabulary
    special_tokens: text.SpecialTokens = text.SpecialTokens()
    tag: tuple[int, ...] = ()
    options: decode.Options = decode.Options()

    @property
    def num_source_tokens(self) -> int:
        """The tokens that batches add to each source."""
        special = self.special_tokens
        return len(special.source_prefix) + len(special.source_suffix)

    def translator(
        self, model: Transformer | RecurrentSeq2Seq, options: dict, **config: Any
    ) -> pipelines.Translator:
        """Makes a translator of a model.

        Args:
            model: that reads and writes these tokens.
            options: changes of `decode.Options`.
            **config: fields of `pipelines.TextConfig`.
        """
        special = self.special_tokens
        return pipelines.Translator(
            model,
            self.source,
            None if self.target is self.source else self.target,
            self.options.replace(**options),
            source_prefix=(*self.tag, *special.source_prefix),
            source_suffix=special.source_suffix,
            target_prefix=special.target_prefix,
            **config,
        )


def make(
    flags: "translation.Flags",
    corpus: corpora.Corpus,
    out: pathlib.Path,
    parent: pipelines.Translator | None = None,
) -> Tokenization:
    """Takes the tokenization of the parent, or trains a vocabulary.

    A resumed run has the vocabulary that it trained.

    Args:
        flags: `translation.Flags`.
        corpus: `corpora.Corpus`.
        out: run folder, which exists; a trained vocabulary is saved there.
        parent: translator to fine-tune, or None.

    Raises:
        ValueError: the parent lacks a language tag, or its vocabulary cannot
            sample tokenizations.
    """
    if parent and flags.vocabulary_size is None:
        return _of_parent(flags, parent)
    if isinstance(corpus.train, text.EncodedCorpus):
        return _of_corpus(flags, corpus.train)

    def train():
        default = "identity" if flags.tokenized else "nmt_nfkc"
        return text.Vocabulary.train(
            corpus.train.source + corpus.train.target,
            size=flags.vocabulary_size,
            model_type=flags.subword_model,
            split_digits=flags.data == "phrases" or flags.copy_rate > 0,
            languages=multilingual.tagged_languages(flags),
            exact=False,
            **vocabularies.options(flags, corpus.train.target, default),
        )

    vocabulary = vocabularies.train_once(out, train, text.Vocabulary.load)
    return _with_tags(flags, vocabulary, parent)


def usual_length(corpus: corpora.Corpus, vocabulary: AnyVocabulary) -> int:
    """Returns the 95th percentile of the lengths of validation sources, in
    tokens.

    The translator splits longer texts into sentences: of an input longer than
    all training sources a model omits the end. Training sources would give a
    larger number where pairs are concatenated, and a model that has seen few
    concatenated pairs omits or repeats a sentence of several similar ones.
    """
    lengths = [len(row) for row in vocabulary.encode(list(corpus.validation.source))]
    return max(1, int(np.percentile(lengths, 95)))


def _with_tags(flags, vocabulary, parent=None):
    """The tokenization of a vocabulary whose tags training texts spell out."""
    special = text.SpecialTokens(source_suffix=_suffix(flags, vocabulary, parent))
    tag = tuple(multilingual.tag_ids(flags, vocabulary))
    return Tokenization(vocabulary, vocabulary, special, tag)


def _suffix(flags, vocabulary, parent):
    """The end token after each source, if asked for or if the parent has it."""
    is_ended = flags.source_end or (parent and parent.config.source_suffix)
    return (vocabulary.end_id,) if is_ended else ()


def _of_corpus(flags, corpus):
    """The tokenization that an encoded corpus was made with."""
    source, target = corpus.vocabulary, corpus.target_vocabulary
    special = text.SpecialTokens(source_suffix=_suffix(flags, source, None))
    return Tokenization(source, target, special)


def _of_parent(flags, parent):
    source, target = parent.vocabulary, parent.target_vocabulary
    sides = (source, target)
    can_sample = all(isinstance(side, text.Vocabulary) for side in sides)
    if flags.subword_sampling is not None and not can_sample:
        raise ValueError(
            "--subword-sampling needs SentencePiece vocabularies; got a parent with "
            f"{' and '.join(type(side).__name__ for side in sides)}. Leave it out."
        )
    options = parent.decoder.options
    if getattr(source, "languages", {}):
        multilingual.check_tags(flags, source)
        return dataclasses.replace(_with_tags(flags, source, parent), options=options)
    if flags.additional_targets:
        raise ValueError(
            "--additional-targets needs a model of this recipe with tags of languages; "
            f"got --from {flags.init_from!r}, whose vocabulary has none."
        )
    config = parent.config
    special = text.SpecialTokens(
        config.source_prefix,
        config.source_suffix or _suffix(flags, source, parent),
        config.target_prefix,
    )
    return Tokenization(source, target, special, options=options)
