"""What every search gives, and how a hypothesis is scored."""

from typing import NamedTuple

from keras import ops


class Hypotheses(NamedTuple):
    """The n best hypotheses of each source, best first.

    Attributes:
        ids: int32 `(B, n, T)`, without the start token, up to and with the end
            token, then 0. Without an end token where `T` was not enough.
        scores: float32 `(B, n)`: log-probability over the length penalty;
            minus infinity where a search found fewer than n, and in rows
            that it was not to decode; these have no ids.
        lengths: int32 `(B, n)`, in tokens, the end token included.
    """

    ids: object
    scores: object
    lengths: object


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


def log_probabilities(logits, suppress_ids=()):
    """Normalises logits over the tokens that may be generated.

    Args:
        logits: float `(..., V)`.
        suppress_ids: ints. Tokens that are never generated.

    Returns:
        float32 `(..., V)`, minus infinity for suppressed tokens.
    """
    logits = ops.cast(logits, "float32")
    if suppress_ids:
        banned = ops.sum(
            ops.one_hot(ops.array(suppress_ids, "int32"), logits.shape[-1]), axis=0
        )
        logits = ops.where(ops.greater(banned, 0), -float("inf"), logits)
    return ops.log_softmax(logits, axis=-1)
