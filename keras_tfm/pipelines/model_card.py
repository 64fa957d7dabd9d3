"""Reads what a model card says of a model."""

import os
import pathlib
import re
from collections.abc import Iterable

from keras_tfm.file_reading import reading
from keras_tfm.pipelines import pretrained
from keras_tfm.pipelines.pivoting import auto_target, pivot_names, routes_to

WEAKNESSES = "## Known weaknesses"
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


def known_weaknesses(name: str | os.PathLike | pretrained.Preset) -> list[str]:
    """Returns what a model card lists under "Known weaknesses".

    Args:
        name: a preset, a name of several such as `"de-fr"` and `"auto-fr"`, or
            a folder with a card, `README.md`.

    Returns:
        list of str, in plain text; empty without a card.

    Example:
        ```python
        from keras_tfm.pipelines.model_card import known_weaknesses

        assert any("names" in item for item in known_weaknesses("en-de"))
        ```
    """
    steps: Iterable[str] = pivot_names(name) or ()
    if target := auto_target(name):
        steps = sorted({step for route in routes_to(target).values() for step in route})
    if steps:
        items = [item for step in steps for item in known_weaknesses(step)]
        return list(dict.fromkeys(items))
    folder = pretrained.locate(name)
    card = pathlib.Path(folder, "README.md")
    if not isinstance(folder, pathlib.Path) or not card.is_file():
        return []
    with reading(card, "a model card"):
        text = card.read_text("utf-8")
    _, _, section = text.partition(f"\n{WEAKNESSES}\n")
    section = section.partition("\n## ")[0]
    items = re.split(r"^\* ", section, flags=re.MULTILINE)[1:]
    return [_plain(item) for item in items]


def _plain(markdown):
    text = _LINK.sub(r"\1", markdown).replace("**", "").replace("`", "")
    return " ".join(text.split())
