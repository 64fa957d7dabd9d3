"""The small JSON files that stand beside weights."""

import json


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
