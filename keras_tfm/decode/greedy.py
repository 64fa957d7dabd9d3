"""The search that takes the likeliest next token."""

from collections.abc import Callable, Sequence

from keras import ops

from keras_tfm.decode.hypotheses import Hypotheses, log_probabilities, penalty


def greedy(
    step: Callable,
    cache,
    active,
    max_length: int,
    limits=None,
    start_id: int = 2,
    end_id: int = 3,
    length_penalty: float = 1.0,
    length_penalty_form: str = "mean",
    suppress_ids: Sequence[int] = (),
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
        start_id: int. The token before the first.
        end_id: int. The token that ends a hypothesis.
        length_penalty: float >= 0, of the score; it changes no token.
        length_penalty_form: `"mean"` or `"gnmt"`, see `penalty`.
        suppress_ids: ints. Tokens that are never generated.

    Returns:
        `Hypotheses` with n = 1.

    Cost: at most `max_length` calls of `step`, none once all rows are done.
    """
    batch_size = ops.shape(active)[0]
    position = ops.arange(max_length)[None]  # (1, T)
    if limits is None:
        limits = ops.full((batch_size,), max_length, "int32")

    def unfinished(index, last, ids, score, lengths, done, cache):
        return ops.logical_and(index < max_length, ops.logical_not(ops.all(done)))

    def advance(index, last, ids, score, lengths, done, cache):
        logits, cache = step(last, index, cache)
        choices = log_probabilities(logits[:, 0], suppress_ids)  # (B, V)
        token = ops.cast(ops.argmax(choices, axis=-1), "int32")
        gain = ops.max(choices, axis=-1)
        token = ops.where(done, 0, token)
        score = ops.where(done, score, score + gain)
        lengths = ops.where(done, lengths, lengths + 1)
        ids = ops.where(ops.equal(position, index), token[:, None], ids)
        done = ops.logical_or(done, ops.equal(token, end_id))
        done = ops.logical_or(done, ops.greater_equal(lengths, limits))
        return index + 1, token[:, None], ids, score, lengths, done, cache

    index, last, ids, score, lengths, done, cache = ops.while_loop(
        unfinished,
        advance,
        (
            ops.convert_to_tensor(0, "int32"),
            ops.full((batch_size, 1), start_id, "int32"),
            ops.zeros((batch_size, max_length), "int32"),
            ops.zeros((batch_size,), "float32"),
            ops.zeros((batch_size,), "int32"),
            ops.logical_not(active),
            cache,
        ),
    )
    divisor = penalty(ops.maximum(lengths, 1), length_penalty, length_penalty_form)
    score = ops.where(active, score / divisor, -float("inf"))
    return Hypotheses(ids[:, None], score[:, None], lengths[:, None])
