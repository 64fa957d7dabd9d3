"""One row of tokens from a text or a pair of texts, as encoders read it."""

import numpy as np


def count_special_tokens(vocabulary, sides: int) -> int:
    """Counts the tokens of a row that are of no text.

    Args:
        vocabulary: `Vocabulary`, or another with its ids.
        sides: int, 1 or 2 texts.

    Returns:
        int: start and end, and what stands between two texts.
    """
    return 2 + (sides - 1) * len(vocabulary.separator_ids)


def truncated_lengths(tokens, room: int):
    """Shares the room of a row among its texts: the longer is cut first.

    Args:
        tokens: int array `(sides, N)`, tokens of each text.
        room: int, for the tokens of all texts of a row.

    Returns:
        int array `(sides, N)`, the tokens kept of each text.
    """
    if len(tokens) == 1:
        return np.minimum(tokens, room)
    first = np.minimum(tokens[0], np.maximum(room - tokens[1], room - room // 2))
    return np.stack([first, np.minimum(tokens[1], room - first)])


def pack_texts(texts: list[tuple], length: int, vocabulary, segments: bool) -> dict:
    """Makes the inputs of an encoder.

    A row is start, the text and end; for a pair start, first text, what stands
    between, second text, end. Segment 1 is the second text and its end.

    Args:
        texts: list of B tuples of one or two lists of tokens.
        length: int, S. It has room for all.
        vocabulary: `Vocabulary`, or another with its ids.
        segments: bool. Give `"segment_ids"` too.

    Returns:
        dict of int32 arrays `(B, S)`: `"token_ids"`, padded.
    """
    token_ids = np.full((len(texts), length), vocabulary.pad_id, "int32")
    segment_ids = np.zeros((len(texts), length), "int32")
    ends = ([*vocabulary.separator_ids], [vocabulary.end_id])
    for ids, segment, sides in zip(token_ids, segment_ids, texts, strict=True):
        ids[0], place = vocabulary.start_id, 1
        for number, side in enumerate(sides):
            marks = ends[number == len(sides) - 1]
            end = place + len(side) + len(marks)
            ids[place:end] = [*side, *marks]
            segment[place:end] = number
            place = end
    return {"token_ids": token_ids} | ({"segment_ids": segment_ids} if segments else {})
