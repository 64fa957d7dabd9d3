"""Schedules offline batch decoding: finished rows leave, others are regrouped.

Offline and continuous batch decoding (`continuous`) share all that moves rows
(`rows`) and the compiled steps, but have two policies, since one would cost
speed:

* Offline, all sequences of a batch are at the same step, and those that remain
  join a batch that is at that step too. A cache is written at one index, grows
  when it has to, and every model and option can be decoded.
* Continuous, a new sequence must not wait for a batch at step 0. Sequences are
  at steps of their own, in a cache of fixed length that is written as a ring.
  Only some models support that, and it costs a mask and, rarely, a restart.
"""

import collections
import concurrent.futures
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_tfm.decode.hypotheses import Hypotheses
from keras_tfm.runtime.rows import select, take_rows, to_numpy

# A single batch that is at least so full is decoded as it is.
FULL = 0.85


class OfflineBatch(NamedTuple):
    """Rows before their first step.

    Attributes:
        indices: int `(B,)`, of the rows; -1 for a row that only fills up.
        start: function that returns the state before the first step.
        inputs: its arguments. Only rows whose inputs have the same shapes are
            decoded together.
    """

    indices: np.ndarray
    start: Callable
    inputs: tuple


class _Waiting(NamedTuple):
    """Rows that wait for company.

    Attributes:
        indices: int `(B,)`, -1 for rows that are done.
        state: their state.
        is_batch: bool. The state has a number of rows that is compiled.
    """

    indices: np.ndarray
    state: Any
    is_batch: bool

    @property
    def num_rows(self):
        return int((self.indices >= 0).sum())


def decode_offline(
    batches: Iterable[OfflineBatch], advance: Callable, inter_threads: int = 1
) -> Iterator[tuple[np.ndarray, Hypotheses]]:
    """Decodes batches in chunks of steps.

    After each chunk finished rows are yielded. When they are more than a
    seventh of a batch, the others wait until they fill it together with rows of
    other batches at the same step. When no more come, they go on in a smaller
    batch. So rows that are done cost little.

    Which rows are decoded together depends on the results and never on time:
    results are settled in the order in which chunks began.

    Args:
        batches: `OfflineBatch`es.
        advance: `state -> (state, hypotheses)`, a chunk of steps.
        inter_threads: int >= 1: chunks, of one batch each, decoded at once.

    Yields:
        Pairs of indices of rows, int `(M,)`, and their `Hypotheses` of NumPy
        arrays.
    """
    with concurrent.futures.ThreadPoolExecutor(inter_threads) as pool:
        queue = _Queue(batches)

        def decode_chunk(make_state):
            state, hypotheses = advance(make_state())
            return state, hypotheses, ops.convert_to_numpy(state.is_done)

        def submit(make_state):
            if inter_threads > 1:
                return pool.submit(decode_chunk, make_state)
            future = concurrent.futures.Future()
            future.set_result(decode_chunk(make_state))
            return future

        while True:
            while len(queue.running) < inter_threads and (job := queue.next()):
                shape_id, indices, make_state = job
                queue.running.append((shape_id, indices, submit(make_state)))
            if not queue.running:
                return
            shape_id, indices, future = queue.running.popleft()
            yield from queue.settle(shape_id, indices, *future.result())


class _Queue:
    """Decides which rows are decoded next.

    Batches whose inputs have the same shapes have one `shape_id`.
    """

    def __init__(self, batches):
        self.batches = iter(batches)
        self.running = collections.deque()  # shape ids, indices and futures
        self.waiting = {}  # lists of `_Waiting`, by shape id and step
        self.shape_id, self.shapes = 0, None
        self.batch_sizes = {}  # of the largest batch of a shape id

    def next(self):
        """Returns a shape id, indices and what makes their state; or None."""
        for key, waiting in self.waiting.items():
            num_rows, full = _num_rows(waiting), self.batch_sizes[key[0]]
            if num_rows >= (full if len(waiting) > 1 else FULL * full):
                return self._pop(key)
        # No more rows of other shapes will come, unless from what is running.
        expected = {self.shape_id, *(shape_id for shape_id, *_ in self.running)}
        for key in sorted(self.waiting):
            if key[0] not in expected:
                return self._pop(key)
        for batch in self.batches:
            shapes = [tuple(x.shape[1:]) for x in batch.inputs]
            if shapes != self.shapes:
                self.shape_id, self.shapes = self.shape_id + 1, shapes
            size = max(len(batch.indices), self.batch_sizes.get(self.shape_id, 0))
            self.batch_sizes[self.shape_id] = size
            make_state = functools.partial(batch.start, *batch.inputs)
            return self.shape_id, np.asarray(batch.indices), make_state
        # A thread should not be idle until more rows have come.
        return self._pop(min(self.waiting)) if self.waiting else None

    def settle(self, shape_id, indices, state, hypotheses, is_done):
        """Yields the rows that are done, and lets the others wait."""
        is_done = is_done.all(axis=-1)
        remaining = np.where(is_done, -1, indices)
        rows = np.flatnonzero(remaining >= 0)
        if rows.size:
            waiting = _Waiting(remaining, state, True)
            if rows.size <= len(remaining) // 4:  # free the memory of the others
                few_rows = take_rows([state], [rows])
                waiting = _Waiting(remaining[rows], few_rows, False)
            key = shape_id, int(ops.convert_to_numpy(state.step))
            self.waiting.setdefault(key, []).append(waiting)
        finished = is_done & (indices >= 0)
        if finished.any():
            yield indices[finished], select(to_numpy(hypotheses), finished)

    def _pop(self, key):
        waiting, batch_size = self.waiting.pop(key), self.batch_sizes[key[0]]
        indices, make_state, rest = _make_batch(waiting, batch_size)
        if rest:
            self.waiting[key] = rest
        return key[0], indices, make_state


def _num_rows(waiting):
    return sum(rows.num_rows for rows in waiting)


def _make_batch(waiting, batch_size):
    """Makes a batch of rows that wait at one step, and returns the rest."""
    size = batch_size
    while size // 4 >= _num_rows(waiting):
        size //= 4
    if len(waiting) == 1 and waiting[0].is_batch and len(waiting[0].indices) <= size:
        return waiting[0].indices, lambda: waiting[0].state, []
    states, chosen, indices, rest, num_free = [], [], [], [], size
    for group in waiting:
        if num_free == 0:
            rest.append(group)
            continue
        rows = np.flatnonzero(group.indices >= 0)
        states.append(group.state)
        chosen.append(rows[:num_free])
        indices.append(group.indices[chosen[-1]])
        if len(rows) > num_free:
            remaining = group.indices.copy()
            remaining[chosen[-1]] = -1
            rest.append(_Waiting(remaining, group.state, False))
        num_free -= len(chosen[-1])
    indices = np.pad(np.concatenate(indices), (0, num_free), constant_values=-1)
    return indices, functools.partial(take_rows, states, chosen, num_free), rest
