"""Searches that follow each hypothesis by itself: greedy and sampled."""

from collections.abc import Callable

from keras import ops

from keras_tfm.decode import logits_processors as processing
from keras_tfm.decode import search_state as states
from keras_tfm.decode.hypotheses import (
    Hypotheses,
    best_tokens,
    normalized,
    penalty,
)
from keras_tfm.decode.strategy import Way


def greedy(
    step: Callable, cache, active, max_length: int, limits=None, **options
) -> Hypotheses:
    """Decodes by taking the likeliest next token at every step.

    Args:
        step: `(ids (B, 1), index, cache) -> (logits (B, 1, V), cache)`.
        cache: what `step` wants first, as in `sample`.
        active: bool `(B,)`. Rows to decode; the others come back empty.
        max_length: int >= 1, or scalar int tensor, in tokens, the end token
            included.
        limits: int32 `(B,)` from 1 to `max_length`, in tokens: the most that
            each row may have; or None for `max_length`.
        **options: of `sample`, but for `noise`.

    Returns:
        `Hypotheses` with n = 1.

    Cost: at most `max_length` calls of `step`, none once all rows are done.
    """
    return sample(step, cache, active, max_length, None, limits, **options)


def sample(
    step: Callable,
    cache,
    active,
    max_length: int,
    noise,
    limits=None,
    prefix=None,
    **options,
) -> Hypotheses:
    """Decodes by drawing each next token with its probability.

    Args:
        step: `(ids (B, n), index, cache) -> (logits (B, n, V), cache)`.
        cache: what `step` wants first, a structure of tensors with the batch
            first. `"attention"`, float `(B, n, S)`, is what the last step
            attended to.
        active: bool `(B,)`. Rows to decode; the others come back empty.
        max_length: int >= 1, or scalar int tensor, in tokens, the end token
            included.
        noise: float32 `(B, n, max_length)`, uniform in [0, 1): a token is the
            first whose cumulated probability is above. None for the likeliest
            token, with n = 1.
        limits: int32 `(B,)` from 1 to `max_length`, in tokens: the most that
            each row may have; or None for `max_length`.
        prefix: int32 `(B, P)` padded with 0 at the end, or None: tokens that
            every hypothesis begins with.
        **options: of `Sample`.

    Returns:
        `Hypotheses`, n for each row, best first. Where logits were NaN the
        score is NaN, and the length that of the step.

    Cost: at most `max_length` calls of `step`, none once all rows are done.
    """
    search = Sample(**options)
    state = search.start(cache, active, max_length, limits, prefix, noise)
    return search.finish(search.advance(step, state))


class Sample(Way):
    """The way of greedy and sampled search, apart from what it searches.

    Args:
        suppress_ids: ints. Tokens that are never taken where none is forced; a
            few cost less here than as a processor.
        processors: functions `(logits, history) -> logits`, in their order.
        start_id: int. The token before the first.
        end_id: int. The token that ends a hypothesis.
        length_penalty: float >= 0; scores are log-probabilities divided by
            `penalty(length, length_penalty, length_penalty_form)`. Here it
            changes no token.
        length_penalty_form: `"mean"` or `"gnmt"`, see `penalty`.
        score_prefix: bool. Count the log-probabilities of a prefix.
        return_token_scores: bool. Give the log-probability of each token.
        return_attention: bool. Give what each token attended to. Needs
            `cache["attention"]`.
    """

    def start(self, cache, active, room, limits=None, prefix=None, noise=None) -> dict:
        """Makes the state before the first step.

        Args:
            cache, active, limits, prefix, noise: of `sample`.
            room: int, or scalar int tensor: tokens that there is room for.

        Returns:
            A dictionary of tensors: `"index"` is a scalar, and every other
            has the batch first.
        """
        size, count = ops.shape(active)[0], 1 if noise is None else noise.shape[1]
        opened = {"ids": ops.zeros((size, count, room), "int32")}
        if self.return_token_scores:
            opened["gains"] = ops.zeros_like(opened["ids"], "float32")
        inactive = ops.logical_not(active)
        state = {
            **self._begin(cache, active, count, room, limits, prefix),
            "open": opened,
            "totals": ops.zeros((size, count), "float32"),
            "lengths": ops.zeros((size, count), "int32"),
            "done": ops.broadcast_to(inactive[:, None], (size, count)),
            "active": active,
        }
        if noise is not None:
            state["noise"] = noise
        return state

    def finish(self, state: dict) -> Hypotheses:
        """Gives the hypotheses of the rows that are done.

        Args:
            state: of `advance`.

        Returns:
            `Hypotheses`. For rows that are not done, what they have so far.
        """
        lengths, opened = state["lengths"], state["open"]
        divisor = penalty(ops.maximum(lengths, 1), *self.length_penalty)
        active = state["active"][:, None]
        score = ops.where(active, state["totals"] / divisor, -float("inf"))
        # Where at some step nothing was allowed there is no hypothesis.
        none = ops.equal(score, -float("inf"))
        ids = ops.where(none[:, :, None], 0, opened["ids"])
        lengths = ops.where(none, 0, lengths)
        gains = attention = None
        if self.return_token_scores:
            gains = ops.where(none[:, :, None], 0.0, opened["gains"])
        if self.return_attention:
            attention = ops.transpose(state["attention"], (0, 2, 1, 3))
            attention = ops.where(ops.equal(ids, 0)[..., None], 0.0, attention)
        found = Hypotheses(ids, score, lengths, gains, attention)
        return found if score.shape[1] == 1 else _best_first(found)

    def take_step(self, step, state):
        index, opened, done = state["index"], dict(state["open"]), state["done"]
        processors = self.processors
        if "noise" in state:  # where all tokens are read whatever is suppressed
            processors = (*processors, processing.suppress(self.suppress_ids))
        logits, forced, state = self._logits(step, state, processors)
        if "noise" in state:
            gains, broken = normalized(logits)
            noise = ops.take(state["noise"], ops.reshape(index, (1,)), axis=-1)
            token = _draw(gains, noise)
            if forced is not None:
                only = forced[:, None, None]
                token = ops.where(only > 0, only, token)
            gain = ops.take_along_axis(gains, token, axis=-1)
        else:
            found = best_tokens(logits, 1, forced, self.suppress_ids)
            best, token, normalizer, broken = found
            gain = best - normalizer
        gain = self._counted(gain, forced)
        token = ops.where(ops.logical_or(done, broken), 0, token[:, :, 0])
        gain = ops.where(broken, float("nan"), gain[:, :, 0])
        here = ops.logical_and(self._here(state), ops.logical_not(done)[:, :, None])
        opened["ids"] = states.write(opened["ids"], here, token)
        if "gains" in opened:
            opened["gains"] = states.write(opened["gains"], here, gain)
        lengths = ops.where(done, state["lengths"], state["lengths"] + 1)
        ended = ops.logical_or(ops.equal(token, self.end_id), broken)
        limited = ops.greater_equal(lengths, state["limits"][:, None])
        return {
            **state,
            "index": index + 1,
            "last": token,
            "open": opened,
            "totals": ops.where(done, state["totals"], state["totals"] + gain),
            "lengths": lengths,
            "done": ops.logical_or(done, ops.logical_or(ended, limited)),
        }


def _draw(choices, noise):
    """The token at which the cumulated probability passes the noise."""
    cumulated = ops.cumsum(ops.exp(choices), axis=-1)
    # Rounding leaves the total beside 1. Below it some token is passed, and one
    # that is impossible never is: XLA's sums change there by a last place.
    passed = ops.greater(cumulated, noise * (1 - 1e-6) * cumulated[..., -1:])
    passed = ops.logical_and(passed, ops.isfinite(choices))
    token = ops.argmax(ops.cast(passed, "int32"), axis=-1, keepdims=True)
    return ops.cast(token, "int32")


def _best_first(hypotheses):
    order = ops.argsort(-hypotheses.scores, axis=-1)
    return Hypotheses(
        *(x if x is None else states.follow(x, order) for x in hypotheses)
    )
