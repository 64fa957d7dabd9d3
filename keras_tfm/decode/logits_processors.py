"""What changes the logits of a step before a search reads them.

A processor is a function `(logits, history) -> logits` of float32 `(B, K, V)`
and a `History`; minus infinity forbids a token. The functions here make the
usual ones; one of the user's own stands beside them in a search's list. It is
a function of its arguments alone, in `keras.ops`: programs are made of it once,
and what else it looks at stays as it was then.
"""

import math
from collections.abc import Callable, Sequence

from keras import ops

from keras_tfm.decode.options import Options

FORBIDDEN = -float("inf")


def of_options(options: Options, suppressed: Sequence[int] = ()) -> tuple:
    """Makes the logits processors that options ask for.

    Args:
        options: `Options`.
        suppressed: ints, token ids that a processor is to suppress.

    Returns:
        Functions `(logits, history) -> logits`, in the order in which they run,
        without those that change nothing.
    """
    processors = []
    if options.repetition_penalty != 1:
        processors.append(repetition_penalty(options.repetition_penalty))
    if options.no_repeat_ngram_size:
        processors.append(no_repeat_ngram(options.no_repeat_ngram_size))
    if options.min_decoding_length:
        processors.append(minimum_length(options.min_decoding_length, options.end_id))
    if suppressed:
        processors.append(suppress(suppressed))
    if options.suppress_sequences:
        processors.append(suppress_sequences(options.suppress_sequences))
    processors += options.logits_processors
    if options.samples:
        processors += _sampling_processors(options)
    return tuple(processors)


def _sampling_processors(options):
    processors = []
    if options.sampling_temperature != 1:
        processors.append(temperature(options.sampling_temperature))
    if options.sampling_topk:
        processors.append(top_k(options.sampling_topk))
    if options.sampling_topp != 1:
        processors.append(top_p(options.sampling_topp))
    if options.sampling_minp:
        processors.append(minimum_p(options.sampling_minp))
    if options.sampling_epsilon:
        processors.append(epsilon(options.sampling_epsilon))
    return processors


def suppress(ids: Sequence[int]) -> Callable:
    """Makes a processor that never lets the given tokens be generated.

    Args:
        ids: ints.
    """
    ids = sorted(set(ids))

    def process(logits, history):
        check_token_ids(ids, logits)
        for first, count in _runs(ids):
            shape = (*ops.shape(logits)[:2], count)
            # Written over: a choice between two would read and write them all.
            logits = _put(logits, first, ops.full(shape, FORBIDDEN, logits.dtype))
        return logits

    return process


def minimum_length(length: int, end_id: int) -> Callable:
    """Makes a processor that forbids the end of what is not long enough.

    Args:
        length: int >= 0, in tokens, the end token not included.
        end_id: int.
    """

    def process(logits, history):
        end = logits[:, :, end_id : end_id + 1]
        end = ops.where(ops.less(_index(history), length), FORBIDDEN, end)
        return _put(logits, end_id, end)

    return process


def repetition_penalty(penalty: float) -> Callable:
    """Makes a processor that makes less likely what has been said already.

    A positive logit is divided by the penalty and a negative one multiplied.

    Args:
        penalty: float > 0. Above 1 to repeat less.

    Source: Keskar et al. 2019, section 4.1. https://arxiv.org/abs/1909.05858
    """
    _check("repetition_penalty", penalty, penalty > 0, "above 0")

    def process(logits, history):
        ids, said = history.ids, _said(history)
        old = ops.take_along_axis(logits, ids, axis=-1)  # (B, K, T)
        new = ops.where(old < 0, old * penalty, old / penalty)
        return _replace(logits, ids, new, said)

    return process


def no_repeat_ngram(size: int) -> Callable:
    """Makes a processor that lets no n tokens in a row occur twice.

    Args:
        size: int >= 1, n.

    Source: Paulus et al. 2017, section 2.5. https://arxiv.org/abs/1705.04304
    """
    _check("no_repeat_ngram_size", size, size >= 1, "1 or more")

    def process(logits, history):
        ids, index = history.ids, _index(history)
        places = ops.shape(ids)[-1] - size + 1  # where an n-gram can begin
        if isinstance(places, int) and places < 1:
            return logits
        begins = ops.arange(places)
        repeats = ops.less_equal(begins + size, index)
        for i in range(size - 1):
            # The last n - 1 tokens, one by one, against every place.
            last = ops.maximum(index - (size - 1) + i, 0)
            same = ops.equal(ids[..., i : i + places], _at(ids, last))
            repeats = ops.logical_and(repeats, same)
        nexts = ids[..., size - 1 :]  # what followed there
        repeats = ops.broadcast_to(repeats, ops.shape(nexts))
        return _replace(
            logits, nexts, ops.full_like(nexts, FORBIDDEN, "float32"), repeats
        )

    return process


def suppress_sequences(sequences: Sequence[Sequence[int]]) -> Callable:
    """Makes a processor that forbids the last token of some sequences.

    Args:
        sequences: list of lists of 1 or more ints.
    """
    sequences = [tuple(sequence) for sequence in sequences]
    for sequence in sequences:
        _check("suppress_sequences", sequence, len(sequence) > 0, "of 1 token or more")

    def process(logits, history):
        ids, index = history.ids, _index(history)
        for sequence in sequences:
            *before, last = sequence
            check_token_ids([last], logits)
            matches = ops.greater_equal(index, len(before))
            for i, token in enumerate(before):
                place = ops.maximum(index - len(before) + i, 0)
                said = ops.equal(_at(ids, place), token)
                matches = ops.logical_and(matches, said)
            logit = logits[:, :, last : last + 1]
            logits = _put(logits, last, ops.where(matches, FORBIDDEN, logit))
        return logits

    return process


def temperature(value: float) -> Callable:
    """Makes a processor that sharpens or flattens the distribution.

    Args:
        value: float > 0, what logits are divided by.
    """
    _check("sampling_temperature", value, value > 0, "above 0")
    return lambda logits, history: logits / value


def top_k(count: int) -> Callable:
    """Makes a processor that keeps the likeliest tokens.

    Args:
        count: int >= 1. Equals of the last one are kept too.

    Source: Fan et al. 2018, section 5.4. https://arxiv.org/abs/1805.04833
    """
    _check("sampling_topk", count, count >= 1, "1 or more")

    def process(logits, history):
        best = ops.top_k(logits, min(count, logits.shape[-1]))[0]
        return ops.where(logits < best[..., -1:], FORBIDDEN, logits)

    return process


def top_p(share: float) -> Callable:
    """Makes a processor that keeps the fewest tokens with that probability.

    Args:
        share: float in (0, 1].

    Source: Holtzman et al. 2019, section 3.1. https://arxiv.org/abs/1904.09751
    """
    _check("sampling_topp", share, 0 < share <= 1, "above 0 and at most 1")

    def process(logits, history):
        if share == 1:
            return logits
        ordered = ops.flip(ops.sort(logits, axis=-1), axis=-1)
        probabilities = ops.softmax(ordered, axis=-1)
        before = ops.cumsum(probabilities, axis=-1) - probabilities
        kept = ops.where(before < share, ordered, float("inf"))
        return ops.where(
            logits < ops.min(kept, axis=-1, keepdims=True), FORBIDDEN, logits
        )

    return process


def minimum_p(share: float) -> Callable:
    """Makes a processor that keeps what is likely beside the likeliest.

    Args:
        share: float in [0, 1], of the probability of the likeliest token.

    Source: Nguyen et al. 2024, section 3. https://arxiv.org/abs/2407.01082
    """
    _check("sampling_minp", share, 0 <= share <= 1, "from 0 to 1")

    def process(logits, history):
        if share == 0:
            return logits
        best = ops.max(logits, axis=-1, keepdims=True)
        return ops.where(logits < best + math.log(share), FORBIDDEN, logits)

    return process


def epsilon(least: float) -> Callable:
    """Makes a processor that keeps what has at least some probability.

    The likeliest token is always kept.

    Args:
        least: float in [0, 1), a probability.

    Source: Hewitt et al. 2022, section 4. https://arxiv.org/abs/2210.15191
    """
    _check("sampling_epsilon", least, 0 <= least < 1, "at least 0 and below 1")

    def process(logits, history):
        if least == 0:
            return logits
        unlikely = ops.log_softmax(logits, axis=-1) < math.log(least)
        best = ops.max(logits, axis=-1, keepdims=True)
        return ops.where(ops.logical_and(unlikely, logits < best), FORBIDDEN, logits)

    return process


def check_token_ids(ids, logits):
    """Refuses to suppress what a model has no logit of.

    Args:
        ids: ints.
        logits: `(B, K, V)`.

    Raises:
        ValueError: an id is V or more.
    """
    if max(ids, default=0) >= (logits.shape[-1] or math.inf):
        raise ValueError(
            "Suppressed tokens are of the target vocabulary. Received: "
            f"{max(ids)}, of a model with {logits.shape[-1]} logits."
        )


def _check(name, value, fits, wanted):
    if not fits:
        raise ValueError(f"`{name}` must be {wanted}. Received: {value}.")


def _runs(ids):
    """Pairs of the first and the number of tokens that follow each other."""
    runs = []
    for token in ids:
        if runs and token == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((token, 1))
    return runs


def _put(logits, first, values):
    """Writes values `(B, K, M)` to the tokens from one on."""
    return ops.slice_update(logits, (0, 0, first), values)


def _index(history):
    """The steps of all rows `(1, 1, 1)`, or of each `(B, 1, 1)`."""
    return ops.reshape(history.index, (-1, 1, 1))


def _at(ids, place):
    """The tokens `(B, K, 1)` of `ids (B, K, T)` at a place `(1 or B, 1, 1)`."""
    place = ops.broadcast_to(place, (*ops.shape(ids)[:2], 1))
    return ops.take_along_axis(ids, place, axis=-1)


def _said(history):
    """bool `(B, K, T)`, True where there is a token already."""
    places = ops.arange(ops.shape(history.ids)[-1], dtype="int32")
    return ops.broadcast_to(places < _index(history), ops.shape(history.ids))


def _replace(logits, ids, values, where):
    """Puts values `(B, K, M)` at tokens `(B, K, M)`, but not everywhere.

    Of equal tokens all have one value.
    """
    size, shape = logits.shape[-1], ops.shape(logits)
    rows = shape[0] * logits.shape[1]
    # What is put nowhere is put into one more column, and dropped with it.
    wider = ops.pad(logits, [[0, 0], [0, 0], [0, 1]])
    start = ops.reshape(ops.arange(rows, dtype="int32") * (size + 1), (-1, 1))
    width = ops.shape(ids)[-1]
    places = start + ops.reshape(ops.where(where, ids, size), (-1, width))
    flat = ops.scatter_update(
        ops.reshape(wider, (-1,)),
        ops.reshape(places, (-1, 1)),
        ops.reshape(values, (-1,)),
    )
    return ops.reshape(flat, (*shape[:2], size + 1))[..., :size]
