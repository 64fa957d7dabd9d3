"""How likely a model finds targets that are given."""

from keras import ops

from keras_tfm.decode.hypotheses import Hypotheses, normalized, penalty


def score(model, source_ids, target_ids, given, start_id, length_penalty) -> Hypotheses:
    """Scores targets with one call of the model.

    Args:
        model: of a dictionary of `"source_ids"` and `"target_ids"`, giving
            logits `(B, T, V)`; or with `logits_after(source_ids, target_ids)`,
            as a language model has, which does.
        source_ids: int32 `(B, S)`, padded with 0.
        target_ids: int32 `(B, T)`, without the start, padded with 0.
        given: int32 `(B,)`, tokens at the beginning of each that count nothing.
        start_id: int. The token before the first.
        length_penalty: pair of float and str, see `penalty`.

    Returns:
        `Hypotheses` of tensors, n = 1, with token scores; a row without source
        or target has minus infinity, one with NaN logits has NaN, and its
        length is that of the step.
    """
    start = ops.full_like(target_ids[:, :1], start_id)
    before = ops.concatenate([start, target_ids[:, :-1]], axis=1)
    if hasattr(model, "logits_after"):
        logits = model.logits_after(source_ids, before)
    else:
        logits = model({"source_ids": source_ids, "target_ids": before})
    real = ops.not_equal(target_ids, 0)
    real = ops.logical_and(real, ops.any(source_ids != 0, axis=-1)[:, None])
    gains, broken = normalized(ops.cast(logits, "float32"))
    gains = ops.take_along_axis(gains, target_ids[:, :, None], axis=-1)[..., 0]
    free = ops.arange(ops.shape(target_ids)[1])[None] < given[:, None]
    free = ops.logical_and(free, ops.isfinite(gains))
    gains = ops.where(ops.logical_and(real, ops.logical_not(free)), gains, 0.0)
    lengths = ops.sum(ops.cast(real, "int32"), axis=-1)
    divisor = penalty(ops.maximum(lengths, 1), *length_penalty)
    scores = ops.where(lengths > 0, ops.sum(gains, axis=-1) / divisor, -float("inf"))
    # Where logits were NaN: at which step.
    broken = ops.logical_and(broken, real)
    first = ops.argmax(ops.cast(broken, "int32"), axis=-1)
    is_broken = ops.any(broken, axis=-1)
    scores = ops.where(is_broken, float("nan"), scores)
    lengths = ops.where(is_broken, ops.cast(first, "int32") + 1, lengths)
    ids = ops.where(real, target_ids, 0)
    return Hypotheses(ids[:, None], scores[:, None], lengths[:, None], gains[:, None])
