"""The small JSON files that stand beside weights."""

import contextlib
import json

FAULTS = (AttributeError, IndexError, KeyError, TypeError)


def read_json(file):
    """Reads an object.

    Args:
        file: `pathlib.Path`.

    Returns:
        dict; empty where there is no such file.

    Raises:
        ValueError: it is no JSON, or no object.
    """
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is no JSON ({error}). Fetch it again.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file}: an object is wanted. Received: {found!r:.40}.")
    return found


@contextlib.contextmanager
def understood(place, what):
    """Refuses files whose JSON is of another shape than is read within.

    Args:
        place: path, what is named in the error.
        what: str, what is read.

    Raises:
        ValueError: something was not there, or of another kind.
    """
    try:
        yield
    except FAULTS as error:
        raise ValueError(
            f"{place}: {what} cannot be read. Received: {error!r:.80}. Fetch the files "
            "again."
        ) from error
