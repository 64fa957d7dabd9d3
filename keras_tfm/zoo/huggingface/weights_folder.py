"""Named arrays of a folder's files of weights, read on demand."""

import os
import pathlib
from typing import Any

import numpy as np

from keras_tfm.file_reading import Config, read_json, reading
from keras_tfm.zoo.huggingface.pytorch_file import PytorchFile
from keras_tfm.zoo.weight_mapping import check_dtypes

FLOATS = ("F64", "F32", "F16", "BF16")
CHUNK = 4096  # rows of a matrix that are compared at a time
SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"


class SafetensorsFile:
    """The tensors of a safetensors file, with the interface of `PytorchFile`.

    Args:
        file: path.

    Raises:
        ImportError: `safetensors` is not installed.
    """

    def __init__(self, file: pathlib.Path):
        try:
            import safetensors
        except ImportError as error:
            raise ImportError(
                "Reading weights of transformers needs the library safetensors, which "
                f"cannot be imported ({error}). Install `keras-tfm[zoo]`."
            ) from error
        self._file = safetensors.safe_open(file, framework="numpy")
        # The file is not a dict: it has no `in` and no iteration.
        self._slices = {n: self._file.get_slice(n) for n in self._file.keys()}  # noqa: SIM118
        self.shapes = {n: tuple(s.get_shape()) for n, s in self._slices.items()}
        self.dtypes = {n: s.get_dtype() for n, s in self._slices.items()}

    def array(self, name: str) -> np.ndarray:
        """Returns one tensor.

        Args:
            name: str, of `shapes`.
        """
        return self._file.get_tensor(name)

    def rows(self, name: str, part: Any) -> np.ndarray:
        """Returns some rows of one tensor.

        Args:
            name: str, of `shapes`.
            part: slice.
        """
        return self._slices[name][part]


class WeightsFolder:
    """The tensors of a folder, mapped into memory.

    Args:
        folder: path with `model.safetensors`, or with the files that
            `model.safetensors.index.json` names; or with `pytorch_model.bin`
            or its index, which are read where there are no safetensors.

    Attributes:
        folder: path.
        names: list of str, of the files.
        shapes: dict from str to tuple of int. The older names of the vectors
            of a normalization, gamma and beta, appear as weight and bias.

    Raises:
        FileNotFoundError: the folder has no such files.
        ImportError: `safetensors` is not installed.
        ValueError: a file is damaged, has more than tensors, or two have a
            tensor of one name.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = pathlib.Path(folder)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.names: list[str] = []
        self._tensors: dict[str, tuple[SafetensorsFile | PytorchFile, str]] = {}
        for path in weight_files(self.folder):
            self.names.append(path.name)
            is_pickle = path.suffix == ".bin"
            with reading(path, "tensors of PyTorch" if is_pickle else "safetensors"):
                file = (PytorchFile if is_pickle else SafetensorsFile)(path)
                for key, shape in file.shapes.items():
                    name = key.replace(".gamma", ".weight").replace(".beta", ".bias")
                    if name in self.shapes:
                        raise ValueError(f"the tensor {name!r} exists twice")
                    self.shapes[name], self._tensors[name] = shape, (file, key)

    def check_floats(self, names: set[str]) -> None:
        """Rejects integers and 8-bit floats.

        Args:
            names: set of str, of `shapes`.

        Raises:
            ValueError: a tensor is not of plain floats.
        """
        dtypes = {n: self._tensors[n][0].dtypes[self._tensors[n][1]] for n in names}
        advice = "Save floats with the program that quantized them."
        check_dtypes(self.folder, dtypes, FLOATS, advice)

    def array(self, name: str) -> np.ndarray:
        """Returns one tensor.

        Args:
            name: str, of `shapes`.
        """
        file, key = self._tensors[name]
        return file.array(key)

    def first_of(self, names: list[str]) -> str:
        """Returns the name under which a tensor stands that has several.

        Args:
            names: list of str, copies of one tensor, such as an embedding
                matrix that several layers share.

        Returns:
            The first name that exists; the first of all if none does.

        Raises:
            ValueError: two exist, and their values differ.
        """
        present = [name for name in names if name in self.shapes]
        for name in present[1:]:
            if not self.are_equal(present[0], name):
                raise ValueError(
                    f"{self.folder}: {present[0]!r} and {name!r} must be equal, since "
                    "the configuration ties them; they differ. Delete the wrong one, "
                    "or set `tie_word_embeddings` of `config.json` to false if both "
                    "are meant."
                )
        return [*present, *names][0]

    def are_equal(self, *names: str) -> bool:
        """Returns whether two tensors are the same.

        Args:
            *names: two str, of `shapes`.
        """
        first, second = (self.shapes[name] for name in names)
        if first != second or not first:
            return False
        tensors = [self._tensors[name] for name in names]
        parts = (slice(i, min(i + CHUNK, first[0])) for i in range(0, first[0], CHUNK))
        return all(
            np.array_equal(*(file.rows(key, p) for file, key in tensors)) for p in parts
        )


def weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files of weights of a folder: safetensors before pickles.

    Args:
        folder: path.

    Raises:
        FileNotFoundError: there are none, or one of an index is missing.
        ValueError: an index is damaged.
    """
    missing, origin = [], ""
    for name in (SAFETENSORS, PICKLE):
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return [folder / name]
        if index.is_file():
            content = Config(read_json(index), index)
            with reading(index, "an index of files of weights"):
                shards = sorted(set(content.typed("weight_map", dict).values()))
                # Of a path that leads out of the folder only the name counts.
                paths = [folder / pathlib.PurePath(shard).name for shard in shards]
                missing = [path.name for path in paths if not path.is_file()]
            if paths and not missing:
                return paths
            origin = f", which {index.name} names"
            break
    raise FileNotFoundError(
        f"No weights in {os.fspath(folder)!r}: {missing or [SAFETENSORS, PICKLE]}"
        f" missing{origin}. Pass a folder that `save_pretrained` of transformers has "
        "written."
    )
