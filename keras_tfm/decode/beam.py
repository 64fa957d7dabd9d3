"""Beam search: the best few hypotheses at once."""

from collections.abc import Callable, Sequence

import keras
from keras import ops

from keras_tfm.decode.hypotheses import (
    History,
    Hypotheses,
    best_tokens,
    forced_tokens,
    penalty,
    score_tokens,
)


def beam(
    step: Callable,
    cache,
    active,
    max_length: int,
    limits=None,
    prefix=None,
    processors: Sequence[Callable] = (),
    beam_size: int = 4,
    num_hypotheses: int = 1,
    start_id: int = 2,
    end_id: int = 3,
    length_penalty: float = 1.0,
    length_penalty_form: str = "mean",
    patience: float = 1.0,
    return_token_scores: bool = False,
) -> Hypotheses:
    """Decodes by keeping the likeliest `beam_size` hypotheses at every step.

    A hypothesis that takes the end token leaves the beam for a pool of its
    own, where it is scored and never extended. A row is done when no open
    hypothesis can still enter the pool; or when `beam_size * patience` have
    ended and the best open one scores, at its present length, no better than
    the worst that would be returned. At the row's limit open ones enter the
    pool as they are.

    Args:
        step: `(ids (B, K), index, cache) -> (logits (B, K, V), cache)`.
        cache: what `step` wants first, a structure of tensors. Where it is a
            dictionary with a `"beams"`, every tensor in that is `(B, K, ...)`
            and follows its hypothesis; everything else stays where it is.
        active: bool `(B,)`. Rows to decode; the others come back empty.
        max_length: int >= 1, or scalar int tensor, in tokens, the end token
            included.
        limits: int32 `(B,)` from 1 to `max_length`, in tokens: the most that
            each row may have; or None for `max_length`.
        prefix: int32 `(B, P)` padded with 0 at the end, or None: tokens that
            every hypothesis begins with.
        processors: functions `(logits, history) -> logits`, in their order.
        beam_size: int >= 1, K.
        num_hypotheses: int from 1 to K, n: how many to give.
        start_id: int. The token before the first.
        end_id: int. The token that ends a hypothesis.
        length_penalty: float >= 0; scores are log-probabilities divided by
            `penalty(length, length_penalty, length_penalty_form)`.
        length_penalty_form: `"mean"` or `"gnmt"`, see `penalty`.
        patience: float > 0, see above.
        return_token_scores: bool. Give the log-probability of each token.

    Returns:
        `Hypotheses`, n for each row, best first. Where logits were NaN the
        best score is NaN, and its length that of the step.

    Raises:
        ValueError: a size or a number that is out of its range.

    Cost: at most `max_length` calls of `step` on K tokens a row.

    Source: Wu et al. 2016, section 7, https://arxiv.org/abs/1609.08144;
    patience: Kasai et al. 2022, https://arxiv.org/abs/2204.05424
    """
    check_beam(beam_size, num_hypotheses, patience, max_length)
    batch_size = ops.shape(active)[0]
    position = ops.arange(max_length)[None, None]  # (1, 1, T)
    if limits is None:
        limits = ops.full((batch_size,), max_length, "int32")
    largest_divisor = penalty(limits, length_penalty, length_penalty_form)  # (B,)

    first = ops.where(ops.arange(beam_size) == 0, 0.0, -float("inf"))
    open_ones = {
        "ids": ops.zeros((batch_size, beam_size, max_length), "int32"),
        "totals": ops.broadcast_to(ops.cast(first, "float32"), (batch_size, beam_size)),
    }
    pool = {
        "ids": ops.zeros((batch_size, num_hypotheses, max_length), "int32"),
        "scores": ops.full((batch_size, num_hypotheses), -float("inf"), "float32"),
        "lengths": ops.zeros((batch_size, num_hypotheses), "int32"),
    }
    if return_token_scores:
        for part in (open_ones, pool):
            part["gains"] = ops.zeros_like(part["ids"], "float32")

    def unfinished(index, last, open_ones, pool, ended, broken, done, cache):
        return ops.logical_and(index < max_length, ops.logical_not(ops.all(done)))

    def advance(index, last, open_ones, pool, ended, broken, done, cache):
        logits, cache = step(last, index, cache)
        history = History(open_ones["ids"], index)
        forced = forced_tokens(prefix, index)
        logits, normalizer, is_nan = score_tokens(logits, history, processors, forced)
        totals = open_ones["totals"]
        candidates = _candidates(totals, logits, normalizer, beam_size)
        total, parent, token = candidates  # each (B, 2K), best first
        here = ops.equal(position, index)
        continued = {"ids": _write(_follow(open_ones["ids"], parent), here, token)}
        if return_token_scores:
            gain = total - _follow(totals, parent)
            before = _follow(open_ones["gains"], parent)
            continued["gains"] = _write(before, here, gain)

        # Those that end among the K best go to the pool; the K best of the
        # others stay open. There are K of them: each beam can end only once.
        # At the limit these leave too, as they are.
        ends = ops.equal(token, end_id)
        limited = ops.greater_equal(index + 1, limits)  # (B,)
        rank = ops.arange(2 * beam_size)[None]
        open_rank = ops.cumsum(ops.cast(ops.logical_not(ends), "int32"), axis=-1)
        cut = ops.logical_and(limited[:, None], open_rank <= beam_size)
        leaves = ops.where(ends, rank < beam_size, cut)
        leaves = ops.logical_and(leaves, ops.isfinite(total))
        leaves = ops.logical_and(leaves, ops.logical_not(done)[:, None])
        divisor = penalty(index + 1, length_penalty, length_penalty_form)
        finished = {
            **continued,
            "scores": ops.where(leaves, total / divisor, -float("inf")),
            "lengths": ops.broadcast_to(index + 1, ops.shape(token)),
        }
        pool = _best(
            {name: ops.concatenate([x, finished[name]], 1) for name, x in pool.items()},
            "scores",
            num_hypotheses,
        )
        ended = ended + ops.sum(ops.cast(leaves, "int32"), axis=-1)

        continued["totals"] = ops.where(ends, -float("inf"), total)
        continued |= {"last": token, "parent": parent}
        open_ones = _best(continued, "totals", beam_size)
        last, parent = open_ones.pop("last"), open_ones.pop("parent")
        # Log-probabilities only fall, so an open hypothesis ends at best with
        # its present one, over the largest divisor there can be.
        best, worst = open_ones["totals"][:, 0], pool["scores"][:, -1]
        beaten = ops.less_equal(best / largest_divisor, worst)
        # Enough have ended only if none that is open looks better: where the
        # model is sure of itself, those that end early are the improbable.
        enough = ops.logical_and(
            ops.cast(ended, "float32") >= beam_size * patience,
            ops.less_equal(best / divisor, worst),
        )
        is_nan = ops.logical_and(ops.any(is_nan, axis=-1), ops.logical_not(done))
        broken = ops.where(is_nan, index + 1, broken)
        for reason in (beaten, enough, limited, is_nan):
            done = ops.logical_or(done, reason)
        cache = _reorder(cache, parent)
        return index + 1, last, open_ones, pool, ended, broken, done, cache

    _, _, _, pool, _, broken, _, _ = ops.while_loop(
        unfinished,
        advance,
        (
            ops.convert_to_tensor(0, "int32"),
            ops.full((batch_size, beam_size), start_id, "int32"),
            open_ones,
            pool,
            ops.zeros((batch_size,), "int32"),
            ops.zeros((batch_size,), "int32"),
            ops.logical_not(active),
            cache,
        ),
    )
    # Among scores of minus infinity PyTorch's top-k takes any, and so any ids.
    found = ops.isfinite(pool["scores"])
    ids = ops.where(found[:, :, None], pool["ids"], 0)
    gains = None
    if return_token_scores:
        gains = ops.where(found[:, :, None], pool["gains"], 0.0)
    lengths = ops.where(found, pool["lengths"], 0)
    broken = broken[:, None]
    scores = ops.where(ops.greater(broken, 0), float("nan"), pool["scores"])
    lengths = ops.where(ops.greater(broken, 0), broken, lengths)
    return Hypotheses(ids, scores, lengths, gains)


def _candidates(totals, logits, normalizer, beam_size):
    """The 2K best continuations: score, parent and token, each `(B, 2K)`."""
    count = min(2 * beam_size, logits.shape[-1])
    best, token = best_tokens(logits, count)  # (B, K, count)
    flat = ops.reshape(totals[:, :, None] + best - normalizer, (-1, beam_size * count))
    total, place = ops.top_k(flat, min(2 * beam_size, beam_size * count))
    place = ops.cast(place, "int32")
    token = ops.reshape(token, (-1, beam_size * count))
    return total, place // count, ops.take_along_axis(token, place, axis=1)


def _best(hypotheses, name, count):
    """The best `count` by one of their numbers, best first."""
    chosen = ops.top_k(hypotheses[name], count)[1]
    return {name: _follow(x, chosen) for name, x in hypotheses.items()}


def _write(history, here, values):
    """Puts `values (B, M)` into `(B, M, T)` where `here`."""
    return ops.where(here, values[:, :, None], history)


def _follow(x, chosen):
    """Takes rows `chosen (B, M)` of axis 1 of `x (B, K, ...)`."""
    chosen = ops.cast(chosen, "int32")
    chosen = ops.reshape(chosen, (-1, chosen.shape[1], *[1] * (len(x.shape) - 2)))
    return ops.take_along_axis(x, chosen, axis=1)


def _reorder(cache, parent):
    if not (isinstance(cache, dict) and "beams" in cache):
        return cache
    beams = keras.tree.map_structure(lambda x: _follow(x, parent), cache["beams"])
    return {**cache, "beams": beams}


def check_beam(beam_size, num_hypotheses, patience, max_length=1):
    """Refuses what no beam search can do.

    Args:
        beam_size: int, K.
        num_hypotheses: int, n.
        patience: float.
        max_length: int, in tokens; a tensor is not checked.

    Raises:
        ValueError: one of them is out of its range.
    """
    if beam_size < 1 or (isinstance(max_length, int) and max_length < 1):
        raise ValueError(
            "A beam holds at least one hypothesis of at least one token. "
            f"Received: beam_size={beam_size}, max_length={max_length}."
        )
    if not 1 <= num_hypotheses <= beam_size:
        raise ValueError(
            "`num_hypotheses` is from 1 to `beam_size`. "
            f"Received: num_hypotheses={num_hypotheses}, beam_size={beam_size}."
        )
    if not patience > 0:
        raise ValueError(f"`patience` must be above 0. Received: {patience}.")
