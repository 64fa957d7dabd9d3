"""The mean of the weights of the last epochs."""

import os
import pathlib
import re

import keras
import numpy as np
from keras import ops

NAME = re.compile(r"epoch_(\d+)\.weights\.h5")


class CheckpointAverage(keras.callbacks.Callback):
    """Keeps the weights of the last epochs and sets a model to their mean.

    After every epoch the weights are written to `epoch_<number>.weights.h5`,
    the first epoch being 1; `model.load_weights` reads such a file. A file is
    there whole or not at all, and a new start in the same folder finds those
    of the last one. Files of epochs later than the one that just ended come
    from a run that was left at that point, and are removed.

    An exponential moving average is Keras' own: `use_ema=True` of an
    optimizer.

    Args:
        folder: string or path. Made if it does not exist; a folder of its own,
            one for each run.
        last: int, 1 or more. Number of epochs to keep.

    Raises:
        ValueError: `last` is below 1, or `apply` finds no weights.

    Source: Vaswani et al. 2017, section 6.1, the mean of the last 5 or 20
    checkpoints. https://arxiv.org/abs/1706.03762
    """

    def __init__(self, folder, last=10):
        super().__init__()
        if last < 1:
            raise ValueError(
                f"The mean is over 1 or more epochs. Received: last={last}. "
                "The paper takes 5 for the base model and 20 for the big one."
            )
        self.folder = pathlib.Path(folder)
        self.last = last

    def paths(self):
        """Lists the files of weights in the folder, oldest epoch first."""
        found = self._numbered()
        return [found[number] for number in sorted(found)]

    def apply(self, model):
        """Sets the weights of `model` to the mean of the kept epochs.

        Args:
            model: built Keras model of the shape that was trained.

        Returns:
            list of paths, the files that the mean is of, at most `last`.
        """
        paths = self.paths()[-self.last :]
        if not paths:
            raise ValueError(
                "There are no weights to average. Received: folder="
                f"{str(self.folder)!r}, which has no file epoch_*.weights.h5. Train "
                "for at least one epoch with this callback."
            )
        model.set_weights(average_weights(model, paths))
        return paths

    def on_epoch_end(self, epoch, logs=None):
        self.folder.mkdir(parents=True, exist_ok=True)
        # Keras insists on the ending; NAME does not match this one.
        part = self.folder / "unfinished.weights.h5"
        self.model.save_weights(part, overwrite=True)
        number = epoch + 1
        os.replace(part, self.folder / f"epoch_{number:04d}.weights.h5")
        for other, path in self._numbered().items():
            if other > number or other <= number - self.last:
                path.unlink()

    def _numbered(self):
        if not self.folder.is_dir():
            return {}
        found = ((NAME.fullmatch(path.name), path) for path in self.folder.iterdir())
        return {int(match[1]): path for match, path in found if match}


def average_weights(model, paths):
    """Means the weights in several files, without changing the model.

    Args:
        model: built Keras model that the files were written from.
        paths: list of paths of `.weights.h5` files, 1 or more.

    Returns:
        list of arrays in the order of `model.weights`, summed in float64.
        Weights that are not floats are those of the last file.

    Raises:
        ValueError: `paths` is empty, or a file holds other weights.
    """
    if not paths:
        raise ValueError(f"A mean is of at least one file. Received: paths={paths!r}.")
    before = to_arrays(model.variables)
    totals = None
    try:
        for path in paths:
            _check_file(model, path)
            model.load_weights(path)
            totals = add_arrays(totals, to_arrays(model.weights))
    finally:
        for variable, value in zip(model.variables, before, strict=True):
            variable.assign(value)
    return [
        (total / len(paths)).astype("float32") if is_float(weight) else total
        for weight, total in zip(model.weights, totals, strict=True)
    ]


def _check_file(model, path):
    """Refuses a file of more weights than the model has, which Keras takes."""
    import h5py  # comes with Keras

    names = []
    with h5py.File(path) as file:
        file.visititems(lambda name, part: names.append((name, part)))
        found = [
            name
            for name, part in names
            if isinstance(part, h5py.Dataset) and "optimizer" not in name.split("/")
        ]
    if len(found) > len(model.weights):
        raise ValueError(
            f"A mean is of the weights of one model. Received: {os.fspath(path)!r} "
            f"with {len(found)} of them, and a model with {len(model.weights)}. Make "
            "the model that the file was written from."
        )


def to_arrays(variables):
    """Copies variables to NumPy arrays."""
    return [ops.convert_to_numpy(variable) for variable in variables]


def add_arrays(totals, arrays):
    """Adds the floats of `arrays` to `totals` in float64; takes the others."""
    wide = [a.astype("float64") if is_float(a) else a for a in arrays]
    if totals is None:
        return wide
    return [
        total + array if is_float(array) else array
        for total, array in zip(totals, wide, strict=True)
    ]


def is_float(array):
    """Tells whether an array or a variable holds floats, bfloat16 included."""
    return np.dtype(keras.backend.standardize_dtype(array.dtype)).kind not in "iub"
