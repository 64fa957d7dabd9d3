"""Named arrays of a folder's safetensors files, read when asked for."""

import os
import pathlib

import numpy as np

from keras_tfm.zoo.json_file import read_json

FLOATS = ("F64", "F32", "F16", "BF16")
ROWS = 4096  # of a table, that are read at a time


class Weights:
    """The tensors of a folder, mapped into memory.

    Args:
        folder: path with `model.safetensors`, or with the files that
            `model.safetensors.index.json` names.

    Attributes:
        folder: path.
        shapes: dict of str to tuple of int. Older names of the layers of
            normalisation, gamma and beta, are given as weight and bias.

    Raises:
        FileNotFoundError: there are no such files.
        ImportError: `safetensors` is not installed.
        ValueError: a file is damaged, or a tensor stands there twice.
    """

    def __init__(self, folder):
        try:
            import safetensors
        except ImportError as error:
            raise ImportError(
                "Weights of others are read by the library safetensors, which cannot "
                f"be imported here ({error}). Install `keras-tfm[zoo]`."
            ) from error
        self.folder = pathlib.Path(folder)
        self.shapes, self._places, self._dtypes = {}, {}, {}
        for path in _files(self.folder):
            try:
                file = safetensors.safe_open(path, framework="numpy")
            except safetensors.SafetensorError as error:
                raise ValueError(
                    f"{path} is damaged or no safetensors file ({error}); it has "
                    f"{path.stat().st_size:,} bytes. Fetch it again."
                ) from error
            for key in file.keys():  # noqa: SIM118, it is no dictionary
                name = key.replace(".gamma", ".weight").replace(".beta", ".bias")
                if name in self.shapes:
                    raise ValueError(
                        f"{path}: a tensor stands there twice. Received: {name!r}. "
                        "Fetch the files again."
                    )
                stored = file.get_slice(key)
                self.shapes[name] = tuple(stored.get_shape())
                self._dtypes[name] = stored.get_dtype()
                self._places[name] = (file, key)

    def check_floats(self, names):
        """Refuses weights that are no plain floats.

        Args:
            names: list of str, of `shapes`.

        Raises:
            ValueError: one is of integers, or of a float of 8 bits.
        """
        others = {n: self._dtypes[n] for n in names if self._dtypes[n] not in FLOATS}
        if others:
            raise ValueError(
                f"{self.folder}: weights of {', '.join(FLOATS)} are read. Received: "
                f"{dict(sorted(others.items())[:4])}. Load them with what they were "
                "quantised by, and write them as floats."
            )

    def array(self, name):
        """Gives one tensor.

        Args:
            name: str, of `shapes`.

        Returns:
            array of that shape.
        """
        file, key = self._places[name]
        return file.get_tensor(key)

    def one_of(self, names):
        """Tells under which name a tensor stands that may stand under several.

        Args:
            names: list of str, the copies of one tensor, as those of a table of
                words that several layers share.

        Returns:
            The first name that is there; the first of all where none is.

        Raises:
            ValueError: two are there, and differ.
        """
        there = [name for name in names if name in self.shapes]
        for name in there[1:]:
            if self._differ(there[0], name):
                raise ValueError(
                    f"{self.folder}: the configuration shares one table where the "
                    f"weights have two. Received: {there[0]!r} and {name!r}, which "
                    "differ. Take the wrong one out of the weights, or set "
                    "`tie_word_embeddings` of `config.json` to false where all are "
                    "meant."
                )
        return [*there, *names][0]

    def _differ(self, *names):
        first, second = (self.shapes[name] for name in names)
        if first != second or not first:
            return True
        files = [file.get_slice(key) for file, key in map(self._places.get, names)]
        # Both as a whole would be much.
        parts = (
            slice(start, min(start + ROWS, first[0]))
            for start in range(0, first[0], ROWS)
        )
        return any(
            not np.array_equal(*(file[part] for file in files)) for part in parts
        )


def _files(folder):
    index = folder / "model.safetensors.index.json"
    paths = [folder / "model.safetensors"]
    if index.is_file() and not paths[0].is_file():  # as in transformers
        parts = read_json(index).get("weight_map")
        named = parts.values() if isinstance(parts, dict) else [None]
        if not all(isinstance(name, str) for name in named):
            raise ValueError(
                f"{index} names the file of each tensor in `weight_map`. Received: "
                f"{parts!r:.60}. Fetch it again."
            )
        # A name that leads out of the folder is none of its files.
        paths = [folder / pathlib.PurePath(name).name for name in sorted(set(named))]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        pickles = sorted(path.name for path in folder.glob("*.bin"))
        advice = (
            f"{pickles} are pickles, which can run any program and are not read: load "
            "them with transformers where you trust them, and write them with "
            "`save_pretrained(folder)`."
            if pickles
            else "Name a folder that `save_pretrained` of transformers has written."
        )
        raise FileNotFoundError(
            f"No weights in {os.fspath(folder)!r}: {missing} missing. {advice}"
        )
    return paths
