"""The variables of a run in one file that is either the old or the new."""

import json
import os
import re
import zipfile

import keras
import numpy as np
from keras import ops

FORMAT = 2


def state_variables(model):
    """Gives the variables that a run's state is made of, in two groups.

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
            "A run's state is that of a model and its optimizer. Received: a model "
            f"with built={model.built}, optimizer={optimizer}. Build and compile the "
            "model first."
        )
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    return {"model": model.variables, "optimizer": optimizer.variables}


def describe(variables):
    """Lists path and shape of variables, as JSON values."""
    return [[variable.path, list(variable.shape)] for variable in variables]


def check_state(path, meta, variables, callbacks):
    """Refuses a state that was not written by this model, before any change.

    Args:
        path: path of the file.
        meta: dict, what the file says of itself.
        variables: dict of group to list of variables of the model.
        callbacks: list of callbacks whose memory is kept.

    Raises:
        ValueError: the file does not fit.
    """
    start = f"The state in {str(path)!r} is of another run: "
    advice = "Build what the run was started with, or choose another folder."
    backend = keras.backend.backend()
    if (meta["format"], meta["backend"]) != (FORMAT, backend):
        raise ValueError(
            f"{start}it has format {meta['format']} on {meta['backend']}, this is "
            f"format {FORMAT} on {backend}. {advice}"
        )
    names = [type(callback).__name__ for callback in callbacks]
    if meta["callback_names"] != names:
        raise ValueError(
            f"{start}it has callbacks={meta['callback_names']}, this is callbacks="
            f"{names}. {advice}"
        )
    for group, members in variables.items():
        stored, present = meta[group], describe(members)
        if len(stored) != len(present):
            raise ValueError(
                f"{start}its {group} has {len(stored)} variables, this one "
                f"{len(present)}. {advice}"
            )
        for old, new in zip(stored, present, strict=True):
            if [unnumbered(old[0]), old[1]] != [unnumbered(new[0]), new[1]]:
                raise ValueError(
                    f"{start}its {group} has the variable {old[0]} {tuple(old[1])} "
                    f"where this one has {new[0]} {tuple(new[1])}. {advice}"
                )


def unnumbered(path):
    """Drops the numbers that Keras gives to names in order of making."""
    return re.sub(r"_\d+(?=/|_|$)", "", path)


def write_state(path, meta, groups):
    """Writes a state in place of the one before.

    Args:
        path: path of a `training_state.npz`, in a folder that exists.
        meta: dict of JSON values, what the file says of itself.
        groups: dict of group to list of variables or arrays.
    """
    arrays = {
        f"{group}/{number}": plain_array(member)
        for group, members in groups.items()
        for number, member in enumerate(members)
    }
    arrays["meta"] = np.array(json.dumps(meta, default=float))
    part = path.with_suffix(".unfinished")
    with open(part, "wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def plain_array(array):
    """Turns dtypes that a .npz file does not know, as bfloat16, to float32."""
    array = np.asarray(ops.convert_to_numpy(array))
    return array if array.dtype.isbuiltin == 1 else array.astype("float32")


def read_state(path):
    """Reads a state.

    Args:
        path: path of a `training_state.npz`.

    Returns:
        dict, what the file says of itself, and dict of name to array.

    Raises:
        ValueError: the file is damaged or not a state.
    """
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
        return json.loads(str(arrays.pop("meta"))), arrays
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(
            "The state of the run cannot be read. Received: "
            f"{str(path)!r}: {error}. Remove the file to start from the first epoch."
        ) from error
