"""The state of a search: a dictionary of tensors, and what is done to it.

`"index"`, the step, is a scalar; every other tensor has the batch first.
`"done"` is bool `(B, M)`; a row is done when all of its M are.
"""

import keras
from keras import ops


def advance(take_step, state: dict, until=None) -> dict:
    """Takes steps until all rows are done or there is no more room.

    Args:
        take_step: `state -> state`.
        state: with `"open"`, whose `"ids"` `(B, K, T)` have the room.
        until: scalar int tensor: the index not to pass; or None.

    Returns:
        The state after them.
    """
    room = ops.shape(state["open"]["ids"])[-1]
    last = room if until is None else ops.minimum(until, room)

    def unfinished(state):
        waiting = ops.logical_not(ops.all(state["done"]))
        return ops.logical_and(state["index"] < last, waiting)

    return ops.while_loop(unfinished, lambda state: (take_step(state),), (state,))[0]


def resize(state: dict, room: int) -> dict:
    """Makes room for more tokens, but not in the cache.

    Args:
        state: of a search.
        room: int, or scalar int tensor, in tokens, no less than there is.

    Returns:
        The state with that room.
    """
    more = room - ops.shape(state["open"]["ids"])[-1]

    def wider(x):
        return ops.pad(x, [[0, 0], [0, 0], [0, more]])

    state = dict(state)
    for part in ("open", "pool"):
        if part in state:
            state[part] = {
                name: wider(x) if name in ("ids", "gains", "beams") else x
                for name, x in state[part].items()
            }
    if "attention" in state:
        padding = [[0, 0], [0, more], [0, 0], [0, 0]]
        state["attention"] = ops.pad(state["attention"], padding)
    return state


def follow(x, chosen):
    """Takes rows `chosen (B, M)` of axis 1 of `x (B, K, ...)`."""
    chosen = ops.cast(chosen, "int32")
    chosen = ops.reshape(chosen, (-1, chosen.shape[1], *[1] * (len(x.shape) - 2)))
    return ops.take_along_axis(x, chosen, axis=1)


def best(parts: dict, by, count: int) -> dict:
    """Takes the best `count` of `(B, M, ...)` by a number `(B, M)`."""
    chosen = ops.top_k(by, count)[1]
    return {name: follow(x, chosen) for name, x in parts.items()}


def write(history, here, values):
    """Puts `values (B, M)` into `(B, M, T)` where `here`."""
    return ops.where(here, values[:, :, None], history)


def reorder(cache, parent):
    """Lets what a cache calls its beams follow their hypotheses `(B, K)`."""
    if not (isinstance(cache, dict) and "beams" in cache):
        return cache
    beams = keras.tree.map_structure(lambda x: follow(x, parent), cache["beams"])
    return {**cache, "beams": beams}
