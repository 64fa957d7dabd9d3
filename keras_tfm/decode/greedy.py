"""Searches that follow each hypothesis by itself: greedy and sampled."""

from collections.abc import Callable, Sequence

from keras import ops

from keras_tfm.decode.hypotheses import (
    History,
    Hypotheses,
    best_tokens,
    forced_tokens,
    penalty,
    score_tokens,
)


def greedy(
    step: Callable, cache, active, max_length: int, limits=None, **options
) -> Hypotheses:
    """Decodes by taking the likeliest next token at every step.

    Args:
        step: `(ids (B, 1), index, cache) -> (logits (B, 1, V), cache)`.
        cache: what `step` wants first, a structure of tensors.
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
    processors: Sequence[Callable] = (),
    start_id: int = 2,
    end_id: int = 3,
    length_penalty: float = 1.0,
    length_penalty_form: str = "mean",
    return_token_scores: bool = False,
) -> Hypotheses:
    """Decodes by drawing each next token with its probability.

    Args:
        step: `(ids (B, n), index, cache) -> (logits (B, n, V), cache)`.
        cache: what `step` wants first, a structure of tensors.
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
        processors: functions `(logits, history) -> logits`, in their order.
        start_id: int. The token before the first.
        end_id: int. The token that ends a hypothesis.
        length_penalty: float >= 0, of the score; it changes no token.
        length_penalty_form: `"mean"` or `"gnmt"`, see `penalty`.
        return_token_scores: bool. Give the log-probability of each token.

    Returns:
        `Hypotheses`, n for each row, best first. Where logits were NaN the
        score is NaN, and the length that of the step.

    Cost: at most `max_length` calls of `step`, none once all rows are done.
    """
    batch_size = ops.shape(active)[0]
    count = 1 if noise is None else noise.shape[1]
    position = ops.arange(max_length)[None, None]  # (1, 1, T)
    if limits is None:
        limits = ops.full((batch_size,), max_length, "int32")
    shape = (batch_size, count, max_length)

    def unfinished(index, last, ids, gains, score, lengths, done, cache):
        return ops.logical_and(index < max_length, ops.logical_not(ops.all(done)))

    def advance(index, last, ids, gains, score, lengths, done, cache):
        logits, cache = step(last, index, cache)
        history = History(ids, index)
        forced = forced_tokens(prefix, index)
        logits, normalizer, broken = score_tokens(logits, history, processors, forced)
        if noise is None:
            best, token = best_tokens(logits, 1)
        else:
            place = ops.reshape(index, (1,))
            token = _draw(logits - normalizer, ops.take(noise, place, axis=-1))
            best = ops.take_along_axis(logits, token, axis=-1)
        token, gain = token[:, :, 0], (best - normalizer)[:, :, 0]
        gain = ops.where(broken, float("nan"), gain)
        token = ops.where(ops.logical_or(done, broken), 0, token)
        score = ops.where(done, score, score + gain)
        lengths = ops.where(done, lengths, lengths + 1)
        here = ops.logical_and(
            ops.equal(position, index), ops.logical_not(done)[:, :, None]
        )
        ids = ops.where(here, token[:, :, None], ids)
        if return_token_scores:
            gains = ops.where(here, gain[:, :, None], gains)
        ended = ops.logical_or(ops.equal(token, end_id), broken)
        ended = ops.logical_or(ended, ops.greater_equal(lengths, limits[:, None]))
        done = ops.logical_or(done, ended)
        return index + 1, token, ids, gains, score, lengths, done, cache

    _, _, ids, gains, score, lengths, _, _ = ops.while_loop(
        unfinished,
        advance,
        (
            ops.convert_to_tensor(0, "int32"),
            ops.full((batch_size, count), start_id, "int32"),
            ops.zeros(shape, "int32"),
            ops.zeros(shape if return_token_scores else (0,), "float32"),
            ops.zeros((batch_size, count), "float32"),
            ops.zeros((batch_size, count), "int32"),
            ops.broadcast_to(ops.logical_not(active)[:, None], (batch_size, count)),
            cache,
        ),
    )
    divisor = penalty(ops.maximum(lengths, 1), length_penalty, length_penalty_form)
    score = ops.where(active[:, None], score / divisor, -float("inf"))
    # Where at some step nothing was allowed there is no hypothesis.
    none = ops.equal(score, -float("inf"))
    ids, lengths = ops.where(none[:, :, None], 0, ids), ops.where(none, 0, lengths)
    if return_token_scores:
        gains = ops.where(none[:, :, None], 0.0, gains)
    found = Hypotheses(ids, score, lengths, gains if return_token_scores else None)
    return found if count == 1 else _best_first(found)


def _draw(choices, noise):
    """The token at which the cumulated probability passes the noise."""
    cumulated = ops.cumsum(ops.exp(choices), axis=-1)
    # Rounding leaves the total beside 1. Below it some token is passed, and one
    # that is impossible never is.
    below = ops.less_equal(cumulated, noise * (1 - 1e-6) * cumulated[..., -1:])
    token = ops.sum(ops.cast(below, "int32"), axis=-1, keepdims=True)
    return ops.minimum(token, choices.shape[-1] - 1)


def _best_first(hypotheses):
    order = ops.argsort(-hypotheses.scores, axis=-1)

    def sort(x):
        if x is None:
            return None
        places = order if len(x.shape) == 2 else order[:, :, None]
        return ops.take_along_axis(x, places, axis=1)

    return Hypotheses(*map(sort, hypotheses))
