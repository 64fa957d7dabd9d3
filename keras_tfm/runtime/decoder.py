"""Decodes source ids with a model: a batch, many sources, or token by token."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.decode import inputs, scoring
from keras_tfm.decode.beam_search import BeamSearch
from keras_tfm.decode.hypotheses import BeamTrace, Hypotheses
from keras_tfm.decode.options import Options
from keras_tfm.decode.protocol import Decodable
from keras_tfm.runtime.alternatives import decode_alternatives, first_token_search
from keras_tfm.runtime.compiled_search import CompiledSearch
from keras_tfm.runtime.offline import OfflineDecoding
from keras_tfm.runtime.rows import State, check_finite, to_numpy
from keras_tfm.types import Tensor


class Decoder:
    """Decodes source ids with a model, in compiled functions.

    A compiled function takes a chunk of steps: up to step 16, then up to step
    32, and so on. Between chunks, finished sequences leave the batch, and the
    cache is extended. So a high limit makes neither a step nor compilation more
    expensive, and each length is compiled when it is first needed.

    Args:
        model: `decode.Decodable`, such as a `Transformer`. If it has no method
            `extend(cache, max_length)`, its cache has the full length from the
            start.
        options: `decode.Options`, or None for the defaults.

    Attributes:
        model, options: the arguments.
        max_positions: int or None: tokens that the model has positions for.
        continues_source: bool. Hypotheses continue their source, as those of a
            language model do.
        compiled_search: `CompiledSearch`, the compiled functions.

    Raises:
        ValueError: the model does not support one of the options.

    Example:
        ```python
        from keras import ops
        from keras_tfm import decode, runtime

        class Counter:  # from token 2 upwards, and after 5 the end token 3
            def begin(self, source_ids, max_length, beam_size):
                return {}

            def step(self, ids, index, cache):
                following = ops.where(ids == 5, 3, ops.maximum(ids + 1, 4))
                return ops.one_hot(following, 6), cache

        decoder = runtime.Decoder(Counter(), decode.Options(jit_compile=False))
        hypotheses = decoder([[4, 5], [5]])
        assert hypotheses.ids[0, 0, :3].tolist() == [4, 5, 3]
        ```
    """

    def __init__(self, model: Decodable, options: Options | None = None):
        self.model = model
        self.options = Options() if options is None else options
        if self.options.engine != "keras":
            raise ValueError(
                "`options` of a `Decoder` must have the engine 'keras'; got "
                f"{self.options.engine!r}. Pass it to a `Translator`."
            )
        self.compiled_search = search = CompiledSearch(model, self.options)
        self.max_positions = search.capabilities.max_positions
        self.continues_source = search.capabilities.continues_source
        self._first_tokens = None
        if self.options.return_alternatives:
            self._first_tokens = first_token_search(search)
        self._offline = OfflineDecoding(search)

    def __repr__(self) -> str:
        return f"<Decoder: {type(self.model).__name__}, {self.options!r}>"

    def replace(self, **changes: Any) -> "Decoder":
        """Returns a decoder of the same model with some options changed.

        Args:
            **changes: of `decode.Options`.
        """
        return Decoder(self.model, self.options.replace(**changes))

    def __call__(
        self,
        source_ids: Any,
        target_prefix: Sequence | None = None,
        constraints: Sequence | None = None,
        seed: int | None = None,
    ) -> Hypotheses:
        """Decodes a batch.

        Args:
            source_ids: integers `(B, S)`, NumPy or tensor, padded with 0 at
                the end; or B lists of ids, of any length. A row without ids
                has an empty hypothesis.
            target_prefix: B lists of ids, of any length, that the hypotheses
                begin with; or None. Forced tokens have their probability
                among all tokens.
            constraints: B lists of phrases, lists of ids, that the hypotheses
                contain in any order; or None. Equal phrases are met together.
                Where logits processors forbid them, a row is empty and has a
                score of minus infinity.
            seed: int >= 0, or None for a new seed in each call. With sampling,
                the seed and the index of a source decide its tokens, on every
                backend and whatever the other sources are.

        Returns:
            `Hypotheses` of NumPy arrays.

        Raises:
            ValueError: another rank or dtype, an id outside the model's
                vocabulary, a prefix or constraints as long as the limit,
                constraints without a beam, or a seed below 0.
            FloatingPointError: the model returned NaN logits.
        """
        search = self.compiled_search
        size = search.capabilities.vocabulary_size
        source_ids = inputs.source_array(source_ids, size)
        if self._first_tokens is None:
            return search.decode(source_ids, target_prefix, constraints, seed)
        if constraints is not None:
            raise ValueError(
                "`constraints` must be None with return_alternatives=True; got "
                "constraints. Set return_alternatives=False."
            )
        return decode_alternatives(
            self._first_tokens, search, source_ids, target_prefix
        )

    def bulk(
        self,
        source_ids: Iterable[Sequence[int]],
        batch_tokens: int = 2048,
        batch_size: int = 64,
        inter_threads: int | None = None,
        seed: int | None = None,
        target_prefix: Sequence[Sequence[int]] | None = None,
        compile_lengths: bool | None = None,
    ) -> Iterator[tuple[int, Hypotheses]]:
        """Decodes any number of sources, in the order that is fastest.

        Sources are sorted by length, so that sources of equal length share a
        batch, see `scheduler.decode_offline`. Therefore all sources are read
        first; pass the sources of a large file in portions.

        Args:
            source_ids: lists of ids; an empty one has an empty hypothesis.
            batch_tokens: int >= 1, source tokens of a batch, with padding.
            batch_size: int >= 1, the most sources of a batch.
            inter_threads: int >= 1, batches decoded at once; None for 2, since
                one batch of a small model does not keep two cores busy, or 1 on
                PyTorch, whose threads hinder each other.
            seed: as in a call.
            target_prefix: as in a call, a list of ids for each source.
            compile_lengths: bool. Compile functions for the exact length of
                full batches, and for a first step with one hypothesis. These
                functions take seconds to compile and make decoding a tenth to a
                quarter faster. None compiles them once there have been many
                batches of a length.

        Yields:
            The index of a source, and its `Hypotheses` with B = 1.

        Raises:
            ValueError: a size below 1, or an id outside the model's vocabulary.
            FloatingPointError: the model returned NaN logits.
        """
        if self._first_tokens is not None:
            raise ValueError(
                "`return_alternatives` is not supported by `bulk`; got "
                "return_alternatives=True. Call the decoder."
            )
        return self._offline.decode(
            source_ids,
            batch_tokens=batch_tokens,
            batch_size=batch_size,
            inter_threads=inter_threads,
            seed=seed,
            target_prefix=target_prefix,
            compile_lengths=compile_lengths,
        )

    def warm_up(
        self,
        lengths: Sequence[int],
        batch_tokens: int = 2048,
        batch_size: int = 64,
        target_prefix: Sequence[int] = (),
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Compiles the functions for sources of some lengths in `bulk`.

        The functions cover hypotheses of up to 1.5 times the source length;
        longer hypotheses need more functions.

        Args:
            lengths: ints >= 1, in source tokens.
            batch_tokens, batch_size: as in `bulk`.
            target_prefix: ints that every hypothesis begins with.
            check: function that is called before each function is compiled. It
                may raise, to end this.
        """
        self._offline.warm_up(lengths, batch_tokens, batch_size, target_prefix, check)

    def stream(
        self, source_ids: Any, target_prefix: Sequence | None = None
    ) -> Iterator[np.ndarray]:
        """Decodes greedily, and yields tokens as they are generated.

        Args:
            source_ids, target_prefix: as in a call.

        Yields:
            int32 `(B,)`, the next token of each row; 0 if the row is done.

        Raises:
            ValueError: the options are not those of greedy search; or as a
                call.
        """
        search, options = self.compiled_search, self.options
        is_greedy = not (options.samples or isinstance(search.strategy, BeamSearch))
        if not is_greedy or options.return_alternatives:
            raise ValueError(
                "`stream` needs greedy search; got beam_size="
                f"{options.beam_size}, sampling_topk={options.sampling_topk}, "
                f"return_alternatives={options.return_alternatives}. Set beam_size=1."
            )
        tensors = search.batch_inputs(search.padded_sources(source_ids), target_prefix)

        def tokens():
            for step, _, hypotheses in search.single_steps(tensors):
                yield hypotheses.ids[:, 0, step]

        return tokens()

    def trace(self, source_ids: Any) -> Iterator[BeamTrace]:
        """Decodes one source, and yields the beam after each step.

        Args:
            source_ids: integers `(1, S)`, or a list of one list of ids.

        Yields:
            `BeamTrace`, for `keras_tfm.plot.beam_tree`.

        Raises:
            ValueError: the options are not those of beam search, or have a
                shortlist; or there is not exactly one source.
        """
        search, options = self.compiled_search, self.options
        is_beam = isinstance(search.strategy, BeamSearch)
        if not is_beam or options.shortlist is not None:
            raise ValueError(
                "`trace` needs beam search without a shortlist; got beam_size="
                f"{options.beam_size}, sampling_topk={options.sampling_topk}, "
                f"shortlist={options.shortlist}. Set beam_size=2 or more."
            )
        source_ids = search.padded_sources(source_ids)
        if len(source_ids) != 1:
            raise ValueError(
                f"`source_ids` must be one source; got {len(source_ids)} sources."
            )
        tensors = search.batch_inputs(source_ids)

        def traces():
            for step, state, _ in search.single_steps(tensors):
                live, finished = keras.tree.map_structure(
                    lambda x: ops.convert_to_numpy(x)[0], (state.live, state.finished)
                )
                new = finished.lengths == step + 1
                yield BeamTrace(
                    _pairs(live.ids, live.scores, step + 1),
                    _pairs(finished.ids[new], finished.scores[new], step + 1),
                )

        return traces()

    def score(
        self,
        source_ids: Any,
        target_ids: Any,
        prefix_lengths: Sequence[int] | None = None,
    ) -> Hypotheses:
        """Scores given targets.

        Args:
            source_ids: as in a call.
            target_ids: B lists of ids, without the start token, and with the
                end token if it is to be scored too. Padding at their ends is
                ignored.
            prefix_lengths: B ints, or None for zeros: tokens of each target
                that are a prefix. With `score_prefix=False` their
                log-probability is 0, as in decoding.

        Returns:
            `Hypotheses` of NumPy arrays, n = 1, with the log-probability of
            each token among all tokens, and the score with the length penalty
            of the options. They have no attention; the model's method
            `attention_maps` returns it. A row without source or target has a
            score of minus infinity.

        Raises:
            ValueError: as a call; a token outside the target vocabulary; a
                prefix longer than its target; or a model that cannot be called
                as a whole.

        Cost: one call of the model, with `(B, T, V)` logits.
        """
        if not callable(self.model):
            raise ValueError(
                "`score` needs a model that can be called with source and target; got "
                f"{type(self.model).__name__}, which has `begin` and `step` only."
            )
        search = self.compiled_search
        source_ids = search.padded_sources(source_ids)
        targets = inputs.target_array(
            target_ids,
            source_ids,
            search.capabilities.target_vocabulary_size,
            self.max_positions,
            self.continues_source,
        )
        if not len(source_ids):
            token_scores = np.zeros((0, 1, targets.shape[1]), "float32")
            ids, scores = token_scores.astype("int32"), token_scores[:, :, 0]
            return Hypotheses(ids, scores, scores.astype("int32"), token_scores)
        free_from = inputs.prefix_length_array(prefix_lengths, targets)
        if self.options.score_prefix:
            free_from = np.zeros_like(free_from)
        search.weights.refresh()
        score = functools.partial(scoring.score, self.model, options=self.options)
        arrays = source_ids, targets, free_from
        tensors = [ops.convert_to_tensor(array, "int32") for array in arrays]
        return check_finite(to_numpy(search.functions.get("score", score)(*tensors)))

    def decode(
        self, source_ids: Tensor, target_prefix: Sequence[int] = ()
    ) -> Hypotheses:
        """Decodes a batch of tensors inside your own compiled function.

        Args:
            source_ids: int32 `(B, S)`.
            target_prefix: ints that every hypothesis begins with.

        Returns:
            `Hypotheses` of tensors; where logits were NaN a score is NaN.

        Raises:
            ValueError: as `begin_decoding`.
        """
        state = self.begin_decoding(source_ids, target_prefix)
        return self.hypotheses(self.decode_until(state))

    def begin_decoding(
        self,
        source_ids: Tensor,
        target_prefix: Sequence[int] = (),
        max_length: Any = None,
    ) -> State:
        """Begins to decode; `extend` and `decode_until` continue.

        Args:
            source_ids, target_prefix: as in `decode`.
            max_length: int, or scalar int tensor: the initial capacity of the
                cache, in tokens, if the model has `extend`; or None for the
                limit. The time of a step grows with the capacity.

        Returns:
            `decode.BeamState` or `decode.SamplingState` before the first step.
            All tensors but scalars have the batch first, so that rows can be
            taken out, see `runtime.rows`.

        Raises:
            ValueError: the options have sampling, alternatives or a shortlist;
                or the prefix has a token outside the vocabulary, or is as long
                as the limit. If only the limit of a row is shorter than the
                prefix, the prefix of this row is truncated.
        """
        search, options = self.compiled_search, self.options
        conflicts = {
            "sampling_topk": options.samples,
            "return_alternatives": options.return_alternatives,
            "shortlist": options.shortlist is not None,
        }
        for name, is_set in conflicts.items():
            if is_set:
                raise ValueError(
                    f"`{name}` is not supported inside a compiled function; got "
                    f"{name}={getattr(options, name)}. Use greedy or beam search over "
                    "all tokens."
                )
        size = search.capabilities.target_vocabulary_size
        [target_prefix] = inputs.id_lists(
            "target_prefix", [target_prefix], size, {options.end_id}
        )
        buckets, static_length = search.buckets, source_ids.shape[1]
        if static_length is not None or not buckets.factor:
            limit = buckets.max_length(static_length or 0)
            inputs.check_prefix_length(target_prefix, limit)
        lengths = ops.sum(ops.cast(ops.not_equal(source_ids, 0), "int32"), axis=-1)
        # By its own length, or a hypothesis would depend on its neighbors.
        limits = ops.where(lengths > 0, self.length_limit(lengths), 0)
        batch_size, capacity = ops.shape(source_ids)
        capacity = buckets.max_length(capacity)
        if max_length is not None and search.capabilities.can_extend:
            is_static = isinstance(capacity, int) and isinstance(max_length, int)
            capacity = (min if is_static else ops.minimum)(max_length, capacity)
        forced = []
        if target_prefix:
            prefix = ops.convert_to_tensor([target_prefix], "int32")
            forced.append(ops.broadcast_to(prefix, (batch_size, len(target_prefix))))
        no_candidates = ops.zeros((batch_size, 0), "int32")
        return search.begin(capacity, None, source_ids, no_candidates, limits, *forced)

    def decode_until(self, state: State, until: Tensor | None = None) -> State:
        """Takes steps until all rows are done.

        Args:
            state: from `begin_decoding`, `extend` or this method.
            until: scalar int32 tensor, the number of steps, counted from the
                first, at which to stop; or None for the capacity.

        Returns:
            The state after these steps.
        """
        strategy = self.compiled_search.strategy
        return strategy.advance(self.model.step, state, until)

    def extend(self, state: State, max_length: Any) -> State:
        """Extends a state and its cache, so that more steps can be taken.

        Args:
            state: from `begin_decoding` or `decode_until`.
            max_length: int, or scalar int tensor, in tokens, at least the
                present capacity.

        Returns:
            The extended state; unchanged if the model has no `extend`, since
            its cache then has the full length from the beginning.
        """
        return self.compiled_search.extend(state, max_length)

    def hypotheses(self, state: State) -> Hypotheses:
        """Returns the hypotheses of a state, done or not.

        Args:
            state: from `decode_until`.

        Returns:
            `Hypotheses` of tensors.
        """
        return self.compiled_search.strategy.finish(state)

    def length_limit(self, source_length: Any) -> Any:
        """Returns the most tokens that the hypotheses of a source may have.

        Args:
            source_length: int, or int tensor, in tokens, without padding.
        """
        return self.compiled_search.buckets.length_limit(source_length)


def _pairs(ids, scores, length):
    """Returns pairs of ids and score of existing hypotheses, best first."""
    exists = np.isfinite(scores)
    pairs = zip(ids[exists][:, :length].tolist(), scores[exists].tolist(), strict=True)
    return sorted(pairs, key=lambda pair: -pair[1])
