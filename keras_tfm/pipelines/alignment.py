"""Aligns the words of a text and its translation by cross-attention."""

from collections.abc import Sequence

import numpy as np

from keras_tfm.pipelines.texts import AnyVocabulary

Alignment = list[tuple[int, int]]


def token_words(vocabulary: AnyVocabulary, ids: Sequence[int]) -> list[int]:
    """Returns the index of the word that each token belongs to.

    Args:
        vocabulary: `Vocabulary` or `TokenizersVocabulary`.
        ids: ints.

    Returns:
        list of int; -1 for a token without text, such as a language tag.
    """
    texts = vocabulary.decode([list(ids[:end]) for end in range(len(ids) + 1)])
    return [
        len(text.split()) - 1 if text != shorter else -1
        for shorter, text in zip(texts[:-1], texts[1:], strict=True)
    ]


def align_words(
    attention: np.ndarray, source_words: Sequence[int], target_words: Sequence[int]
) -> Alignment:
    """Links each word to the one that it attends to most, in both directions.

    The attention of the last layer when a token is generated, averaged over its
    heads, has an alignment error rate of 12% (en-de) and 8% (de-en) on 30
    sentences that were aligned by hand. Links of target words alone: 20% and
    13%; with the attention of the first layer 37% and 22%.

    Args:
        attention: float `(T, S)`.
        source_words: S ints, of `token_words`.
        target_words: T ints.

    Returns:
        Sorted list of pairs of a source word and a target word.
    """
    source, target = np.asarray(source_words), np.asarray(target_words)
    is_source, is_target = source >= 0, target >= 0
    if not is_source.any() or not is_target.any():
        return []
    weights = np.zeros((target.max() + 1, source.max() + 1))  # of words
    cells = np.ix_(target[is_target], source[is_source])
    np.add.at(weights, cells, attention[: len(target)][is_target][:, is_source])
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-9)
    forward = {(int(row.argmax()), j) for j, row in enumerate(weights)}
    backward = {(i, int(column.argmax())) for i, column in enumerate(weights.T)}
    return sorted(forward | backward)


def join_alignments(
    alignments: Sequence[Alignment],
    sides: Sequence[Sequence[str]],
    separators: Sequence[str],
) -> Alignment:
    """Joins the alignments of the segments of a text.

    Args:
        alignments: one for each segment.
        sides: the sources of the segments, and their translations.
        separators: whitespace before each segment; without any its first word
            continues that before it.
    """
    links, offsets = set(), [0, 0]
    for number, (alignment, separator) in enumerate(
        zip(alignments, separators, strict=True)
    ):
        if not separator:
            offsets = [max(0, offset - 1) for offset in offsets]
        links |= {(i + offsets[0], j + offsets[1]) for i, j in alignment}
        counts = [len(side[number].split()) for side in sides]
        offsets = [
            offset + count for offset, count in zip(offsets, counts, strict=True)
        ]
    return sorted(links)


def pharaoh(alignment: Alignment) -> str:
    """Returns an alignment in the format of Pharaoh, such as `"0-0 1-2"`."""
    return " ".join(f"{i}-{j}" for i, j in alignment)
