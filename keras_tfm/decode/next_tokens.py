"""From the logits of a step to the best next tokens of each hypothesis."""

from collections.abc import Callable, Sequence

import keras
import numpy as np
from keras import ops

from keras_tfm.decode.hypotheses import History
from keras_tfm.types import Tensor

NEVER = -float("inf")
# Sizes of the chunks into which the vocabulary may be divided for a top-k.
CHUNKS = (32, 36, 40, 48, 50, 56, 60, 64, 72, 80, 96, 100, 112, 125, 128, 160, 200)


def forced_tokens(prefix: Tensor | None, step: Tensor) -> Tensor | None:
    """Returns the token that each sequence has to take at a step.

    Args:
        prefix: int32 `(B, P)`, padded with 0 at the end; or None.
        step: int32, scalar or `(B,)`.

    Returns:
        int32 `(B,)`, 0 where a sequence may choose, see `best_tokens`; or None
        without a prefix.
    """
    if prefix is None:
        return None
    length = prefix.shape[1]  # P
    index = ops.broadcast_to(ops.minimum(step, length - 1), ops.shape(prefix)[:1])
    token = ops.take_along_axis(prefix, index[:, None], axis=1)[:, 0]
    return ops.where(step < length, token, 0)


def processed_logits(
    logits: Tensor,
    history: History,
    processors: Sequence[Callable] = (),
    forced: Tensor | None = None,
) -> Tensor:
    """Applies logits processors, except where a token is forced.

    Args:
        logits: float `(B, K, V)`.
        history: `History`.
        processors: functions `(logits, history) -> logits`, in their order.
        forced: int32 `(B,)` or None, see `best_tokens`.

    Returns:
        float32 `(B, K, V)`.

    Raises:
        ValueError: a processor returns another shape.
    """
    logits = processed = ops.cast(logits, "float32")
    for process in processors:
        processed = process(processed, history)
        shape = getattr(processed, "shape", None)
        if shape is None or tuple(shape) != tuple(logits.shape):
            raise ValueError(
                "A logits processor must return logits of the shape that it receives, "
                f"{tuple(logits.shape)}; got {shape or type(processed).__name__} from "
                f"{process}."
            )
    if forced is None or not processors:
        return processed
    return ops.where((forced > 0)[:, None, None], logits, processed)


def best_tokens(
    logits: Tensor,
    count: int,
    forced: Tensor | None = None,
    suppressed: Sequence[int] = (),
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Finds the best tokens of each hypothesis, by a top-k in two stages.

    The first stage finds the `count` chunks of the vocabulary with the highest
    maxima, the second takes the top-k inside them. The result is exact; a top-k
    over all tokens would take 5 to 9 times as long. All logits are read only
    twice and, where operations are fused as by XLA, never copied: suppressed
    tokens are masked in their chunks alone, and a log-probability is a logit
    less a number, which the caller subtracts from the few tokens that it needs.

    Args:
        logits: float32 `(B, K, V)`; minus infinity where a token is forbidden.
        count: int >= 1, at most V.
        forced: int32 `(B,)` or None: the only token that a sequence may take, 0
            where it may choose. It has its probability among all tokens; if
            negative, that among those which it might have taken.
        suppressed: ints. Tokens that are never taken where none is forced.

    Returns:
        Their logits, float32 `(B, K, count)`, best first, minus infinity where
        fewer may be taken; int32 ids; float32 `(B, K, 1)`, what to subtract;
        and bool `(B, K)`, True where some of the logits were NaN or infinite.
    """
    size, suppressed = logits.shape[-1], sorted(set(suppressed))
    is_forced = None if forced is None else (forced > 0)[:, None, None]
    chunk_size = _chunk_size(size, count)
    chunks = _chunks(logits, chunk_size)  # (B, K, C, chunk_size)
    peaks = _chunk_peaks(chunks, suppressed, is_forced)  # (B, K, C)
    peak = ops.max(peaks, axis=-1, keepdims=True)  # (B, K, 1)
    peak = ops.where(ops.isfinite(peak), peak, 0.0)
    normalizer, is_broken = _normalizer(
        _sum_allowed_exponentials(logits, peak, suppressed, is_forced), peak
    )

    num_chunks = min(count, peaks.shape[-1])
    best_chunks = ops.top_k(peaks, num_chunks)[1]
    # In ascending order, so that of equal tokens the first is taken, as by a
    # top-k over all; but on PyTorch, whose top-k takes any of equal chunks.
    best_chunks = ops.sort(ops.cast(best_chunks, "int32"), axis=-1)
    # (B, K, num_chunks, chunk_size), their logits and ids
    inside = ops.take_along_axis(chunks, best_chunks[..., None], axis=2)
    tokens = best_chunks[..., None] * chunk_size + ops.arange(chunk_size, dtype="int32")
    for token in suppressed:
        inside = ops.where(tokens == token, NEVER, inside)
    flat = ops.reshape(inside, (-1, logits.shape[1], num_chunks * chunk_size))
    is_broken = is_broken | _has_nan(flat)
    best, index = ops.top_k(flat, count)  # (B, K, count)
    # From an index inside the best chunks back to a token id.
    index = ops.cast(index, "int32")
    chunk = ops.take_along_axis(best_chunks, index // chunk_size, axis=-1)
    # Where too few tokens can be taken it may be padding of the last chunk.
    token = ops.minimum(chunk * chunk_size + index % chunk_size, size - 1)
    if forced is not None:
        best, token = _with_forced(best, token, logits, forced)
    return best, token, normalizer, is_broken


def normalized(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities, and where logits were NaN or infinite.

    Args:
        logits: float32 `(B, K, V)`.

    Returns:
        float32 `(B, K, V)` and bool `(B, K)`.
    """
    peak = ops.max(logits, axis=-1, keepdims=True)
    peak = ops.where(ops.isfinite(peak), peak, 0.0)
    normalizer, is_broken = _normalizer(_sum_exponentials(logits, peak), peak)
    return logits - normalizer, is_broken | _has_nan(logits)


def scored_log_probs(
    log_probs: Tensor, forced: Tensor | None, score_prefix: bool
) -> Tensor:
    """Sets log-probabilities of a prefix that does not count to 0.

    Args:
        log_probs: float32 `(B, K, M)`.
        forced: int32 `(B,)` or None, see `best_tokens`.
        score_prefix: bool. Prefixes count.
    """
    if forced is None or score_prefix:
        return log_probs
    is_forced = (forced > 0)[:, None, None] & ops.isfinite(log_probs)
    return ops.where(is_forced, 0.0, log_probs)


def _chunk_size(size, count):
    """Tokens of a chunk, such that both stages of the top-k are over few."""
    if size <= count * CHUNKS[0]:
        return size
    # One that divides the vocabulary needs no copy of the logits.
    divisors = [chunk for chunk in CHUNKS if size % chunk == 0] or [64]
    return min(divisors, key=lambda chunk: size // chunk + count * chunk)


def _chunks(logits, chunk_size):
    """Divides the vocabulary into chunks, `(B, K, C, chunk_size)`."""
    spare = -logits.shape[-1] % chunk_size
    if spare:
        padding = [[0, 0], [0, 0], [0, spare]]
        logits = ops.pad(logits, padding, constant_values=NEVER)
    num_chunks = logits.shape[-1] // chunk_size
    return ops.reshape(logits, (-1, logits.shape[1], num_chunks, chunk_size))


def _chunk_peaks(chunks, suppressed, is_forced):
    """Returns the best logit of each chunk `(B, K, C)`, of allowed tokens."""
    num_chunks, chunk_size = chunks.shape[2:]
    masked_chunks = {}
    for number in sorted({token // chunk_size for token in suppressed}):
        ids = np.arange(number * chunk_size, (number + 1) * chunk_size)
        is_suppressed = ops.convert_to_tensor(np.isin(ids, suppressed))
        chunk = chunks[:, :, number]  # (B, K, chunk_size)
        masked = ops.where(is_suppressed, NEVER, chunk)
        if is_forced is not None:
            masked = ops.where(is_forced, chunk, masked)
        masked_chunks[number] = masked
    peaks = ops.max(chunks, axis=-1)  # (B, K, C)
    for number, masked in masked_chunks.items():
        is_chunk = ops.arange(num_chunks) == number
        peaks = ops.where(is_chunk, ops.max(masked, axis=-1, keepdims=True), peaks)
    return peaks


def _sum_allowed_exponentials(logits, peak, suppressed, is_forced):
    """Sums the exponentials of allowed logits less their peak, `(B, K, 1)`."""
    # Over the slices between suppressed tokens, since a mask over all tokens
    # would be another copy of the logits.
    bounds = [-1, *suppressed, logits.shape[-1]]
    slices = [
        slice(first + 1, last)
        for first, last in zip(bounds[:-1], bounds[1:], strict=True)
        if first + 1 < last
    ]
    total = sum(
        (_sum_exponentials(logits[..., allowed], peak) for allowed in slices),
        start=ops.zeros_like(peak),
    )
    if suppressed and is_forced is not None:
        rest = _sum_exponentials(ops.take(logits, suppressed, axis=-1), peak)
        total = total + ops.where(is_forced, rest, 0.0)
    return total


def _sum_exponentials(logits, peak):
    if keras.config.backend() == "torch":
        # One pass, where PyTorch would write two more arrays as large as the
        # logits. What XLA compiles writes none, and would need another maximum.
        return ops.exp(ops.logsumexp(logits, axis=-1, keepdims=True) - peak)
    return ops.sum(ops.exp(logits - peak), axis=-1, keepdims=True)


def _normalizer(total, peak):
    """Returns the log of a sum of exponentials less their peak; 0 of no token.

    Whether any logit was NaN is then known at no cost, but see `_has_nan`.
    """
    is_empty = total == 0.0
    normalizer = peak + ops.log(ops.where(is_empty, 1.0, total))
    normalizer = ops.where(is_empty, 0.0, normalizer)
    is_broken = ops.isnan(total) | (total == float("inf"))
    return normalizer, is_broken[..., 0]


def _has_nan(logits):
    """Returns whether some logits are NaN, or plus infinity, `(B, K)`.

    What XLA compiles for a logits processor may lose NaN in a maximum and, as
    it limits them first, in exponentials; in a sum it does not.
    """
    total = ops.sum(logits, axis=-1)
    has_forbidden = total == NEVER
    return ~(has_forbidden | ops.isfinite(total))


def _with_forced(best, token, logits, forced):
    """Replaces the best tokens by the forced one, where there is one."""
    is_forced = (forced != 0)[:, None, None]
    forced_token = ops.broadcast_to(ops.abs(forced)[:, None, None], ops.shape(token))
    is_first = ops.arange(token.shape[-1]) == 0
    logit = ops.take_along_axis(logits, forced_token[..., :1], axis=-1)
    best = ops.where(is_forced, ops.where(is_first, logit, NEVER), best)
    return best, ops.where(is_forced, forced_token, token)
