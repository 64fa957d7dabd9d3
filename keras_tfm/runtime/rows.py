"""Moves rows of decoding states: sequences leave a batch, others join it.

A row of a state is index i of all its tensors but scalars. Offline and
continuous batch decoding both move rows with these functions.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.decode.hypotheses import Hypotheses
from keras_tfm.types import Tensor

State = Any  # `decode.BeamState` or `decode.SamplingState`


def take_rows(
    states: Sequence[State], indices: Sequence[np.ndarray], num_copies: int = 0
) -> State:
    """Copies rows of several states into one new state.

    On the host, since there are too many pairs of sizes to compile each.

    Args:
        states: list of states with the same structure.
        indices: for each state int `(M,)`, the rows to take.
        num_copies: int, how many copies of the first row follow.

    Example:
        ```python
        import numpy as np
        from keras import ops
        from keras_tfm.runtime.rows import take_rows

        state = {"ids": ops.convert_to_tensor([[5], [6], [7]])}
        rows = take_rows([state], [np.array([2, 0])])
        assert ops.convert_to_numpy(rows["ids"]).tolist() == [[7], [5]]
        ```
    """

    def take(*tensors):
        if len(tensors[0].shape) == 0:
            return tensors[0]
        pairs = zip(tensors, indices, strict=True)
        rows = [_array(x)[row_indices] for x, row_indices in pairs]
        rows.append(np.repeat(rows[0][:1], num_copies, axis=0))
        dtype = keras.backend.standardize_dtype(tensors[0].dtype)
        return ops.convert_to_tensor(np.concatenate(rows), dtype)

    return keras.tree.map_structure(take, *states)


def put_rows(state: State, new: State, indices: Tensor) -> State:
    """Replaces rows inside a compiled function.

    Args:
        state: a state.
        new: a state of M rows.
        indices: int tensor `(M,)`.

    Example:
        ```python
        from keras import ops
        from keras_tfm.runtime.rows import put_rows

        state, new = ops.convert_to_tensor([5, 6]), ops.convert_to_tensor([7])
        rows = put_rows(state, new, ops.convert_to_tensor([0]))
        assert ops.convert_to_numpy(rows).tolist() == [7, 6]
        ```
    """
    indices = indices[:, None]
    return keras.tree.map_structure(
        lambda x, rows: ops.scatter_update(x, indices, rows), state, new
    )


def set_done(state: State, rows: Any) -> State:
    """Marks rows of a state as done, so that they take no more steps."""
    is_done = np.array(ops.convert_to_numpy(state.is_done))
    is_done[rows] = True
    return state._replace(is_done=ops.convert_to_tensor(is_done))


def to_numpy(hypotheses: Hypotheses) -> Hypotheses:
    """Copies hypotheses to NumPy arrays."""
    return Hypotheses(
        *(x if x is None else ops.convert_to_numpy(x) for x in hypotheses)
    )


def select(hypotheses: Hypotheses, rows: Any) -> Hypotheses:
    """Takes rows of hypotheses, by a slice, a mask or indices."""
    return Hypotheses(*(x if x is None else x[rows] for x in hypotheses))


def in_order(
    results: Sequence[tuple[np.ndarray, Hypotheses]], template: Hypotheses
) -> Hypotheses:
    """Puts the hypotheses of rows that finished in any order in their order.

    Args:
        results: pairs of indices, int `(M,)`, and their `Hypotheses`.
        template: `Hypotheses` of empty arrays with all rows.
    """
    for indices, hypotheses in results:
        for whole, rows in zip(template, hypotheses, strict=True):
            if whole is None:
                continue
            # Rows may be padded further than the result, or less.
            rows = rows[tuple(map(slice, (None, *whole.shape[1:])))]
            whole[(indices, *map(slice, rows.shape[1:]))] = rows
    return template


def check_finite(
    hypotheses: Hypotheses, indices: Sequence[int] | None = None
) -> Hypotheses:
    """Raises an exception where the logits of a model were NaN.

    Args:
        hypotheses: `Hypotheses` of NumPy arrays.
        indices: int `(B,)`, of the rows in the message; or None for 0, 1, ...

    Returns:
        The hypotheses.

    Raises:
        FloatingPointError: a score is NaN.
    """
    broken = np.isnan(hypotheses.scores)
    rows = np.flatnonzero(broken.any(axis=-1))
    if rows.size:
        row = int(rows[0])
        numbers = np.arange(len(broken)) if indices is None else np.asarray(indices)
        step = int(hypotheses.lengths[row][broken[row]].min()) - 1
        count, total = len(np.unique(numbers[rows])), len(np.unique(numbers))
        raise FloatingPointError(
            f"The model returned NaN or infinite logits at step {step} of row "
            f"{numbers[row]} ({count} of {total} rows). Check its weights, or decode "
            "in float32."
        )
    return hypotheses


def _array(tensor):
    """Returns a tensor as an array, if possible without a copy."""
    if keras.backend.backend() == "torch":
        return ops.convert_to_numpy(tensor)
    return np.asarray(tensor)
