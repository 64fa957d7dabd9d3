"""The small JSON files that stand beside weights."""

import contextlib
import json
import math

FAULTS = (AttributeError, IndexError, KeyError, TypeError)


def read_json(file, kind=dict):
    """Reads an object, or a list.

    Args:
        file: `pathlib.Path`.
        kind: dict or list.

    Returns:
        dict or list; empty where there is no such file.

    Raises:
        ValueError: it is no JSON, or of another kind.
    """
    if not file.is_file():
        return kind()
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is no JSON ({error}). Fetch it again.") from error
    if not isinstance(found, kind):
        wanted = {dict: "an object", list: "a list"}[kind]
        raise ValueError(f"{file}: {wanted} is wanted. Received: {found!r:.40}.")
    return found


def check_kinds(place, settings, kinds):
    """Refuses settings that are of another kind than their name says.

    Args:
        place: path, what is named in the error.
        settings: dict.
        kinds: triples of a set of names, a type or several, and str, what it is
            called. A bool is no number here.

    Raises:
        ValueError: there is one, or a number that is not finite.
    """
    for names, kind, wanted in kinds:
        for name in sorted(set(names) & set(settings)):
            value = settings[name]
            is_kind = isinstance(value, kind) and not isinstance(value, bool)
            if not is_kind or (isinstance(value, float) and not math.isfinite(value)):
                raise ValueError(
                    f"{place}: {name} is {wanted}. Received: {value!r:.60}. Fetch it "
                    "again."
                )


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
