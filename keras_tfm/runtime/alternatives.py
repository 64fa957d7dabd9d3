"""The likeliest next tokens, and the best that each is followed by."""

import numpy as np

from keras_tfm.decode import inputs
from keras_tfm.decode.hypotheses import Hypotheses


class Alternatives:
    """Two searches: one for the next token, one for what follows each.

    Args:
        following: `Decoder` for what follows a token.
        first: `Decoder` that finds n tokens at once.
    """

    def __init__(self, following, first):
        self.following, self.first = following, first
        self.each = following.options.num_hypotheses

    def __call__(self, source_ids, target_prefix=None):
        """Decodes a batch.

        Args:
            source_ids: integers `(B, S)`, NumPy, padded with 0.
            target_prefix: B lists of ids, or None.

        Returns:
            `Hypotheses` of NumPy arrays, in the order of their first tokens.
        """
        search, count, each = self.following, len(source_ids), self.each
        prefixes = [[]] * count if target_prefix is None else list(target_prefix)
        most = search.lengths.limits(source_ids)
        size = search.capabilities.target_vocabulary_size
        inputs.prefix_array(prefixes, most, search.options, size)
        limits = [
            len(prefix) + 1 if limit else 0
            for prefix, limit in zip(prefixes, most, strict=True)
        ]
        first = self.first.decoded(source_ids, prefixes, limits=limits)
        # What has ended with its first token is not searched again.
        rows = np.arange(count)[:, None]
        tokens = first.ids[rows, np.arange(each), np.maximum(first.lengths - 1, 0)]
        goes_on = (first.lengths > 0) & (tokens != search.options.end_id)
        goes_on &= (np.array(limits) < most)[:, None]
        sources = np.repeat(source_ids, each, axis=0)
        sources[~goes_on.reshape(-1)] = 0
        longer = [
            [*prefixes[row], int(token)] if goes_on[row, i] else []
            for row in range(count)
            for i, token in enumerate(tokens[row])
        ]
        numbers = np.repeat(np.arange(count), each)
        found = search.decoded(sources, longer, found_last=True, numbers=numbers)
        pairs = zip(found, first, strict=True)
        return Hypotheses(*(_chosen(goes_on, *pair) for pair in pairs))


def _chosen(goes_on, following, ended):
    """What followed, `(B n, 1, ...)`, or else what had ended."""
    if following is None:
        return None
    following = following.reshape((*goes_on.shape, *following.shape[2:]))
    sizes = zip(ended.shape, following.shape, strict=True)
    ended = np.pad(ended, [(0, full - size) for size, full in sizes])
    mask = goes_on.reshape(goes_on.shape + (1,) * (following.ndim - 2))
    return np.where(mask, following, ended)
