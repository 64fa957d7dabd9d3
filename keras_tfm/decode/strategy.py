"""From options to the search strategy that carries them out."""

from keras_tfm.decode.beam_search import BeamSearch
from keras_tfm.decode.options import Options
from keras_tfm.decode.sampling import Sampling


def search_strategy(options: Options) -> BeamSearch | Sampling:
    """Returns the search strategy that options ask for.

    With `return_alternatives` it is the strategy that continues each first
    token, see `first_token_strategy`.

    Args:
        options: `Options`.

    Example:
        ```python
        from keras_tfm import decode

        greedy = decode.search_strategy(decode.Options())
        assert isinstance(greedy, decode.Sampling)
        beam = decode.search_strategy(decode.Options(beam_size=4))
        assert isinstance(beam, decode.BeamSearch)
        ```
    """
    if options.return_alternatives:
        options = options.replace(return_alternatives=False, num_hypotheses=1)
    is_greedy = options.beam_size == 1 and not options.coverage_penalty
    return Sampling(options) if options.samples or is_greedy else BeamSearch(options)


def first_token_strategy(options: Options) -> BeamSearch:
    """Returns the strategy that finds the n likeliest tokens after a prefix.

    Args:
        options: `Options` with `return_alternatives`.
    """
    return BeamSearch(
        options.replace(
            return_alternatives=False,
            beam_size=options.num_hypotheses,
            num_hypotheses=options.num_hypotheses,
            coverage_penalty=0.0,
            patience=1.0,
            early_stopping=False,
            late_stopping=False,
            num_beam_groups=1,
            diversity_penalty=0.0,
        )
    )
