"""The variables of a run in one file, which is replaced atomically."""

import functools
import json
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.file_reading import reading
from keras_tfm.training import processes

FORMAT = 3
Variables = dict[str, Sequence[Any]]  # variables or arrays, by group


def state_variables(model: keras.Model) -> Variables:
    """Returns the variables of a run's state in two groups.

    Args:
        model: built and compiled Keras model.

    Returns:
        dict of `"model"` and `"optimizer"` to a list of variables.

    Raises:
        ValueError: the model is not built or has no optimizer.
    """
    optimizer = getattr(model, "optimizer", None)
    if not model.built or optimizer is None:
        raise ValueError(
            "`model` must be built and compiled; got a model with "
            f"built={model.built}, optimizer={optimizer}."
        )
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    return {"model": model.variables, "optimizer": optimizer.variables}


def describe(variables: Sequence[Any]) -> list[list]:
    """Lists path and shape of variables, as JSON values."""
    return [[variable.path, list(variable.shape)] for variable in variables]


def check_state(
    path: pathlib.Path,
    meta: dict,
    variables: Variables,
    callbacks: Sequence[keras.callbacks.Callback],
) -> None:
    """Rejects a state that another model wrote, before anything changes.

    Args:
        path: path of the file.
        meta: dict, description of the run in the file.
        variables: dict of group to list of variables of the model.
        callbacks: list of callbacks whose state is in the file.

    Raises:
        ValueError: the file does not fit.
    """
    values = [
        ("format", meta["format"], FORMAT),
        ("backend", meta["backend"], keras.backend.backend()),
        (
            "callbacks",
            meta.get("callback_names"),
            [type(c).__name__ for c in callbacks],
        ),
    ]
    for group, members in variables.items():
        values.append((f"variables of the {group}", len(meta[group]), len(members)))
        pairs = zip(meta[group], describe(members), strict=False)
        values += [
            (f"variable of the {group}", stored, present)
            for stored, present in pairs
            if (_without_numbers(stored[0]), stored[1])
            != (_without_numbers(present[0]), present[1])
        ]
    for name, stored, present in values:
        if stored != present:
            raise ValueError(
                f"The state in {str(path)!r} belongs to another run: {name}: expected "
                f"{present}, got {stored}. Build what the run was started with (a "
                "larger format is of a newer version of keras_tfm: update it), or "
                "choose another folder."
            )


def check_finite(model: keras.Model, loss: float = 0.0, advice: str = "") -> None:
    """Ends training that has diverged, before it replaces what was saved.

    Args:
        model: built and compiled Keras model; its optimizer is checked too.
        loss: float, mean loss so far.
        advice: str, a sentence on what remains of the run.

    Raises:
        FloatingPointError: the loss, a weight or a variable of the optimizer is
            NaN or infinite.
    """
    variables = [*model.variables, *model.optimizer.variables]
    broken = (
        variable.path
        for variable in variables
        if keras.backend.is_float_dtype(variable.dtype)
        and not bool(ops.all(ops.isfinite(variable)))
    )
    name = next(broken, None)
    if name is None and np.isfinite(loss):
        return
    fault = f"loss={float(loss)}" if name is None else f"a non-finite {name!r}"
    raise FloatingPointError(
        f"The loss and all weights must be finite; got {fault}: training has diverged, "
        f"and stops. {advice} Start again with a lower `learning_rate` or stronger "
        "clipping of gradients, or in float32."
    )


def write_state(path: pathlib.Path, meta: dict, groups: Variables) -> None:
    """Writes a state in place of the previous one.

    Of several processes the first one writes, and all wait for it.

    Args:
        path: path of the `.npz` file, in a folder that exists.
        meta: dict of JSON values, description of the run.
        groups: dict of group to list of variables or arrays.
    """
    arrays = {
        f"{group}/{number}": _to_array(member)
        for group, members in groups.items()
        for number, member in enumerate(members)
    }
    arrays["meta"] = np.array(json.dumps(meta, default=float))
    if processes.is_first_process():
        unfinished = path.with_suffix(".unfinished")
        with open(unfinished, "wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    processes.wait_for_all("state")


def read_state(
    path: pathlib.Path, with_arrays: bool = True
) -> tuple[dict, dict[str, np.ndarray]]:
    """Reads a state.

    Args:
        path: path of the `.npz` file.
        with_arrays: bool. False reads the description alone.

    Returns:
        dict, the description of the run, and dict of name to array.

    Raises:
        ValueError: the file is damaged or not a state.
    """
    with (
        reading_state(path),
        open(path, "rb") as file,
        np.load(file, allow_pickle=False) as contents,
    ):
        names = set(contents.files) - {"meta"} if with_arrays else ()
        arrays = {name: contents[name] for name in names}
        return json.loads(str(contents["meta"])), arrays


# Opens a context in which a fault names the file of a state.
reading_state = functools.partial(
    reading,
    content="the state of a run",
    fix="Remove the file to start from the first epoch.",
)


def _without_numbers(path: str) -> str:
    """Removes the numbers that Keras appends to names in order of creation."""
    return re.sub(r"_\d+(?=/|_|$)", "", path)


def _to_array(array: Any) -> np.ndarray:
    """Converts to NumPy; dtypes that `.npz` lacks, as bfloat16, to float32."""
    array = processes.to_numpy(array)
    return array if array.dtype.isbuiltin == 1 else array.astype("float32")
