"""Greedy search and sampling: each hypothesis is continued by itself."""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_tfm.decode.hypotheses import Hypotheses
from keras_tfm.decode.next_tokens import best_tokens, normalized, scored_log_probs
from keras_tfm.decode.options import Options
from keras_tfm.decode.search import SearchStrategy, at_step, first_fields, in_vocabulary
from keras_tfm.decode.search_state import (
    ABSENT,
    SamplingState,
    Tensor,
    gather_beams,
    present,
    write_token,
)


def greedy_search(
    step_fn: Callable,
    cache: Any,
    active: Tensor,
    max_length: Any,
    options: Options | None = None,
    limits: Tensor | None = None,
    prefix: Tensor | None = None,
) -> Hypotheses:
    """Decodes by taking the likeliest next token at every step.

    Args:
        step_fn: `(ids (B, 1), step, cache) -> (logits (B, 1, V), cache)`.
        cache, active, max_length, limits, prefix: as in `sample`.
        options: `Options` without sampling; or None for the defaults.

    Returns:
        `Hypotheses` with n = 1.

    Cost: at most `max_length` calls of `step_fn`, none once all are done.

    Example:
        ```python
        from keras import ops
        from keras_tfm import decode

        def step_fn(ids, step, cache):  # counts to 5, then ends with token 3
            likeliest = ops.where(ids == 5, 3, ops.maximum(ids + 1, 4))
            return ops.one_hot(likeliest, 6), cache

        active = ops.ones((1,), "bool")
        hypotheses = decode.greedy_search(step_fn, {}, active, 4)
        ids = ops.convert_to_numpy(hypotheses.ids)[0, 0]
        assert ids.tolist() == [4, 5, 3, 0]
        ```
    """
    return sample(step_fn, cache, active, max_length, None, options, limits, prefix)


def sample(
    step_fn: Callable,
    cache: Any,
    active: Tensor,
    max_length: Any,
    noise: Tensor | None,
    options: Options | None = None,
    limits: Tensor | None = None,
    prefix: Tensor | None = None,
) -> Hypotheses:
    """Decodes by sampling each next token with its probability.

    Args:
        step_fn: `(ids (B, n), step, cache) -> (logits (B, n, V), cache)`.
        cache: what `step_fn` reads first, a structure of tensors with the batch
            first. `"attention"`, float `(B, n, S)`, is what the last step
            attended to.
        active: bool `(B,)`. Sequences to decode; the others come back empty.
        max_length: int >= 1, or scalar int tensor, in tokens, the end token
            included.
        noise: float32 `(B, n, max_length)`, uniform in [0, 1): a token is the
            first whose cumulative probability exceeds it. None takes the
            likeliest token, with n = 1.
        options: `Options`; or None for the defaults.
        limits: int32 `(B,)` from 1 to `max_length`, in tokens: the limit of
            each sequence; or None for `max_length`.
        prefix: int32 `(B, P)` padded with 0 at the end, tokens that every
            hypothesis begins with; or None.

    Returns:
        `Hypotheses`, n for each sequence, best first. Where logits were NaN the
        score is NaN, and the length that of the step.

    Cost: at most `max_length` calls of `step_fn`, none once all are done.

    Example:
        ```python
        import numpy as np
        from keras import ops
        from keras_tfm import decode

        def step_fn(ids, step, cache):  # 4 and 5 are equally likely
            logits = np.array([-99.0, -99.0, -99.0, -99.0, 1.0, 1.0], "float32")
            return ops.broadcast_to(logits, (*ids.shape, 6)), cache

        noise = ops.convert_to_tensor([[[0.1, 0.9]]])
        options = decode.Options(sampling_topk=0)
        active = ops.ones((1,), "bool")
        hypotheses = decode.sample(step_fn, {}, active, 2, noise, options)
        ids = ops.convert_to_numpy(hypotheses.ids)
        assert ids.tolist() == [[[4, 5]]]
        ```
    """
    strategy = Sampling(Options() if options is None else options)
    state = strategy.start(cache, active, max_length, limits, prefix, noise)
    return strategy.finish(strategy.advance(step_fn, state))


class Sampling(SearchStrategy[SamplingState]):
    """The strategy of greedy search and of sampling, see `sample`.

    Args:
        options: `Options`.

    Example:
        ```python
        from keras import ops
        from keras_tfm import decode

        strategy = decode.Sampling(decode.Options())
        active = ops.ones((2,), "bool")
        state = strategy.start(cache={}, active=active, capacity=5)
        assert tuple(state.ids.shape) == (2, 1, 5)
        ```
    """

    def start(
        self,
        cache: Any,
        active: Tensor,
        capacity: Any,
        limits: Tensor | None = None,
        prefix: Tensor | None = None,
        noise: Tensor | None = None,
        candidates: Tensor | None = None,
        source_ids: Tensor | None = None,
    ) -> SamplingState:
        """Returns the state before the first step.

        Args:
            cache, active, limits, prefix, noise: as in `sample`.
            capacity: int, or scalar int tensor, in tokens.
            candidates: int32 `(B, C)`, a shortlist whose indices `step_fn`'s
                logits, the prefix and all ids of the state refer to; or None.
            source_ids: not used.
        """
        shape = (ops.shape(active)[0], 1 if noise is None else noise.shape[1])
        active = ops.convert_to_tensor(active, "bool")
        inactive = ~active  # (B,)
        ids = ops.zeros((*shape, capacity), "int32")  # (B, K, T)
        has_log_probs = self.options.return_token_scores
        return SamplingState(
            **first_fields(
                self.options,
                cache,
                active,
                shape[1],
                capacity,
                limits,
                prefix,
                candidates,
            ),
            is_done=ops.broadcast_to(inactive[:, None], shape),
            active=active,
            ids=ids,
            scores=ops.zeros(shape, "float32"),
            lengths=ops.zeros(shape, "int32"),
            noise=ABSENT if noise is None else noise,
            token_log_probs=ops.zeros_like(ids, "float32") if has_log_probs else ABSENT,
        )

    def take_step(self, step_fn: Callable, state: SamplingState) -> SamplingState:
        # (B, K, V), and (B,) or None
        logits, forced, state = self._next_logits(step_fn, state, state.ids)
        token, log_prob, is_broken = self._choose(logits, forced, state)  # (B, K)
        is_done, at_end = state.is_done, at_step(state.step, state.capacity)
        # A sample that is done repeats padding; NaN ends it and its score.
        token = ops.where(is_done | is_broken, 0, token)
        log_prob = ops.where(is_broken, float("nan"), log_prob)
        at_end = at_end & (~is_done)[:, :, None]
        token_log_probs = state.token_log_probs
        if present(token_log_probs):
            token_log_probs = write_token(token_log_probs, at_end, log_prob)
        lengths = ops.where(is_done, state.lengths, state.lengths + 1)
        is_ended = (token == self.options.end_id) | is_broken
        is_at_limit = lengths >= state.limits[:, None]
        return state._replace(
            step=state.step + 1,
            last_ids=token,
            ids=write_token(state.ids, at_end, token),
            token_log_probs=token_log_probs,
            scores=ops.where(is_done, state.scores, state.scores + log_prob),
            lengths=lengths,
            is_done=is_done | (is_ended | is_at_limit),
        )

    def finish(self, state: SamplingState) -> Hypotheses:
        lengths = state.lengths
        divisor = self._length_divisor(ops.maximum(lengths, 1))  # (B, K)
        scores = ops.where(state.active[:, None], state.scores / divisor, -float("inf"))
        # Where at some step no token was allowed there is no hypothesis.
        is_missing = scores == -float("inf")
        ids = ops.where(is_missing[:, :, None], 0, state.ids)
        token_scores = attention = None
        if present(state.token_log_probs):
            token_scores = ops.where(is_missing[:, :, None], 0.0, state.token_log_probs)
        if present(state.attention):
            attention = ops.transpose(state.attention, (0, 2, 1, 3))  # (B, K, T, S)
            attention = ops.where((ids == 0)[..., None], 0.0, attention)
        hypotheses = Hypotheses(
            in_vocabulary(ids, state.candidates),
            scores,
            ops.where(is_missing, 0, lengths),
            token_scores,
            attention,
        )
        if scores.shape[1] == 1:
            return hypotheses
        order = ops.argsort(-scores, axis=-1)  # best first
        return Hypotheses(
            *(x if x is None else gather_beams(x, order) for x in hypotheses)
        )

    def _choose(self, logits, forced, state):
        """Chooses a token for each sample.

        Returns:
            Tokens, their log-probabilities, and whether logits were NaN, each
            `(B, K)`.
        """
        if present(state.noise):
            log_probs, is_broken = normalized(logits)
            noise = ops.take(
                state.noise, ops.reshape(state.step, (1,)), axis=-1
            )  # (B, K, 1)
            token = _draw(log_probs, noise)
            if forced is not None:  # Its probability is that among all tokens.
                forced_token = forced[:, None, None]
                token = ops.where(forced_token > 0, forced_token, token)
            log_prob = ops.take_along_axis(log_probs, token, axis=-1)
        else:
            logit, token, normalizer, is_broken = best_tokens(
                logits, 1, forced, self.masked_ids
            )
            log_prob = logit - normalizer
        log_prob = scored_log_probs(log_prob, forced, self.options.score_prefix)
        return token[:, :, 0], log_prob[:, :, 0], is_broken


def _draw(log_probs, noise):
    """Returns the token whose cumulative probability passes the noise."""
    cumulative = ops.cumsum(ops.exp(log_probs), axis=-1)  # (B, K, V)
    # Rounding makes the total differ from 1. A token below the total is always
    # passed, and an impossible token never is: XLA's sums vary in the last bit.
    is_passed = cumulative > noise * (1 - 1e-06) * cumulative[..., -1:]
    is_passed = is_passed & ops.isfinite(log_probs)
    # The first of equal values: the first token that is passed.
    token = ops.argmax(ops.cast(is_passed, "int32"), axis=-1, keepdims=True)
    return ops.cast(token, "int32")
