"""What settings of a search cannot be, and the processors they ask for."""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real

from keras_tfm.decode import processors as processing


def check_numbers(whole, finite):
    """Refuses settings that are no numbers of their kind.

    Args:
        whole: dict from names to what must be an int.
        finite: dict from names to what must be a number, and not infinite.

    Raises:
        ValueError: one is something else.
    """
    for name, value in whole.items():
        if not isinstance(value, Integral):
            raise ValueError(f"`{name}` is a whole number. Received: {value!r}.")
    for name, value in finite.items():
        if not isinstance(value, Real) or math.isinf(value):
            raise ValueError(f"`{name}` is a finite number. Received: {value!r}.")


def check_seed(seed):
    """Refuses what numbers cannot be drawn by.

    Args:
        seed: of a call of `Search`.

    Raises:
        ValueError: it is neither None nor an int from 0.
    """
    if seed is not None and (not isinstance(seed, Integral) or seed < 0):
        raise ValueError(f"A seed is an int from 0, or None. Received: {seed!r}.")


def check_model(model):
    """Refuses what has no `begin` and `step`.

    Args:
        model: of `Search`.

    Raises:
        ValueError: it lacks one.
    """
    if not (hasattr(model, "begin") and hasattr(model, "step")):
        raise ValueError(
            "A search wants a model with `begin` and `step`, such as a Transformer. "
            f"Received: {type(model).__name__}. Of a translator give its `.model`."
        )


def check_ends(start_id, end_id, size):
    """Refuses ends that are no two tokens.

    Args:
        start_id, end_id: of `Search`.
        size: int or None, unknown: tokens of the target vocabulary.

    Raises:
        ValueError: they are one, or outside the vocabulary.
    """
    if start_id == end_id:
        raise ValueError(
            "The start and the end of a hypothesis are two tokens. Received: "
            f"start_id={start_id}, end_id={end_id}."
        )
    for name, token in (("start_id", start_id), ("end_id", end_id)):
        if token < 1 or (size is not None and token >= size):
            raise ValueError(
                f"`{name}` is a token of the target vocabulary; 0 is padding. "
                f"Received: {name}={token}; target_vocabulary_size={size}."
            )


def as_listed(suppressed, size):
    """Lists tokens that are suppressed, and refuses ids of none.

    Args:
        suppressed: ints.
        size: of `check_ends`.

    Returns:
        list of them.

    Raises:
        ValueError: one is outside the vocabulary, or they are no list.
    """
    if not isinstance(suppressed, Iterable):
        raise ValueError(
            "What is suppressed is a list of ids; `suppress_sequences` are lists of "
            f"such lists. Received: {suppressed!r} in place of a list."
        )
    suppressed, top = list(suppressed), math.inf if size is None else size
    wrong = [t for t in suppressed if not (isinstance(t, Integral) and 0 <= t < top)]
    if wrong:
        raise ValueError(
            "Suppressed tokens are of the target vocabulary. Received: "
            f"{wrong}; target_vocabulary_size={size}."
        )
    return suppressed


def check_shortlist(shortlist, size, processors, suppress_sequences):
    """Refuses what does not go with a shortlist.

    Args:
        shortlist, processors, suppress_sequences: of `Search`.
        size: of `check_ends`.

    Raises:
        ValueError: another vocabulary, or what looks at all tokens.
    """
    if size is not None and shortlist.vocabulary_size != size:
        raise ValueError(
            "A shortlist is of the model's target vocabulary. Received: one of "
            f"{shortlist.vocabulary_size} tokens; target_vocabulary_size={size}."
        )
    if processors or suppress_sequences:
        raise ValueError(
            "With a shortlist logits are of other tokens in each row. Received: a "
            "shortlist, and processors of your own or suppress_sequences, which take "
            "a token for its place in the vocabulary."
        )


def check_sampling(beam_size, num_hypotheses, coverage_penalty, alternatives):
    """Refuses what does not go with sampling.

    Args:
        beam_size, num_hypotheses, coverage_penalty: of `Search`.
        alternatives: bool, `return_alternatives` of it.

    Raises:
        ValueError: a beam, or what needs one.
    """
    if coverage_penalty:
        raise ValueError(
            "Coverage is of a beam, and sampling has none. Received: "
            f"coverage_penalty={coverage_penalty}, and sampling."
        )
    if beam_size != 1 or num_hypotheses < 1:
        raise ValueError(
            "Sampling follows each hypothesis by itself, without a beam, and gives "
            f"one or more. Received: beam_size={beam_size}, num_hypotheses="
            f"{num_hypotheses}. Use sampling_topk=1, or beam_size=1."
        )
    if alternatives:
        raise ValueError(
            "Alternatives are the likeliest tokens, and sampling draws others. "
            "Received: return_alternatives=True, and sampling."
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
            `Search`.
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
        temperature, topk, topp, minp, epsilon: `sampling_...` of `Search`.

    Returns:
        list of functions, without those that change nothing.

    Raises:
        ValueError: something narrows a draw, and there is none.
    """
    if not samples:
        if (temperature, topp, minp, epsilon) != (1.0, 1.0, 0.0, 0.0):
            raise ValueError(
                "What narrows a draw needs one. Received: sampling_temperature="
                f"{temperature}, sampling_topp={topp}, sampling_minp={minp}, "
                f"sampling_epsilon={epsilon}, and sampling_topk=1. Set "
                "sampling_topk=0 to draw from all tokens."
            )
        return []
    chosen = [processing.temperature(temperature)] if temperature != 1 else []
    chosen += [processing.top_k(topk)] if topk else []
    chosen += [processing.top_p(topp)] if topp != 1 else []
    chosen += [processing.minimum_p(minp)] if minp else []
    return chosen + ([processing.epsilon(epsilon)] if epsilon else [])


def check_begin(model, options, shortlist):
    """Refuses what `begin` of a model cannot be asked for.

    Args:
        model: of `Search`; of an `Ensemble` each of its models.
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
