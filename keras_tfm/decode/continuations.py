"""The best continuations of the live beams, at one step of beam search."""

from collections.abc import Sequence

from keras import ops, tree

from keras_tfm.decode.constraints import constrained_continuations
from keras_tfm.decode.next_tokens import (
    NEVER,
    best_tokens,
    normalized,
    scored_log_probs,
)
from keras_tfm.decode.options import Options
from keras_tfm.decode.search_state import BeamState, Continuations, present
from keras_tfm.types import Tensor


def best_continuations(
    state: BeamState,
    logits: Tensor,
    forced: Tensor | None,
    options: Options,
    masked_ids: Sequence[int],
) -> tuple[Continuations, Tensor]:
    """Finds the best continuations of a beam without groups.

    Args:
        state: `BeamState`.
        logits: float32 `(B, K, V)`, processed.
        forced: int32 `(B,)` or None, see `best_tokens`.
        options: `Options`.
        masked_ids: token ids that are never generated.

    Returns:
        `Continuations` with M = 2K; and bool `(B,)`, True where logits were
        NaN.
    """
    beam_size = options.beam_size
    count = min(2 * beam_size, logits.shape[-1])
    logit, token, normalizer, is_broken = best_tokens(
        logits, count, forced, masked_ids
    )  # (B, K, M)
    log_prob = scored_log_probs(logit - normalizer, forced, options.score_prefix)
    is_broken = ops.any(is_broken, axis=-1)
    if not present(state.phrases):
        best = _best_of(state.live.scores, log_prob, token, 2 * beam_size)
        return best, is_broken
    best = constrained_continuations(
        state, log_prob, token, logits, normalizer, forced, options.end_id
    )
    return best, is_broken


def diverse_continuations(
    state: BeamState, logits: Tensor, forced: Tensor | None, options: Options
) -> tuple[Continuations, Tensor]:
    """Finds the best continuations of each group, in their order.

    Args:
        state, logits, forced, options: as in `best_continuations`.

    Returns:
        `Continuations` with M = 2K; and bool `(B,)`, True where logits were
        NaN.
    """
    size = options.beam_size // options.num_beam_groups  # k, of a group
    penalty = options.diversity_penalty
    count = min(2 * size, logits.shape[-1])
    log_probs, is_broken = normalized(logits)
    usage = ops.zeros_like(log_probs[:, :1])  # (B, 1, V), by earlier groups
    groups = []
    for i in range(options.num_beam_groups):
        beams = slice(i * size, (i + 1) * size)
        diverse = log_probs[:, beams] - penalty * usage
        log_prob, token = best_tokens(diverse, count, forced)[:2]
        # (B, k, 2k)
        log_prob = scored_log_probs(log_prob, forced, options.score_prefix)
        best = _best_of(state.live.scores[:, beams], log_prob, token, 2 * size)
        # The penalty decides which beams are kept, but is no part of scores.
        lost = penalty * ops.take_along_axis(usage[:, 0], best.tokens, axis=-1)
        is_dead = best.scores == NEVER
        scores = ops.where(is_dead, NEVER, best.scores + lost)
        groups.append(best._replace(scores=scores, parents=best.parents + i * size))
        counts = ops.isfinite(scores[:, :size])
        counts = counts & (~state.is_done)[:, i, None]
        if forced is not None:  # No group avoids what all are forced to take.
            counts = counts & (forced == 0)[:, None]
        # Tokens of its k best that later groups have to avoid, (B, k, V).
        chosen = ops.one_hot(best.tokens[:, :size], logits.shape[-1])
        chosen = chosen * ops.cast(counts, chosen.dtype)[..., None]
        usage = usage + ops.sum(chosen, axis=1, keepdims=True)
    best = tree.map_structure(lambda *x: ops.concatenate(x, axis=1), *groups)
    return best, ops.any(is_broken, axis=-1)


def _best_of(scores, log_probs, tokens, count):
    """Takes the best `count` of all continuations of beams.

    Args:
        scores: float32 `(B, K)`, of the beams.
        log_probs, tokens: `(B, K, M)`, of the next tokens.
        count: int.

    Returns:
        `Continuations`.
    """
    beam_size, num_tokens = log_probs.shape[1:]
    flat = ops.reshape(
        scores[:, :, None] + log_probs, (-1, beam_size * num_tokens)
    )  # (B, K M)
    scores, indices = ops.top_k(flat, min(count, beam_size * num_tokens))
    indices = ops.cast(indices, "int32")
    tokens = ops.reshape(tokens, (-1, beam_size * num_tokens))
    tokens = ops.take_along_axis(tokens, indices, axis=1)
    return Continuations(scores, indices // num_tokens, tokens)
