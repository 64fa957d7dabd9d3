"""Which sources of a job are decoded together."""

from collections.abc import Callable, Iterator, Sequence


def counts(width: int, batch_tokens: int, batch_size: int) -> list[int]:
    """Gives the numbers of rows that a batch may have.

    Each is a quarter of the next, as of a batch that rows leave: so few
    programs serve all.

    Args:
        width: int, source tokens of a row.
        batch_tokens, batch_size: of `Decoder.bulk`.

    Returns:
        list of int, rising from 1.
    """
    most, found = max(1, min(batch_size, batch_tokens // width)), {1}
    while most:
        found.add(most)
        most //= 4
    return sorted(found)


def groups(
    lengths: Sequence[int], width_of: Callable, batch_tokens: int, batch_size: int
) -> Iterator:
    """Cuts sources into batches, of whose rows and tokens most are real.

    A batch is the largest of which five eighths are sources of its own width.
    What is left over makes smaller ones, which take less time than a large one
    that is filled up, the less the more cores there are.

    Args:
        lengths: ints, in tokens, falling.
        width_of: `length -> width` in tokens, for which there are programs.
        batch_tokens, batch_size: of `Decoder.bulk`.

    Yields:
        Triples of the width, the number of rows of the batch, and the slice of
        the sources that are its first rows.
    """
    place = 0
    while place < len(lengths):
        width = width_of(lengths[place])
        for count in reversed(counts(width, batch_tokens, batch_size)):
            last = place - (-5 * count // 8) - 1
            if count == 1 or (
                last < len(lengths) and 2 * width_of(lengths[last]) > width
            ):
                break
        stop = min(place + count, len(lengths))
        yield width, count, slice(place, stop)
        place = stop
