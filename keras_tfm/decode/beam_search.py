"""Beam search: the best few hypotheses at once."""

from collections.abc import Callable
from typing import Any

from keras import ops, tree

from keras_tfm.decode.continuations import best_continuations, diverse_continuations
from keras_tfm.decode.hypotheses import Hypotheses
from keras_tfm.decode.next_tokens import NEVER
from keras_tfm.decode.options import Options
from keras_tfm.decode.search import (
    SearchStrategy,
    at_step,
    attention_of,
    first_fields,
    in_vocabulary,
)
from keras_tfm.decode.search_state import (
    ABSENT,
    BeamState,
    FinishedHypotheses,
    LiveBeams,
    Tensor,
    gather_beams,
    present,
    reorder_cache,
    take_best,
    write_token,
)

# The attention that each source token has received before the first step.
# Without it a token that no step attends to would pass for padding.
LEAST_COVERAGE = 1e-9


def beam_search(
    step_fn: Callable,
    cache: Any,
    active: Tensor,
    max_length: Any,
    options: Options,
    limits: Tensor | None = None,
    prefix: Tensor | None = None,
    constraints: Tensor | None = None,
) -> Hypotheses:
    """Decodes by keeping the likeliest `beam_size` hypotheses at every step.

    Args:
        step_fn: `(ids (B, K), step, cache) -> (logits (B, K, V), cache)`.
        cache: what `step_fn` reads first, a structure of tensors with the batch
            first. Where it is a dictionary with an entry `"beams"`, every
            tensor in that is `(B, K, ...)` and follows its hypothesis; all
            others stay where they are. `"attention"`, float `(B, K, S)`, is
            what the last step attended to.
        active: bool `(B,)`. Sequences to decode; the others come back empty.
        max_length: int >= 1, or scalar int tensor, in tokens, the end token
            included.
        options: `Options`.
        limits: int32 `(B,)` from 1 to `max_length`, in tokens: the limit of
            each sequence; or None for `max_length`.
        prefix: int32 `(B, P)` padded with 0 at the end, tokens that every
            hypothesis begins with; or None.
        constraints: int32 `(B, J, P)` padded with 0 at the end, phrases that
            every hypothesis must contain; or None.

    Returns:
        `Hypotheses`, n for each sequence, best first. Where logits were NaN the
        best score is NaN, and its length that of the step.

    Cost: at most `max_length` calls of `step_fn` on K tokens of each sequence.

    Source: Wu et al. 2016, section 7, https://arxiv.org/abs/1609.08144

    Example:
        ```python
        from keras import ops
        from keras_tfm import decode

        def step_fn(ids, step, cache):  # counts to 5, then ends with token 3
            likeliest = ops.where(ids == 5, 3, ops.maximum(ids + 1, 4))
            return 9.0 * ops.one_hot(likeliest, 6), cache

        options, active = decode.Options(beam_size=2), ops.ones((1,), "bool")
        hypotheses = decode.beam_search(step_fn, {}, active, 4, options)
        best = ops.convert_to_numpy(hypotheses.ids)[0, 0]
        assert best.tolist() == [4, 5, 3, 0]
        ```
    """
    strategy = BeamSearch(options)
    state = strategy.start(cache, active, max_length, limits, prefix, constraints)
    return strategy.finish(strategy.advance(step_fn, state))


class BeamSearch(SearchStrategy[BeamState]):
    """The strategy of beam search, see `beam_search`.

    A hypothesis that takes the end token leaves the live beams for the finished
    hypotheses, where it is scored and never extended.

    A sequence is done when no live beam can still enter the hypotheses that
    would be returned. It is also done when at least `beam_size * patience`
    hypotheses have finished and no live beam scores better, at its present
    length, than the best of them; `early_stopping` skips this comparison, and
    `late_stopping` compares with the worst of the best `beam_size` finished
    ones. None of this lets `num_hypotheses` change the best hypothesis. At the
    limit of a sequence live beams become finished hypotheses as they are.

    With groups the beam is several smaller ones, each of which avoids the
    tokens that earlier groups have taken at the same step. That decides which
    beams are kept, not how they are scored; two groups may finish with one
    hypothesis.

    Args:
        options: `Options`.

    Source: Wu et al. 2016, section 7, https://arxiv.org/abs/1609.08144;
    patience: Kasai et al. 2022, https://arxiv.org/abs/2204.05424; groups:
    Vijayakumar et al. 2016, https://arxiv.org/abs/1610.02424

    Example:
        ```python
        from keras import ops
        from keras_tfm import decode

        strategy = decode.BeamSearch(decode.Options(beam_size=4))
        active = ops.ones((2,), "bool")
        state = strategy.start(cache={}, active=active, capacity=5)
        assert tuple(state.live.ids.shape) == (2, 4, 5)
        ```
    """

    @property
    def groups(self) -> int:
        """G, groups of beams."""
        return self.options.num_beam_groups

    @property
    def group_size(self) -> int:
        """k, beams of a group; K = G k."""
        return self.options.beam_size // self.groups

    @property
    def num_kept(self) -> int:
        """Finished hypotheses that are kept of each group; N of all."""
        if self.groups == 1 and not self.options.late_stopping:
            return self.options.num_hypotheses
        return self.group_size

    def start(
        self,
        cache: Any,
        active: Tensor,
        capacity: Any,
        limits: Tensor | None = None,
        prefix: Tensor | None = None,
        constraints: Tensor | None = None,
        candidates: Tensor | None = None,
        source_ids: Tensor | None = None,
    ) -> BeamState:
        """Returns the state before the first step.

        Args:
            cache, active, limits, prefix, constraints: as in `beam_search`.
            capacity: int, or scalar int tensor, in tokens.
            candidates: int32 `(B, C)`, a shortlist whose indices `step_fn`'s
                logits, the prefix, the constraints and all ids of the state
                refer to; or None.
            source_ids: int32 `(B, S)`, padded with 0, to tell padding from
                tokens without attention; or None: what has no attention is
                padding. Only a coverage penalty reads it.

        Raises:
            ValueError: constraints with groups of beams.
        """
        batch_size, beam_size = ops.shape(active)[0], self.options.beam_size
        num_finished = self.num_kept * self.groups
        is_inactive = ~ops.convert_to_tensor(active, "bool")  # (B,)
        return BeamState(
            **first_fields(
                self.options,
                cache,
                active,
                beam_size,
                capacity,
                limits,
                prefix,
                candidates,
            ),
            is_done=ops.broadcast_to(is_inactive[:, None], (batch_size, self.groups)),
            live=self._first_beams(
                batch_size, capacity, cache, constraints, source_ids
            ),
            finished=FinishedHypotheses(
                scores=ops.full((batch_size, num_finished), NEVER, "float32"),
                lengths=ops.zeros((batch_size, num_finished), "int32"),
                **_first_tokens((batch_size, num_finished, capacity), self.options),
            ),
            num_finished=ops.zeros((batch_size, self.groups), "int32"),
            failure_length=ops.zeros((batch_size,), "int32"),
            phrases=constraints if _has_phrases(constraints) else ABSENT,
        )

    def _first_beams(self, batch_size, capacity, cache, constraints, source_ids):
        """One empty hypothesis in each group."""
        beam_size = self.options.beam_size
        # Only the first beam of a group, or all K would become the same.
        is_first = ops.arange(beam_size) % self.group_size == 0
        never = ops.full((beam_size,), NEVER, "float32")
        scores = ops.where(is_first, ops.zeros_like(never), never)  # (K,)
        coverage = phrases_met = ABSENT
        if self.options.coverage_penalty:
            coverage = ops.zeros_like(attention_of(cache), "float32")  # (B, K, S)
            if source_ids is not None:
                is_padding = source_ids == 0  # (B, S)
                coverage += ops.where(is_padding, 0.0, LEAST_COVERAGE)[:, None]
        if _has_phrases(constraints):
            if self.groups > 1:
                raise ValueError(
                    "`constraints` need a beam without groups; got num_beam_groups="
                    f"{self.groups}. Set num_beam_groups=1."
                )
            shape = (batch_size, beam_size, constraints.shape[1])
            phrases_met = ops.zeros(shape, "bool")
        return LiveBeams(
            scores=ops.broadcast_to(scores[None], (batch_size, beam_size)),
            coverage=coverage,
            phrases_met=phrases_met,
            **_first_tokens((batch_size, beam_size, capacity), self.options),
        )

    def with_one_beam(self, state: BeamState) -> BeamState:
        """Returns the state before the first step with one beam in place of K.

        All K are empty yet. The first step then costs a fraction, and results
        in K beams if there are twice as many tokens.

        Args:
            state: from `start`, without groups, constraints or attention.
        """

        def one_beam(x):
            return x[:, :1]  # (B, 1, ...)

        cache = state.cache
        if "beams" in cache:
            cache = {**cache, "beams": tree.map_structure(one_beam, cache["beams"])}
        return state._replace(
            last_ids=one_beam(state.last_ids),
            live=tree.map_structure(one_beam, state.live),
            cache=cache,
        )

    # The docstrings of these two are those of the base class.
    def take_step(self, step_fn: Callable, state: BeamState) -> BeamState:
        # (B, K, V), and (B,) or None
        logits, forced, state = self._next_logits(step_fn, state, state.live.ids)
        if self.groups == 1:
            best, is_broken = best_continuations(
                state, logits, forced, self.options, self.masked_ids
            )
        else:
            best, is_broken = diverse_continuations(state, logits, forced, self.options)
        beams = self._continued(state, best)  # (B, 2K, ...)
        return self._select(state, best, beams, is_broken)

    def finish(self, state: BeamState) -> Hypotheses:
        finished = state.finished
        # Until now the best of each group, or of a late stop, were kept.
        count = self.options.num_hypotheses
        if self.groups > 1 or self.num_kept > count:
            finished = take_best(finished, finished.scores, count)
        # Among scores of minus infinity PyTorch's top-k takes any ids.
        exists = ops.isfinite(finished.scores)  # (B, n)
        ids = ops.where(exists[:, :, None], finished.ids, 0)
        token_scores = attention = None
        if present(finished.token_log_probs):
            token_scores = ops.where(exists[:, :, None], finished.token_log_probs, 0.0)
        if present(state.attention):
            # Of each token that of the beam in which it was generated.
            origins = ops.transpose(finished.origins, (0, 2, 1))[..., None]
            # (B, T, K, S) at (B, T, n, 1) becomes (B, T, n, S)
            attention = ops.take_along_axis(state.attention, origins, axis=2)
            attention = ops.transpose(attention, (0, 2, 1, 3))  # (B, n, T, S)
            attention = ops.where((ids == 0)[..., None], 0.0, attention)
        failure_length = state.failure_length[:, None]  # (B, 1)
        failed = failure_length > 0
        lengths = ops.where(exists, finished.lengths, 0)
        return Hypotheses(
            in_vocabulary(ids, state.candidates),
            ops.where(failed, float("nan"), finished.scores),
            ops.where(failed, failure_length, lengths),
            token_scores,
            attention,
        )

    def _continued(self, state, best):
        """Returns the live beams of `Continuations`, `(B, M, ...)`."""
        live, parents = state.live, best.parents
        is_current = at_step(state.step, state.capacity)  # (1 or B, 1, T)

        def with_new(history, values):
            return write_token(gather_beams(history, parents), is_current, values)

        token_log_probs, origins, coverage = ABSENT, ABSENT, ABSENT
        if present(live.token_log_probs):
            log_prob = best.scores - gather_beams(live.scores, parents)  # (B, M)
            token_log_probs = with_new(live.token_log_probs, log_prob)
        if present(live.origins):
            origins = with_new(live.origins, parents)
        if present(live.coverage):
            attention = ops.cast(state.cache["attention"], "float32")  # (B, K, S)
            coverage = gather_beams(live.coverage + attention, parents)
        return LiveBeams(
            ids=with_new(live.ids, best.tokens),
            scores=best.scores,
            token_log_probs=token_log_probs,
            origins=origins,
            coverage=coverage,
            phrases_met=best.phrases_met,
        )

    def _select(self, state, best, beams, is_broken):
        """Moves finished beams away, keeps the best others live.

        Beams that end among the k best of a group are finished; the k best of
        the others stay live. At the limit these are finished too, as they are.
        """
        # Groups become sequences of their own: (B, G M, ...) to (B G, M, ...).
        beams, tokens, parents, finished = _groups_as_sequences(
            (beams, best.tokens, best.parents, state.finished), self.groups
        )
        length = ops.reshape(state.step + 1, (-1, 1))  # (1, 1), or (B, 1)
        limits = ops.repeat(state.limits, self.groups)  # (B G,)
        at_limit = ops.repeat(length[:, 0] >= state.limits, self.groups)  # (B G,)
        is_end = tokens == self.options.end_id  # (B G, M)
        is_done = ops.reshape(state.is_done, (-1,))  # (B G,)

        leaves, num_finished = self._leaving(
            beams, is_end, is_done, at_limit, ops.reshape(state.num_finished, (-1,))
        )
        divisor = self._length_divisor(length)
        finished = self._with_finished(finished, beams, leaves, length, divisor)
        # Ended beams come last, in their order, and never continue.
        beams = beams._replace(scores=ops.where(is_end, NEVER, beams.scores))
        rank = ops.arange(tokens.shape[1])[None]  # (1, M)
        order = ops.where(ops.isinf(beams.scores), -rank - 2 * rank.shape[1], -rank)
        live, tokens, parents = take_best(
            (beams, tokens, parents), order, self.group_size
        )

        fails = is_broken & ~ops.all(state.is_done, -1)  # (B,)
        for reason in (
            *self._reasons_to_stop(live, finished, num_finished, limits, divisor),
            at_limit,
            ops.repeat(fails, self.groups),
        ):
            is_done = is_done | reason
        tokens, parents, live, finished = _sequences_as_groups(
            (tokens, parents, live, finished), self.groups
        )
        return state._replace(
            step=state.step + 1,
            last_ids=tokens,
            live=live,
            finished=finished,
            num_finished=ops.reshape(num_finished, (-1, self.groups)),
            failure_length=ops.where(fails, length[:, 0], state.failure_length),
            is_done=ops.reshape(is_done, (-1, self.groups)),
            cache=reorder_cache(state.cache, parents),
        )

    def _leaving(self, beams, is_end, is_done, at_limit, num_finished):
        """Finds the beams that leave as finished hypotheses.

        Returns:
            bool `(B G, M)`; and int32 `(B G,)`, how many have ended by now.
        """
        # Impossible beams, and those of sequences that are done, never leave.
        allowed = ops.isfinite(beams.scores)  # (B G, M)
        if present(beams.phrases_met):
            allowed = allowed & ops.all(beams.phrases_met, axis=-1)
        allowed = allowed & (~is_done)[:, None]
        rank = ops.arange(is_end.shape[1])[None]
        # An end that is not among the k best would not have been kept.
        ending = is_end & (rank < self.group_size) & allowed
        num_finished = num_finished + ops.sum(ops.cast(ending, "int32"), axis=-1)
        # The rank among beams that do not end, from 1.
        is_open = ~is_end
        open_rank = ops.cumsum(ops.cast(is_open, "int32"), axis=-1)
        truncated = at_limit[:, None] & (open_rank <= self.group_size)
        if self.options.early_stopping:  # Enough have ended without these.
            enough = self._has_enough(num_finished)
            truncated = truncated & (~enough)[:, None]
        truncated = truncated & is_open & allowed
        return ending | truncated, num_finished

    def _has_enough(self, num_finished):
        """Whether as many have ended as `patience` asks for, `(B G,)`."""
        least = self.group_size * self.options.patience
        return ops.cast(num_finished, "float32") >= least

    def _with_finished(self, finished, beams, leaves, length, divisor):
        """Adds the beams that leave, and keeps the best finished hypotheses."""
        scores = beams.scores / divisor  # (B G, M)
        if present(beams.coverage):
            coverage_score = _coverage_score(beams.coverage)
            scores = scores + self.options.coverage_penalty * coverage_score
        leaving = FinishedHypotheses(
            ids=beams.ids,
            scores=ops.where(leaves, scores, NEVER),
            lengths=ops.broadcast_to(length, ops.shape(leaves)),
            token_log_probs=beams.token_log_probs,
            origins=beams.origins,
        )
        # (B G, N / G + M, ...)
        finished = tree.map_structure(
            lambda *x: ops.concatenate(x, axis=1), finished, leaving
        )
        return take_best(finished, finished.scores, self.num_kept)

    def _reasons_to_stop(self, live, finished, num_finished, limits, divisor):
        """Whether no live beam can win, and whether enough have finished."""
        best, worst = ops.max(live.scores, axis=-1), finished.scores[:, -1]  # (B G,)
        # Log-probabilities only fall, so a live beam ends at best with its
        # present one, over the largest divisor there can be.
        is_beaten = best / self._length_divisor(limits) <= worst
        enough = self._has_enough(num_finished)
        # Enough have finished only if no live beam looks better: where the
        # model is confident, the hypotheses that end early are improbable.
        # Not the worst of n: the best hypothesis must not depend on n.
        if not self.options.early_stopping:
            beaten = worst if self.options.late_stopping else finished.scores[:, 0]
            looks_worse = best / divisor[:, 0] <= beaten
            enough = enough & looks_worse
        return is_beaten, enough


def _first_tokens(shape, options):
    """Returns the empty fields `(B, M, T)` of tokens."""
    return {
        "ids": ops.zeros(shape, "int32"),
        "token_log_probs": ops.zeros(shape, "float32")
        if options.return_token_scores
        else ABSENT,
        "origins": ops.zeros(shape, "int32") if options.return_attention else ABSENT,
    }


def _coverage_score(coverage):
    """Returns the score `(B, M)` of attention received, `(B, M, S)`."""
    # Padding has received exactly 0, whose logarithm must not count.
    has_attention = coverage > 0
    received = ops.where(has_attention, ops.minimum(coverage, 1.0), 1.0)
    return ops.sum(ops.log(received), axis=-1)


def _groups_as_sequences(structure, groups):
    """Reshapes leaves `(B, G M, ...)` to `(B G, M, ...)`."""
    return _reshaped(structure, groups, lambda size: size // groups)


def _sequences_as_groups(structure, groups):
    """Reshapes leaves `(B G, M, ...)` to `(B, G M, ...)`."""
    return _reshaped(structure, groups, lambda size: size * groups)


def _reshaped(structure, groups, size):
    if groups == 1:
        return structure
    return tree.map_structure(
        lambda x: ops.reshape(x, (-1, size(x.shape[1]), *ops.shape(x)[2:])), structure
    )


def _has_phrases(constraints):
    return constraints is not None and constraints.shape[1] != 0
