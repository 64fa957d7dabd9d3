"""A batch with slots, which sequences take and leave at steps of their own."""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_tfm.decode import inputs
from keras_tfm.runtime.rows import (
    check_finite,
    put_rows,
    select,
    set_done,
    take_rows,
    to_numpy,
)

CHUNK_STEPS = 4  # between which rows join and leave
SINGLE_ROW_STEPS = 8  # where a batch has one slot
MAX_IDLE_CHUNKS = 8  # for which a batch may be too large before it shrinks


class Sizes(NamedTuple):
    """Sizes for which the functions of a batch are compiled.

    Attributes:
        slots: ints, ascending, numbers of slots.
        inserts: ints, ascending from 1, numbers of rows that join at once.
        read_lengths: ints, ascending, source tokens that the encoder reads.
    """

    slots: Sequence[int]
    inserts: Sequence[int]
    read_lengths: Sequence[int]

    @property
    def fewest(self) -> "Sizes":
        """The smallest set of sizes that can decode every row."""
        return Sizes(self.slots[-1:], self.inserts[:1], self.read_lengths[-1:])


@dataclasses.dataclass(eq=False)
class Row:
    """A source that has a slot.

    Attributes:
        ids: list of int.
        future: of its hypotheses.
        limit: int, the most tokens of its hypotheses.
        first_step: int, steps that its batch had taken before it.
    """

    ids: list
    future: Any
    limit: int
    first_step: int


class SlotBatch:
    """Slots for sequences whose sources are padded to one bucket.

    Args:
        owner: `ContinuousDecoder`.
        bucket: int, source tokens.
        max_slots: int.
    """

    def __init__(self, owner: Any, bucket: int, max_slots: int):
        self.owner, self.search = owner, owner.search
        self.bucket, self.max_slots = bucket, max_slots
        self.capacity = _ring_capacity(bucket, self.search.buckets)
        # The encoder reads half of the bucket where no source is longer.
        can_read_less = "read_length" in self.search.capabilities.begin_options
        lengths = (bucket // 2, bucket) if can_read_less and bucket > 1 else (bucket,)
        self.all_sizes = Sizes(*_compiled_sizes(max_slots), lengths)
        self.rows, self.state, self.step, self.idle_chunks = [], None, 0, 0

    @property
    def num_busy(self) -> int:
        """The number of slots that are taken."""
        return sum(row is not None for row in self.rows)

    @property
    def sizes(self) -> Sizes:
        """The sizes that rows may use now."""
        return self.owner.sizes.get(self.bucket, self.all_sizes)

    def decode_chunk(self, arrivals: Sequence[tuple]) -> None:
        """Takes some steps, and resolves the futures of finished rows.

        Args:
            arrivals: pairs of ids and a future, no more than free slots.
        """
        rows = [
            Row(ids, future, self.owner.decoder.length_limit(len(ids)), self.step)
            for ids, future in arrivals
        ]
        try:
            if rows or self.num_busy:
                self._admit(rows)
                self._advance()
        except BaseException as error:  # callers get it; the thread continues
            failed = {id(row): row for row in (*rows, *self.rows) if row is not None}
            self.rows, self.state = [], None
            for row in failed.values():
                if not row.future.done():
                    row.future.set_exception(error)

    def warm_up(self, sizes: Sizes, check: Callable[[], None]) -> None:
        """Compiles functions by decoding dummy sources.

        Args:
            sizes: `Sizes`.
            check: see `Decoder.warm_up`.
        """
        end_id = self.search.options.end_id
        for num_slots in sizes.slots:
            for count in (n for n in sizes.inserts if n <= num_slots):
                for read_length in sizes.read_lengths:
                    check()
                    self.rows, self.state = [], None
                    self._resize(num_slots)
                    rows = [Row([end_id] * read_length, None, 1, 0)] * count
                    self._insert(rows, count, sizes)
            self._take_steps()
        self.rows, self.state = [], None

    def _admit(self, rows):
        """Assigns slots to rows."""
        num_busy, sizes = self.num_busy, self.sizes
        num_slots = next(n for n in sizes.slots if n >= num_busy + len(rows))
        # A batch shrinks when it has been too large for some time.
        self.idle_chunks = self.idle_chunks + 1 if num_slots < len(self.rows) else 0
        is_idle = self.idle_chunks > MAX_IDLE_CHUNKS or not num_busy
        if num_slots > len(self.rows) or is_idle:
            self._resize(num_slots)
        while rows:
            limit = max(1, 2 * len(rows) - 1)
            count = max(n for n in sizes.inserts if n <= limit)
            self._insert(rows[:count], min(count, len(self.rows)), sizes)
            rows = rows[count:]

    def _resize(self, num_slots):
        """Changes the number of slots; busy rows stay."""
        self.idle_chunks = 0
        busy = [slot for slot, row in enumerate(self.rows) if row is not None]
        if num_slots == len(self.rows) and self.state is not None:
            return
        if busy:
            num_free = num_slots - len(busy)
            state = take_rows([self.state], [np.array(busy)], num_free)
            self.state = set_done(state, slice(len(busy), None))
        else:
            empty = self.owner.functions.get(("empty", self.bucket), self._empty)
            ids = ops.convert_to_tensor(np.zeros((1, self.bucket), "int32"))
            self.state = take_rows([empty(ids)], [np.array([0])], num_slots - 1)
        rows = [self.rows[slot] for slot in busy]
        self.rows = rows + [None] * (num_slots - len(rows))

    def _insert(self, rows, count, sizes):
        """Puts rows, before their first step, into free slots.

        Args:
            rows: list of `Row`.
            count: int, as many or more, for which functions are compiled.
            sizes: `Sizes`, for the length that the encoder reads.
        """
        free = [slot for slot, row in enumerate(self.rows) if row is None]
        for slot, row in zip(free, rows, strict=False):
            self.rows[slot] = row
        # Missing rows are copies of the first, written to its slot again.
        indices = [*range(len(rows)), *[0] * (count - len(rows))]
        ids = inputs.padded_rows([rows[i].ids for i in indices], self.bucket)
        # Its own limit decides how a row is scored; it leaves before it exceeds
        # the capacity.
        limits = np.array([rows[i].limit for i in indices], "int32")
        slots = np.array([free[i] for i in indices], "int32")
        tensors = [ops.convert_to_tensor(x, "int32") for x in (ids, limits)]
        longest = max(len(row.ids) for row in rows)
        read_length = next(n for n in sizes.read_lengths if n >= longest)
        get = self.owner.functions.get
        begin = functools.partial(self._begin_rows, read_length=read_length)
        new = get(("begin", self.bucket, read_length), begin)(*tensors)
        put_new = get("put", self._put_new, donate=True)
        self.state = put_new(self.state, new, ops.convert_to_tensor(slots))

    def _take_steps(self):
        take_steps = self.owner.functions.get("steps", self._steps, donate=True)
        num_steps = SINGLE_ROW_STEPS if len(self.rows) == 1 else CHUNK_STEPS
        num_steps = ops.convert_to_tensor(num_steps, "int32")
        self.state, num_taken, is_done, hypotheses = take_steps(self.state, num_steps)
        self.step += int(num_taken)
        return ops.convert_to_numpy(is_done).all(axis=-1), hypotheses

    def _advance(self):
        """Takes steps; finished rows and rows beyond the capacity leave."""
        is_done, hypotheses = self._take_steps()
        too_long = self._restart_long_rows()
        finished = [
            slot
            for slot, row in enumerate(self.rows)
            if row is not None and is_done[slot]
        ]
        if not finished and not too_long:
            return
        hypotheses = to_numpy(hypotheses)
        broken = np.isnan(hypotheses.scores).any(axis=-1)
        for slot in finished:
            row, self.rows[slot] = self.rows[slot], None
            resolve(row.future, check_finite, select(hypotheses, slice(slot, slot + 1)))
        if broken[finished + too_long].any():
            # A masked entry of the cache counts as 0, unless it is NaN. So the
            # other rows begin again.
            rows = [row for row in self.rows if row is not None]
            self.rows, self.state = [], None
            for row in rows:
                row.first_step = self.step
            self._admit(rows)

    def _restart_long_rows(self):
        """Decodes rows that exceed the ring alone; returns their slots."""
        slots = [
            slot
            for slot, row in enumerate(self.rows)
            if row is not None
            and self.step - row.first_step >= self.capacity < row.limit
        ]
        if slots:
            self.state = set_done(self.state, slots)
        for slot in slots:
            row, self.rows[slot] = self.rows[slot], None
            self.owner.decode_alone(row.ids, row.future)
        return slots

    # Compiled functions. The caches of all rows share the entries "past" and
    # "ring_step"; the others belong to a row.

    def _begin_rows(self, ids, limits, read_length):
        """Returns the state of new rows, without the shared entries."""
        count = ops.shape(ids)[0]
        read_length = None if read_length == self.bucket else read_length
        no_candidates, forced = ops.zeros((count, 0), "int32"), []
        if self.owner.target_prefix:
            prefix = ops.convert_to_tensor([self.owner.target_prefix], "int32")
            forced.append(ops.repeat(prefix, count, axis=0))
        state = self.search.begin(
            self.capacity, read_length, ids, no_candidates, limits, *forced
        )
        cache = {name: x for name, x in state.cache.items() if name != "past"}
        return state._replace(cache=cache, step=ops.zeros((count,), "int32"))

    def _empty(self, ids):
        """Returns the state of empty slots."""
        limits = ops.zeros((ops.shape(ids)[0],), "int32")
        state = self._begin_rows(ids, limits, self.bucket)
        cache = self.search.model.begin(ids, self.capacity, self.search.num_beams)
        if "past" in cache:
            shared = {"past": cache["past"], "ring_step": ops.zeros((), "int32")}
            state = state._replace(cache={**state.cache, **shared})
        return state

    def _put_new(self, state, new, slots):
        """Puts new rows into slots; what the cache has of others is masked."""
        cache = state.cache
        by_row = {name: x for name, x in cache.items() if name in new.cache}
        state = put_rows(state._replace(cache=by_row), new, slots)
        return state._replace(cache={**cache, **state.cache})

    def _steps(self, state, num_steps):
        """Returns the state after steps, their number, and what is finished."""
        take_step, capacity = self.owner.get_take_step(), state.capacity

        def unfinished(num_taken, state):
            is_running = ops.logical_not(ops.all(state.is_done))
            return ops.logical_and(num_taken < num_steps, is_running)

        def one_more(num_taken, state):
            # Finished rows take steps too, but at no step beyond the capacity.
            step = ops.minimum(state.step, capacity - 1)
            return num_taken + 1, take_step(state._replace(step=step))

        num_taken = ops.zeros((), "int32")
        num_taken, state = ops.while_loop(unfinished, one_more, (num_taken, state))
        return state, num_taken, state.is_done, self.search.strategy.finish(state)


def _ring_capacity(bucket, buckets):
    """Returns the steps that the cache of a bucket holds."""
    capacity = -(-(3 * bucket // 2 + 2) // 8) * 8
    return min(capacity, buckets.max_length(bucket))


def _compiled_sizes(max_slots):
    """Returns numbers of slots, and numbers of rows that join at once."""
    quarter = -(-max_slots // 4)
    slot_sizes = sorted({1, *range(quarter, max_slots, quarter), max_slots})
    return slot_sizes, sorted({1, quarter})


def resolve(
    future: concurrent.futures.Future, function: Callable, *arguments: Any
) -> None:
    """Sets the result of a future to that of a function, or to its exception.

    Args:
        future: a running future.
        function: function of the arguments.
        *arguments: of the function.
    """
    try:
        result = function(*arguments)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
