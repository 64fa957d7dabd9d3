"""Functions that change the logits of a step before a search reads them.

A logits processor is a function `(logits, history) -> logits` of float32
`(B, K, V)` and a `History`; minus infinity forbids a token. The functions here
make the usual ones. `Options.logits_processors` adds your own: a function of
its arguments alone, in `keras.ops`, since it is compiled once and whatever else
it reads stays as it was then.

`Options` validates the values that it passes to these functions.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from keras import ops

from keras_tfm.decode.hypotheses import History
from keras_tfm.decode.next_tokens import NEVER
from keras_tfm.decode.options import Options
from keras_tfm.types import Tensor

LogitsProcessor = Callable[[Tensor, History], Tensor]


__all__ = [
    "epsilon",
    "minimum_length",
    "minimum_p",
    "no_repeat_ngram",
    "repetition_penalty",
    "suppress",
    "suppress_sequences",
    "temperature",
    "top_k",
    "top_p",
]


def of_options(
    options: Options, suppressed: Sequence[int] = ()
) -> tuple[LogitsProcessor, ...]:
    """Makes the logits processors that options ask for.

    Args:
        options: `Options`.
        suppressed: ints, token ids that a processor is to suppress.

    Returns:
        Functions `(logits, history) -> logits`, in the order in which they run,
        without those that change nothing.
    """
    processors: list[LogitsProcessor] = []
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
    if not options.samples:
        return tuple(processors)
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
    return tuple(processors)


def suppress(ids: Iterable[int]) -> LogitsProcessor:
    """Makes a processor that never lets the given tokens be generated.

    Args:
        ids: ints.

    Example:
        ```python
        from keras_tfm import decode

        processors = [decode.logits_processors.suppress([7, 8])]
        options = decode.Options(logits_processors=processors)
        ```
    """
    ids = sorted(set(ids))

    def process(logits, history):
        check_token_ids(ids, logits)
        for first, count in _runs(ids):
            shape = (*ops.shape(logits)[:2], count)
            # Written in place: a choice by a mask would read and write all.
            forbidden = ops.full(shape, NEVER, logits.dtype)
            logits = _write(logits, first, forbidden)
        return logits

    return process


def minimum_length(length: int, end_id: int) -> LogitsProcessor:
    """Makes a processor that forbids ending a hypothesis that is too short.

    Args:
        length: int >= 0, in tokens, the end token not included.
        end_id: int.

    Example:
        ```python
        from keras_tfm import decode

        process = decode.logits_processors.minimum_length(3, end_id=3)
        # The option of the same meaning:
        options = decode.Options(min_decoding_length=3)
        ```
    """

    def process(logits, history):
        end = logits[:, :, end_id : end_id + 1]
        end = ops.where(_step(history) < length, NEVER, end)
        return _write(logits, end_id, end)

    return process


def repetition_penalty(penalty: float) -> LogitsProcessor:
    """Makes a processor that lowers the logits of tokens generated before.

    A positive logit is divided by the penalty and a negative one multiplied.

    Args:
        penalty: float > 0. Above 1 to repeat less.

    Source: Keskar et al. 2019, section 4.1. https://arxiv.org/abs/1909.05858

    Example:
        ```python
        from keras_tfm import decode

        process = decode.logits_processors.repetition_penalty(1.2)
        # The option of the same meaning:
        options = decode.Options(repetition_penalty=1.2)
        ```
    """

    def process(logits, history):
        ids = history.ids
        index = ops.arange(ops.shape(ids)[-1], dtype="int32")
        is_token = ops.broadcast_to(index < _step(history), ops.shape(ids))
        logit = ops.take_along_axis(logits, ids, axis=-1)  # (B, K, T)
        lowered = ops.where(logit < 0, logit * penalty, logit / penalty)
        return _replace(logits, ids, lowered, is_token)

    return process


def no_repeat_ngram(size: int) -> LogitsProcessor:
    """Makes a processor that lets no n-gram occur twice.

    Args:
        size: int >= 1, n.

    Source: Paulus et al. 2017, section 2.5. https://arxiv.org/abs/1705.04304

    Example:
        ```python
        from keras_tfm import decode

        process = decode.logits_processors.no_repeat_ngram(3)
        # The option of the same meaning:
        options = decode.Options(no_repeat_ngram_size=3)
        ```
    """

    def process(logits, history):
        ids, step = history.ids, _step(history)
        num_starts = ops.shape(ids)[-1] - size + 1  # where an n-gram can begin
        if isinstance(num_starts, int) and num_starts < 1:
            return logits
        repeats = ops.arange(num_starts) + size <= step
        for i in range(size - 1):
            # The last n - 1 tokens, one by one, against every n-gram.
            last = _token_at(ids, ops.maximum(step - (size - 1) + i, 0))
            is_same = ids[..., i : i + num_starts] == last
            repeats = repeats & is_same
        continuation = ids[..., size - 1 :]  # (B, K, num_starts)
        repeats = ops.broadcast_to(repeats, ops.shape(continuation))
        forbidden = ops.full_like(continuation, NEVER, "float32")
        return _replace(logits, continuation, forbidden, repeats)

    return process


def suppress_sequences(sequences: Iterable[Sequence[int]]) -> LogitsProcessor:
    """Makes a processor that never lets the given sequences be generated.

    Args:
        sequences: lists of 1 or more ints.

    Example:
        ```python
        from keras_tfm import decode

        process = decode.logits_processors.suppress_sequences([[5, 6]])
        # The option of the same meaning:
        options = decode.Options(suppress_sequences=[[5, 6]])
        ```
    """
    sequences = [tuple(sequence) for sequence in sequences]

    def process(logits, history):
        ids, step = history.ids, _step(history)
        for *beginning, last in sequences:
            check_token_ids([last], logits)
            length = len(beginning)
            matches = step >= length
            for i, token in enumerate(beginning):
                previous = _token_at(ids, ops.maximum(step - length + i, 0))
                matches = matches & (previous == token)
            logit = logits[:, :, last : last + 1]
            logits = _write(logits, last, ops.where(matches, NEVER, logit))
        return logits

    return process


def temperature(value: float) -> LogitsProcessor:
    """Makes a processor that sharpens or flattens the distribution.

    Args:
        value: float > 0, by which logits are divided.

    Example:
        ```python
        from keras import ops
        from keras_tfm import decode

        process = decode.logits_processors.temperature(0.5)
        logits = process(ops.convert_to_tensor([[[1.0, 2.0]]]), history=None)
        processed = ops.convert_to_numpy(logits)
        assert processed[0, 0].tolist() == [2.0, 4.0]
        ```
    """
    return lambda logits, history: logits / value


def top_k(count: int) -> LogitsProcessor:
    """Makes a processor that keeps the likeliest tokens.

    Args:
        count: int >= 1. Tokens as likely as the last one are kept too.

    Source: Fan et al. 2018, section 5.4. https://arxiv.org/abs/1805.04833

    Example:
        ```python
        from keras import ops
        from keras_tfm import decode

        process = decode.logits_processors.top_k(1)
        logits = process(ops.convert_to_tensor([[[1.0, 2.0]]]), history=None)
        processed = ops.convert_to_numpy(logits)
        assert processed[0, 0].tolist() == [float("-inf"), 2.0]
        ```
    """

    def process(logits, history):
        best = ops.top_k(logits, min(count, logits.shape[-1]))[0]  # (B, K, count)
        return ops.where(logits < best[..., -1:], NEVER, logits)

    return process


def top_p(probability: float) -> LogitsProcessor:
    """Makes a processor that keeps the fewest tokens that reach a probability.

    Args:
        probability: float in (0, 1].

    Source: Holtzman et al. 2019, section 3.1. https://arxiv.org/abs/1904.09751

    Example:
        ```python
        from keras import ops
        from keras_tfm import decode

        process = decode.logits_processors.top_p(0.5)
        logits = process(ops.convert_to_tensor([[[1.0, 2.0]]]), history=None)
        processed = ops.convert_to_numpy(logits)
        assert processed[0, 0].tolist() == [float("-inf"), 2.0]
        ```
    """

    def process(logits, history):
        if probability == 1:
            return logits  # Rounding would drop the last tokens.
        ordered = ops.flip(ops.sort(logits, axis=-1), axis=-1)  # best first
        probabilities = ops.softmax(ordered, axis=-1)
        # The probability of all tokens before each.
        likelier = ops.cumsum(probabilities, axis=-1) - probabilities
        nucleus = ops.where(likelier < probability, ordered, float("inf"))
        threshold = ops.min(nucleus, axis=-1, keepdims=True)
        return ops.where(logits < threshold, NEVER, logits)

    return process


def minimum_p(ratio: float) -> LogitsProcessor:
    """Makes a processor that drops tokens far less likely than the likeliest.

    Args:
        ratio: float in (0, 1]: a token is kept if its probability is at least
            this fraction of that of the likeliest.

    Source: Nguyen et al. 2024, section 3. https://arxiv.org/abs/2407.01082

    Example:
        ```python
        from keras import ops
        from keras_tfm import decode

        process = decode.logits_processors.minimum_p(0.9)
        logits = process(ops.convert_to_tensor([[[1.0, 2.0]]]), history=None)
        processed = ops.convert_to_numpy(logits)
        assert processed[0, 0].tolist() == [float("-inf"), 2.0]
        ```
    """

    def process(logits, history):
        best = ops.max(logits, axis=-1, keepdims=True)
        return ops.where(logits < best + math.log(ratio), NEVER, logits)

    return process


def epsilon(probability: float) -> LogitsProcessor:
    """Makes a processor that keeps tokens with at least some probability.

    The likeliest token is always kept.

    Args:
        probability: float in (0, 1).

    Source: Hewitt et al. 2022, section 4. https://arxiv.org/abs/2210.15191

    Example:
        ```python
        from keras import ops
        from keras_tfm import decode

        process = decode.logits_processors.epsilon(0.3)
        logits = process(ops.convert_to_tensor([[[1.0, 2.0]]]), history=None)
        processed = ops.convert_to_numpy(logits)
        assert processed[0, 0].tolist() == [float("-inf"), 2.0]
        ```
    """

    def process(logits, history):
        is_unlikely = ops.log_softmax(logits, axis=-1) < math.log(probability)
        is_best = logits >= ops.max(logits, axis=-1, keepdims=True)
        is_dropped = is_unlikely & ~is_best
        return ops.where(is_dropped, NEVER, logits)

    return process


def check_token_ids(ids: Sequence[int], logits: Tensor) -> None:
    """Rejects tokens that a model has no logit of.

    Args:
        ids: ints.
        logits: `(B, K, V)`.

    Raises:
        ValueError: an id is V or more.
    """
    if max(ids, default=0) >= (logits.shape[-1] or math.inf):
        raise ValueError(
            "`suppress_ids` and `suppress_sequences` must hold ids of the target "
            f"vocabulary; got {max(ids)} for a model with {logits.shape[-1]} logits."
        )


def _runs(ids):
    """Returns pairs of the first of consecutive ids and their number."""
    runs = []
    for token in ids:
        if runs and token == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((token, 1))
    return runs


def _write(logits, first, values):
    """Writes values `(B, K, M)` to the logits of token `first` and the next."""
    return ops.slice_update(logits, (0, 0, first), values)


def _step(history):
    """Returns the step of all sequences `(1, 1, 1)`, or of each `(B, 1, 1)`."""
    return ops.reshape(history.step, (-1, 1, 1))


def _token_at(ids, index):
    """Returns the tokens `(B, K, 1)` at `index (1 or B, 1, 1)`."""
    index = ops.broadcast_to(index, (*ops.shape(ids)[:2], 1))
    return ops.take_along_axis(ids, index, axis=-1)


def _replace(logits, ids, values, mask):
    """Writes values `(B, K, M)` to the tokens `(B, K, M)` of a mask.

    Equal tokens of a hypothesis must have one value.
    """
    size, shape = logits.shape[-1], ops.shape(logits)
    num_rows, num_ids = shape[0] * logits.shape[1], ops.shape(ids)[-1]
    # Values for nowhere are written to one more column, which is then dropped.
    wider = ops.pad(logits, [[0, 0], [0, 0], [0, 1]])  # (B, K, V + 1)
    start = ops.reshape(ops.arange(num_rows, dtype="int32") * (size + 1), (-1, 1))
    # Indices into the flattened (B K (V + 1),) logits.
    columns = ops.reshape(ops.where(mask, ids, size), (-1, num_ids))
    flat = ops.scatter_update(
        ops.reshape(wider, (-1,)),
        ops.reshape(start + columns, (-1, 1)),
        ops.reshape(values, (-1,)),
    )
    return ops.reshape(flat, (*shape[:2], size + 1))[..., :size]
