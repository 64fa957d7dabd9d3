"""What every search returns, and how a hypothesis is scored."""

from typing import Any, NamedTuple

from keras import ops

from keras_tfm.types import Tensor


class Hypotheses(NamedTuple):
    """The n best hypotheses of each source, best first.

    Attributes:
        ids: int32 `(B, n, T)`, without the start token, up to and with the end
            token, then 0. Without an end token where the limit truncated it.
        scores: float32 `(B, n)`, the log-probability divided by `penalty`;
            minus infinity where a search found fewer than n, and for sources
            that it was not to decode. Those have no ids.
        lengths: int32 `(B, n)`, in tokens, the end token included.
        token_scores: float32 `(B, n, T)`, the log-probability of each token, 0
            where there is none; or None unless `return_token_scores` is set.
        attention: float32 `(B, n, T, S)`, how much each token attended to each
            source token, 0 where there is no token; or None unless
            `return_attention` is set.

    Example:
        ```python
        import numpy as np
        from keras_tfm import decode

        ids, scores = np.array([[[5, 6, 3]]]), np.array([[-0.2]])
        hypotheses = decode.Hypotheses(ids, scores, lengths=np.array([[3]]))
        assert hypotheses.token_scores is None
        ```
    """

    ids: Tensor
    scores: Tensor
    lengths: Tensor
    token_scores: Tensor = None
    attention: Tensor = None


class BeamTrace(NamedTuple):
    """The beams after one step.

    Attributes:
        live: list of pairs of a list of ids and its log-probability, at most K,
            the best first.
        finished: list of pairs of a list of ids and its score, the hypotheses
            that ended at this step and are among the best so far.

    Example:
        ```python
        from keras_tfm import decode

        trace = decode.BeamTrace(live=[([5], -0.1), ([6], -2.4)], finished=[])
        ids, log_probability = trace.live[0]
        assert ids == [5]
        ```
    """

    live: list
    finished: list


class History(NamedTuple):
    """The tokens that the hypotheses of a search have so far.

    Attributes:
        ids: int32 `(B, K, T)`, without the start token; 0 from `step` on.
        step: int32 scalar: how many tokens there are, and which step this is.
            To logits processors of options also `(B,)`, that of each source.

    Example:
        ```python
        import numpy as np
        from keras_tfm import decode

        history = decode.History(np.array([[[5, 6, 0]]]), step=2)
        assert history.ids.shape == (1, 1, 3)
        ```
    """

    ids: Tensor
    step: Tensor


def penalty(length: Any, length_penalty: float, form: str = "mean") -> Tensor:
    """Computes what a log-probability is divided by to score a hypothesis.

    Args:
        length: int or integer tensor, in tokens, the end token included.
        length_penalty: float >= 0. 0 compares log-probabilities; larger values
            favor longer hypotheses.
        form: `"mean"`: `length ** length_penalty`, so that 1 results in the
            mean log-probability of a token; or `"gnmt"`: `((5 + length) / 6) **
            length_penalty`.

    Returns:
        float32, of the shape of `length`.

    Source: Wu et al. 2016, equation 14. https://arxiv.org/abs/1609.08144

    Example:
        ```python
        from keras_tfm import decode

        assert float(decode.penalty(4, 0.5)) == 2.0
        ```
    """
    length = ops.cast(length, "float32")
    if form == "gnmt":
        length = (length + 5.0) / 6.0
    return ops.power(length, length_penalty)
