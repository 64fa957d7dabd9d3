"""One sequence of tokens from a text or a pair of texts, for encoders."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def count_special_tokens(vocabulary: Any, num_texts: int) -> int:
    """Returns the number of start, end and separator tokens of a sequence.

    Args:
        vocabulary: `Vocabulary`, or another with its ids.
        num_texts: int, 1 or 2.
    """
    return 2 + (num_texts - 1) * len(vocabulary.separator_ids)


def truncated_lengths(lengths: np.ndarray, capacity: int) -> np.ndarray:
    """Returns how many tokens of each text fit; the longer text loses first.

    Args:
        lengths: int array `(texts, N)`, tokens of each text; 1 or 2 texts.
        capacity: int, tokens of all texts of a sequence at most.

    Returns:
        int array `(texts, N)`.
    """
    if len(lengths) == 1:
        return np.minimum(lengths, capacity)
    first, second = lengths
    first = np.minimum(first, np.maximum(capacity - second, capacity - capacity // 2))
    return np.stack([first, np.minimum(second, capacity - first)])


def pack_texts(
    texts: Sequence[Sequence[Sequence[int]]],
    length: int,
    vocabulary: Any,
    segments: bool,
) -> dict[str, np.ndarray]:
    """Builds the inputs of an encoder.

    A sequence is start, text, end; of a pair start, first text, separator,
    second text, end. Segment 1 is the second text and its end.

    Args:
        texts: list of B tuples of one or two lists of tokens.
        length: int, S, at least the length of the longest sequence.
        vocabulary: `Vocabulary`, or another with its ids.
        segments: bool. True adds `"segment_ids"`.

    Returns:
        dict of int32 arrays `(B, S)`: `"token_ids"`, padded.
    """
    token_ids = np.full((len(texts), length), vocabulary.pad_id, "int32")
    segment_ids = np.zeros((len(texts), length), "int32")
    endings = ([*vocabulary.separator_ids], [vocabulary.end_id])
    for row, (ids, segment) in enumerate(zip(token_ids, segment_ids, strict=True)):
        ids[0], start = vocabulary.start_id, 1
        for number, tokens in enumerate(texts[row]):
            tokens = [*tokens, *endings[number == len(texts[row]) - 1]]
            end = start + len(tokens)
            ids[start:end], segment[start:end] = tokens, number
            start = end
    return {"token_ids": token_ids} | ({"segment_ids": segment_ids} if segments else {})


def add_empty_texts(
    inputs: dict[str, np.ndarray], count: int, vocabulary: Any, num_texts: int
) -> dict[str, np.ndarray]:
    """Adds rows to the inputs of an encoder: the special tokens of empty texts.

    Args:
        inputs: dict of int32 arrays `(B, S)`, of `pack_texts`.
        count: int, rows to add.
        vocabulary: `Vocabulary`, or another with its ids.
        num_texts: int, 1 or 2, of a sequence.
    """
    length, segments = inputs["token_ids"].shape[1], "segment_ids" in inputs
    empty = pack_texts([((),) * num_texts] * count, length, vocabulary, segments)
    return {name: np.concatenate([ids, empty[name]]) for name, ids in inputs.items()}
