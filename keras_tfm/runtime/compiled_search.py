"""Runs one search strategy with a model, in compiled functions."""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.decode import inputs, search_state
from keras_tfm.decode.beam_search import BeamSearch
from keras_tfm.decode.hypotheses import Hypotheses
from keras_tfm.decode.option_checks import check_count
from keras_tfm.decode.options import Options
from keras_tfm.decode.protocol import Capabilities, Decodable
from keras_tfm.decode.search import SearchStrategy
from keras_tfm.decode.search_state import present
from keras_tfm.decode.strategy import search_strategy
from keras_tfm.runtime.bucketing import LengthBuckets
from keras_tfm.runtime.compile import CompiledFunctions, ModelWeights, captured
from keras_tfm.runtime.rows import State, check_finite, in_order, to_numpy
from keras_tfm.runtime.scheduler import OfflineBatch, decode_offline
from keras_tfm.types import Tensor

# Of the reading of sources; that of a recurrent network is longer.
MAX_OPERATIONS = 3_000


class CompiledSearch:
    """Runs a search in compiled functions: begin, extend the cache, take steps.

    Args:
        model: `decode.Decodable`.
        options: `decode.Options`.
        strategy: `decode.BeamSearch` or `decode.Sampling`; or None for the one
            that the options ask for.

    Raises:
        ValueError: options that the model cannot follow.
    """

    def __init__(
        self, model: Decodable, options: Options, strategy: SearchStrategy | None = None
    ):
        self.model, self.options = model, options
        self.weights = ModelWeights(model, options.matmul_precision)
        self.capabilities = Capabilities.of(model)
        self.capabilities.check(options)
        self.buckets = LengthBuckets(
            options.length_rule,
            self.capabilities.max_positions,
            self.capabilities.continues_source,
            options.few_buckets,
        )
        self.strategy = strategy or search_strategy(options)
        # n, hypotheses that are returned; K, hypotheses that a step advances.
        self.num_hypotheses = self.strategy.options.num_hypotheses
        self.num_beams = self.strategy.options.beam_size
        if options.samples:
            self.num_beams = self.num_hypotheses
        needs_attention = options.return_attention or options.coverage_penalty
        self.begin_options = {"return_attention": True} if needs_attention else {}
        self.functions = CompiledFunctions(self.weights, options.jit_compile)
        self.get_take_step = captured(self._take_step, self.weights)

        def begin(sources, options):
            [((capacity, read_length), source_ids)] = sources.items()
            return self._begin(capacity, read_length, source_ids, options)

        self.get_begin = captured(begin, self.weights, MAX_OPERATIONS)
        _build(model, options.end_id)

    def decode(
        self,
        source_ids: np.ndarray,
        target_prefix: Sequence | None = None,
        constraints: Sequence | None = None,
        seed: int | None = None,
        limits: Sequence[int] | None = None,
        is_last_chosen: bool = False,
        indices: Sequence[int] | None = None,
    ) -> Hypotheses:
        """Decodes a batch of checked sources.

        Args:
            source_ids: integers `(B, S)`, padded with 0.
            target_prefix, constraints, seed: as in `Decoder`.
            limits, is_last_chosen: as in `batch_inputs`.
            indices: int for each row, as in `check_finite`.

        Returns:
            `Hypotheses` of NumPy arrays.
        """
        batch_size, length = source_ids.shape
        padded = self.buckets.padded(source_ids)
        tensors = self.batch_inputs(
            padded,
            target_prefix,
            constraints,
            seed=seed,
            limits=limits,
            is_last_chosen=is_last_chosen,
        )
        batch = OfflineBatch(np.arange(batch_size), self.start, tensors)
        results = decode_offline([batch] if batch_size else [], self.advance)
        # (B, n, T) and (B, n, T, S), without the padding of the bucket.
        shape = (batch_size, self.num_hypotheses)
        history = (*shape, self.buckets.max_length(padded.shape[1]))
        options = self.options
        template = Hypotheses(
            np.zeros(history, "int32"),
            np.zeros(shape, "float32"),
            np.zeros(shape, "int32"),
            np.zeros(history, "float32") if options.return_token_scores else None,
            np.zeros((*history, length), "float32")
            if options.return_attention
            else None,
        )
        return check_finite(in_order(list(results), template), indices)

    def batch_inputs(
        self,
        source_ids: np.ndarray,
        target_prefix: Sequence | None = None,
        constraints: Sequence | None = None,
        seed: int | None = None,
        limits: Sequence[int] | None = None,
        is_last_chosen: bool = False,
        indices: Sequence[int] | None = None,
    ) -> tuple[Tensor, ...]:
        """Checks the inputs of a batch, and returns them as tensors.

        Args:
            source_ids: integers `(B, S)`, padded to a bucket.
            target_prefix, constraints, seed: as in `Decoder`.
            limits: int for each row, in tokens, 0 where it is not decoded; or
                None for those of the options.
            is_last_chosen: bool. The last token of each prefix was chosen by a
                search, and has its probability among the tokens allowed.
            indices: int for each row, which decides what is sampled.

        Returns:
            int32 source ids `(B, S)`, candidates of a shortlist `(B, C)`,
            limits `(B,)` and prefixes `(B, P)`; then phrases `(B, J, P)` in
            beam search, or noise, float32 `(B, n, T)`, in sampling.
        """
        self.weights.refresh()
        if limits is None:
            limits = self.buckets.length_limits(source_ids)
        size = self.capabilities.target_vocabulary_size
        prefix = inputs.prefix_array(target_prefix, limits, self.options, size)
        forced = [prefix]
        phrases = inputs.constraint_array(constraints, limits, self.options, size)
        if isinstance(self.strategy, BeamSearch):
            forced.append(phrases)
        candidates = np.zeros((len(source_ids), 0), "int32")
        if self.options.shortlist is not None:
            candidates = self._candidates(source_ids, forced)
            forced = [_indices_of(tokens, candidates) for tokens in forced]
        if is_last_chosen:
            lengths = np.count_nonzero(prefix, axis=1)
            rows = np.flatnonzero(lengths)
            # A negative id is one that a search chose, see `best_tokens`.
            forced[0][rows, lengths[rows] - 1] *= -1
        arrays = [source_ids, candidates, limits, *forced]
        tensors = [ops.convert_to_tensor(array, "int32") for array in arrays]
        if self.options.samples:
            indices = range(len(source_ids)) if indices is None else indices
            length = self.buckets.max_length(source_ids.shape[1])
            tensors.append(_noise(self.num_hypotheses, length, indices, seed))
        return tuple(tensors)

    def _candidates(self, source_ids, forced):
        forced = [x.reshape(len(x), math.prod(x.shape[1:])) for x in forced]
        return self.options.shortlist.rows(
            source_ids,
            self.options.num_special_ids,
            np.concatenate(forced, axis=1),
            self.options.suppressed_ids,
        )

    def start(
        self,
        *tensors: Tensor,
        read_length: int | None = None,
        takes_first_step: bool = False,
    ) -> State:
        """Returns the state before the first step, or after it.

        Args:
            *tensors: from `batch_inputs`.
            read_length: int or None: columns of the sources that are read.
            takes_first_step: bool. Take the first step with one hypothesis for
                each source, if that is possible.
        """
        capacity = self.buckets.next_capacity(0)
        if not self.capabilities.can_extend:
            capacity = self.buckets.max_length(tensors[0].shape[1])
        begin = functools.partial(self.begin, capacity, read_length)
        key = ("begin", capacity, read_length)
        state = self.functions.get(key, begin)(*tensors)
        if takes_first_step and self._can_start_as_one(state):
            state = self.functions.get("first step", self._take_first_step)(state)
        return state

    def begin(
        self,
        capacity: Any,
        read_length: int | None,
        source_ids: Tensor,
        candidates: Tensor,
        limits: Tensor,
        *forced: Tensor,
    ) -> State:
        """Reads the sources; part of a compiled function.

        Args:
            capacity: int, or scalar int tensor, of the cache, in tokens.
            read_length: as in `start`.
            source_ids, candidates, limits, *forced: from `batch_inputs`.
        """
        options = {} if candidates.shape[1] == 0 else {"candidates": candidates}
        # Captured for its products in another precision; it is called once.
        if self.weights.precision != "float32" and isinstance(capacity, int):
            # What is no tensor is a key: a graph is for one structure.
            cache = self.get_begin()({(capacity, read_length): source_ids}, options)
        else:
            cache = self._begin(capacity, read_length, source_ids, options)
        return self.strategy.start(
            cache,
            ops.greater(limits, 0),
            capacity,
            limits,
            *forced,
            candidates=candidates,
            source_ids=source_ids,
        )

    def advance(
        self, state: State, num_steps: int | None = None
    ) -> tuple[State, Hypotheses]:
        """Takes steps, after it has extended a cache that is full.

        Args:
            state: from `start` or `advance`. It must not be used again.
            num_steps: int, the most steps; or None for the capacity.

        Returns:
            The state, and its hypotheses so far.
        """
        step, capacity = int(state.step), state.capacity
        if step >= capacity:
            if self.capabilities.can_extend:
                capacity = self.buckets.next_capacity(step)
            extend = functools.partial(self.extend, max_length=capacity)
            state = self.functions.get(("extend", capacity), extend)(state)
        until = capacity if num_steps is None else min(capacity, step + num_steps)
        until = ops.convert_to_tensor(until, "int32")
        take_steps = self.functions.get("steps", self._take_steps, donate=True)
        return take_steps(state, until)

    def extend(self, state: State, max_length: Any) -> State:
        """Extends a state and its cache; as in `Decoder.extend`."""
        if not self.capabilities.can_extend:
            return state
        cache = self.model.extend(state.cache, max_length)
        return state.resized(max_length)._replace(cache=cache)

    def single_steps(
        self, tensors: Sequence[Tensor]
    ) -> Iterator[tuple[int, State, Hypotheses]]:
        """Takes one step at a time, until all rows are done.

        Args:
            tensors: from `batch_inputs`.

        Yields:
            The index of the step, the state after it, and `Hypotheses` of NumPy
            arrays.
        """
        state, step = self.start(*tensors), 0
        while not np.all(ops.convert_to_numpy(state.is_done)):
            state, hypotheses = self.advance(state, 1)
            yield step, state, check_finite(to_numpy(hypotheses))
            step += 1

    def padded_sources(self, source_ids: Any) -> np.ndarray:
        """Checks source ids, and pads them to a bucket."""
        source_ids = inputs.source_array(source_ids, self.capabilities.vocabulary_size)
        return self.buckets.padded(source_ids)

    def _begin(self, capacity, read_length, source_ids, options):
        options = {**self.begin_options, **options}
        if read_length is not None:
            options["read_length"] = read_length
        return self.model.begin(source_ids, capacity, self.num_beams, **options)

    def _take_steps(self, state, until):
        state = search_state.advance(self.get_take_step(), state, until)
        return state, self.strategy.finish(state)

    def _take_step(self, state):
        return self.strategy.take_step(self.model.step, state)

    def _take_first_step(self, state):
        return self.get_take_step()(self.strategy.with_one_beam(state))

    def _can_start_as_one(self, state):
        """Whether one hypothesis may stand for all K in the first step."""
        num_tokens = self.capabilities.target_vocabulary_size or 0
        if present(state.candidates):
            num_tokens = state.candidates.shape[1]
        return (
            isinstance(self.strategy, BeamSearch)
            and self.strategy.groups == 1
            and 2 * self.num_beams <= num_tokens
            and not self.begin_options
            and not present(state.phrases)
            and not _has_attention(state.cache)
        )


def _noise(num_hypotheses, length, indices, seed):
    """Returns uniform float32 `(B, n, T)`, independent of the batch."""
    if seed is not None:
        check_count("seed", seed, 0)
    shape = (length, num_hypotheses)
    entropy = np.random.SeedSequence(seed).entropy
    noise = [
        np.random.default_rng([entropy, max(index, 0)]).random(shape, "float32").T
        for index in indices
    ]
    noise = np.reshape(noise, (len(indices), *shape[::-1]))
    return ops.convert_to_tensor(noise.astype("float32"))


def _indices_of(tokens, candidates):
    """Returns the indices of tokens `(B, ...)` in candidates `(B, C)`."""
    pairs = zip(candidates, tokens, strict=True)
    indices = [np.searchsorted(row, row_tokens) for row, row_tokens in pairs]
    return np.array(indices, "int32").reshape(tokens.shape)


def _build(model, token):
    """Builds layers that have no weights yet, as no compiled function can."""
    for part in getattr(model, "models", [model]):
        if isinstance(part, keras.Model) and not all(x.built for x in part.layers):
            ids = ops.full((1, 1), token, "int32")
            part.step(ids, ops.zeros((), "int32"), part.begin(ids, 1, 1))


def _has_attention(cache):
    """Whether a model, or one of several, stores what all K attend to."""
    models = cache.get("models", ())
    caches = [cache, *(models if isinstance(models, (list, tuple)) else ())]
    return any("attention" in part for part in caches if isinstance(part, dict))
