"""`keras-tfm serve`."""

import dataclasses
import math
import pathlib
import sys

from keras_tfm.cli import options
from keras_tfm.pipelines import pretrained
from keras_tfm.server.limits import Limits

LIMITS = tuple(field.name for field in dataclasses.fields(Limits))
# Flags that count something, at least 1.
COUNTS = ("workers", "beam_size", *(name for name in LIMITS if name != "timeout"))


def run(flags: options.Serve) -> None:
    """Serves a model until it is stopped.

    Args:
        flags: `options.Serve`.

    Raises:
        ValueError: a flag is out of its range, or as `start.run`.
        ImportError: the extra `serve` is not installed.
    """
    _check(flags)
    pretrained.check_name(flags.model)  # before anything is started
    try:
        from keras_tfm.server import start
    except ImportError as error:
        raise ImportError(
            f"`keras-tfm serve` needs FastAPI and uvicorn, which cannot be imported "
            f"({error}). Install `keras-tfm[serve]`."
        ) from error

    model, stdout = _locate(flags.model), sys.stdout
    name = flags.name or pathlib.PurePath(model).name
    arguments = {
        "name": model,
        "source_language": flags.source_language,
        "target_language": flags.target_language,
    }
    for option in ("beam_size", "matmul_precision"):
        if getattr(flags, option) is not None:
            arguments[option] = getattr(flags, option)
    print(f"Loading {name} and warming up ...", file=sys.stderr, flush=True)
    start.run(
        arguments,
        name,
        flags.host,
        flags.port,
        flags.workers,
        Limits(**{name: getattr(flags, name) for name in LIMITS}),
        sorted(flags.warm_up),
        lambda port: print(
            f"{name} at http://{flags.host}:{port}", file=stdout, flush=True
        ),
    )


def _check(flags):
    """Rejects numbers by the names of their flags, before a model is loaded."""
    for name in COUNTS:
        value = getattr(flags, name)
        if value is not None and value < 1:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} must be at least 1; got {value}.")
    if any(length < 1 for length in flags.warm_up):
        lengths = " ".join(map(str, flags.warm_up))
        raise ValueError(f"--warm-up must hold lengths of at least 1; got {lengths}.")
    if not 0 < flags.timeout < math.inf:
        raise ValueError(f"--timeout must be positive and finite; got {flags.timeout}.")


def _locate(model):
    """Returns the absolute path of a folder: workers have other working
    folders."""
    folder = pretrained.locate(model)
    local = isinstance(folder, pathlib.Path) and folder == pathlib.Path(model)
    return str(folder.resolve()) if local else model
