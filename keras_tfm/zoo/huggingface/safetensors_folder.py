"""Named arrays of a folder's safetensors files, read on demand."""

import os
import pathlib

import numpy as np

from keras_tfm.zoo.config_file import Config, read_json, reading

FLOATS = ("F64", "F32", "F16", "BF16")
CHUNK = 4096  # rows of a matrix that are compared at a time


class SafetensorsFolder:
    """The tensors of a folder, mapped into memory.

    Args:
        folder: path with `model.safetensors`, or with the files that
            `model.safetensors.index.json` names.

    Attributes:
        folder: path.
        shapes: dict from str to tuple of int. The older names of the vectors
            of a normalization, gamma and beta, appear as weight and bias.

    Raises:
        FileNotFoundError: the folder has no such files.
        ImportError: `safetensors` is not installed.
        ValueError: a file is damaged, or two have a tensor of one name.
    """

    def __init__(self, folder: str | os.PathLike):
        try:
            import safetensors
        except ImportError as error:
            raise ImportError(
                "Reading weights of transformers needs the library safetensors, which "
                f"cannot be imported ({error}). Install `keras-tfm[zoo]`."
            ) from error
        self.folder = pathlib.Path(folder)
        self.shapes, self._slices, self._dtypes = {}, {}, {}
        for path in _files(self.folder):
            with reading(path, "safetensors"):
                file = safetensors.safe_open(path, framework="numpy")
                for key in file.keys():  # noqa: SIM118, it is not a dict
                    name = key.replace(".gamma", ".weight").replace(".beta", ".bias")
                    if name in self.shapes:
                        raise ValueError(f"the tensor {name!r} exists twice")
                    stored = file.get_slice(key)
                    self.shapes[name] = tuple(stored.get_shape())
                    self._dtypes[name] = stored.get_dtype()
                    self._slices[name] = (file, key)

    def check_floats(self, names: set[str]) -> None:
        """Rejects integers and 8-bit floats.

        Args:
            names: set of str, of `shapes`.

        Raises:
            ValueError: a tensor is not of plain floats.
        """
        unsupported = {
            n: self._dtypes[n] for n in names if self._dtypes[n] not in FLOATS
        }
        if unsupported:
            raise ValueError(
                f"{self.folder}: weights must be of {', '.join(FLOATS)}; got "
                f"{dict(sorted(unsupported.items())[:4])}. Save floats with the "
                "program that quantized them."
            )

    def array(self, name: str) -> np.ndarray:
        """Returns one tensor.

        Args:
            name: str, of `shapes`.
        """
        file, key = self._slices[name]
        return file.get_tensor(key)

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
            if not self._equal(present[0], name):
                raise ValueError(
                    f"{self.folder}: {present[0]!r} and {name!r} must be equal, since "
                    "the configuration ties them; they differ. Delete the wrong one, "
                    "or set `tie_word_embeddings` of `config.json` to false if both "
                    "are meant."
                )
        return [*present, *names][0]

    def _equal(self, *names):
        first, second = (self.shapes[name] for name in names)
        if first != second or not first:
            return False
        slices = [self._slices[name] for name in names]
        files = [file.get_slice(key) for file, key in slices]
        parts = (slice(i, min(i + CHUNK, first[0])) for i in range(0, first[0], CHUNK))
        return all(np.array_equal(*(file[p] for file in files)) for p in parts)


def _files(folder):
    index = folder / "model.safetensors.index.json"
    paths = [folder / "model.safetensors"]
    if index.is_file() and not paths[0].is_file():  # as in transformers
        content = Config(read_json(index), index)
        with reading(index, "an index of safetensors files"):
            names = sorted(set(content.typed("weight_map", dict).values()))
            # A path that leads out of the folder is reduced to its last part.
            paths = [folder / pathlib.PurePath(name).name for name in names]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        pickles = sorted(path.name for path in folder.glob("*.bin"))
        advice = (
            f"{pickles} are pickles, which can run any program and are not read: load "
            "them with transformers if you trust them, and save them with "
            "`save_pretrained(folder)`."
            if pickles
            else "Pass a folder that `save_pretrained` of transformers has written."
        )
        raise FileNotFoundError(
            f"No weights in {os.fspath(folder)!r}: {missing} missing. {advice}"
        )
    return paths
