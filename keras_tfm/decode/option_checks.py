"""Checks of single values of `Options`."""

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

# What a file may ask for. Each beam has a row of the cache, and each step a
# token; one number in a file must not fill the memory or run for hours.
MAX_BEAMS, MAX_LENGTH, MAX_FACTOR = 1_000, 32_768, 100
STORED = {
    "beam_size": MAX_BEAMS,
    "num_hypotheses": MAX_BEAMS,
    "num_beam_groups": MAX_BEAMS,
    "max_decoding_length": MAX_LENGTH,
    "min_decoding_length": MAX_LENGTH,
    "no_repeat_ngram_size": MAX_LENGTH,
}


def is_integer(value: Any) -> bool:
    """Returns whether a value is an integer."""
    # A bool is one to Python, and a mistake here.
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_count(name: str, value: Any, least: int) -> None:
    """Rejects what is not an integer from `least` on."""
    if not is_integer(value) or value < least:
        raise ValueError(
            f"`{name}` must be an integer of at least {least}; got {value!r}."
        )


def check_number(name: str, value: Any, least: float, closed: bool) -> None:
    """Rejects what is not a number above `least`, or from it on if `closed`."""
    # Infinite patience decodes to the limit, as "never" of transformers does.
    unbounded = name == "patience" and value == math.inf
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    is_finite = is_number and (math.isfinite(value) or unbounded)
    if not is_finite or value < least or (value == least and not closed):
        bound = "at least" if closed else "greater than"
        raise ValueError(
            f"`{name}` must be a finite number {bound} {least}; got {value!r}."
        )


def check_probability(name: str, value: float, closed: bool) -> None:
    """Rejects numbers above 1, and 1 unless `closed`."""
    if value > 1 or (value == 1 and not closed):
        bound = "at most" if closed else "less than"
        raise ValueError(f"`{name}` must be {bound} 1; got {value!r}.")


def check_ids(name: str, ids: Any) -> tuple[int, ...]:
    """Returns token ids as a tuple.

    Raises:
        ValueError: they are not a sequence of integers from 0 on.
    """
    if not isinstance(ids, Iterable):
        raise ValueError(f"`{name}` must hold lists of token ids; got {ids!r}.")
    ids = tuple(ids)
    wrong = [token for token in ids if not (is_integer(token) and token >= 0)]
    if wrong:
        raise ValueError(f"`{name}` must hold token ids of at least 0; got {wrong}.")
    return ids


def check_stored(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rejects options of a file that would take too much memory or time.

    Args:
        options: dict of arguments of `Options`; other values are not checked.

    Returns:
        The options.

    Raises:
        ValueError: a number is above its limit.
    """
    for name, limit in STORED.items():
        value = options.get(name)
        numbers = value if isinstance(value, list | tuple) else [value]
        limits = [MAX_FACTOR, limit] if len(numbers) == 2 else [limit]
        for number, maximum in zip(numbers, limits, strict=False):
            if isinstance(number, Real) and number > maximum:
                raise ValueError(
                    f"`{name}` of a file must be at most {maximum:,}; got "
                    f"{value!r:.60}. Lower it; an argument of a call may be larger."
                )
    return options
