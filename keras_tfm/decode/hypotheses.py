"""What every search gives, and how a hypothesis is scored."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from keras import ops

CHUNK = 64  # tokens of the vocabulary that a top-k looks at together


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
    """

    ids: object
    scores: object
    lengths: object
    token_scores: object = None


class History(NamedTuple):
    """What the hypotheses of a search have said so far.

    Attributes:
        ids: int32 `(B, K, T)`, without the start token; 0 from `index` on.
        index: int32 scalar: how many tokens there are, and which step this is.
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


def score_tokens(
    logits, history: History, processors: Sequence[Callable] = (), forced=None
):
    """Prepares logits: a token's log-probability is its logit less a number.

    The difference is left to the search, which wants it for few tokens.

    Args:
        logits: float `(B, K, V)`.
        history: `History`.
        processors: functions `(logits, history) -> logits`, in their order.
        forced: int32 `(B,)` or None: the token that a row has to take, 0 where
            it may choose. A forced token has its probability among all tokens,
            without processors.

    Returns:
        float32 `(B, K, V)`, logits, minus infinity for tokens that cannot be
        taken; float32 `(B, K, 1)`, what to subtract; and bool `(B, K)`, True
        where some of the logits were NaN.
    """
    logits = processed = ops.cast(logits, "float32")
    for process in processors:
        processed = process(processed, history)
    if forced is None:
        return processed, *_normalizer(processed)
    is_forced = ops.greater(forced, 0)[:, None, None]
    logits = ops.where(is_forced, logits, processed)
    normalizer, broken = _normalizer(logits)
    token = ops.arange(logits.shape[-1], dtype="int32")
    other = ops.not_equal(token[None, None], forced[:, None, None])
    banned = ops.logical_and(is_forced, other)
    return ops.where(banned, -float("inf"), logits), normalizer, broken


def _normalizer(logits):
    """Log of the sum of exponentials; 0 where nothing is allowed.

    It tells whether any of the logits was NaN, or infinite, at no cost.
    """
    normalizer = ops.logsumexp(logits, axis=-1, keepdims=True)
    broken = ops.logical_or(ops.isnan(normalizer), ops.equal(normalizer, float("inf")))
    normalizer = ops.where(ops.equal(normalizer, -float("inf")), 0.0, normalizer)
    return normalizer, broken[..., 0]


def best_tokens(logits, count: int):
    """Finds the best tokens of each hypothesis.

    The best are in those chunks of the vocabulary whose best tokens are best.
    So no top-k is over all tokens, which would take 5 to 9 times as long.

    Args:
        logits: float32 `(B, K, V)`.
        count: int >= 1, at most V.

    Returns:
        Their logits, float32 `(B, K, count)`, best first, and int32 ids.
    """
    size = logits.shape[-1]
    if size <= count * CHUNK:
        best, token = ops.top_k(logits, count)
        return best, ops.cast(token, "int32")
    spare = -size % CHUNK
    if spare:
        padding = [[0, 0], [0, 0], [0, spare]]
        logits = ops.pad(logits, padding, constant_values=-float("inf"))
    shape = (-1, logits.shape[1], (size + spare) // CHUNK, CHUNK)
    chunks = ops.reshape(logits, shape)
    chosen = ops.top_k(ops.max(chunks, axis=-1), count)[1]
    # In their order, so that of equal tokens the first is taken, as over all.
    chosen = ops.sort(ops.cast(chosen, "int32"), axis=-1)  # (B, K, count)
    inside = ops.take_along_axis(chunks, chosen[:, :, :, None], axis=2)
    flat = ops.reshape(inside, (-1, logits.shape[1], count * CHUNK))
    best, place = ops.top_k(flat, count)
    place = ops.cast(place, "int32")
    chunk = ops.take_along_axis(chosen, place // CHUNK, axis=-1)
    # Where too few can be taken it may have been the padding.
    return best, ops.minimum(chunk * CHUNK + place % CHUNK, size - 1)


def forced_tokens(prefix, index):
    """Gives the token that each row has to take at a step.

    Args:
        prefix: int32 `(B, P)`, padded with 0 at the end; or None.
        index: int32 scalar, which step this is.

    Returns:
        int32 `(B,)`, 0 where a row may choose; or None without a prefix.
    """
    if prefix is None or prefix.shape[1] == 0:
        return None
    size = prefix.shape[1]
    place = ops.reshape(ops.minimum(index, size - 1), (1,))
    token = ops.take(prefix, place, axis=1)[:, 0]
    return ops.where(ops.less(index, size), token, 0)
