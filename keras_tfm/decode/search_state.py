"""The states of searches: what each step reads and returns.

Letters of shapes: `B` source sequences, `K` live beams (or samples) of each,
`N` finished hypotheses that are kept, `n` returned ones, `T` capacity in
tokens, `S` source length, `G` groups of beams, `M` candidates for a place in
the beam, `V` vocabulary, `C` tokens of a shortlist, `J` phrases, `P` length of
a prefix or phrase. A state is a structure of tensors. Apart from
`step` every tensor has the batch first, so that sequences can be taken out of a
state or put into it. An optional field that a search does not need is `ABSENT`,
which has no tensors on any backend.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from keras import ops, tree

from keras_tfm.types import Tensor

State = TypeVar("State", "BeamState", "SamplingState")

# An empty structure: a loop or a compiled function carries nothing for it.
ABSENT = ()


def present(field: Tensor) -> bool:
    """Returns whether an optional field of a state holds a tensor."""
    return not isinstance(field, tuple)


class LiveBeams(NamedTuple):
    """Hypotheses that a beam search still extends, best first in each group.

    Attributes:
        ids: int32 `(B, K, T)`, the tokens so far, then 0.
        scores: float32 `(B, K)`, cumulative log-probabilities; minus infinity
            where there is no hypothesis.
        token_log_probs: float32 `(B, K, T)`, of each token; or absent.
        origins: int32 `(B, K, T)`, the beam in which each token was
            generated, to find its attention; or absent.
        coverage: float32 `(B, K, S)`, attention that each source token has
            received so far; or absent.
        phrases_met: bool `(B, K, J)`, which constraints are contained; or
            absent.
    """

    ids: Tensor
    scores: Tensor
    token_log_probs: Tensor = ABSENT
    origins: Tensor = ABSENT
    coverage: Tensor = ABSENT
    phrases_met: Tensor = ABSENT


class FinishedHypotheses(NamedTuple):
    """The best finished hypotheses so far, best first in each group.

    Attributes:
        ids: int32 `(B, N, T)`, up to and with the end token, then 0.
        scores: float32 `(B, N)`, normalized by the length penalty; minus
            infinity where there is no hypothesis.
        lengths: int32 `(B, N)`, in tokens.
        token_log_probs, origins: as in `LiveBeams`, with N in place of K.
    """

    ids: Tensor
    scores: Tensor
    lengths: Tensor
    token_log_probs: Tensor = ABSENT
    origins: Tensor = ABSENT


class BeamState(NamedTuple):
    """The state of beam search.

    Attributes:
        step: int32 `()`, the number of steps taken; or `(B,)` where sequences
            are at different steps.
        last_ids: int32 `(B, K)`, the tokens that the next step reads.
        limits: int32 `(B,)`, the most tokens of each hypothesis.
        is_done: bool `(B, G)`. A sequence is done when all its groups are.
        cache: the model's, a structure of tensors.
        live: `LiveBeams`.
        finished: `FinishedHypotheses`.
        num_finished: int32 `(B, G)`, hypotheses that have ended so far, those
            included that were not good enough to be kept.
        failure_length: int32 `(B,)`, 0; or the length at which logits were
            NaN or infinite.
        prefix: int32 `(B, P)`, forced first tokens; or absent.
        phrases: int32 `(B, J, P)`, constraints; or absent.
        attention: float32 `(B, T, K, S)`, of each step; or absent.
        candidates: int32 `(B, C)`, a shortlist, to whose indices all ids of
            the state then refer; or absent.

    Example:
        ```python
        from keras import ops
        from keras_tfm import decode

        strategy = decode.BeamSearch(decode.Options(beam_size=4))
        active = ops.ones((2,), "bool")
        state = strategy.start(cache={}, active=active, capacity=5)
        assert state.resized(8).capacity == 8
        ```
    """

    step: Tensor
    last_ids: Tensor
    limits: Tensor
    is_done: Tensor
    cache: Any
    live: LiveBeams
    finished: FinishedHypotheses
    num_finished: Tensor
    failure_length: Tensor
    prefix: Tensor = ABSENT
    phrases: Tensor = ABSENT
    attention: Tensor = ABSENT
    candidates: Tensor = ABSENT

    @property
    def capacity(self) -> Any:
        """The tokens that hypotheses can have: int, or scalar tensor, T."""
        return _length(self.live.ids)

    def resized(self, capacity: Any) -> "BeamState":
        """Returns the state with a larger capacity, apart from its cache.

        Args:
            capacity: int, or scalar int tensor, at least the present one.
        """
        extra = capacity - self.capacity
        # All that have an entry for each token.
        fields = ("ids", "token_log_probs", "origins")
        live, finished = (
            part._replace(
                **{name: _padded(getattr(part, name), extra) for name in fields}
            )
            for part in (self.live, self.finished)
        )
        attention = _padded(self.attention, extra, axis=1)  # (B, T, K, S)
        return self._replace(live=live, finished=finished, attention=attention)


class SamplingState(NamedTuple):
    """The state of greedy search and of sampling; K independent samples.

    Attributes:
        step, last_ids, limits, cache, prefix, attention, candidates: as in
            `BeamState`.
        is_done: bool `(B, K)`. A sequence is done when all its samples are.
        active: bool `(B,)`, whether a sequence is decoded at all.
        ids: int32 `(B, K, T)`, the tokens so far, then 0.
        scores: float32 `(B, K)`, cumulative log-probabilities.
        lengths: int32 `(B, K)`, in tokens.
        noise: float32 `(B, K, T)` in [0, 1), which decides what is sampled;
            absent in greedy search.
        token_log_probs: float32 `(B, K, T)`, of each token; or absent.

    Example:
        ```python
        from keras import ops
        from keras_tfm import decode

        strategy = decode.Sampling(decode.Options())
        active = ops.ones((2,), "bool")
        state = strategy.start(cache={}, active=active, capacity=5)
        assert isinstance(state, decode.SamplingState)
        ```
    """

    step: Tensor
    last_ids: Tensor
    limits: Tensor
    is_done: Tensor
    cache: Any
    active: Tensor
    ids: Tensor
    scores: Tensor
    lengths: Tensor
    noise: Tensor = ABSENT
    token_log_probs: Tensor = ABSENT
    prefix: Tensor = ABSENT
    attention: Tensor = ABSENT
    candidates: Tensor = ABSENT

    @property
    def capacity(self) -> Any:
        """The tokens that hypotheses can have: int, or scalar tensor, T."""
        return _length(self.ids)

    def resized(self, capacity: Any) -> "SamplingState":
        """Returns the state with a larger capacity, apart from its cache.

        Args:
            capacity: int, or scalar int tensor, at least the present one.
        """
        extra = capacity - self.capacity
        return self._replace(
            ids=_padded(self.ids, extra),
            token_log_probs=_padded(self.token_log_probs, extra),
            attention=_padded(self.attention, extra, axis=1),
        )


class Continuations(NamedTuple):
    """Live beams with one more token each, best first in each group.

    Attributes:
        scores: float32 `(B, M)`, cumulative log-probabilities.
        parents: int32 `(B, M)`, the beams that they continue.
        tokens: int32 `(B, M)`, the new tokens.
        phrases_met: bool `(B, M, J)`; or absent.
    """

    scores: Tensor
    parents: Tensor
    tokens: Tensor
    phrases_met: Tensor = ABSENT


def advance(
    take_step: Callable[[State], State], state: State, until: Tensor | None = None
) -> State:
    """Takes steps until all sequences are done or the capacity is used up.

    Args:
        take_step: `state -> state`.
        state: `BeamState` or `SamplingState`.
        until: scalar int tensor, the number of steps at which to stop; or None.

    Returns:
        The state after them.
    """
    last = state.capacity if until is None else ops.minimum(until, state.capacity)

    def unfinished(state):
        is_running = ~ops.all(state.is_done)
        return (state.step < last) & is_running

    # In a tuple, since Keras would take a named tuple for several variables.
    return ops.while_loop(unfinished, lambda state: (take_step(state),), (state,))[0]


def gather_beams(x: Tensor, beams: Tensor) -> Tensor:
    """Takes beams `(B, M)` of axis 1 of `x (B, K, ...)`."""
    beams = ops.cast(beams, "int32")
    # (B, M, 1, ...), which is broadcast over the rest of a beam.
    beams = ops.reshape(beams, (-1, beams.shape[1], *[1] * (len(x.shape) - 2)))
    return ops.take_along_axis(x, beams, axis=1)


def take_best(structure: Any, by: Tensor, count: int) -> Any:
    """Takes the best `count` of leaves `(B, M, ...)` by a number `(B, M)`."""
    best = ops.top_k(by, count)[1]  # (B, count), indices
    return tree.map_structure(lambda x: gather_beams(x, best), structure)


def write_token(history: Tensor, at_step: Tensor, values: Tensor) -> Tensor:
    """Writes `values (B, M)` into `(B, M, T)` where `at_step` is True."""
    return ops.where(at_step, values[:, :, None], history)


def reorder_cache(cache: Any, parents: Tensor) -> Any:
    """Lets the entry `"beams"` of a cache follow its hypotheses `(B, K)`."""
    if not (isinstance(cache, dict) and "beams" in cache):
        return cache
    beams = tree.map_structure(lambda x: gather_beams(x, parents), cache["beams"])
    return {**cache, "beams": beams}


def _length(ids):
    return ops.shape(ids)[-1]


def _padded(x, extra, axis=2):
    """Pads an optional field with zeros at the end of an axis."""
    if not present(x):
        return x
    padding = [[0, 0]] * len(x.shape)
    padding[axis] = [0, extra]
    return ops.pad(x, padding)
