"""Minimum Bayes risk: the translation that is nearest to all others."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple


class MBRResult(NamedTuple):
    """The candidate with the highest expected utility.

    Attributes:
        text: str.
        index: int, its index among the candidates.
        utility: float, how near it is to the others, in units of the utility.

    Example:
        ```python
        from keras_tfm import decode

        result = decode.MBRResult("a b", index=0, utility=61.5)
        assert result.text == "a b"
        ```
    """

    text: str
    index: int
    utility: float


def minimum_bayes_risk(
    candidates: Sequence[str], utility: Callable[[str, str], float] | None = None
) -> MBRResult:
    """Chooses the candidate with the highest expected utility.

    Each candidate is compared with all, itself included, as if one of them were
    the reference. Where the candidates are samples of a model, the result is
    the translation that the model expects to be best; the likeliest need not
    be.

    Args:
        candidates: list of str, samples or other hypotheses.
        utility: `(candidate, reference) -> float`, higher is better; None for
            chrF of sacrebleu, from 0 to 100.

    Returns:
        `MBRResult`; of equal candidates the first.

    Raises:
        ValueError: `candidates` is empty, or a single text.

    Cost: one call of the utility for each pair of different candidates.

    Source: Eikema and Aziz 2020, section 5. https://arxiv.org/abs/2005.10283

    Example:
        ```python
        from keras_tfm import decode

        def shared_words(candidate, reference):
            return len(set(candidate.split()) & set(reference.split()))

        texts = ["a red car", "a red bike", "one bike"]
        assert decode.minimum_bayes_risk(texts, shared_words).index == 1
        ```
    """
    if isinstance(candidates, str) or not len(candidates):
        raise ValueError(
            f"`candidates` must be a list of one text or more; got {candidates!r}."
        )
    counts = Counter(candidates)  # Samples repeat: a pair is compared once.
    utility = utility or _chrf()
    expected = {
        candidate: sum(
            count * utility(candidate, reference) for reference, count in counts.items()
        )
        / len(candidates)
        for candidate in counts
    }
    best = max(expected, key=expected.__getitem__)
    return MBRResult(best, list(candidates).index(best), expected[best])


def _chrf():
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    return lambda candidate, reference: (
        metric.sentence_score(candidate, [reference]).score
    )
