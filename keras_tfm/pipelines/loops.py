"""Translations that repeat themselves."""

import re
from collections.abc import Sequence

MAX_WORDS = 4  # of a repeated phrase
NUM_WORDS = 3  # times in a row
# Within words, and in writing without spaces.
_SIGNS = re.compile(r"([^\W\d_].{1,11}?)\1{3}")


def has_loop(text: str) -> bool:
    """Whether words come three times in a row, or signs four times.

    Args:
        text: str.

    Example:
        ```python
        from keras_tfm.pipelines.loops import has_loop

        assert has_loop("at the end of the end of the end of the day")
        assert has_loop("wonderderderder") and not has_loop("Yes, yes, I know.")
        ```
    """
    text = text.lower()
    words = re.findall(r"\w+", text)
    return _SIGNS.search(text) is not None or any(
        _repeats(words, start, size)
        for size in range(1, MAX_WORDS + 1)
        for start in range(len(words) - NUM_WORDS * size + 1)
    )


def _repeats(words: Sequence[str], start: int, size: int) -> bool:
    phrase = words[start : start + size]
    if all(word.isdigit() for word in phrase):  # 1.000.000.000
        return False
    ends = range(start + size, start + NUM_WORDS * size, size)
    return all(words[begin : begin + size] == phrase for begin in ends)
