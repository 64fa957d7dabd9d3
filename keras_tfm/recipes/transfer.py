"""A trained model with another vocabulary: what it knows, for other languages.

Follows  Aji et al. 2020, section 4, for the pieces that both have,
         https://aclanthology.org/2020.acl-main.688; Gee et al. 2022, section 3,
         for those that only the new one has,
         https://aclanthology.org/2022.emnlp-industry.41
"""

import keras
import numpy as np

from keras_tfm import text


def with_vocabulary(model, before: text.Vocabulary, now: text.Vocabulary, **changes):
    """Makes another model of the same weights, for another vocabulary.

    A piece that both vocabularies have keeps its vector and its bias. Another
    one begins with the mean of the pieces that spell it, or, where not one
    character of it is known, as in a new model.

    Args:
        model: `models.Transformer`, of `before` on both sides, whose table of
            target words is its projection too.
        before: `text.Vocabulary`.
        now: `text.Vocabulary`.
        **changes: what is new in its configuration besides, as `dropout=0.1`.

    Returns:
        The model, and the share of the new pieces that the former has too.

    Raises:
        ValueError: the model has a projection of its own.
    """
    if model.projection is not None:
        raise ValueError(
            "The projection of the model is its table of words. Received: one of its "
            f"own, tie={model.config['tie']!r}."
        )
    sizes = {"vocabulary_size": now.size, "target_vocabulary_size": None}
    fresh = type(model).from_config(model.get_config() | sizes | changes)
    spelled = spellings(before, now)
    known = {id(variable): variable for variable in tables(model)}
    for old, new in zip(model.weights, fresh.weights, strict=True):
        if id(old) in known:
            table, rows = (keras.ops.convert_to_numpy(x).copy() for x in (old, new))
            for row, ids in enumerate(spelled):
                if ids:
                    rows[row] = table[ids].mean(axis=0)
            new.assign(rows)
        else:
            new.assign(old)
    names = set(before.tokens(range(before.size)))
    shared = np.mean([name in names for name in now.tokens(range(now.size))])
    return fresh, float(shared)


def tables(model) -> list:
    """Lists the weights of a model that have a row for each piece."""
    embeddings = (model.source_embedding, model.target_embedding)
    found = [embedding.embeddings for embedding in embeddings]
    return found + [one.bias for one in embeddings if one.logits_bias]


def spellings(before: text.Vocabulary, now: text.Vocabulary) -> list[list[int]]:
    """Spells the pieces of a vocabulary in those of another.

    Args:
        before: `text.Vocabulary` to spell in.
        now: `text.Vocabulary` to be spelled.

    Returns:
        For each piece of `now` the ids of the longest pieces of `before` that
        follow each other in it, from its left; characters without a piece are
        left out.
    """
    ids = {piece: row for row, piece in enumerate(before.tokens(range(before.size)))}
    longest = max(map(len, ids))
    spelled = []
    for piece in now.tokens(range(now.size)):
        found, start = [], 0
        while start < len(piece):
            ends = range(min(len(piece), start + longest), start, -1)
            end = next((end for end in ends if piece[start:end] in ids), None)
            if end is not None:
                found.append(ids[piece[start:end]])
            start = end or start + 1
        spelled.append(found)
    return spelled
