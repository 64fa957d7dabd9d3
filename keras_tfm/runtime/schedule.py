"""Rows that are done leave their batch, and those left over share the next."""

import collections
import concurrent.futures
import functools
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


def run(batches: Iterable, carry_on: Callable, inter_threads: int = 1) -> Iterator:
    """Decodes batches of rows, a stretch of steps at a time.

    Between two stretches the rows that are done are given out. Once these are
    a seventh of a batch, the others wait until they fill it with those of other
    batches that have come as far; when no more come, they go on in a smaller
    one. So rows that are done cost little.

    What is decoded together hangs on what the stretches give and never on how
    long they take: results are settled in the order in which they were begun.

    Args:
        batches: triples of the numbers of the rows, int `(B,)`, -1 for a row
            that nobody waits for; `start`, which gives the state before the
            first step; and its arguments. Only rows whose arguments have one
            shape share a batch.
        carry_on: `state -> (state, hypotheses)`, a stretch of steps.
        inter_threads: int >= 1: stretches, of one batch each, taken at once.

    Yields:
        Pairs of numbers of rows, int `(M,)`, and their `Hypotheses` of NumPy
        arrays.
    """
    with concurrent.futures.ThreadPoolExecutor(inter_threads) as pool:
        work = _Work(batches)

        def stretch(make_state):
            state, hypotheses = carry_on(make_state())
            return state, hypotheses, ops.convert_to_numpy(state.done)

        def begun(make_state):
            if inter_threads > 1:
                return pool.submit(stretch, make_state)
            future = concurrent.futures.Future()
            future.set_result(stretch(make_state))
            return future

        while True:
            while len(work.running) < inter_threads and (job := work.next()):
                kind, numbers, make_state = job
                work.running.append((kind, numbers, begun(make_state)))
            if not work.running:
                return
            kind, numbers, future = work.running.popleft()
            yield from work.settle(kind, numbers, *future.result())


class _Work:
    """What there is to do next, and what is being done."""

    def __init__(self, batches):
        self.batches = iter(batches)
        self.running = collections.deque()  # kinds, numbers and futures
        self.waiting = {}  # lists of parts, by their kind and step
        self.kind, self.shapes = 0, None
        self.sizes = {}  # rows of the largest batch of a kind

    def next(self):
        """Gives a kind, numbers, and what makes their state; or None."""
        for at, parts in self.waiting.items():
            if _is_full(parts, self.sizes[at[0]]):
                return self._taken(at)
        # No more of another kind will come, unless from what is running.
        coming = {self.kind, *(kind for kind, *_ in self.running)}
        for at in sorted(self.waiting):
            if at[0] not in coming:
                return self._taken(at)
        for numbers, start, arguments in self.batches:
            shapes = [tuple(x.shape[1:]) for x in arguments]
            if shapes != self.shapes:
                self.kind, self.shapes = self.kind + 1, shapes
            size = max(len(numbers), self.sizes.get(self.kind, 0))
            self.sizes[self.kind] = size
            make_state = functools.partial(start, *arguments)
            return self.kind, np.asarray(numbers), make_state
        # Rather than that a thread waits for rows that may come.
        return self._taken(min(self.waiting)) if self.waiting else None

    def _taken(self, at):
        parts, size = self.waiting.pop(at), self.sizes[at[0]]
        numbers, make_state, left = _take(parts, size)
        if left:
            self.waiting[at] = left
        return at[0], numbers, make_state

    def settle(self, kind, numbers, state, hypotheses, done):
        """Gives out the rows that are done, and lets the others wait."""
        done = done.all(axis=-1)
        over = done & (numbers >= 0)
        left = np.where(done, -1, numbers)
        rows = np.flatnonzero(left >= 0)
        if rows.size:
            part = _Part(left, state, True)
            if rows.size <= len(left) // 4:  # the others are not held in memory
                part = _Part(left[rows], of_rows([state], [rows]), False)
            at = kind, int(ops.convert_to_numpy(state.step))
            self.waiting.setdefault(at, []).append(part)
        if over.any():
            parts = (x if x is None else ops.convert_to_numpy(x) for x in hypotheses)
            parts = (x if x is None else x[over] for x in parts)
            yield numbers[over], Hypotheses(*parts)


def _is_full(parts, size):
    return _count(parts) >= (size if len(parts) > 1 else 0.85 * size)


def _count(parts):
    """Rows that somebody waits for."""
    return sum(int((part.numbers >= 0).sum()) for part in parts)


def _array(tensor):
    """A tensor as an array, where it can be without a copy."""
    if keras.backend.backend() == "torch":
        return ops.convert_to_numpy(tensor)
    return np.asarray(tensor)


def _take(parts, size):
    """Makes a batch of rows that wait at one step; gives what is too much."""
    wanted = size
    while wanted // 4 >= _count(parts):
        wanted //= 4
    if len(parts) == 1 and parts[0].runs and len(parts[0].numbers) <= wanted:
        return parts[0].numbers, lambda: parts[0].state, []
    chosen, taken, over, more = [], [], [], wanted
    for part in parts:
        if more == 0:
            over.append(part)
            continue
        rows = np.flatnonzero(part.numbers >= 0)
        chosen.append(part)
        taken.append(rows[:more])
        if len(rows) > more:
            left = part.numbers.copy()
            left[rows[:more]] = -1
            over.append(_Part(left, part.state, False))
        more -= len(taken[-1])
    numbers = [part.numbers[rows] for part, rows in zip(chosen, taken, strict=True)]
    numbers = np.pad(np.concatenate(numbers), (0, more), constant_values=-1)
    states = [part.state for part in chosen]
    return numbers, functools.partial(of_rows, states, taken, more), over


def of_rows(states, rows, more=0):
    """Makes one state of rows of several.

    Args:
        states: list of states.
        rows: list of int `(M,)` for each, which of its rows to take.
        more: int, how often the first of all follows them again.

    Returns:
        A state, with copies of the rows.
    """

    def joined(*tensors):
        if len(tensors[0].shape) == 0:
            return tensors[0]
        taken = [_array(x)[own] for x, own in zip(tensors, rows, strict=True)]
        taken.append(np.repeat(taken[0][:1], more, axis=0))
        dtype = keras.backend.standardize_dtype(tensors[0].dtype)
        return ops.convert_to_tensor(np.concatenate(taken), dtype)

    return keras.tree.map_structure(joined, *states)
