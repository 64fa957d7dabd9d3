"""Scores pairs of a source and a translation in batches of few sizes."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from keras_tfm.decode.inputs import padded_rows
from keras_tfm.engines.choice import keras_decoder
from keras_tfm.pipelines.translation import ScoredTranslation

if TYPE_CHECKING:
    from keras_tfm.pipelines.translator import Translator


def score_pairs(
    translator: "Translator", pairs: Iterable[tuple[str, str]]
) -> list[ScoredTranslation]:
    """Scores pairs, see `Translator.score`.

    Args:
        translator: `Translator`.
        pairs: pairs of str.

    Returns:
        list of `ScoredTranslation`, in the order of the pairs.
    """
    pairs = [_check_pair(number, pair) for number, pair in enumerate(pairs)]
    sources, targets = _encode_pairs(translator, pairs)
    config, decoder = translator.config, keras_decoder(translator.decoder)
    prefix_length = len(config.target_prefix)
    sizes = [max(map(len, sides)) for sides in zip(sources, targets, strict=True)]
    order = sorted(range(len(pairs)), key=lambda i: -sizes[i])
    scores: list = [None] * len(pairs)
    while order:
        # Batches of the few sizes of buckets: another size would be compiled.
        bucket = decoder.compiled_search.buckets.source_bucket(sizes[order[0]])
        count = max(1, min(config.batch_size, config.batch_tokens // bucket))
        chosen, order = order[:count], order[count:]
        filler = [[]] * (count - len(chosen))
        longest = max(len(sources[i]) for i in chosen)
        ids = padded_rows([sources[i] for i in chosen] + filler, longest)
        rows = [targets[i] for i in chosen] + filler
        prefixes = [min(prefix_length, len(row)) for row in rows]
        scored = decoder.score(ids, rows, prefixes)
        for index, number in enumerate(chosen):
            length = len(targets[number])
            scores[number] = ScoredTranslation(
                float(scored.scores[index, 0]),
                translator.target_vocabulary.tokens(targets[number]),
                scored.token_scores[index, 0, :length].tolist(),
            )
    return scores


def _encode_pairs(translator, pairs):
    """The ids of sources and targets, empty for empty texts."""
    config, decoder = translator.config, translator.decoder
    sources = translator.vocabulary.encode([source for source, _ in pairs])
    prefix, suffix = config.source_prefix, config.source_suffix
    sources = [[*prefix, *row, *suffix] if row else row for row in sources]
    for number, row in enumerate(sources):
        config.check_source(number, row)
    targets = translator.target_vocabulary.encode([target for _, target in pairs])
    prefix, end = config.target_prefix, decoder.options.end_id
    targets = [[*prefix, *row, end] if row else row for row in targets]
    longest = decoder.max_positions
    for number, row in enumerate(targets):
        if longest is not None and len(row) > longest:
            raise ValueError(
                f"Translation {number} must have at most {longest} tokens with its "
                f"end, the positions of the model; got {len(row)}. Split it into "
                "sentences."
            )
    return sources, targets


def _check_pair(number, pair):
    is_pair = isinstance(pair, tuple | list) and len(pair) == 2
    if not is_pair or not all(isinstance(side, str) for side in pair):
        raise TypeError(
            "`pairs` must hold pairs of two str, a source and a translation; got "
            f"{str(pair)[:60]!r} of type {type(pair).__name__}, pair {number}."
        )
    return pair
