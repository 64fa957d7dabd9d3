"""Rows that are done leave their batch, and those left over share the next."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.decode.hypotheses import Hypotheses


class _Part(NamedTuple):
    """Rows that wait: their numbers, -1 for others, and their state.

    `runs` tells whether their state is a batch that a program is there for.
    """

    numbers: np.ndarray
    state: dict
    runs: bool


def run(batches: Iterable, start: Callable, carry_on: Callable) -> Iterator:
    """Decodes batches of rows, a stretch of steps at a time.

    Between two stretches the rows that are done are given out. Once these are
    a quarter of a batch, the others wait until they fill it with those of other
    batches that have come as far; when no more come, they go on in a smaller
    one. So rows that are done cost little.

    Args:
        batches: pairs of the numbers of the rows, int `(B,)`, -1 for a row
            that nobody waits for, and the arguments of `start`. Only rows
            whose arguments have one shape share a batch.
        start: `(*arguments) -> state`, before the first step.
        carry_on: `state -> (state, hypotheses)`, a stretch of steps.

    Yields:
        Pairs of numbers of rows, int `(M,)`, and their `Hypotheses` of NumPy
        arrays.
    """
    waiting = {}  # lists of parts, by their step
    shapes, size = None, 0
    for numbers, arguments in batches:
        own = [tuple(x.shape[1:]) for x in arguments]
        if own != shapes:
            yield from _rest(waiting, size, carry_on)
            shapes, size = own, 0
        size = max(size, len(numbers))
        part = _Part(np.asarray(numbers), start(*arguments), True)
        waiting.setdefault(0, []).append(part)
        while ready := [i for i, parts in waiting.items() if _is_full(parts, size)]:
            numbers, state = _take(waiting, ready[0], size)
            yield from _settle(waiting, numbers, *carry_on(state))
    yield from _rest(waiting, size, carry_on)


def _rest(waiting, size, carry_on):
    while waiting:
        numbers, state = _take(waiting, min(waiting), size)
        yield from _settle(waiting, numbers, *carry_on(state))


def _settle(waiting, numbers, state, hypotheses):
    """Gives out the rows that are done, and lets the others wait."""
    done = ops.convert_to_numpy(state["done"]).all(axis=-1)
    over = done & (numbers >= 0)
    left = np.where(done, -1, numbers)
    rows = np.flatnonzero(left >= 0)
    if rows.size:
        part = _Part(left, state, True)
        if rows.size <= len(left) // 4:  # the others are not held in memory
            part = _Part(left[rows], _of_rows([state], [rows]), False)
        index = int(ops.convert_to_numpy(state["index"]))
        waiting.setdefault(index, []).append(part)
    if over.any():
        parts = (None if x is None else ops.convert_to_numpy(x) for x in hypotheses)
        yield numbers[over], Hypotheses(*(x if x is None else x[over] for x in parts))


def _is_full(parts, size):
    return _count(parts) >= (size if len(parts) > 1 else 0.75 * size)


def _count(parts):
    """Rows that somebody waits for."""
    return sum(int((part.numbers >= 0).sum()) for part in parts)


def _array(tensor):
    """A tensor as an array, where it can be without a copy."""
    if keras.backend.backend() == "torch":
        return ops.convert_to_numpy(tensor)
    return np.asarray(tensor)


def _take(waiting, index, size):
    """Makes a batch of the rows that wait at a step; what is too much stays."""
    parts = waiting.pop(index)
    wanted = size
    while wanted // 4 >= _count(parts):
        wanted //= 4
    if len(parts) == 1 and parts[0].runs and len(parts[0].numbers) <= wanted:
        return parts[0].numbers, parts[0].state
    chosen, taken, more = [], [], wanted
    for part in parts:
        if more == 0:
            waiting.setdefault(index, []).append(part)
            continue
        rows = np.flatnonzero(part.numbers >= 0)
        chosen.append(part)
        taken.append(rows[:more])
        if len(rows) > more:
            left = part.numbers.copy()
            left[rows[:more]] = -1
            waiting.setdefault(index, []).append(_Part(left, part.state, False))
        more -= len(taken[-1])
    numbers = [part.numbers[rows] for part, rows in zip(chosen, taken, strict=True)]
    numbers = np.pad(np.concatenate(numbers), (0, more), constant_values=-1)
    return numbers, _of_rows([part.state for part in chosen], taken, more)


def _of_rows(states, rows, more=0):
    """One state of rows of several, the first of them `more` times again."""

    def joined(*tensors):
        if len(tensors[0].shape) == 0:
            return tensors[0]
        taken = [_array(x)[own] for x, own in zip(tensors, rows, strict=True)]
        taken.append(np.repeat(taken[0][:1], more, axis=0))
        dtype = keras.backend.standardize_dtype(tensors[0].dtype)
        return ops.convert_to_tensor(np.concatenate(taken), dtype)

    return keras.tree.map_structure(joined, *states)
