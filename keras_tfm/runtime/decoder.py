"""From source ids to target ids, in compiled programs."""

import copy
import functools
import math
from collections.abc import Iterable, Iterator, Sequence

import keras
import numpy as np
from keras import ops

from keras_tfm.decode import inputs, scoring, search_state
from keras_tfm.decode.beam_search import BeamSearch
from keras_tfm.decode.hypotheses import BeamTrace, Hypotheses
from keras_tfm.decode.options import Options
from keras_tfm.decode.protocol import Capabilities
from keras_tfm.decode.sampling import Sampling
from keras_tfm.decode.search_state import present
from keras_tfm.decode.strategy import first_token_strategy, search_strategy
from keras_tfm.runtime import grouping, schedule
from keras_tfm.runtime.alternatives import Alternatives
from keras_tfm.runtime.bucketing import Lengths
from keras_tfm.runtime.compile import CompiledFunctions, ModelWeights, captured

# Full batches of one length after which programs of their own pay: each takes a
# second or more to compile, and saves a hundredth of one.
OFTEN = 100


class Decoder:
    """Decodes source ids with a model, in compiled functions.

    A compiled function takes a chunk of steps: to the 16th, to the 32nd and so
    on. Between chunks finished rows leave the batch. So a high limit makes
    neither a step nor compilation more expensive, and each length is compiled
    when it is first needed.

    Args:
        model: what has `begin(source_ids, max_length, beam_size)` and
            `step(ids, index, cache)`, such as `Transformer`. Without
            `extend(cache, max_length)` its cache has the full length at once.
        options: `decode.Options`, or None for the defaults.

    Raises:
        ValueError: options that the model cannot follow.
    """

    def __init__(self, model, options: Options | None = None):
        options = Options() if options is None else options
        self.model, self.options = model, options
        self.weights = ModelWeights(model, options.matmul_precision)
        self.capabilities = Capabilities.of(model)
        self.capabilities.check(options)
        self.lengths = Lengths(
            options.length_rule,
            self.capabilities.max_positions,
            continues=self.capabilities.continues_source,
            few_buckets=options.few_buckets,
        )
        self.max_positions = self.lengths.longest
        self.continues_source = self.lengths.continues
        _build(model, options.end_id)
        self.strategy = search_strategy(options)
        self.each = 1 if options.return_alternatives else options.num_hypotheses
        self.width = options.num_hypotheses if options.samples else options.beam_size
        with_attention = options.return_attention or options.coverage_penalty
        self.begin_options = {"return_attention": True} if with_attention else {}
        self._reads = "read_length" in self.capabilities.begin_options
        self._few_buckets, self._met = options.few_buckets, {}
        self._functions = CompiledFunctions(self.weights, options.jit_compile)
        self._player = captured(self._take_step, self.weights)
        self._alternatives = None
        if options.return_alternatives:
            first = first_token_strategy(options)
            self._alternatives = Alternatives(self, self._with_strategy(first))

    def replace(self, **changes):
        """Returns a decoder of the same model with some options changed.

        Args:
            **changes: of `decode.Options`.
        """
        return Decoder(self.model, self.options.replace(**changes))

    def _with_strategy(self, strategy):
        """Returns this decoder with another search strategy."""
        search = copy.copy(self)
        search.strategy, options = strategy, strategy.options
        search.width, search.each = options.beam_size, options.num_hypotheses
        search._functions = CompiledFunctions(self.weights, self.options.jit_compile)
        search._player = captured(search._take_step, self.weights)
        return search

    def __call__(self, source_ids, target_prefix=None, constraints=None, seed=None):
        """Decodes a batch.

        Args:
            source_ids: integers `(B, S)`, NumPy or tensor, padded with 0 at
                the end; or B lists of ids, of any length. A row without any
                gives an empty hypothesis.
            target_prefix: B lists of ids, of any length, that the hypotheses
                begin with; or None. Forced tokens have their probability
                among all tokens.
            constraints: B lists of phrases, lists of ids, that the hypotheses
                contain, in any order, see `Constraints`; or None. Equal ones
                are met together. Where processors forbid them, a row is empty
                and has a score of minus infinity.
            seed: int, or None for another each time. Of sampling: the same
                tokens are drawn on every backend, and in any batch.

        Returns:
            `Hypotheses` of NumPy arrays.

        Raises:
            ValueError: another rank or dtype, an id outside the model's
                vocabulary, a prefix or constraints that leave no room below
                the limit, or constraints without a beam.
            FloatingPointError: the model gave NaN logits.
        """
        size = self.capabilities.vocabulary_size
        source_ids = inputs.source_array(source_ids, size)
        if self._alternatives is None:
            return self.decoded(source_ids, target_prefix, constraints, seed)
        if constraints is not None:
            raise ValueError(
                "Alternatives are not held to phrases. Received: constraints, and "
                "return_alternatives=True."
            )
        return self._alternatives(source_ids, target_prefix)

    def bulk(
        self,
        rows: Iterable[Sequence[int]],
        batch_tokens: int = 2048,
        batch_size: int = 64,
        inter_threads: int | None = None,
        seed=None,
        target_prefix=None,
        many_programs: bool | None = None,
    ) -> Iterator[tuple[int, Hypotheses]]:
        """Decodes any number of sources, in the order that is fastest.

        They are sorted by length, so that sources of one length share a
        batch; of those that are not done when most of it is, batches of their
        own are made. So all are read first: of more than memory holds give so
        many at a time, as `Translator.bulk` does.

        Args:
            rows: lists of ids; an empty one gives an empty hypothesis.
            batch_tokens: int >= 1: source tokens of a batch, with padding.
            batch_size: int >= 1: sources of a batch, at most.
            inter_threads: int >= 1: batches decoded at once; or None for 2,
                and 1 on PyTorch. Small models do not keep two cores busy with
                one; PyTorch's threads get in each other's way.
            seed: as in a call.
            target_prefix: as in a call, a list of ids for each source.
            many_programs: bool: let full batches have programs for their very
                length and for a first step of one hypothesis, which take a
                tenth to a quarter less time and some seconds to compile; or
                None: once so many of a length have come that it pays.

        Yields:
            The number of a source, and its `Hypotheses` with B = 1.

        Raises:
            ValueError: a size below 1, or an id outside the model's vocabulary.
            FloatingPointError: the model gave NaN logits.
        """
        if self._alternatives is not None:
            raise ValueError(
                "Alternatives are found by a call, not in bulk. Received: "
                "return_alternatives=True."
            )
        if inter_threads is None:
            inter_threads = 1 if keras.config.backend() == "torch" else 2
        if min(batch_tokens, batch_size, inter_threads) < 1:
            raise ValueError(
                "There is at least one batch at once, of at least one source of at "
                f"least one token. Received: batch_tokens={batch_tokens}, batch_size="
                f"{batch_size}, inter_threads={inter_threads}."
            )
        rows = inputs.id_lists("source_ids", rows, self.capabilities.vocabulary_size)
        if target_prefix is not None:
            # All of them before any is decoded, and each by its index here.
            limits = [self.lengths.limit_of_row(len(row)) if row else 0 for row in rows]
            size = self.capabilities.target_vocabulary_size
            target_prefix = list(target_prefix)
            inputs.prefix_array(target_prefix, limits, self.options, size)
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        lengths = [len(rows[number]) for number in order]

        def batches():
            for width, count, group in grouping.groups(
                lengths, self.lengths.width, batch_tokens, batch_size
            ):
                chosen = order[group]
                # Filled up, since another number would be another program.
                spare = count - len(chosen)
                ids = [rows[i] for i in chosen] + [[]] * spare
                ids = inputs.padded_rows(ids, width)
                numbers = [*chosen, *[-1] * spare]
                prefix = None
                if target_prefix is not None:
                    prefix = [target_prefix[i] for i in chosen] + [[]] * spare
                arguments = self._arguments(
                    ids, target_prefix=prefix, numbers=numbers, seed=seed
                )
                start, read = self._start, self.lengths.read(lengths[group.start])
                full = count == grouping.counts(width, batch_tokens, batch_size)[-1]
                if full and self._pays((count, width, read), many_programs):
                    read = read if self._reads else None
                    start = functools.partial(self._start, read=read, further=True)
                yield numbers, start, arguments

        def carry_on(state):
            # Between stretches states are copied, and in them nothing leaves:
            # longer ones as long as nothing would.
            index = int(state.step)
            leave = ops.convert_to_numpy(state.done).all(axis=-1).any()
            steps = max(2, index // 8) if leave else max(4, index // 4)
            return self._carry_on(state, steps=steps)

        parts = schedule.run(batches(), carry_on, inter_threads)
        for numbers, found in parts:
            for place, number in enumerate(numbers):
                parts = (x if x is None else x[place : place + 1] for x in found)
                yield int(number), checked(Hypotheses(*parts), [number])

    def _pays(self, kind, many_programs):
        """Whether batches of a kind are to have programs of their own."""
        if many_programs is not None:
            return many_programs
        self._met[kind] = self._met.get(kind, 0) + 1
        return not self._few_buckets and self._met[kind] > OFTEN

    def warm_up(self, lengths, batch_tokens=2048, batch_size=64, target_prefix=()):
        """Compiles what sources of some lengths need in bulk, few or many.

        Translations may be half as long again as their source; those that are
        longer need more programs.

        Args:
            lengths: ints >= 1, in source tokens.
            batch_tokens, batch_size: as in bulk.
            target_prefix: ints that every hypothesis begins with.
        """
        for width in sorted({self.lengths.width(length) for length in lengths}):
            counts, begun = grouping.counts(width, batch_tokens, batch_size), None
            for count in counts:
                ids = np.full((count, width), self.options.end_id, "int32")
                prefix = [target_prefix] * count if len(target_prefix) else None
                begun = self._start(*self._arguments(ids, target_prefix=prefix))
            last = min(width + width // 2, self.lengths.limit(width))
            for count in counts:
                state, room = schedule.of_rows([begun], [np.arange(count)]), 0
                while room < last:
                    # Its own: on JAX a program may write where it stood.
                    state = state._replace(step=ops.convert_to_tensor(room, "int32"))
                    state, _ = self._carry_on(state, steps=1)
                    room = state.capacity

    def stream(self, source_ids, target_prefix=None) -> Iterator[np.ndarray]:
        """Decodes greedily, and gives tokens as they come.

        Args:
            source_ids, target_prefix: as in a call.

        Yields:
            int32 `(B,)`, the next token of each row; 0 where it is done.

        Raises:
            ValueError: this is no greedy search; or as a call.
        """
        others = self.options.samples or self._alternatives is not None
        if others or not isinstance(self.strategy, Sampling):
            raise ValueError(
                "Only the tokens of a greedy search are known as they come. Received: "
                f"beam_size={self.width}, or sampling, or alternatives. Set "
                "beam_size=1."
            )
        size = self.capabilities.vocabulary_size
        source_ids = self.lengths.padded(inputs.source_array(source_ids, size))
        arguments = self._arguments(source_ids, target_prefix=target_prefix)
        return self._stream(arguments)

    def trace(self, source_ids) -> Iterator[BeamTrace]:
        """Searches one source, and tells after each step what the beam holds.

        Args:
            source_ids: integers `(1, S)`, or a list of one list of ids.

        Yields:
            `BeamTrace`, for `keras_tfm.plot.beam_tree`.

        Raises:
            ValueError: this is no search by a beam, or has a shortlist; or
                there is another number of sources than one.
        """
        if (
            not isinstance(self.strategy, BeamSearch)
            or self.options.shortlist is not None
        ):
            raise ValueError(
                "A beam over all tokens is watched. Received: beam_size="
                f"{self.width}, sampling or a shortlist. Set beam_size=2 or more."
            )
        size = self.capabilities.vocabulary_size
        source_ids = self.lengths.padded(inputs.source_array(source_ids, size))
        if len(source_ids) != 1:
            raise ValueError(
                f"One source is watched. Received: {len(source_ids)} sources."
            )
        return self._trace(self._arguments(source_ids))

    def _trace(self, arguments):
        state, taken = self._start(*arguments), 0
        while not np.all(ops.convert_to_numpy(state.done)):
            state, found = self._carry_on(state, steps=1)
            checked(_arrays(found))
            taken += 1
            live, finished = keras.tree.map_structure(
                lambda x: ops.convert_to_numpy(x)[0], (state.live, state.finished)
            )
            new = finished.lengths == taken
            yield BeamTrace(
                _rows(live.ids, live.scores, taken),
                _rows(finished.ids[new], finished.scores[new], taken),
            )

    def score(self, source_ids, target_ids, prefix_lengths=None) -> Hypotheses:
        """Scores targets that are given.

        Args:
            source_ids: integers `(B, S)`, NumPy or tensor, padded with 0.
            target_ids: B lists of ids, without the start token; with the end
                token where that is to be scored too. Padding at their ends is
                left out.
            prefix_lengths: B ints, or None for zeros: tokens of each target
                that are a prefix. Of a search with `score_prefix=False` they
                count 0, as where it decodes.

        Returns:
            `Hypotheses` of NumPy arrays, n = 1, with the log-probability of
            each token among all tokens, and the score of this search's length
            penalty; without attention (the model's `attention_maps` gives
            it). A row without source or target has minus infinity.

        Raises:
            ValueError: as a call; a token outside the target vocabulary; a
                prefix longer than its target; or a model that cannot be called
                as a whole.

        Cost: one call of the model, with `(B, T, V)` logits.
        """
        if not callable(self.model):
            raise ValueError(
                "`score` calls the model, with source and target at once. Received: "
                f"{type(self.model).__name__}, which has `begin` and `step` alone."
            )
        size = self.capabilities.vocabulary_size
        source_ids = self.lengths.padded(inputs.source_array(source_ids, size))
        size = self.capabilities.target_vocabulary_size
        targets = inputs.target_array(
            target_ids, source_ids, size, self.max_positions, self.continues_source
        )
        if not len(source_ids):
            none = np.zeros((0, 1, targets.shape[1]), "float32")
            ids, scores = none.astype("int32"), none[:, :, 0]
            return Hypotheses(ids, scores, scores.astype("int32"), none)
        given = inputs.prefix_length_array(prefix_lengths, targets)
        if self.options.score_prefix:
            given = np.zeros_like(given)
        self.weights.refresh()
        program = self._functions.get("score", self._score)
        arrays = source_ids, targets, given
        tensors = (ops.convert_to_tensor(each, "int32") for each in arrays)
        return checked(_arrays(program(*tensors)))

    def decode(self, source_ids, target_prefix=()):
        """Decodes a batch of tensors, as part of a program of one's own.

        Args:
            source_ids: int32 `(B, S)`.
            target_prefix: ints that every hypothesis begins with.

        Returns:
            `Hypotheses` of tensors; where logits were NaN a score is NaN.

        Raises:
            ValueError: this search samples, gives alternatives, or has a
                shortlist; or a prefix is of what is no token, or leaves no
                room. Of a row whose own limit it passes it is cut there.
        """
        state = self.begin_decoding(source_ids, target_prefix)
        return self.strategy.finish(self.decode_until(state))

    def begin_decoding(self, source_ids, target_prefix=(), max_length=None):
        """Begins what `decode` does, to go on by `decode_until`.

        Args:
            source_ids, target_prefix: as of `decode`.
            max_length: int, or scalar int tensor: tokens that the cache holds
                at first, where the model has `extend`; or None for the limit.
                The time of a step grows with it.

        Returns:
            dict of tensors, the state before the first step: `"index"` is the
            number of steps taken, int32; `"done"`, bool `(B, M)`, tells which
            rows are; all but scalars have the batch first, so that rows can be
            taken out.

        Raises:
            ValueError: as `decode`.
        """
        apart = self._alternatives is not None or self.options.shortlist is not None
        if self.options.samples or apart:
            raise ValueError(
                "A program of one's own holds a greedy search or a beam over all "
                "tokens. Received: a search that samples, return_alternatives=True, "
                "or a shortlist."
            )
        size = self.capabilities.target_vocabulary_size
        [target_prefix] = inputs.id_lists(
            "target_prefix", [target_prefix], size, {self.options.end_id}
        )
        length = source_ids.shape[1]
        if length is not None or not self.lengths.multiple:
            inputs.check_prefix_length(target_prefix, self.lengths.limit(length or 0))
        tokens = ops.sum(ops.cast(ops.not_equal(source_ids, 0), "int32"), axis=-1)
        # Each row has its own, or a translation would depend on its neighbours.
        limits = ops.where(ops.greater(tokens, 0), self.lengths.limit_of_row(tokens), 0)
        room = self.lengths.limit(ops.shape(source_ids)[1])
        if max_length is not None and self.capabilities.can_extend:
            is_static = isinstance(room, int) and isinstance(max_length, int)
            room = (min if is_static else ops.minimum)(max_length, room)
        count, prefix = ops.shape(source_ids)[0], []
        if len(target_prefix):
            forced = ops.convert_to_tensor([target_prefix], "int32")
            prefix.append(ops.broadcast_to(forced, (count, len(target_prefix))))
        none = ops.zeros((count, 0), "int32")
        return self._begin(room, None, source_ids, none, limits, *prefix)

    def decode_until(self, state, until=None):
        """Takes steps, until all rows are done if that comes first.

        Args:
            state: of `begin_decoding`, `extend` or this.
            until: scalar int32 tensor, the steps taken then in all; or None.
                No more are taken than there is room for.

        Returns:
            The state after them; `hypotheses(state)` returns its `Hypotheses`.
        """
        return self.strategy.advance(self.model.step, state, until)

    def extend(self, state, max_length):
        """Extends a state and its cache, so that more steps can be taken.

        Args:
            state: from `begin_decoding` or `decode_until`.
            max_length: int, or scalar int tensor, in tokens, at least the
                present length.

        Returns:
            The extended state; unchanged if the model has no `extend`, since
            its cache then has the full length from the beginning.
        """
        if not self.capabilities.can_extend:
            return state
        cache = self.model.extend(state.cache, max_length)
        return state.resized(max_length)._replace(cache=cache)

    def hypotheses(self, state) -> Hypotheses:
        """Returns the hypotheses of a state.

        Args:
            state: from `decode_until`.

        Returns:
            `Hypotheses` of tensors; of rows that are not finished those so far.
        """
        return self.strategy.finish(state)

    def length_limit(self, source_length):
        """Returns the most tokens that the hypotheses of a source may have.

        Args:
            source_length: int, or int tensor, in tokens, without padding.

        Returns:
            int, or int tensor of the same shape.
        """
        return self.lengths.limit_of_row(source_length)

    def source_bucket(self, source_length: int) -> int:
        """Returns the padded length for which functions are compiled.

        Args:
            source_length: int, in tokens.
        """
        return self.lengths.width(source_length)

    def _score(self, source_ids, target_ids, given):
        return scoring.score(self.model, source_ids, target_ids, given, self.options)

    def decoded(
        self,
        source_ids,
        target_prefix=None,
        constraints=None,
        seed=None,
        limits=None,
        found_last=False,
        numbers=None,
    ):
        """Decodes a batch of sources that are checked, each to its own limit.

        Args:
            source_ids, target_prefix, constraints, seed: as in a call.
            limits: int for each row, in tokens, 0 where it is not decoded; or
                None for those of the options.
            found_last: bool. The last token of each prefix was found by a
                search, and has its probability among those that may be taken.
            numbers: int for each row, of `checked`.

        Returns:
            `Hypotheses` of NumPy arrays.
        """
        count, length = source_ids.shape
        padded = self.lengths.padded(source_ids)
        arguments = self._arguments(
            padded,
            limits,
            target_prefix,
            constraints,
            seed=seed,
            found_last=found_last,
        )
        batches = [(np.arange(count), self._start, arguments)] if count else []
        found = schedule.run(batches, self._carry_on)
        found = self._joined(list(found), count, length, padded.shape[1])
        return checked(found, numbers)

    def _stream(self, arguments):
        state, taken = self._start(*arguments), 0
        while not np.all(ops.convert_to_numpy(state.done)):
            state, found = self._carry_on(state, steps=1)
            yield checked(_arrays(found)).ids[:, 0, taken]
            taken += 1

    def _start(self, *arguments, read=None, further=False):
        """Gives the state before the first step, of so many source tokens.

        Or, further, that after it where a program of its own is faster.
        """
        room = self._room_above(0, arguments[0].shape[1])
        begin = functools.partial(self._begin, room, read)
        state = self._functions.get(("begin", room, read), begin)(*arguments)
        if further and self._starts_as_one(state):
            state = self._functions.get("first", self._take_first_step)(state)
        return state

    def _starts_as_one(self, state):
        """Whether one hypothesis may stand for all in the first step."""
        size = self.capabilities.target_vocabulary_size or 0
        if present(state.candidates):
            size = state.candidates.shape[1]
        return (
            isinstance(self.strategy, BeamSearch)
            and self.strategy.groups == 1
            and 2 * self.width <= size
            and not self.begin_options
            and not present(state.phrases)
            and not _tells(state.cache)
        )

    def _take_first_step(self, state):
        return self._player()(self.strategy.with_one_beam(state))

    def _carry_on(self, state, steps=None):
        """Takes some steps, or as many as there is room for; makes room first.

        Gives the state and the hypotheses so far.
        """
        index, room = int(state.step), state.capacity
        if index >= room:
            room = self._room_above(index)
            extend = functools.partial(self.extend, max_length=room)
            state = self._functions.get(("extend", room), extend)(state)
        until = room if steps is None else min(room, index + steps)
        until = ops.convert_to_tensor(until, "int32")
        return self._functions.get("advance", self._advance, donate=True)(state, until)

    def _begin(self, room, read, source_ids, candidates, limits, *rest):
        options, shortlisted = self.begin_options, candidates.shape[1] > 0
        if read is not None:
            options = {**options, "read_length": read}
        if shortlisted:
            options = {**options, "candidates": candidates}
        cache = self.model.begin(source_ids, room, self.width, **options)
        active = ops.greater(limits, 0)
        return self.strategy.start(
            cache,
            active,
            room,
            limits,
            *rest,
            candidates=candidates,
            source_ids=source_ids,
        )

    def _advance(self, state, until):
        state = search_state.advance(self._player(), state, until)
        return state, self.strategy.finish(state)

    def _take_step(self, state):
        return self.strategy.take_step(self.model.step, state)

    def _room_above(self, index, width=None):
        """Tokens to make room for."""
        if not self.capabilities.can_extend:
            return self.lengths.limit(width)
        return self.lengths.room_above(index)

    def _arguments(
        self,
        source_ids,
        limits=None,
        target_prefix=None,
        constraints=None,
        numbers=None,
        seed=None,
        found_last=False,
    ):
        """Checks what a batch is given, and gives it as tensors."""
        self.weights.refresh()
        if limits is None:
            limits = self.lengths.limits(source_ids)
        size = self.capabilities.target_vocabulary_size
        prefix = inputs.prefix_array(target_prefix, limits, self.options, size)
        phrases = inputs.constraint_array(constraints, limits, self.options, size)
        rows = [prefix]
        if isinstance(self.strategy, BeamSearch):
            rows.append(phrases)
        candidates = np.zeros((len(source_ids), 0), "int32")
        if self.options.shortlist is not None:
            forced = [x.reshape(len(x), math.prod(x.shape[1:])) for x in rows]
            forced = np.concatenate(forced, axis=1)
            candidates = self.options.shortlist.rows(
                source_ids,
                self.options.num_special_ids,
                forced,
                self.options.suppressed_ids,
            )
            rows = [_places(candidates, tokens) for tokens in rows]
        if found_last:
            lengths = np.count_nonzero(prefix, axis=1)
            with_last = np.flatnonzero(lengths)
            places = with_last, lengths[with_last] - 1
            rows[0][places] = -rows[0][places]
        parts = [source_ids, candidates, limits, *rows]
        parts = [ops.convert_to_tensor(part, "int32") for part in parts]
        if not self.options.samples:
            return tuple(parts)
        # Of each row by its number: the same in any batch, and of any length.
        shape = (self.lengths.limit(source_ids.shape[1]), self.options.num_hypotheses)
        base = np.random.SeedSequence(seed).entropy
        noise = [
            np.random.default_rng([base, max(number, 0)]).random(shape, "float32").T
            for number in (range(len(source_ids)) if numbers is None else numbers)
        ]
        noise = np.reshape(noise, (len(source_ids), *shape[::-1])).astype("float32")
        return (*parts, ops.convert_to_tensor(noise))

    def _joined(self, parts, count, length, width):
        """Puts rows that came one after another in their order."""
        limit, each = self.lengths.limit(width), self.each
        numbers = [numbers for numbers, _ in parts]
        found = [hypotheses for _, hypotheses in parts]

        def placed(name, dtype, *shape, wanted=True):
            if not wanted:
                return None
            whole = np.zeros((count, each, *shape), dtype)
            for rows, one in zip(numbers, found, strict=True):
                one = getattr(one, name)
                one = one[tuple(slice(size) for size in (None, None, *shape))]
                inside = tuple(slice(size) for size in one.shape[1:])
                whole[(rows, *inside)] = one
            return whole

        return Hypotheses(
            placed("ids", "int32", limit),
            placed("scores", "float32"),
            placed("lengths", "int32"),
            placed(
                "token_scores",
                "float32",
                limit,
                wanted=self.options.return_token_scores,
            ),
            placed(
                "attention",
                "float32",
                limit,
                length,
                wanted=self.options.return_attention,
            ),
        )


def _arrays(hypotheses):
    """The same as NumPy arrays."""
    return Hypotheses(
        *(x if x is None else ops.convert_to_numpy(x) for x in hypotheses)
    )


def _places(candidates, tokens):
    """Where tokens `(B, ...)` stand among the candidates `(B, C)` of a row."""
    pairs = zip(candidates, tokens, strict=True)
    places = [np.searchsorted(own, some) for own, some in pairs]
    return np.array(places, "int32").reshape(tokens.shape)


def _rows(ids, scores, length):
    """Pairs of ids and score, of those that are hypotheses, the best first."""
    known = np.isfinite(scores)
    pairs = zip(ids[known][:, :length].tolist(), scores[known].tolist(), strict=True)
    return sorted(pairs, key=lambda pair: -pair[1])


def checked(hypotheses, numbers=None):
    """Refuses hypotheses of logits that were NaN.

    Args:
        hypotheses: `Hypotheses` of NumPy arrays.
        numbers: int `(B,)`, of the rows in the message; or None for 0 and on.

    Returns:
        The hypotheses.

    Raises:
        FloatingPointError: a score says that logits were NaN.
    """
    rows = np.flatnonzero(np.isnan(hypotheses.scores).any(axis=-1))
    if rows.size:
        row = int(rows[0])
        numbers = np.arange(len(hypotheses.scores)) if numbers is None else numbers
        numbers = np.asarray(numbers)
        broken = np.isnan(hypotheses.scores[row])
        step = int(hypotheses.lengths[row][broken].min()) - 1
        count, every = (len(np.unique(some)) for some in (numbers[rows], numbers))
        raise FloatingPointError(
            "The model gave NaN logits, or infinite ones. Received: such at step "
            f"{step} of row {numbers[row]} ({count} of {every} rows). Look at its "
            "weights, or decode in float32."
        )
    return hypotheses


def _build(model, token):
    """Lets layers that have no weights yet make them: no program can."""
    for one in getattr(model, "models", [model]):
        if isinstance(one, keras.Model) and not all(x.built for x in one.layers):
            ids = ops.full((1, 1), token, "int32")
            one.step(ids, ops.zeros((), "int32"), one.begin(ids, 1, 1))


def _tells(cache):
    """Whether a model, or one of several, has told what all K attended to."""
    models = cache.get("models", ())
    parts = [cache, *(models if isinstance(models, (list, tuple)) else ())]
    return any("attention" in part for part in parts if isinstance(part, dict))
