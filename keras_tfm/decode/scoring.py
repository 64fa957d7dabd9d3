"""The log-probabilities of given targets."""

from typing import Any

from keras import ops

from keras_tfm.decode.hypotheses import Hypotheses, Tensor, penalty
from keras_tfm.decode.next_tokens import normalized
from keras_tfm.decode.options import Options


def score(
    model: Any,
    source_ids: Tensor,
    target_ids: Tensor,
    prefix_lengths: Tensor,
    options: Options,
) -> Hypotheses:
    """Scores targets with one call of the model.

    Args:
        model: called with a dictionary of `"source_ids"` and `"target_ids"`,
            returns logits `(B, T, V)`; or a language model with
            `logits_after(source_ids, target_ids)`, which returns them.
        source_ids: int32 `(B, S)`, padded with 0.
        target_ids: int32 `(B, T)`, without the start token, padded with 0.
        prefix_lengths: int32 `(B,)`, tokens at the beginning of each target
            whose log-probability does not count.
        options: `Options`, of which the start token and the length penalty are
            read.

    Returns:
        `Hypotheses` of tensors, n = 1, with token scores. Without source or
        target a score is minus infinity. Where logits were NaN it is NaN, and
        the length that of the step.
    """
    start = ops.full_like(target_ids[:, :1], options.start_id)
    previous_ids = ops.concatenate([start, target_ids[:, :-1]], axis=1)  # (B, T)
    if hasattr(model, "logits_after"):
        logits = model.logits_after(source_ids, previous_ids)
    else:
        logits = model({"source_ids": source_ids, "target_ids": previous_ids})
    log_probs, is_broken = normalized(ops.cast(logits, "float32"))
    # (B, T, V) at the targets becomes (B, T).
    log_probs = ops.take_along_axis(log_probs, target_ids[:, :, None], axis=-1)[..., 0]

    is_token = target_ids != 0  # (B, T)
    has_source = ops.any(source_ids != 0, axis=-1)[:, None]
    is_token = is_token & has_source
    index = ops.arange(ops.shape(target_ids)[1])[None]
    is_free = (index < prefix_lengths[:, None]) & ops.isfinite(log_probs)
    counts = is_token & ~is_free
    log_probs = ops.where(counts, log_probs, 0.0)
    lengths = ops.sum(ops.cast(is_token, "int32"), axis=-1)  # (B,)
    divisor = penalty(
        ops.maximum(lengths, 1), options.length_penalty, options.length_penalty_form
    )
    scores = ops.sum(log_probs, axis=-1) / divisor
    scores = ops.where(lengths > 0, scores, -float("inf"))

    is_broken = is_broken & is_token
    # The step of the first NaN becomes the length.
    first_broken = ops.argmax(ops.cast(is_broken, "int32"), axis=-1)
    has_failed = ops.any(is_broken, axis=-1)
    scores = ops.where(has_failed, float("nan"), scores)
    lengths = ops.where(has_failed, ops.cast(first_broken, "int32") + 1, lengths)
    ids = ops.where(is_token, target_ids, 0)
    return Hypotheses(
        ids[:, None], scores[:, None], lengths[:, None], log_probs[:, None]
    )
