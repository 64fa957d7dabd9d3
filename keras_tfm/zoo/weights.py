"""Named arrays of a folder's safetensors files, read when asked for."""

import os
import pathlib

from keras_tfm.zoo.json_file import read_json


class Weights:
    """The tensors of a folder, mapped into memory.

    Args:
        folder: path with `model.safetensors`, or with the files that
            `model.safetensors.index.json` names.

    Attributes:
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
        self.shapes, self._places = {}, {}
        for path in _files(pathlib.Path(folder)):
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
                self.shapes[name] = tuple(file.get_slice(key).get_shape())
                self._places[name] = (file, key)

    def array(self, name):
        """Gives one tensor.

        Args:
            name: str, of `shapes`.

        Returns:
            array of that shape.
        """
        file, key = self._places[name]
        return file.get_tensor(key)


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
