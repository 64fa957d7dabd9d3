"""Averages of the weights of the last epochs."""

import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_tfm.file_reading import reading
from keras_tfm.training import processes
from keras_tfm.training.distribution import local_devices
from keras_tfm.training.folder_lock import lock_folder, unlock_folder
from keras_tfm.training.training_state import check_finite

FILE_NAME = re.compile(r"epoch_(\d+)\.weights\.h5")
Path = str | os.PathLike


class CheckpointAverage(keras.callbacks.Callback):
    """Saves the weights of the last epochs and sets a model to their mean.

    After every epoch the weights are written to `epoch_<number>.weights.h5`,
    the first epoch being 1; `model.load_weights` reads such a file. A file is
    written completely or not at all, and a run that resumes in the same folder
    continues with its files. Files of epochs later than the current one belong
    to an abandoned run and are removed. Weights that are NaN or infinite are
    not written: training ends. While a process trains, the folder is locked.
    Of several processes that train together the first one writes.

    Keras itself computes an exponential moving average: `use_ema=True` of an
    optimizer.

    Args:
        folder: string or path, of this run alone. Created if it does not exist.
        last: int, 1 or more. Number of epochs to keep.

    Raises:
        ValueError: `last` is below 1, `apply` finds no weights, or another
            process trains in the folder.
        FloatingPointError: a weight is NaN or infinite.

    Example:
        ```python
        import tempfile
        import keras
        import numpy as np
        from keras_tfm import training

        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        average = training.CheckpointAverage(tempfile.mkdtemp(), last=2)
        x = np.ones((4, 2))
        model.fit(x, x[:, :1], epochs=3, callbacks=[average], verbose=0)
        print(len(average.apply(model)))  # 2 files, of epochs 2 and 3
        ```

    Source: Vaswani et al. 2017, section 6.1, the mean of the last 5 or 20
    checkpoints. https://arxiv.org/abs/1706.03762
    """

    def __init__(self, folder: Path, last: int = 10):
        super().__init__()
        if last < 1:
            raise ValueError(
                f"`last` must be at least 1; got last={last}. The paper takes 5 for "
                "the base model and 20 for the big one."
            )
        self.folder = pathlib.Path(folder)
        self.last = last

    def paths(self) -> list[pathlib.Path]:
        """Lists the files of weights in the folder, oldest epoch first."""
        return [path for _, path in sorted(self._path_of_epoch().items())]

    def apply(self, model: keras.Model) -> list[pathlib.Path]:
        """Sets the weights of a model to the mean of the last epochs.

        Args:
            model: built Keras model of the architecture that was trained.

        Returns:
            list of paths, the files that were averaged, at most `last`.
        """
        paths = self.paths()[-self.last :]
        if not paths:
            raise ValueError(
                f"`folder` must have files epoch_*.weights.h5; got folder="
                f"{str(self.folder)!r}, which has none. Train for at least one epoch "
                "with this callback."
            )
        model.set_weights(average_weights(model, paths))
        return paths

    def on_train_begin(self, logs: dict | None = None) -> None:
        processes.check_one_process("`fit`")
        if processes.is_first_process():
            lock_folder(self.folder)

    def on_train_end(self, logs: dict | None = None) -> None:
        unlock_folder(self.folder)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        check_finite(
            self.model, advice=f"{str(self.folder)!r} keeps the weights of before."
        )
        model = self._model_to_save()
        if processes.is_first_process():
            with local_devices():  # Keras makes an optimizer to compare with
                self._save(model, epoch + 1)
        processes.wait_for_all("weights of an epoch")

    def _model_to_save(self):
        """Returns the model, or a copy in this process if it has but a part."""
        if processes.has_all_weights(self.model):
            return self.model
        with local_devices():
            copy = type(self.model).from_config(self.model.get_config())
        copy.set_weights(processes.get_weights(self.model))
        return copy

    def _save(self, model, number):
        # Keras requires the suffix; FILE_NAME does not match this name.
        unfinished = self.folder / "unfinished.weights.h5"
        model.save_weights(unfinished, overwrite=True)
        os.replace(unfinished, self.folder / f"epoch_{number:04d}.weights.h5")
        for saved, path in self._path_of_epoch().items():
            if saved > number or saved <= number - self.last:
                path.unlink()

    def _path_of_epoch(self):
        if not self.folder.is_dir():
            return {}
        matches = ((FILE_NAME.fullmatch(p.name), p) for p in self.folder.iterdir())
        return {int(match[1]): path for match, path in matches if match}


def average_weights(model: keras.Model, paths: Sequence[Path]) -> list[np.ndarray]:
    """Averages the weights in several files, without changing the model.

    Args:
        model: built Keras model that the files were written from.
        paths: list of paths of `.weights.h5` files, 1 or more.

    Returns:
        list of arrays in the order of `model.weights`, summed in float64.
        Weights that are not floats are those of the last file.

    Raises:
        ValueError: `paths` is empty, or a file is damaged or has more weights
            than the model.

    Example:
        ```python
        import tempfile
        import keras
        from keras_tfm import training

        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        path = tempfile.mkdtemp() + "/first.weights.h5"
        model.save_weights(path)
        print(len(training.average_weights(model, [path])))  # 2
        ```
    """
    if not paths:
        raise ValueError(f"`paths` must have at least one file; got paths={paths!r}.")
    original = _to_arrays(model.variables)
    sums = None
    try:
        for path in paths:
            with reading(path, "weights of this model"):
                _check_file(model, path)
                model.load_weights(path)
            sums = _add(sums, _to_arrays(model.weights))
    finally:
        for variable, value in zip(model.variables, original, strict=True):
            variable.assign(value)
    return [
        (array / len(paths)).astype("float32") if _is_float(weight) else array
        for weight, array in zip(model.weights, sums, strict=True)
    ]


def _check_file(model: keras.Model, path: Path) -> None:
    """Rejects a file with more weights than the model, which Keras accepts."""
    import h5py  # comes with Keras

    objects = {}
    with h5py.File(path) as file:
        file.visititems(objects.__setitem__)
        count = sum(
            isinstance(item, h5py.Dataset) and "optimizer" not in name.split("/")
            for name, item in objects.items()
        )
    if count > len(model.weights):
        raise ValueError(
            "`paths` must be files of the weights of `model`; got "
            f"{os.fspath(path)!r} with {count} weights, and a model with "
            f"{len(model.weights)}. Make the model that the file was written from."
        )


def _to_arrays(variables: Sequence[Any]) -> list[np.ndarray]:
    return [processes.to_numpy(variable) for variable in variables]


def _add(sums: list | None, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Adds floats in float64, and replaces other arrays."""
    arrays = [a.astype("float64") if _is_float(a) else a for a in arrays]
    if sums is None:
        return arrays
    return [
        total + array if _is_float(array) else array
        for total, array in zip(sums, arrays, strict=True)
    ]


def _is_float(array: Any) -> bool:
    """Returns whether an array or a variable has floats, bfloat16 included."""
    return np.dtype(keras.backend.standardize_dtype(array.dtype)).kind not in "iub"
