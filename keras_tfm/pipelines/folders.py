"""What a saved translator and a saved classifier have in common."""

import os
import pathlib
import zipfile
import zlib

import keras


def write_model(model, part):
    """Writes a fresh copy of a model as `model.keras`.

    A compiled model names the optimizer of its backend, and a file holds what
    `set_weights` does not: LoRA and quantisation are changed variables.

    Args:
        model: Keras model with `from_config`.
        part: `pathlib.Path` of a folder for unfinished files.
    """
    model.save_weights(part / "copied.weights.h5")
    copy = type(model).from_config(model.get_config())
    copy.load_weights(part / "copied.weights.h5")
    copy.save(part / "model.keras")


def read_model(file):
    """Reads what `write_model` wrote.

    Args:
        file: `pathlib.Path`.

    Returns:
        Keras model.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        if not zipfile.is_zipfile(file):  # of which Keras says that it is not there
            raise zipfile.BadZipFile("it is no zip file")
        return keras.models.load_model(file)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, OSError) as error:
        raise ValueError(
            f"{os.fspath(file)!r} is damaged ({error}). Received: "
            f"{file.stat().st_size:,} bytes. Copy it again, or save it anew."
        ) from error


def check_saved(folder, files, kind):
    """Refuses a folder that lacks a file.

    Args:
        folder: path.
        files: names of files.
        kind: str, `"Translator"` or `"Classifier"`.

    Returns:
        List of paths of the files.

    Raises:
        FileNotFoundError: the folder lacks a file.
    """
    folder = pathlib.Path(folder)
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"No saved {kind.lower()} in {os.fspath(folder)!r}: {missing} missing. "
            f"Name a folder that `{kind}.save` has written, such as the folder "
            f"`model` of a recipe's run; others are read by `{kind}.from_preset`."
        )
    return [folder / name for name in files]
