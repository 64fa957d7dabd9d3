"""What greedy search, sampling and beam search have in common."""

import functools
from collections.abc import Callable, Sequence

from keras import ops, tree

from keras_tfm.decode import search_state as states
from keras_tfm.decode.hypotheses import (
    History,
    forced_tokens,
    penalty,
    processed_logits,
)
from keras_tfm.decode.logits_processors import check_fits


class Way:
    """The way of a search, apart from what it searches.

    What a way of its own adds is `start`, `take_step` and `finish`.

    Args:
        suppress_ids, processors, start_id, end_id, length_penalty,
            length_penalty_form, score_prefix, return_token_scores,
            return_attention: of `Sample`.
    """

    def __init__(
        self,
        suppress_ids: Sequence[int] = (),
        processors: Sequence[Callable] = (),
        start_id: int = 2,
        end_id: int = 3,
        length_penalty: float = 1.0,
        length_penalty_form: str = "mean",
        score_prefix: bool = True,
        return_token_scores: bool = False,
        return_attention: bool = False,
    ):
        penalty(1, length_penalty, length_penalty_form)  # raises, if it must
        if any(token < 0 for token in suppress_ids):
            raise ValueError(
                f"Suppressed tokens are 0 or more. Received: {sorted(suppress_ids)}."
            )
        self.suppress_ids = tuple(suppress_ids)
        self.processors = tuple(processors)
        self.start_id = start_id
        self.end_id = end_id
        self.length_penalty = (length_penalty, length_penalty_form)
        self.score_prefix = score_prefix
        self.return_token_scores = return_token_scores
        self.return_attention = return_attention

    def advance(self, step: Callable, state: dict, until=None) -> dict:
        """Takes steps until all rows are done or there is no more room.

        Args:
            step: `(ids (B, K), index, cache) -> (logits (B, K, V), cache)`.
            state: of `start`, `states.resize` or `advance`.
            until: scalar int tensor: the index not to pass; or None.

        Returns:
            The state after them.
        """
        return states.advance(functools.partial(self.take_step, step), state, until)

    def take_step(self, step: Callable, state: dict) -> dict:
        """Takes one step.

        Args:
            step, state: of `advance`.

        Returns:
            The state after it.
        """
        raise NotImplementedError  # each way has its own

    def _begin(self, cache, active, count, room, limits, prefix):
        """The part of a state that every way has, for `count` hypotheses."""
        size = ops.shape(active)[0]
        if limits is None:
            limits = ops.full((size,), room, "int32")
        state = {
            "index": ops.convert_to_tensor(0, "int32"),
            "last": ops.full((size, count), self.start_id, "int32"),
            "limits": limits,
            "cache": cache,
        }
        if self.return_attention:
            length = ops.shape(attention_of(cache))[-1]
            state["attention"] = ops.zeros((size, room, count, length), "float32")
        if prefix is not None and prefix.shape[1]:
            state["prefix"] = prefix
        return state

    def _logits(self, step, state, processors):
        """Gives processed logits, the forced tokens, and the new state."""
        index = state["index"]
        logits, cache = step(state["last"], index, state["cache"])
        _check_step(logits, cache, state)
        check_fits(self.suppress_ids, logits)
        forced = forced_tokens(state.get("prefix"), index)
        history = History(state["open"]["ids"], index)
        logits = processed_logits(logits, history, processors, forced)
        state = {**state, "cache": cache}
        if "attention" in state:
            attention = ops.cast(cache["attention"], "float32")[:, None]
            state["attention"] = ops.slice_update(
                state["attention"], (0, index, 0, 0), attention
            )
        return logits, forced, state

    def _counted(self, gain, forced):
        """Log-probabilities, but 0 for a prefix that does not count."""
        if forced is None or self.score_prefix:
            return gain
        given = ops.logical_and((forced > 0)[:, None, None], ops.isfinite(gain))
        return ops.where(given, 0.0, gain)

    def _here(self, state):
        """bool `(1 or B, 1, T)`, True at the place of this step's token."""
        room = ops.shape(state["open"]["ids"])[-1]
        index = ops.reshape(state["index"], (-1, 1, 1))
        return ops.equal(ops.arange(room)[None, None], index)


def _check_step(logits, cache, state):
    """Says what an own model's step gives that a search cannot use."""
    wanted = (*state["last"].shape, None)
    shape = tuple(getattr(logits, "shape", ()))
    fits = len(shape) == 3 and all(
        None in sizes or sizes[0] == sizes[1]
        for sizes in zip(shape, wanted, strict=True)
    )
    if not fits:
        raise ValueError(
            "A step gives logits (B, K, V) of ids (B, K). Received: ids of the shape "
            f"{wanted[:2]}, and {shape or type(logits).__name__}."
        )
    try:
        tree.assert_same_structure(state["cache"], cache)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "A step gives a cache of the structure that it gets. Received: another "
            f"({error})."
        ) from error


def attention_of(cache):
    """Gives what the decoder attended to.

    Args:
        cache: what `begin` gives.

    Returns:
        `cache["attention"]`, float `(B, K, S)`.

    Raises:
        ValueError: it has none.
    """
    if not isinstance(cache, dict) or "attention" not in cache:
        has = sorted(cache) if isinstance(cache, dict) else type(cache).__name__
        raise ValueError(
            "For `return_attention` and `coverage_penalty` a cache has 'attention', "
            f"(B, K, S). Received: a model whose cache is {has}."
        )
    return cache["attention"]
