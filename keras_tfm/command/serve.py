"""`keras-tfm serve`."""

import pathlib

from keras_tfm.serving import preset


def run(command):
    """Serves a model until it is stopped.

    Args:
        command: `options.Serve`.
    """
    preset.check(command.model)  # before anything is started
    try:
        from keras_tfm.serving.server import limits, start
    except ImportError as fault:
        raise ImportError(
            "A server stands on Ray Serve and FastAPI. Install them by "
            f"pip install 'keras-tfm[serve]'. Received: {fault}"
        ) from fault

    place = _place(command.model)
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
        lambda: print(f"{name} at http://{command.host}:{command.port}", flush=True),
    )


def _place(model):
    """A folder by its whole path: workers have a folder of their own."""
    place = preset.place(model)
    folders = isinstance(place, pathlib.Path) and place == pathlib.Path(model)
    return str(place.resolve()) if folders else model
