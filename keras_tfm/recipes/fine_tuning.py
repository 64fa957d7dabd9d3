"""Fine-tuning: the model to start from, and a new vocabulary for it.

Source: Aji et al. 2020, section 4, for tokens that both vocabularies have,
https://aclanthology.org/2020.acl-main.688; Gee et al. 2022, section 3, for
tokens that only the new one has,
https://aclanthology.org/2022.emnlp-industry.41
"""

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_tfm import pipelines, text
from keras_tfm.pipelines.texts import AnyVocabulary
from keras_tfm.recipes import corpora, known_words
from keras_tfm.recipes.translation_defaults import AnyModel
from keras_tfm.zoo.imported import TEXT_STEPS

if TYPE_CHECKING:  # which imports this module
    from keras_tfm.recipes import translation


def load_parent(flags: "translation.Flags") -> pipelines.Translator | None:
    """Loads the translator to fine-tune.

    Args:
        flags: `translation.Flags`; `init_from` is a run folder, a preset, or a
            model of another program, see `Translator.from_preset`.

    Returns:
        `pipelines.Translator`; None to train from scratch.

    Raises:
        ValueError: the model is no encoder and decoder, or a new vocabulary is
            asked for, and it has two, or another kind, or a projection of its
            own.
    """
    if flags.init_from is None:
        return None
    parent = pipelines.Translator.from_preset(
        flags.init_from, flags.from_source_language, flags.from_target_language
    )
    model = parent.model
    if not isinstance(model, AnyModel):
        raise ValueError(
            "--from must be a Transformer with an encoder and a decoder, or a "
            f"recurrent model; got {flags.init_from!r}, a {type(model).__name__}."
        )
    if flags.vocabulary_size is not None and (
        not isinstance(parent.vocabulary, text.Vocabulary)
        or parent.target_vocabulary.model != parent.vocabulary.model
        or model.projection is not None
    ):
        raise ValueError(
            "--vocabulary-size needs a model with one SentencePiece vocabulary and "
            f"tied embeddings; got --from {flags.init_from!r}, which has others. Leave "
            "it out to keep the vocabulary."
        )
    return parent


def text_steps(
    flags: "translation.Flags",
    corpus: corpora.Corpus,
    parent: pipelines.Translator | None,
) -> dict[str, Any]:
    """Returns the steps around the model, which a fine-tuned one keeps.

    Args:
        flags: `translation.Flags` of the run.
        corpus: `corpora.Corpus`, whose words the model learns too.
        parent: `pipelines.Translator`, or None.

    Returns:
        dict of fields of `pipelines.TextConfig`.
    """
    if parent is None:
        return {}
    names = (*TEXT_STEPS, "stand_ins", "final_mark_words")
    steps = {name: getattr(parent.config, name) for name in names}
    steps["lexicon"] = None  # of the words that the parent knew badly
    if earlier := steps["known_words"]:
        steps["known_words"] = known_words.all_words(flags, corpus, earlier) or ()
    return steps


def initialize(
    parent: pipelines.Translator, vocabulary: AnyVocabulary, **config: Any
) -> AnyModel:
    """Makes a model with the weights of another.

    Args:
        parent: translator to fine-tune.
        vocabulary: of the new model's sources.
        **config: changes of the configuration, such as `dropout=0.1`.
    """
    model = parent.model
    if vocabulary.model != parent.vocabulary.model:
        model, shared = with_vocabulary(model, parent.vocabulary, vocabulary, **config)
        print(f"{shared:.0%} of the subword tokens are tokens of the parent model.")
        return model
    copy = type(model).from_config(model.get_config() | config)
    copy.set_weights(model.get_weights())
    return copy


def with_vocabulary(
    model: AnyModel, old: text.Vocabulary, new: text.Vocabulary, **config: Any
) -> tuple[AnyModel, float]:
    """Makes a model with the same weights, for another vocabulary.

    A token of both vocabularies keeps its vector and its bias. A new token
    starts as the mean of the old tokens that spell it, or as in a new model if
    none of its characters is known.

    Args:
        model: with tied embeddings, for `old`.
        old: `text.Vocabulary`.
        new: `text.Vocabulary`.
        **config: further changes of the configuration, such as `dropout=0.1`.

    Returns:
        The model, and the fraction of new tokens that the old vocabulary has.

    Raises:
        ValueError: the model has an untied output projection.
    """
    if model.projection is not None:
        raise ValueError(
            "`model` must have tied embeddings (no separate output projection); got "
            f"tie={model.config['tie']!r}."
        )
    sizes = {"vocabulary_size": new.size, "target_vocabulary_size": None}
    copy = type(model).from_config(model.get_config() | sizes | config)
    spelling = spell(old, new)
    by_token = {id(variable) for variable in token_variables(model)}
    for source, target in zip(model.weights, copy.weights, strict=True):
        if id(source) not in by_token:
            target.assign(source)
            continue
        rows = keras.ops.convert_to_numpy(source)
        new_rows = keras.ops.convert_to_numpy(target).copy()
        for token, old_ids in enumerate(spelling):
            if old_ids:
                new_rows[token] = rows[old_ids].mean(axis=0)
        target.assign(new_rows)
    old_tokens = set(old.tokens(range(old.size)))
    shared = np.mean([token in old_tokens for token in new.tokens(range(new.size))])
    return copy, float(shared)


def token_variables(model: AnyModel) -> list[keras.Variable]:
    """Returns the variables of a model that have a row for each token."""
    embeddings = (model.source_embedding, model.target_embedding)
    variables = [embedding.embeddings for embedding in embeddings]
    return variables + [layer.bias for layer in embeddings if layer.logits_bias]


def spell(old: text.Vocabulary, new: text.Vocabulary) -> list[list[int]]:
    """Spells the tokens of a vocabulary in those of another.

    Args:
        old: `text.Vocabulary` to spell in.
        new: `text.Vocabulary` to be spelled.

    Returns:
        For each token of `new` the ids of the longest tokens of `old` that
        follow each other in it, from the left. Characters without a token are
        left out.
    """
    ids = {token: row for row, token in enumerate(old.tokens(range(old.size)))}
    longest = max(map(len, ids))
    spellings = []
    for token in new.tokens(range(new.size)):
        spelling, start = [], 0
        while start < len(token):
            ends = range(min(len(token), start + longest), start, -1)
            end = next((end for end in ends if token[start:end] in ids), None)
            if end is not None:
                spelling.append(ids[token[start:end]])
            start = end or start + 1
        spellings.append(spelling)
    return spellings
