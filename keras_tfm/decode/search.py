"""What greedy search, sampling and beam search share: one step of a model."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Generic

from keras import ops, tree

from keras_tfm.decode import logits_processors, search_state
from keras_tfm.decode.hypotheses import History, Hypotheses, penalty
from keras_tfm.decode.next_tokens import forced_tokens, processed_logits
from keras_tfm.decode.options import Options
from keras_tfm.decode.search_state import ABSENT, State, present
from keras_tfm.decode.shortlist import is_repeated
from keras_tfm.types import Tensor

# Up to so many suppressed tokens are masked inside their chunks of the
# vocabulary; more are suppressed by a logits processor, which copies the
# logits.
MAX_MASKED = 16


@dataclasses.dataclass(frozen=True)
class SearchStrategy(Generic[State]):
    """Base of the search strategies: functions of options, a step and a state.

    A strategy has `start`, `take_step` and `finish`; `advance` repeats steps.
    Options are validated by `Options`, not here.

    Attributes:
        options: `Options`.
    """

    options: Options

    @functools.cached_property
    def suppressed_ids(self) -> tuple[int, ...]:
        """All tokens that are never generated, as ids or shortlist indices."""
        ids = self.options.suppressed_ids
        if self.options.shortlist is not None:
            # Ids of special tokens are the same in every shortlist. Shortlists
            # leave out the other suppressed tokens.
            ids = {token for token in ids if token < self.options.num_special_ids}
        return tuple(sorted(ids))

    @functools.cached_property
    def masked_ids(self) -> tuple[int, ...]:
        """Suppressed tokens that need no logits processor."""
        # Sampling and groups of beams read all tokens, whatever is masked.
        reads_all = self.options.samples or self.options.num_beam_groups > 1
        is_cheap = len(self.suppressed_ids) <= MAX_MASKED and not reads_all
        return self.suppressed_ids if is_cheap else ()

    @functools.cached_property
    def logits_processors(self) -> tuple[Callable, ...]:
        """The logits processors of all options, in their order."""
        by_processor = () if self.masked_ids else self.suppressed_ids
        return logits_processors.of_options(self.options, by_processor)

    def advance(
        self, step_fn: Callable, state: State, until: Tensor | None = None
    ) -> State:
        """Takes steps until all sequences are done or the capacity is used up.

        Args:
            step_fn: `(ids (B, K), step, cache) -> (logits (B, K, V), cache)`.
            state: from `start` or `advance`.
            until: scalar int tensor, the number of steps at which to stop; or
                None.

        Returns:
            The state after them.
        """
        take_step = functools.partial(self.take_step, step_fn)
        return search_state.advance(take_step, state, until)

    def take_step(self, step_fn: Callable, state: State) -> State:
        """Takes one step.

        Args:
            step_fn, state: as in `advance`.

        Returns:
            The state after it.
        """
        raise NotImplementedError

    def finish(self, state: State) -> Hypotheses:
        """Returns the hypotheses of the sequences that are done.

        Args:
            state: from `advance`.

        Returns:
            `Hypotheses` of tensors. Of sequences that are not done, those that
            they have so far.
        """
        raise NotImplementedError

    def _next_logits(self, step_fn, state, ids):
        """Calls the model once, and processes its logits.

        Args:
            step_fn, state: as in `take_step`.
            ids: int32 `(B, K, T)`, the tokens so far.

        Returns:
            Logits `(B, K, V)`, the forced tokens `(B,)` or None, and the state
            with the new cache.
        """
        logits, cache = _call_model(step_fn, state)
        logits_processors.check_token_ids(self.masked_ids, logits)
        prefix = state.prefix if present(state.prefix) else None
        forced = forced_tokens(prefix, state.step)
        history = History(ids, state.step)
        logits = processed_logits(logits, history, self.logits_processors, forced)
        state = state._replace(cache=cache)
        if present(state.attention):
            attention = ops.cast(cache["attention"], "float32")[:, None]  # (B, 1, K, S)
            # Written at this step: (B, T, K, S).
            state = state._replace(
                attention=ops.slice_update(
                    state.attention, (0, state.step, 0, 0), attention
                )
            )
        return logits, forced, state

    def _length_divisor(self, length):
        """What a cumulative log-probability is divided by."""
        options = self.options
        return penalty(length, options.length_penalty, options.length_penalty_form)


def first_fields(
    options: Options,
    cache: Any,
    active: Tensor,
    num_beams: int,
    capacity: Any,
    limits: Tensor | None,
    prefix: Tensor | None,
    candidates: Tensor | None,
) -> dict[str, Tensor]:
    """Returns the fields that all states have, before the first step.

    Args:
        options: `Options`.
        cache, active, capacity, limits, prefix, candidates: as in
            `BeamSearch.start`.
        num_beams: int, K.
    """
    batch_size = ops.shape(active)[0]
    attention = ABSENT
    if options.return_attention:
        length = ops.shape(attention_of(cache))[-1]
        attention = ops.zeros((batch_size, capacity, num_beams, length), "float32")
    if limits is None:
        limits = ops.full((batch_size,), capacity, "int32")  # (B,)
    return {
        "step": ops.convert_to_tensor(0, "int32"),
        "last_ids": ops.full((batch_size, num_beams), options.start_id, "int32"),
        "limits": ops.convert_to_tensor(limits, "int32"),
        "cache": cache,
        "prefix": prefix if _has_columns(prefix) else ABSENT,
        "attention": attention,
        "candidates": candidates if _has_columns(candidates) else ABSENT,
    }


def at_step(step: Tensor, capacity: Any) -> Tensor:
    """Returns bool `(1 or B, 1, T)`, True at the index of this step's token."""
    return ops.arange(capacity)[None, None] == ops.reshape(step, (-1, 1, 1))


def in_vocabulary(ids: Tensor, candidates: Tensor) -> Tensor:
    """Returns the token ids of shortlist indices.

    Args:
        ids: int32 `(B, K, ...)`.
        candidates: int32 `(B, C)`, a shortlist; or absent.

    Returns:
        int32 `(B, K, ...)`.
    """
    if not present(candidates):
        return ids
    # (B, C) becomes (B, 1, ..., C), to index the last axis of the ids.
    shape = (-1, *[1] * (len(ids.shape) - 2), candidates.shape[1])
    return ops.take_along_axis(
        ops.reshape(candidates, shape), ids, axis=len(ids.shape) - 1
    )


def attention_of(cache: Any) -> Tensor:
    """Returns what the last step attended to.

    Args:
        cache: from the model's `begin` or `step`.

    Returns:
        `cache["attention"]`, float `(B, K, S)`.

    Raises:
        ValueError: the cache has no `"attention"`.
    """
    if not isinstance(cache, dict) or "attention" not in cache:
        entries = sorted(cache) if isinstance(cache, dict) else type(cache).__name__
        raise ValueError(
            "`return_attention` and `coverage_penalty` need a model whose cache has "
            f"'attention', (B, K, S); got a cache with {entries}."
        )
    return cache["attention"]


def _has_columns(x):
    return x is not None and x.shape[1] != 0


def _call_model(step_fn, state):
    """Calls the model's step, and checks what it returns."""
    ids = in_vocabulary(state.last_ids, state.candidates)
    logits, cache = step_fn(ids, state.step, state.cache)
    # None is unknown while TensorFlow traces.
    expected = (*state.last_ids.shape, None)
    shape = tuple(getattr(logits, "shape", ()))
    fits = len(shape) == 3 and all(
        None in sizes or sizes[0] == sizes[1]
        for sizes in zip(shape, expected, strict=True)
    )
    if not fits:
        raise ValueError(
            "`step` must return logits of shape (B, K, V) for ids of shape (B, K); got "
            f"{shape or type(logits).__name__} for ids of shape {expected[:2]}."
        )
    try:
        tree.assert_same_structure(state.cache, cache)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "`step` must return a cache of the structure that it receives; got another "
            f"one ({error})."
        ) from error
    if present(state.candidates):
        repeated = is_repeated(state.candidates)[:, None]  # (B, 1, C)
        logits = ops.where(repeated, -float("inf"), logits)
    return logits, cache
