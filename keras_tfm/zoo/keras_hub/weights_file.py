"""Named arrays of the HDF5 files in a preset, read on demand."""

import os
import pathlib

import numpy as np

from keras_tfm.file_reading import Config, read_json, reading
from keras_tfm.zoo.keras_hub.architectures import TASK
from keras_tfm.zoo.weight_mapping import check_dtypes

MODEL, TASK_FILE = "model.weights.h5", "task.weights.h5"
INDEX = "model.weights.json"  # names the files of a model in several
OLD_STEM = "_layer_checkpoint_dependencies/"  # of Keras 2, for `layers/`
FLOATS = ("float64", "float32", "float16", "bfloat16")


class WeightsFolder:
    """The weights of a preset, which stay on disk until they are read.

    Args:
        folder: path with `model.weights.h5`, or with the files that
            `model.weights.json` names; and `task.weights.h5` of a task.

    Attributes:
        folder: path.
        shapes: dict from str to tuple of int. The names of a task's weights
            begin with `task/`.

    Raises:
        FileNotFoundError: the folder has no weights.
        ValueError: a file is damaged.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = pathlib.Path(folder)
        self.shapes, self._datasets, self._files = {}, {}, []
        for path in _files(self.folder):
            self._open(path, "")
        if (self.folder / TASK_FILE).is_file():
            self._open(self.folder / TASK_FILE, TASK)

    def __enter__(self) -> "WeightsFolder":
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files:
            file.close()

    def _open(self, path, prefix):
        import h5py

        with reading(path, "HDF5"):
            file = h5py.File(path, "r")
            self._files.append(file)

            # It follows no link, so that nothing outside the file is read.
            def _add(name, value):
                if isinstance(value, h5py.Dataset):
                    _check_is_stored(name, value)
                    name = prefix + name.replace(OLD_STEM, "layers/")
                    self.shapes[name], self._datasets[name] = value.shape, value

            file.visititems(_add)

    def check_floats(self, names: set[str]) -> None:
        """Rejects integers and 8-bit floats.

        Args:
            names: set of str, of `shapes`.

        Raises:
            ValueError: a weight is not of plain floats.
        """
        dtypes = {name: _dtype(self._datasets[name]) for name in names}
        advice = "Save the model before it is quantized."
        check_dtypes(self.folder, dtypes, FLOATS, advice)

    def array(self, name: str) -> np.ndarray:
        """Returns one weight.

        Args:
            name: str, of `shapes`.
        """
        dataset = self._datasets[name]
        array = np.array(dataset)
        if _dtype(dataset) == "bfloat16":  # HDF5 knows only its 16 bits
            import ml_dtypes

            return array.view(ml_dtypes.bfloat16).astype("float32")
        return array


def _files(folder):
    index = folder / INDEX
    paths = [folder / MODEL]
    if index.is_file() and not paths[0].is_file():
        with reading(index, "an index of weights"):
            names = Config(read_json(index), index).typed("weight_map", dict).values()
            names = {n for v in names for n in (v if isinstance(v, list) else [v])}
            # A path that leads out of the folder is reduced to its last part.
            paths = [folder / pathlib.PurePath(name).name for name in sorted(names)]
    missing = [path.name for path in paths if not path.is_file()]
    if missing or not paths:
        raise FileNotFoundError(
            f"No weights in {os.fspath(folder)!r}: {missing or MODEL} missing. Pass a "
            "folder that `save_to_preset` of KerasHub has written."
        )
    return paths


def _check_is_stored(name, dataset):
    """Rejects a dataset that is larger than what the file has of it."""
    if dataset.external or dataset.id.get_storage_size() < dataset.nbytes:
        raise ValueError(f"the weight {name!r} is not stored in full")


def _dtype(dataset):
    dtype = dataset.attrs.get("dtype")
    return "bfloat16" if dtype == "bfloat16" else str(dataset.dtype)
