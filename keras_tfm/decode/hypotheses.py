"""What every search gives, and how a hypothesis is scored."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from keras import ops

# Sizes that the vocabulary may be cut into for a top-k.
CHUNKS = (32, 36, 40, 48, 50, 56, 60, 64, 72, 80, 96, 100, 112, 125, 128, 160, 200)


class Hypotheses(NamedTuple):
    """The n best hypotheses of each source, best first.

    Attributes:
        ids: int32 `(B, n, T)`, without the start token, up to and with the end
            token, then 0. Without an end token where `T` was not enough.
        scores: float32 `(B, n)`: log-probability over the length penalty;
            minus infinity where a search found fewer than n, and in rows
            that it was not to decode; these have no ids.
        lengths: int32 `(B, n)`, in tokens, the end token included.
        token_scores: float32 `(B, n, T)`, the log-probability of each token,
            0 where there is none; or None where they were not asked for.
        attention: float32 `(B, n, T, S)`, how much each token attended to
            each source token, as the model's `step` tells it, 0 where there
            is no token; or None where it was not asked for.
    """

    ids: object
    scores: object
    lengths: object
    token_scores: object = None
    attention: object = None


class BeamTrace(NamedTuple):
    """What a beam holds after a step.

    Attributes:
        open: list of pairs of a list of ids and its log-probability, at most K,
            the best first.
        ended: likewise, those that ended at this step and are among the best so
            far, with their scores: log-probability over the length penalty.
    """

    open: list
    ended: list


class History(NamedTuple):
    """What the hypotheses of a search have said so far.

    Attributes:
        ids: int32 `(B, K, T)`, without the start token; 0 from `index` on.
        index: int32 scalar: how many tokens there are, and which step this is.
            To the processors of this module also `(B,)`, that of each row.
    """

    ids: object
    index: object


def penalty(length, length_penalty, form="mean"):
    """Computes what a log-probability is divided by to score a hypothesis.

    Args:
        length: int or integer tensor, in tokens, the end token included.
        length_penalty: float >= 0. 0 compares bare log-probabilities; larger
            values favour longer hypotheses.
        form: `"mean"`: `length ** length_penalty`, so that 1 gives the mean
            log-probability of a token; or `"gnmt"`:
            `((5 + length) / 6) ** length_penalty`.

    Returns:
        float32, of the shape of `length`.

    Raises:
        ValueError: an unknown form or a negative penalty.

    Source: Wu et al. 2016, equation 14. https://arxiv.org/abs/1609.08144
    """
    if form not in ("mean", "gnmt") or not length_penalty >= 0:
        raise ValueError(
            "`length_penalty` is 0 or more and its form 'mean' or 'gnmt'. "
            f"Received: length_penalty={length_penalty}, form={form!r}."
        )
    length = ops.cast(length, "float32")
    if form == "gnmt":
        length = (length + 5.0) / 6.0
    return ops.power(length, length_penalty)


def processed_logits(
    logits, history: History, processors: Sequence[Callable] = (), forced=None
):
    """Lets processors change logits, but not where a token is forced.

    Args:
        logits: float `(B, K, V)`.
        history: `History`.
        processors: functions `(logits, history) -> logits`, in their order.
        forced: int32 `(B,)` or None, see `best_tokens`.

    Returns:
        float32 `(B, K, V)`.

    Raises:
        ValueError: a processor gives another shape.
    """
    logits = processed = ops.cast(logits, "float32")
    for process in processors:
        processed = process(processed, history)
        shape = getattr(processed, "shape", None)
        if shape is None or tuple(shape) != tuple(logits.shape):
            raise ValueError(
                "A processor gives logits of the shape that it gets. Received: "
                f"{shape or type(processed).__name__} from {process}, not "
                f"{tuple(logits.shape)}."
            )
    if forced is None or not processors:
        return processed
    return ops.where(ops.greater(forced, 0)[:, None, None], logits, processed)


def best_tokens(logits, count: int, forced=None, suppressed: Sequence[int] = ()):
    """Finds the best tokens of each hypothesis.

    The best are in those chunks of the vocabulary whose best tokens are best.
    So no top-k is over all tokens, which would take 5 to 9 times as long. All
    is read but twice, and where operations are joined, as by XLA, never copied:
    what is suppressed is taken out of its chunk alone, and a token's
    log-probability is its logit less a number; the difference is left to the
    search, which wants it for few tokens.

    Args:
        logits: float32 `(B, K, V)`; minus infinity where a token is forbidden.
        count: int >= 1, at most V.
        forced: int32 `(B,)` or None: the only token that a row may take, 0
            where it may choose. It has its probability among all tokens; if
            negative, that among those which it might have taken.
        suppressed: ints. Tokens that are never taken where none is forced.

    Returns:
        Their logits, float32 `(B, K, count)`, best first, minus infinity where
        fewer may be taken; int32 ids; float32 `(B, K, 1)`, what to subtract;
        and bool `(B, K)`, True where some of the logits were NaN or infinite.
    """
    size, suppressed = logits.shape[-1], sorted(set(suppressed))
    chunk = _chunk(size, count)
    chunks, spare = logits, -size % chunk
    if spare:
        padding = [[0, 0], [0, 0], [0, spare]]
        chunks = ops.pad(logits, padding, constant_values=-float("inf"))
    chunks = ops.reshape(chunks, (-1, logits.shape[1], (size + spare) // chunk, chunk))
    is_forced = None if forced is None else ops.greater(forced, 0)[:, None, None]
    apart = {}  # chunks of suppressed tokens, without these
    for number in sorted({token // chunk for token in suppressed}):
        inside = np.arange(number * chunk, (number + 1) * chunk)
        banned = np.isin(inside, suppressed)
        part = chunks[:, :, number]
        masked = ops.where(ops.convert_to_tensor(banned), -float("inf"), part)
        apart[number] = masked if forced is None else ops.where(is_forced, part, masked)
    peaks = ops.max(chunks, axis=-1)
    for at, part in apart.items():
        here = ops.equal(ops.arange(peaks.shape[-1]), at)
        peaks = ops.where(here, ops.max(part, axis=-1, keepdims=True), peaks)
    peak = ops.max(peaks, axis=-1, keepdims=True)
    peak = ops.where(ops.isfinite(peak), peak, 0.0)
    # Of runs of tokens, as a mask over all would be another copy of the logits.
    shares = [_share(logits[..., run], peak) for run in _runs(size, suppressed)]
    total = sum(shares, start=ops.zeros_like(peak))
    if suppressed and forced is not None:
        others = _share(ops.take(logits, suppressed, axis=-1), peak)
        total = total + ops.where(is_forced, others, 0.0)
    normalizer, broken = _normalizer(total, peak)

    number = min(count, peaks.shape[-1])
    chosen = ops.top_k(peaks, number)[1]
    # In their order, so that of equal tokens the first is taken, as over all,
    # but on PyTorch, whose `topk` takes any of equal chunks.
    chosen = ops.sort(ops.cast(chosen, "int32"), axis=-1)  # (B, K, number)
    inside = ops.take_along_axis(chunks, chosen[..., None], axis=2)
    tokens = chosen[..., None] * chunk + ops.arange(chunk, dtype="int32")
    for token in suppressed:
        inside = ops.where(ops.equal(tokens, token), -float("inf"), inside)
    flat = ops.reshape(inside, (-1, logits.shape[1], number * chunk))
    broken = ops.logical_or(broken, _has_nan(flat))
    best, place = ops.top_k(flat, count)
    place = ops.cast(place, "int32")
    at = ops.take_along_axis(chosen, place // chunk, axis=-1)
    # Where too few can be taken it may have been the padding.
    token = ops.minimum(at * chunk + place % chunk, size - 1)
    if forced is not None:
        is_given = ops.not_equal(forced, 0)[:, None, None]
        only = ops.broadcast_to(ops.abs(forced)[:, None, None], ops.shape(token))
        first = ops.equal(ops.arange(count), 0)
        logit = ops.take_along_axis(logits, only[..., :1], axis=-1)
        best = ops.where(is_given, ops.where(first, logit, -float("inf")), best)
        token = ops.where(is_given, only, token)
    return best, token, normalizer, broken


def _share(logits, peak):
    return ops.sum(ops.exp(logits - peak), axis=-1, keepdims=True)


def _runs(size, suppressed):
    """The slices of a vocabulary that lie between suppressed tokens, sorted."""
    marks = [-1, *suppressed, size]
    starts = [mark + 1 for mark in marks[:-1]]
    pairs = zip(starts, marks[1:], strict=True)
    return [slice(start, end) for start, end in pairs if start < end]


def normalized(logits):
    """Gives log-probabilities, and where logits were NaN or infinite.

    Args:
        logits: float32 `(B, K, V)`.

    Returns:
        float32 `(B, K, V)` and bool `(B, K)`.
    """
    peak = ops.max(logits, axis=-1, keepdims=True)
    peak = ops.where(ops.isfinite(peak), peak, 0.0)
    normalizer, broken = _normalizer(_share(logits, peak), peak)
    return logits - normalizer, ops.logical_or(broken, _has_nan(logits))


def _normalizer(total, peak):
    """Log of a sum of exponentials less their peak; 0 where it is of nothing.

    Whether any was NaN is then seen at no cost, but see `_has_nan`.
    """
    none = ops.equal(total, 0.0)
    normalizer = ops.where(none, 0.0, peak + ops.log(ops.where(none, 1.0, total)))
    broken = ops.logical_or(ops.isnan(total), ops.equal(total, float("inf")))
    return normalizer, broken[..., 0]


def _has_nan(logits):
    """Whether some are NaN, or plus infinity.

    What XLA makes for a processor may lose NaN in a maximum and, as it limits
    them first, in exponentials; in a sum it does not.
    """
    total = ops.sum(logits, axis=-1)
    forbids = ops.equal(total, -float("inf"))
    return ops.logical_not(ops.logical_or(forbids, ops.isfinite(total)))


def _chunk(size, count):
    """Tokens that are looked at together, so that two top-k are over few."""
    if size <= count * CHUNKS[0]:
        return size
    # One that divides the vocabulary needs no copy of the logits.
    fitting = [chunk for chunk in CHUNKS if size % chunk == 0] or [64]
    return min(fitting, key=lambda chunk: size // chunk + count * chunk)


def forced_tokens(prefix, index):
    """Gives the token that each row has to take at a step.

    Args:
        prefix: int32 `(B, P)`, padded with 0 at the end; or None.
        index: int32, scalar or `(B,)`, which step this is.

    Returns:
        int32 `(B,)`, 0 where a row may choose, see `best_tokens`; or None
        without a prefix.
    """
    if prefix is None or prefix.shape[1] == 0:
        return None
    size = prefix.shape[1]
    place = ops.broadcast_to(ops.minimum(index, size - 1), ops.shape(prefix)[:1])
    token = ops.take_along_axis(prefix, place[:, None], axis=1)[:, 0]
    return ops.where(ops.less(index, size), token, 0)
