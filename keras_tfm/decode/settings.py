"""What settings of a search cannot be, and the processors they ask for."""

import inspect
from collections.abc import Callable, Sequence
from numbers import Integral

from keras_tfm.decode import logits_processors as processing
from keras_tfm.decode.beam_search import Beam
from keras_tfm.decode.sampling import Sample


def check_seed(seed):
    """Refuses what numbers cannot be drawn by.

    Args:
        seed: of a call of `Decoder`.

    Raises:
        ValueError: it is neither None nor an int from 0.
    """
    if seed is not None and (not isinstance(seed, Integral) or seed < 0):
        raise ValueError(f"A seed is an int from 0, or None. Received: {seed!r}.")


def check_model(model):
    """Refuses what has no `begin` and `step`.

    Args:
        model: of `Decoder`.

    Raises:
        ValueError: it lacks one.
    """
    if not (hasattr(model, "begin") and hasattr(model, "step")):
        raise ValueError(
            "A search wants a model with `begin` and `step`, such as a Transformer. "
            f"Received: {type(model).__name__}. Of a translator give its `.model`."
        )


def general_processors(
    min_decoding_length,
    repetition_penalty,
    no_repeat_ngram_size,
    suppress_sequences,
    suppress_ids,
    end_id,
) -> Sequence[Callable]:
    """Makes the processors that narrow no draw.

    Args:
        min_decoding_length, repetition_penalty, no_repeat_ngram_size: of
            `Decoder`.
        suppress_sequences, suppress_ids, end_id: likewise.

    Returns:
        list of functions, without those that change nothing.
    """
    chosen = []
    if repetition_penalty != 1:
        chosen.append(processing.repetition_penalty(repetition_penalty))
    if no_repeat_ngram_size:
        chosen.append(processing.no_repeat_ngram(no_repeat_ngram_size))
    if min_decoding_length:
        chosen.append(processing.minimum_length(min_decoding_length, end_id))
    if suppress_ids:
        chosen.append(processing.suppress(suppress_ids))
    if suppress_sequences:
        chosen.append(processing.suppress_sequences(suppress_sequences))
    return chosen


def sampling_processors(
    samples, temperature, topk, topp, minp, epsilon
) -> Sequence[Callable]:
    """Makes the processors that narrow a draw.

    Args:
        samples: bool. Tokens are drawn.
        temperature, topk, topp, minp, epsilon: `sampling_...` of `Decoder`.

    Returns:
        list of functions, without those that change nothing.

    Raises:
        ValueError: something narrows a draw, and there is none.
    """
    if not samples:
        return []
    chosen = [processing.temperature(temperature)] if temperature != 1 else []
    chosen += [processing.top_k(topk)] if topk else []
    chosen += [processing.top_p(topp)] if topp != 1 else []
    chosen += [processing.minimum_p(minp)] if minp else []
    return chosen + ([processing.epsilon(epsilon)] if epsilon else [])


def check_begin(model, options, shortlist):
    """Refuses what `begin` of a model cannot be asked for.

    Args:
        model: of `Decoder`; of an `Ensemble` each of its models.
        options: dict, what is asked beside the sources.
        shortlist: `Shortlist` or None.

    Raises:
        ValueError: `begin` has no such argument.
    """
    asked = [*options, *(["candidates"] if shortlist is not None else [])]
    for one in getattr(model, "models", [model]):
        takes = inspect.signature(one.begin).parameters
        open_ended = any(each.kind is each.VAR_KEYWORD for each in takes.values())
        missing = [] if open_ended else [name for name in asked if name not in takes]
        if missing:
            raise ValueError(
                "Attention, a coverage penalty and a shortlist need a model whose "
                f"`begin` takes `return_attention` or `candidates`. Received: "
                f"{type(one).__name__}, without {missing}. Leave the option out."
            )


def check_ids(options, size):
    """Rejects token ids outside the target vocabulary.

    Args:
        options: `Options`.
        size: int or None, unknown: tokens of the target vocabulary.

    Raises:
        ValueError: an id is outside the vocabulary, or the shortlist is of
            another.
    """
    if size is None:
        return
    ids = {
        "start_id": [options.start_id],
        "end_id": [options.end_id],
        "suppress_ids": options.suppressed_ids,
        "suppress_sequences": [t for ids in options.suppress_sequences for t in ids],
    }
    for name, tokens in ids.items():
        outside = sorted(token for token in tokens if token >= size)
        if outside:
            raise ValueError(
                f"`{name}` must hold ids of the target vocabulary; got {outside}, "
                f"target_vocabulary_size={size}."
            )
    shortlist = options.shortlist
    if shortlist is not None and shortlist.vocabulary_size != size:
        raise ValueError(
            "`shortlist` must be of the model's target vocabulary; got "
            f"{shortlist.vocabulary_size} tokens, target_vocabulary_size={size}."
        )


def strategy(options, special):
    """Makes the search strategy that options ask for.

    Args:
        options: `Options`.
        special: int: with a shortlist, ids below it keep their number.

    Returns:
        `Sample` for greedy search and sampling, or `Beam`.
    """
    common = _common(options, special)
    hypotheses = 1 if options.return_alternatives else options.num_hypotheses
    greedy = options.beam_size == 1 and not options.coverage_penalty
    if options.samples or (greedy and hypotheses == 1):
        return Sample(**common)
    return Beam(
        beam_size=options.beam_size,
        num_hypotheses=hypotheses,
        coverage_penalty=options.coverage_penalty,
        patience=options.patience,
        early_stopping=options.early_stopping,
        num_beam_groups=options.num_beam_groups,
        diversity_penalty=options.diversity_penalty,
        **common,
    )


def first_tokens(options, special):
    """Makes the beam that takes the n likeliest tokens after a prefix.

    Args:
        options, special: of `strategy`.
    """
    count = options.num_hypotheses
    return Beam(count, count, **_common(options, special))


def _common(options, special):
    """The arguments that every strategy has."""
    suppressed = options.suppressed_ids
    if options.shortlist is not None:
        # A token below `special` has one number among all and in a shortlist; a
        # suppressed one above is in no shortlist.
        suppressed = {token for token in suppressed if token < special}
    # Few are masked in their chunks of the vocabulary, without another copy.
    few = len(suppressed) <= 16 and not options.samples
    return {
        "start_id": options.start_id,
        "end_id": options.end_id,
        "length_penalty": options.length_penalty,
        "length_penalty_form": options.length_penalty_form,
        "score_prefix": options.score_prefix,
        "return_token_scores": options.return_token_scores,
        "return_attention": options.return_attention,
        "suppress_ids": sorted(suppressed) if few else (),
        "processors": [
            *general_processors(
                options.min_decoding_length,
                options.repetition_penalty,
                options.no_repeat_ngram_size,
                options.suppress_sequences,
                () if few else suppressed,
                options.end_id,
            ),
            *options.logits_processors,
            *sampling_processors(
                options.samples,
                options.sampling_temperature,
                options.sampling_topk,
                options.sampling_topp,
                options.sampling_minp,
                options.sampling_epsilon,
            ),
        ],
    }
