"""Sources that come one after another share steps."""

import collections
import concurrent.futures
import functools
import threading

import keras
import numpy as np
from keras import ops

from keras_tfm.decode import inputs
from keras_tfm.decode.hypotheses import Hypotheses
from keras_tfm.runtime.compile import CompiledFunctions, captured
from keras_tfm.runtime.decoder import checked
from keras_tfm.runtime.schedule import of_rows

# Source tokens that programs are for: a longer source is decoded alone. Nearly
# all are in the first batch, as steps of one with few rows cost a row the most.
SOURCE_BUCKETS = (32, 132)
STRETCH = 4  # steps, between which rows come and go
ALONE = 8  # steps, where there is one place
PATIENCE = 8  # stretches that a batch is too large for, before it becomes smaller


class ContinuousDecoder:
    """Decodes sources as they come, together with those that came before.

    A batch has places. Between a few steps and the next, rows that are done
    leave it and those that have come in the meantime take their places: so none
    waits for the end of another, and the batch stays full. A `Decoder` begins a
    batch when all before it is over.

    Rows of a batch are at steps of their own, which stand in one ring of
    slots: the step of all rows is written where the oldest stood. A row that
    would go round it, which is half as long again as its source may be, is
    decoded anew, alone.

    Threads of its own take the steps, until `close`.

    Args:
        search: `Decoder`, greedy or a beam without groups, see `supports`.
        batch_size: int >= 1: sources that are decoded at once.
        inter_threads: int >= 1: batches that these are in; or None for 2, and
            1 on PyTorch, see `Decoder.bulk`.
        widths: ints >= 1, in source tokens: sources up to each are decoded
            together. A source longer than the largest is decoded alone.
        target_prefix: ints that every hypothesis begins with.

    Raises:
        ValueError: a search of another kind, a size below 1, or a token that no
            prefix has.

    Source: Yu et al. 2022, Orca, section 3.1 (iteration-level scheduling),
    https://www.usenix.org/conference/osdi22/presentation/yu
    """

    def __init__(
        self,
        search,
        batch_size=32,
        inter_threads=None,
        widths=SOURCE_BUCKETS,
        target_prefix=(),
    ):
        if fault := _fault(search):
            raise ValueError(
                "Sources that come one after another are decoded greedily or by a "
                "beam over all tokens, by a `Transformer` with positions that are "
                f"added to tokens. Received: {fault}. Use `Decoder.bulk`."
            )
        if inter_threads is None:
            inter_threads = 1 if keras.config.backend() == "torch" else 2
        if min(batch_size, inter_threads, *widths) < 1:
            raise ValueError(
                f"Sizes are 1 or more. Received: batch_size={batch_size}, "
                f"inter_threads={inter_threads}, widths={tuple(widths)}."
            )
        self.search = search
        [self.target_prefix] = inputs.id_lists(
            "target_prefix",
            [target_prefix],
            search.capabilities.target_vocabulary_size,
            {search.options.end_id},
        )
        longest = search.max_positions
        self.widths = sorted({min(width, longest or width) for width in widths})
        threads = min(inter_threads, batch_size)
        self._most = -(-batch_size // threads)
        take_step = functools.partial(search.strategy.take_step, search.model.step)
        self.step_player = captured(take_step, search.weights)
        options = search.capabilities.begin_options
        self.reads = "read_length" in options  # fewer tokens than a source has room for
        self._functions = CompiledFunctions(search.weights, search.options.jit_compile)
        self._changed, self._closed = threading.Condition(), False
        self._waiting = {width: collections.deque() for width in self.widths}
        self._batches = [list(map(self._batch, self.widths)) for _ in range(threads)]
        self._threads = [
            threading.Thread(target=self._work, args=(batches,), daemon=True)
            for batches in self._batches
        ]
        # What takes long, or again, holds none of them up.
        self._others = concurrent.futures.ThreadPoolExecutor(1)
        for thread in self._threads:
            thread.start()

    @staticmethod
    def supports(decoder) -> bool:
        """Returns whether the rows of a decoder can be at different steps.

        Args:
            decoder: `Decoder`.
        """
        return _fault(decoder) is None

    def submit(self, row) -> concurrent.futures.Future:
        """Takes a source, to be decoded with others.

        Args:
            row: list of ids; padding at its end is left out. An empty one gives
                an empty hypothesis.

        Returns:
            Future of `Hypotheses` with a batch of one. Where it is cancelled
            before the source has a place, that takes none.

        Raises:
            ValueError: an id outside the vocabulary, or no room after the
                prefix.
            RuntimeError: the search is closed.
        """
        size = self.search.capabilities.vocabulary_size
        [row] = inputs.id_lists("source_ids", [row], size)
        future = concurrent.futures.Future()
        if row:
            limit = self.search.length_limit(len(row))
            inputs.check_prefix_length(self.target_prefix, limit)
        width = next((width for width in self.widths if width >= len(row)), None)
        with self._changed:
            if self._closed:
                raise RuntimeError("The search is closed: it takes no more sources.")
            if row and width is not None:
                self._waiting[width].append((row, future))
                self._changed.notify()
            else:
                self._others.submit(self._begin_alone, row, future)
        return future

    def _begin_alone(self, row, future):
        if future.set_running_or_notify_cancel():
            give(future, self.search, [row], self._prefix_of(row))

    def _prefix_of(self, row):
        return [self.target_prefix] if self.target_prefix and row else None

    def decode_alone(self, row, future):
        """Decodes a source by itself, in a thread of its own.

        Args:
            row: list of ids.
            future: of its hypotheses.
        """
        self._others.submit(give, future, self.search, [row], self._prefix_of(row))

    def warm_up(self, lengths=SOURCE_BUCKETS[:-1]):
        """Compiles what sources of up to some length need, few or many.

        Args:
            lengths: ints >= 1, in source tokens, of which the largest counts.
        """
        most = max(lengths, default=0)
        for before, width in zip([0, *self.widths], self.widths, strict=False):
            if before < most:
                self._batch(width).warm_up()

    def close(self):
        """Takes no more sources, and waits for those that it has."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._others.shutdown()

    def __enter__(self):
        return self

    def __exit__(self, *fault):
        self.close()

    def program(self, function, *key, donate=False):
        """Gives a function of tensors, compiled once for all batches.

        Args:
            function: of the same key it does the same.
            *key: what it does, and for what.
            donate: of `compiled`.
        """
        return self._functions.get(key, function, donate)

    def _batch(self, width):
        return _Batch(self, width, self._most)

    def _work(self, batches):
        """Takes steps while there is something to do."""
        while (coming := self._next(batches)) is not None:
            for batch, rows in zip(batches, coming, strict=True):
                batch.stretch(rows)

    def _next(self, batches):
        """Waits for work; gives what comes into each batch, or None."""
        with self._changed:
            while True:
                coming = [self._taken(batch) for batch in batches]
                if any(coming) or any(batch.busy for batch in batches):
                    return coming
                if self._closed:
                    return None
                self._changed.wait()

    def _taken(self, batch):
        """Takes what waits for a batch: each thread has its share."""
        waiting, rows = self._waiting[batch.width], []
        busy = sum(
            o.busy for own in self._batches for o in own if o.width == batch.width
        )
        share = -(-(busy + len(waiting)) // len(self._batches))
        while waiting and batch.busy + len(rows) < min(share, batch.most):
            row, future = waiting.popleft()
            if future.set_running_or_notify_cancel():
                rows.append((row, future))
        return rows


class _Row:
    """A source that has a place.

    Attributes:
        ids: list of int.
        future: of its hypotheses.
        limit: int, tokens that it may have.
        begun: int, steps that its batch had taken before it.
    """

    def __init__(self, ids, future, limit, begun):
        self.ids, self.future, self.limit, self.begun = ids, future, limit, begun


class _Batch:
    """Places for rows of one width.

    Args:
        of: `ContinuousDecoder`.
        width: int, source tokens.
        most: int, places.
    """

    def __init__(self, of, width, most):
        self.of, self.search, self.program = of, of.search, of.program
        self.width, self.most = width, most
        self.counts, self.sizes = _sizes(most)
        self.room = _room(width, of.search.lengths)
        # The encoder reads half as many tokens where these are all there are.
        self.reads = (width // 2, width) if width > 1 and of.reads else (width,)
        self.rows, self.state, self.steps, self.idle = [], None, 0, 0

    @property
    def busy(self):
        """Rows that somebody waits for."""
        return sum(row is not None for row in self.rows)

    def stretch(self, coming):
        """Takes some steps, with rows that come, and gives out what is done.

        Args:
            coming: pairs of ids and a future, no more than there are places.
        """
        rows = []
        for ids, future in coming:
            limit = self.search.length_limit(len(ids))
            rows.append(_Row(ids, future, limit, self.steps))
        try:
            if rows or self.busy:
                self._admit(rows)
                self._advance()
        except BaseException as error:  # those that wait are told, and others go on
            failed = {id(row): row for row in (*rows, *self.rows) if row is not None}
            self.rows, self.state = [], None
            for row in failed.values():
                if not row.future.done():
                    row.future.set_exception(error)

    def warm_up(self):
        """Compiles all that its rows may need, by decoding some."""
        for size in self.sizes:
            for count in (n for n in self.counts if n <= size):
                for read in self.reads:
                    self.rows, self.state = [], None
                    self._resize(size)
                    rows = [
                        _Row([self.search.options.end_id] * read, None, 1, 0)
                    ] * count
                    self._insert(rows, count)
            self._take_steps()
        self.rows, self.state = [], None

    def _admit(self, rows):
        """Gives rows places."""
        busy = self.busy
        size = next(n for n in self.sizes if n >= busy + len(rows))
        # Places that nobody takes for long go.
        self.idle = self.idle + 1 if size < len(self.rows) else 0
        if size > len(self.rows) or self.idle > PATIENCE or not busy:
            self._resize(size)
        while rows:
            count = max(n for n in self.counts if n <= max(1, 2 * len(rows) - 1))
            self._insert(rows[:count], min(count, len(self.rows)))
            rows = rows[count:]

    def _resize(self, size):
        """Makes so many places, in which the rows that are busy stay."""
        self.idle = 0
        kept = [place for place, row in enumerate(self.rows) if row is not None]
        if size == len(self.rows) and self.state is not None:
            return
        if kept:
            # By copies, as it is rare: there are many pairs of sizes.
            self.state = of_rows([self.state], [np.array(kept)], size - len(kept))
            done = np.array(ops.convert_to_numpy(self.state.done))
            done[len(kept) :] = True
            self.state = self.state._replace(done=ops.convert_to_tensor(done))
        else:
            empty = self.program(self._empty, "empty", self.width)
            ids = np.zeros((1, self.width), "int32")
            empty = empty(ops.convert_to_tensor(ids))
            self.state = of_rows([empty], [np.array([0])], size - 1)
        rows = [self.rows[place] for place in kept]
        self.rows = rows + [None] * (size - len(rows))

    def _insert(self, rows, count):
        """Puts rows, at their first step, where no others are.

        Args:
            rows: list of `_Row`.
            count: int, as many or more, which a program is for.
        """
        free = [place for place, row in enumerate(self.rows) if row is None]
        for place, row in zip(free, rows, strict=False):
            self.rows[place] = row
        # The first stands for those that are too few: it is put there again.
        numbers = [*range(len(rows)), *[0] * (count - len(rows))]
        ids = inputs.padded_rows([rows[n].ids for n in numbers], self.width)
        # Its own, by which it is scored: what goes past the room leaves before.
        limits = np.array([rows[n].limit for n in numbers], "int32")
        places = np.array([free[n] for n in numbers], "int32")
        parts = (ops.convert_to_tensor(x, "int32") for x in (ids, limits))
        longest = max(len(row.ids) for row in rows)
        read = next(read for read in self.reads if read >= longest)
        begun = functools.partial(self._begun, read=read)
        new = self.program(begun, "begun", self.width, read)(*parts)
        put = self.program(self._with, "with", donate=True)
        self.state = put(self.state, new, ops.convert_to_tensor(places))

    def _take_steps(self):
        take = self.program(self._advanced, "advanced", donate=True)
        steps = ALONE if len(self.rows) == 1 else STRETCH
        steps = ops.convert_to_tensor(steps, "int32")
        self.state, taken, done, found = take(self.state, steps)
        self.steps += int(taken)
        return ops.convert_to_numpy(done).all(axis=-1), found

    def _advance(self):
        done, found = self._take_steps()
        long = self._leave_for_room()
        over = [p for p, row in enumerate(self.rows) if row is not None and done[p]]
        if not over and not long:
            return
        found = [x if x is None else ops.convert_to_numpy(x) for x in found]
        broken = np.isnan(found[1]).any(axis=-1)
        for place in over:
            row, self.rows[place] = self.rows[place], None
            own = (x if x is None else x[place : place + 1] for x in found)
            give(row.future, checked, Hypotheses(*own))
        if broken[over + long].any():
            # What is hidden counts for nothing, unless it is no number.
            rows = [row for row in self.rows if row is not None]
            self.rows, self.state = [], None
            for row in rows:
                row.begun = self.steps
            self._admit(rows)

    def _leave_for_room(self):
        """Lets rows that go round the ring be decoded anew; gives places."""
        long = [
            place
            for place, row in enumerate(self.rows)
            if row is not None and self.steps - row.begun >= self.room < row.limit
        ]
        if not long:
            return long
        done = np.array(ops.convert_to_numpy(self.state.done))
        done[long] = True
        self.state = self.state._replace(done=ops.convert_to_tensor(done))
        for place in long:
            row, self.rows[place] = self.rows[place], None
            self.of.decode_alone(row.ids, row.future)
        return long

    # Programs.

    def _begun(self, ids, limits, read):
        """The state of rows before their first step, without room for steps."""
        search, count = self.search, ops.shape(ids)[0]
        options = {} if read == self.width else {"read_length": read}
        cache = search.model.begin(ids, self.room, search.width, **options)
        prefix = None
        if self.of.target_prefix:
            prefix = ops.convert_to_tensor([self.of.target_prefix], "int32")
            prefix = ops.repeat(prefix, count, axis=0)
        active = ops.greater(limits, 0)
        state = search.strategy.start(cache, active, self.room, limits, prefix)
        cache = {name: x for name, x in state.cache.items() if name != "past"}
        return state._replace(cache=cache, step=ops.zeros((count,), "int32"))

    def _empty(self, ids):
        """The state of places that nobody has."""
        count, search = ops.shape(ids)[0], self.search
        state = self._begun(ids, ops.zeros((count,), "int32"), self.width)
        cache = search.model.begin(ids, self.room, search.width)
        if "past" in cache:
            more = {"past": cache["past"], "slot": ops.zeros((), "int32")}
            state = state._replace(cache={**state.cache, **more})
        return state

    def _with(self, state, new, places):
        """The state with new rows at some places, whose past is hidden."""
        cache, places = state.cache, places[:, None]

        def put(old, rows):
            return ops.scatter_update(old, places, rows)

        own = {name: x for name, x in cache.items() if name in new.cache}
        state = keras.tree.map_structure(put, state._replace(cache=own), new)
        return state._replace(cache={**cache, **state.cache})

    def _advanced(self, state, steps):
        """Some steps: the state, how many, what is done and found."""
        step = self.of.step_player()

        def unfinished(taken, state):
            waiting = ops.logical_not(ops.all(state.done))
            return ops.logical_and(taken < steps, waiting)

        def one_more(taken, state):
            # Rows that are done take steps too: to no place that is none.
            last = ops.minimum(state.step, room - 1)
            return taken + 1, step(state._replace(step=last))

        room, taken = state.capacity, ops.zeros((), "int32")
        taken, state = ops.while_loop(unfinished, one_more, (taken, state))
        return state, taken, state.done, self.search.strategy.finish(state)


def _fault(search):
    """What of a search hangs on all rows being at one step; or None."""
    faults = {
        "sampling": search.options.samples,
        "return_alternatives=True": search.options.return_alternatives,
        "a shortlist": search.options.shortlist is not None,
        "processors of your own": bool(search.options.logits_processors),
        "groups of a beam": search.options.num_beam_groups > 1,
        "attention that is returned or decides": bool(search.begin_options),
        f"a {type(search.model).__name__} whose rows are at one step": not getattr(
            search.model, "supports_row_steps", False
        ),
    }
    return next((fault for fault, there in faults.items() if there), None)


def _room(width, lengths):
    """Steps that a row of so many source tokens has room for."""
    room = -(-(3 * width // 2 + 2) // 8) * 8
    return min(room, lengths.limit(width))


def _sizes(most):
    """Numbers of rows that come at once, and of places: with programs each."""
    part = -(-most // 4)
    return sorted({1, part}), sorted({1, *range(part, most, part), most})


def give(future, function, *arguments):
    """Gives a future what a function gives, or its error.

    Args:
        future: that runs.
        function: function of the arguments.
        *arguments: anything.
    """
    try:
        result = function(*arguments)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
