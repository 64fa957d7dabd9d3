"""Decodes the likeliest next tokens, and the best continuation of each."""

from collections.abc import Sequence

import numpy as np

from keras_tfm.decode import inputs
from keras_tfm.decode.hypotheses import Hypotheses
from keras_tfm.decode.strategy import first_token_strategy
from keras_tfm.runtime.compiled_search import CompiledSearch


def decode_alternatives(
    first_tokens: CompiledSearch,
    continuation: CompiledSearch,
    source_ids: np.ndarray,
    target_prefix: Sequence[Sequence[int]] | None = None,
) -> Hypotheses:
    """Decodes prefix-constrained alternatives.

    Args:
        first_tokens: `CompiledSearch` with `first_token_strategy`.
        continuation: `CompiledSearch` for what follows each first token.
        source_ids: integers `(B, S)`, NumPy, padded with 0.
        target_prefix: B lists of ids, or None.

    Returns:
        `Hypotheses` of NumPy arrays, in the order of their first tokens.
    """
    batch_size, options = len(source_ids), continuation.options
    prefixes = [[]] * batch_size if target_prefix is None else list(target_prefix)
    limits = continuation.buckets.length_limits(source_ids)
    size = continuation.capabilities.target_vocabulary_size
    inputs.prefix_array(prefixes, limits, options, size)
    # One token after each prefix.
    first_limits = [
        len(prefix) + 1 if limit else 0
        for prefix, limit in zip(prefixes, limits, strict=True)
    ]
    first = first_tokens.decode(source_ids, prefixes, limits=first_limits)
    rows, num_hypotheses = np.arange(batch_size)[:, None], options.num_hypotheses
    last = np.maximum(first.lengths - 1, 0)
    tokens = first.ids[rows, np.arange(num_hypotheses), last]  # (B, n)
    # A hypothesis that ended with its first token is not decoded again.
    continues = (first.lengths > 0) & (tokens != options.end_id)
    continues &= (np.array(first_limits) < limits)[:, None]
    sources = np.repeat(source_ids, num_hypotheses, axis=0)
    sources[~continues.reshape(-1)] = 0
    longer_prefixes = [
        [*prefixes[row], int(token)] if continues[row, i] else []
        for row in range(batch_size)
        for i, token in enumerate(tokens[row])
    ]
    following = continuation.decode(
        sources,
        longer_prefixes,
        is_last_chosen=True,
        indices=np.repeat(np.arange(batch_size), num_hypotheses),
    )
    pairs = zip(following, first, strict=True)
    return Hypotheses(*(_choose(continues, *pair) for pair in pairs))


def first_token_search(search: CompiledSearch) -> CompiledSearch:
    """Returns the search for the first tokens of a continuation's search."""
    return CompiledSearch(
        search.model, search.options, first_token_strategy(search.options)
    )


def _choose(continues, following, ended):
    """Takes what followed, `(B n, 1, ...)`, or else what had ended."""
    if following is None:
        return None
    following = following.reshape((*continues.shape, *following.shape[2:]))
    sizes = zip(ended.shape, following.shape, strict=True)
    ended = np.pad(ended, [(0, full - size) for size, full in sizes])
    mask = continues.reshape(continues.shape + (1,) * (following.ndim - 2))
    return np.where(mask, following, ended)
