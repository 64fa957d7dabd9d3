"""The translation that is nearest to all others."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple


class MBRResult(NamedTuple):
    """What was chosen.

    Attributes:
        text: str.
        index: int, its place among the candidates.
        utility: float, how near it is to the others, in units of the utility.
    """

    text: str
    index: int
    utility: float


def minimum_bayes_risk(
    candidates: Sequence[str], utility: Callable | None = None
) -> MBRResult:
    """Chooses the candidate with the highest expected utility.

    Each candidate is held against all, itself included, as if one of them were
    the reference. Where they are samples of a model this is the translation
    that it expects to be best; the likeliest need not be.

    Args:
        candidates: list of str, samples, or other hypotheses.
        utility: `(candidate, reference) -> float`, higher is better; None for
            chrF of sacrebleu, from 0 to 100.

    Returns:
        `MBRResult`; of equal ones the first.

    Raises:
        ValueError: there is no candidate, or one text and no list.
        ImportError: sacrebleu is wanted and not there.

    Cost: calls of the utility for each pair of candidates that differ.

    Source: Eikema and Aziz 2020, section 5. https://arxiv.org/abs/2005.10283
    """
    if isinstance(candidates, str):
        raise ValueError(
            "Candidates are a list of texts; one alone has no rivals. Received: "
            f"{candidates!r}."
        )
    counts = Counter(candidates)
    if not counts:
        raise ValueError("Among no candidates none is best. Received: [].")
    utility = utility or _chrf()
    expected = {
        candidate: sum(
            count * utility(candidate, reference) for reference, count in counts.items()
        )
        / len(candidates)
        for candidate in counts
    }
    best = max(expected, key=expected.get)
    return MBRResult(best, list(candidates).index(best), expected[best])


def _chrf():
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    return lambda candidate, reference: (
        metric.sentence_score(candidate, [reference]).score
    )
