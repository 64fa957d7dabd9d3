"""`keras-tfm serve`."""

import math
import pathlib
import sys

from keras_tfm.pipelines import pretrained as preset

COUNTS = ("workers", "beam_size", "body_bytes", "text_length", "texts", "waiting")
COUNTS += ("attention_tokens", "batch_size")


def run(command):
    """Serves a model until it is stopped.

    Args:
        command: `options.Serve`.

    Raises:
        ValueError: a number is not one that a server can have, or as
            `start.run` says.
        ImportError: the extra `serve` is not installed.
    """
    _check(command)
    preset.check_name(command.model)  # before anything is started
    try:
        from keras_tfm.server import limits, start
    except ImportError as fault:
        raise ImportError(
            "A server stands on Ray Serve and FastAPI. Install them by "
            f"pip install 'keras-tfm[serve]'. Received: {fault}"
        ) from fault

    place, output = _place(command.model), sys.stdout
    name = command.name or pathlib.PurePath(place).name
    settings = {
        "name": place,
        "source_language": command.source_language,
        "target_language": command.target_language,
    }
    given = {
        "beam_size": command.beam_size,
        "matmul_precision": command.matmul_precision,
    }
    settings |= {key: value for key, value in given.items() if value is not None}
    start.run(
        settings,
        name,
        command.host,
        command.port,
        command.workers,
        limits.Limits(
            command.body_bytes,
            command.text_length,
            command.texts,
            command.seconds,
            command.waiting,
            command.attention_tokens,
            command.batch_size,
        ),
        sorted(command.warm_up),
        lambda port: print(
            f"{name} at http://{command.host}:{port}", file=output, flush=True
        ),
    )


def _check(command):
    """Refuses numbers by their options' names, before what takes long."""
    for key in COUNTS:
        value = getattr(command, key)
        if value is not None and value < 1:
            option = key.replace("_", "-")
            raise ValueError(f"`--{option}` is 1 or more. Received: {value}.")
    if any(length < 1 for length in command.warm_up):
        lengths = " ".join(map(str, command.warm_up))
        raise ValueError(f"`--warm-up` has lengths of 1 or more. Received: {lengths}.")
    if not 0 < command.seconds < math.inf:
        raise ValueError(
            f"`--seconds` is above 0, and finite. Received: {command.seconds}."
        )


def _place(model):
    """A folder by its whole path: workers have a folder of their own."""
    place = preset.locate(model)
    folders = isinstance(place, pathlib.Path) and place == pathlib.Path(model)
    return str(place.resolve()) if folders else model
