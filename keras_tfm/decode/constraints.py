"""Phrases that a hypothesis must contain, by dynamic beam allocation."""

from keras import ops, tree

from keras_tfm.decode.next_tokens import NEVER
from keras_tfm.decode.search_state import (
    BeamState,
    Continuations,
    Tensor,
    gather_beams,
    take_best,
)


def constrained_continuations(
    state: BeamState,
    log_probs: Tensor,
    tokens: Tensor,
    logits: Tensor,
    normalizer: Tensor,
    forced: Tensor | None,
    end_id: int,
) -> Continuations:
    """Finds the continuations of a step in the order in which to keep them.

    Beside its best tokens each hypothesis is continued by the next token of
    every phrase that it lacks. Continuations are sorted into banks by how many
    tokens they contain of the phrases that are met and of the one that has
    progressed furthest. The banks are served in turn, the fullest first: its
    best, the best of the next, and when all have had their turn the second best
    of each. So some hypothesis comes further with every step, and an empty bank
    leaves its place to the others. A hypothesis may end only when it contains
    all phrases; scores are the model's own.

    Args:
        state: `BeamState` with `phrases`, int32 `(B, J, P)` padded with 0.
        log_probs: float32 `(B, K, M)`, of the best tokens.
        tokens: int32 `(B, K, M)`, these tokens.
        logits: float32 `(B, K, V)`.
        normalizer: float32 `(B, K, 1)`, logits less log-probabilities.
        forced: int32 `(B,)` or None, see `best_tokens`.
        end_id: int. The token that ends a hypothesis.

    Returns:
        `Continuations`, 2K for each sequence.

    Source: Post and Vilar 2018, section 3. https://arxiv.org/abs/1804.06609
    """
    live, phrases, beam_size = state.live, state.phrases, logits.shape[1]
    tail = _tail(live.ids, state.step, phrases.shape[2])  # (B, K, P)
    lengths = ops.sum(ops.cast(phrases > 0, "int32"), axis=-1)[:, None]  # (B, 1, J)
    next_tokens, next_log_probs = _phrase_tokens(
        live,
        phrases,
        lengths,
        tail,
        logits,
        normalizer,
        forced,
        ops.where(ops.isfinite(log_probs), tokens, -1),
    )  # (B, K, J)
    tokens = ops.concatenate([tokens, next_tokens], axis=-1)  # (B, K, M + J)
    log_probs = ops.concatenate([log_probs, next_log_probs], axis=-1)

    # From here on one axis holds all continuations of a sequence.
    num_tokens = tokens.shape[2]
    flat = (-1, beam_size * num_tokens)
    scores = ops.reshape(live.scores[:, :, None] + log_probs, flat)
    tokens = ops.reshape(tokens, flat)
    parents = ops.repeat(ops.arange(beam_size, dtype="int32"), num_tokens)
    # (B, K (M + J)), as scores and tokens
    parents = ops.broadcast_to(parents[None], ops.shape(tokens))
    tail = gather_beams(tail, parents)[..., 1:]
    tail = ops.concatenate([tail, tokens[..., None]], -1)
    progress = _progress(tail, phrases)  # (B, K (M + J), J)
    is_complete = (progress == lengths) & (lengths > 0)
    is_met = gather_beams(live.phrases_met, parents) | is_complete
    is_met = is_met | (lengths == 0)
    # An end before all phrases are met is no candidate.
    is_early = (tokens == end_id) & ~ops.all(is_met, -1)
    scores = ops.where(is_early, NEVER, scores)
    # Of the phrases that are not met one counts: others that begin alike would
    # count the same tokens again.
    bank = ops.sum(ops.where(is_met, lengths, 0), axis=-1)
    bank = bank + ops.max(ops.where(is_met, 0, progress), axis=-1)
    continuations = Continuations(scores, parents, tokens, is_met)
    return _in_turn(continuations, bank, 2 * beam_size)


def _phrase_tokens(
    live, phrases, lengths, tail, logits, normalizer, forced, best_tokens
):
    """Returns the next token of each phrase that a beam lacks, `(B, K, J)`.

    Their log-probability is minus infinity where a phrase is met, and where the
    token is among the best tokens anyway.
    """
    progress = _progress(tail, phrases)  # (B, K, J)
    # The token of a phrase after those that the beam already ends with.
    index = ops.minimum(progress, lengths - 1)[..., None]
    tokens = ops.take_along_axis(phrases[:, None], index, axis=-1)[..., 0]
    is_lacking = ~(live.phrases_met | (lengths == 0))
    if forced is not None:  # a prefix goes first
        is_lacking = is_lacking & (forced == 0)[:, None, None]
    logit = ops.take_along_axis(logits, ops.where(is_lacking, tokens, 0), axis=-1)
    logit = ops.where(is_lacking, logit, NEVER)
    is_duplicate = _is_duplicate(tokens, is_lacking, best_tokens)
    return tokens, ops.where(is_duplicate, NEVER, logit) - normalizer


def _tail(ids, step, size):
    """Returns the last `size` tokens of `(B, K, T)`, 0 before the first."""
    indices = ops.arange(size) + step - size
    tokens = ops.take(ids, ops.maximum(indices, 0), axis=-1)
    return ops.where(indices >= 0, tokens, 0)


def _progress(tail, phrases):
    """Returns how much of each phrase `(B, J, P)` is at the end."""
    size = phrases.shape[2]
    length = ops.sum(ops.cast(phrases > 0, "int32"), axis=-1)[:, None]
    # (B, M, J)
    progress = ops.zeros_like(tail[:, :, :1] * phrases[:, None, :, 0])
    for count in range(1, size + 1):  # The longest that fits is kept.
        end, begin = tail[:, :, None, size - count :], phrases[:, None, :, :count]
        is_same = ops.all(end == begin, axis=-1) & (count <= length)
        progress = ops.where(is_same, count, progress)
    return progress


def _is_duplicate(tokens, is_lacking, best_tokens):
    """True where a token is among the best, or that of an earlier phrase."""
    is_best = ops.any(tokens[..., None] == best_tokens[:, :, None], axis=-1)
    is_same = (tokens[..., None] == tokens[:, :, None]) & is_lacking[
        :, :, None
    ]  # (B, K, J, J)
    is_same = is_same & _is_earlier(tokens.shape[2])
    return is_best | ops.any(is_same, axis=-1)


def _in_turn(continuations, bank, count):
    """Serves the banks in turn, the fullest first; their best come first."""
    order = ops.argsort(-continuations.scores, axis=-1)
    continuations, bank = tree.map_structure(
        lambda x: gather_beams(x, order), (continuations, bank)
    )
    size = bank.shape[1]
    is_same = (bank[:, :, None] == bank[:, None]) & _is_earlier(size)
    turn = ops.sum(ops.cast(is_same, "int32"), axis=-1)  # (B, M)
    # By turn, and in each turn from the fullest bank to the emptiest.
    key = turn * (ops.max(bank) + 1) + ops.max(bank) - bank
    is_dead = continuations.scores == NEVER
    key = ops.where(is_dead, ops.max(key) + 1, key)
    return take_best(continuations, -key, min(count, size))


def _is_earlier(size):
    """bool `(size, size)`, True where the column is before the row."""
    return ops.arange(size)[:, None] > ops.arange(size)[None]
