"""From source ids to target ids, as one compiled program."""

from collections.abc import Callable, Sequence

import numpy as np
from keras import ops

from keras_tfm.decode import processors as processing
from keras_tfm.decode.beam import beam, check_beam
from keras_tfm.decode.compile import compiled
from keras_tfm.decode.greedy import sample
from keras_tfm.decode.hypotheses import Hypotheses, penalty

# Source lengths are rounded up to these, so that few programs are compiled.
LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
PREFIX_LENGTHS = (0, 4, *LENGTHS)


class Search:
    """Decodes batches of source ids with a model, in one compiled program.

    Options are named as in CTranslate2 and mean the same.

    Args:
        model: what has `begin(source_ids, max_length, beam_size)` and
            `step(ids, index, cache)`, such as `Transformer`.
        beam_size: int >= 1, K. 1 is greedy search, or sampling.
        num_hypotheses: int from 1 to K, n; when sampling any number from 1.
        length_penalty: float >= 0, see `penalty`.
        length_penalty_form: `"mean"` or `"gnmt"`, see `penalty`.
        patience: float > 0, see `beam`.
        max_decoding_length: int >= 1, in tokens, the end token included; or a
            pair (m, c) for m times the source and c more; or None for (2, 16).
            Never more than the model has learned positions for. What has not
            ended by then is cut.
        min_decoding_length: int >= 0, in tokens, without the end token.
        repetition_penalty: float > 0. 1 is none.
        no_repeat_ngram_size: int >= 0. 0 lets everything repeat.
        suppress_sequences: lists of ids that are never generated in a row.
        suppress_ids: ints. Tokens that are never generated; by default
            padding and the start.
        disable_unk: bool. Never generate the unknown token.
        sampling_topk: int >= 0. 1 samples nothing; above it, one of so many
            likeliest tokens is drawn; 0 draws from all.
        sampling_topp: float in (0, 1], see `processors.top_p`.
        sampling_minp: float in [0, 1], see `processors.minimum_p`.
        sampling_epsilon: float in [0, 1), see `processors.epsilon`.
        sampling_temperature: float > 0.
        processors: functions `(logits, history) -> logits` of your own, see
            `keras_tfm.decode.processors`. Used after those of the options,
            and before those that narrow a draw.
        return_token_scores: bool. Give `Hypotheses.token_scores` too.
        start_id: int. The token before the first.
        end_id: int. The token that ends a hypothesis.
        unk_id: int. The unknown token.
        jit_compile: bool. On TensorFlow, compile with XLA.

    Raises:
        ValueError: a number out of its range, or sampling in a beam.
    """

    def __init__(
        self,
        model,
        beam_size=1,
        num_hypotheses=1,
        length_penalty=1.0,
        length_penalty_form="mean",
        patience=1.0,
        max_decoding_length=None,
        min_decoding_length=0,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        suppress_sequences=(),
        suppress_ids=(0, 2),
        disable_unk=True,
        sampling_topk=1,
        sampling_topp=1.0,
        sampling_minp=0.0,
        sampling_epsilon=0.0,
        sampling_temperature=1.0,
        processors=(),
        return_token_scores=False,
        start_id=2,
        end_id=3,
        unk_id=1,
        jit_compile=True,
    ):
        self.samples = sampling_topk != 1
        _check_sampling(self.samples, beam_size, num_hypotheses)
        if not self.samples:
            check_beam(beam_size, num_hypotheses, patience)
        penalty(1, length_penalty, length_penalty_form)  # raises, if it must
        self.length_rule = _length_rule(max_decoding_length, min_decoding_length)
        self.model = model
        self.beam_size = beam_size
        self.num_hypotheses = num_hypotheses
        suppressed = [*suppress_ids, *([unk_id] if disable_unk else [])]
        self.processors = [
            *_general_processors(
                min_decoding_length,
                repetition_penalty,
                no_repeat_ngram_size,
                suppress_sequences,
                suppressed,
                end_id,
            ),
            *processors,
        ]
        if self.samples:
            self.processors += _sampling_processors(
                sampling_temperature,
                sampling_topk,
                sampling_topp,
                sampling_minp,
                sampling_epsilon,
            )
        self.options = {
            "start_id": start_id,
            "end_id": end_id,
            "length_penalty": length_penalty,
            "length_penalty_form": length_penalty_form,
            "return_token_scores": return_token_scores,
        }
        if beam_size > 1:
            self.options |= {
                "beam_size": beam_size,
                "num_hypotheses": num_hypotheses,
                "patience": patience,
            }
        self.longest = _longest(model)  # int or None
        if self.longest and self.length_rule[0] == 0:
            _check_room(self.length_rule[1], self.longest)
        self._program = compiled(self.decode, model, jit_compile)

    def __call__(self, source_ids, target_prefix=None, seed=None):
        """Decodes a batch.

        Args:
            source_ids: integers `(B, S)`, NumPy or tensor, padded with 0; a
                row of nothing but 0 gives an empty hypothesis.
            target_prefix: B lists of ids, of any length, that the hypotheses
                begin with; or None. Forced tokens have their probability
                among all tokens.
            seed: int, or None for another each time. Of sampling: the same
                tokens are drawn on every backend.

        Returns:
            `Hypotheses` of NumPy arrays.

        Raises:
            ValueError: another rank or dtype, an id outside the model's
                vocabulary, a prefix that leaves no room below the limit, or
                logits that are NaN.
        """
        source_ids = np.asarray(ops.convert_to_numpy(source_ids))
        self._check(source_ids)
        rows, length = source_ids.shape
        rounded = next((size for size in LENGTHS if size >= length), length)
        rounded = max(length, min(rounded, self.longest or rounded))
        prefix = self._prefix(source_ids, target_prefix)
        source_ids = np.pad(source_ids, ((0, 0), (0, rounded - length)))
        noise = np.zeros((rows, 0, 0), "float32")
        if self.samples:
            shape = (rows, self.num_hypotheses, self._limit(rounded))
            noise = np.random.default_rng(seed).random(shape, "float32")
        result = self._program(
            ops.convert_to_tensor(source_ids, "int32"),
            ops.convert_to_tensor(prefix, "int32"),
            ops.convert_to_tensor(noise),
        )
        result = [x if x is None else ops.convert_to_numpy(x) for x in result]
        return _checked(Hypotheses(*result))

    def decode(self, source_ids, prefix=None, noise=None):
        """Decodes a batch of tensors; what is compiled.

        Args:
            source_ids: int32 `(B, S)`.
            prefix: int32 `(B, P)` padded with 0, or None.
            noise: float32 `(B, n, max_length)` where tokens are sampled.

        Returns:
            `Hypotheses` of tensors.
        """
        tokens = ops.sum(ops.cast(ops.not_equal(source_ids, 0), "int32"), axis=-1)
        max_length = self._limit(ops.shape(source_ids)[1])
        # Each row has its own, or a translation would depend on its neighbours.
        limits = self._limit(tokens) + ops.zeros_like(tokens)
        width = self.num_hypotheses if self.samples else self.beam_size
        cache = self.model.begin(source_ids, max_length, width)
        options = {
            **self.options,
            "limits": limits,
            "prefix": prefix,
            "processors": self.processors,
        }
        active = ops.greater(tokens, 0)
        if self.beam_size > 1:
            return beam(self.model.step, cache, active, max_length, **options)
        noise = noise if self.samples else None
        return sample(self.model.step, cache, active, max_length, noise, **options)

    def _limit(self, source_length):
        """Tokens that a translation may have, from an int, array or tensor."""
        multiple, constant = self.length_rule
        limit = multiple * source_length + constant if multiple else constant
        if self.longest is None:
            return limit
        if isinstance(limit, (int, np.ndarray)):
            return np.minimum(limit, self.longest).tolist()
        return ops.minimum(limit, self.longest)

    def _check(self, source_ids):
        if source_ids.ndim != 2 or source_ids.dtype.kind not in "iu":
            raise ValueError(
                "Source ids are integers of shape (batch, length). Received: "
                f"shape={source_ids.shape}, dtype={source_ids.dtype}."
            )
        size = getattr(self.model, "vocabulary_size", None)
        if size is None or not source_ids.size:
            return
        low, high = source_ids.min(), source_ids.max()
        if low < 0 or high >= size:
            raise ValueError(
                "Source ids are from 0 to the vocabulary size - 1. Received: ids "
                f"from {low} to {high}; vocabulary_size={size}. Use the "
                "vocabulary the model was trained with."
            )

    def _prefix(self, source_ids, target_prefix):
        """Checks and pads what hypotheses have to begin with."""
        if target_prefix is None:
            return np.zeros((len(source_ids), 0), "int32")
        rows = [[int(token) for token in row] for row in target_prefix]
        if len(rows) != len(source_ids):
            raise ValueError(
                "Each source has its prefix, an empty one if need be. Received: "
                f"{len(rows)} prefixes for {len(source_ids)} sources."
            )
        size = getattr(self.model, "target_vocabulary_size", None)
        end_id = self.options["end_id"]
        for number, row in enumerate(rows):
            wrong = [t for t in row if t < 1 or t == end_id or (size and t >= size)]
            if wrong:
                raise ValueError(
                    "A prefix is of tokens of the target vocabulary, without padding "
                    f"and end. Received: {wrong} in prefix {number}."
                )
            limit = self._limit(int(np.count_nonzero(source_ids[number])))
            if len(row) >= limit and source_ids[number].any():
                raise ValueError(
                    "A prefix must leave room for a token. Received: prefix "
                    f"{number} of {len(row)} tokens, and a limit of {limit}. Raise "
                    "`max_decoding_length`."
                )
        longest = max(map(len, rows), default=0)
        width = next((size for size in PREFIX_LENGTHS if size >= longest), longest)
        prefix = np.zeros((len(rows), width), "int32")
        for row, tokens in zip(prefix, rows, strict=True):
            row[: len(tokens)] = tokens
        return prefix


def _length_rule(longest, shortest) -> tuple[int, int]:
    """The pair (m, c) of `max_decoding_length`."""
    rule = (2, 16) if longest is None else longest
    rule = (0, rule) if isinstance(rule, (int, np.integer)) else tuple(rule)
    if len(rule) != 2 or min(rule) < 0 or max(rule) < 1:
        raise ValueError(
            "`max_decoding_length` must be 1 or more, or a pair (m, c) for m times "
            f"the source and c more. Received: {longest}."
        )
    if shortest < 0 or (not rule[0] and shortest >= rule[1]):
        raise ValueError(
            "`min_decoding_length` must be 0 or more and below the greatest length. "
            f"Received: {shortest}, and max_decoding_length={longest}."
        )
    return tuple(map(int, rule))


def _check_room(longest, positions):
    if longest > positions:
        raise ValueError(
            "A hypothesis cannot be longer than the table of learned positions. "
            f"Received: max_decoding_length={longest}; sequence_length={positions}."
        )


def _check_sampling(samples, beam_size, num_hypotheses):
    if samples and (beam_size != 1 or num_hypotheses < 1):
        raise ValueError(
            "Sampling follows each hypothesis by itself, without a beam, and gives "
            f"one or more. Received: beam_size={beam_size}, num_hypotheses="
            f"{num_hypotheses}. Use sampling_topk=1, or beam_size=1."
        )


def _general_processors(
    min_decoding_length,
    repetition_penalty,
    no_repeat_ngram_size,
    suppress_sequences,
    suppress_ids,
    end_id,
) -> Sequence[Callable]:
    """The processors that the options ask for."""
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


def _sampling_processors(temperature, topk, topp, minp, epsilon) -> Sequence[Callable]:
    """The processors of sampling, with those that change nothing left out."""
    chosen = [processing.temperature(temperature)] if temperature != 1 else []
    chosen += [processing.top_k(topk)] if topk else []
    chosen += [processing.top_p(topp)] if topp != 1 else []
    chosen += [processing.minimum_p(minp)] if minp else []
    return chosen + ([processing.epsilon(epsilon)] if epsilon else [])


def _checked(hypotheses):
    """Raises ValueError where a score says that logits were NaN."""
    rows = np.flatnonzero(np.isnan(hypotheses.scores).any(axis=-1))
    if rows.size:
        row = int(rows[0])
        broken = np.isnan(hypotheses.scores[row])
        step = int(hypotheses.lengths[row][broken].min()) - 1
        raise ValueError(
            f"The model gave NaN logits. Received: NaN at step {step} of row {row} "
            f"({rows.size} of {len(hypotheses.scores)} rows). Look at its weights, or "
            "decode in float32."
        )
    return hypotheses


def _longest(model):
    """Tokens that a model of learned positions has room for; else None."""
    settings = getattr(model, "settings", {})
    positions = settings.get("positions")
    if positions == "learned":
        return settings["sequence_length"]
    return getattr(positions, "sequence_length", None)
