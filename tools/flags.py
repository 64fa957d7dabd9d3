"""The page of all flags of `keras-tfm`, from the dataclasses that define them.

`python -m tools.flags` writes `docs/api/flags.md`.
"""

import dataclasses
import importlib
import inspect
import pathlib
import typing
from collections.abc import Iterator
from typing import Any

import tyro

from keras_tfm.cli.options import COMMANDS
from keras_tfm.recipes.flags import field_docs

RECIPES = ("translation", "classification", "language-model", "preset")
PAGE = pathlib.Path(__file__).parents[1] / "docs/api/flags.md"
POSITIONAL = tyro.conf.Positional[str].__metadata__[0]
TITLE = """# Flags

Every flag of `keras-tfm`, as `keras-tfm COMMAND --help` explains it. If the
default of a recipe is empty, the recipe chooses a value that fits the corpus.
The options of decoding in Python are the attributes of
[decode.Options](decode.md). `python -m tools.flags` makes this page.
"""


def page() -> str:
    """Returns the page as Markdown."""
    sections = [TITLE]
    for name, command in COMMANDS.items():
        if name != "train":
            sections += section(f"keras-tfm {name}", command, [("", command)])
    for recipe in RECIPES:
        module = importlib.import_module(
            f"keras_tfm.recipes.{recipe.replace('-', '_')}"
        )
        bases = [b for b in module.Flags.__bases__ if dataclasses.is_dataclass(b)]
        groups = [(group.__name__, group) for group in bases]
        title = f"keras-tfm train {recipe}"
        if recipe == "preset":
            title = "python -m keras_tfm.recipes.preset"
        sections += section(title, module, groups or [("", module.Flags)])
    return "\n\n".join(map(str.strip, sections)) + "\n"


def section(title: str, owner: Any, groups: list[tuple[str, type]]) -> Iterator[str]:
    """Yields the parts of the section of a command.

    Args:
        title: str, its heading.
        owner: class or module whose docstring begins with what it does.
        groups: pairs of a heading, or "", and a dataclass of flags.
    """
    yield f"## {title}"
    yield escape(inspect.getdoc(owner).split("\n\n")[0])
    for heading, group in groups:
        if heading:
            yield f"**{heading}.** {escape(' '.join(inspect.getdoc(group).split()))}"
        yield "\n".join(["| flag | default | meaning |", "|---|---|---|", *rows(group)])


def rows(group: type) -> Iterator[str]:
    """Yields the row of each field of a dataclass of flags."""
    docs: dict[str, str] = {}
    for base in reversed(group.__mro__):
        if dataclasses.is_dataclass(base):
            docs |= field_docs(base)
    for field in dataclasses.fields(group):
        name, choices = describe(field)
        meaning = escape(docs.get(field.name, ""))
        if choices:
            meaning += f" One of {', '.join(f'`{choice}`' for choice in choices)}."
        if type(field.default) is bool:
            name += f"`, `--no-{name.removeprefix('--')}"
        yield f"| `{name}` | {default(field)} | {meaning} |"


def describe(field: dataclasses.Field) -> tuple[str, tuple[str, ...]]:
    """Returns the name of a flag, and its values if there are a few."""
    name, kind, metadata = f"--{field.name.replace('_', '-')}", field.type, []
    while typing.get_origin(kind) is typing.Annotated:
        metadata += kind.__metadata__
        kind = kind.__origin__
    for item in metadata:
        if POSITIONAL in metadata and getattr(item, "metavar", None):
            name = item.metavar
        elif isinstance(getattr(item, "name", None), str):  # of `tyro.conf.arg`
            name = f"--{item.name}"
    kinds = [kind, *typing.get_args(kind)]
    choices = [
        typing.get_args(k) for k in kinds if typing.get_origin(k) is typing.Literal
    ]
    return name, choices[0] if choices else ()


def default(field: dataclasses.Field) -> str:
    """Returns the default of a flag as a cell of a table."""
    value = field.default
    if value is dataclasses.MISSING:
        return "required"
    if value is None or value == ():
        return ""
    if isinstance(value, tuple):
        return f"`{' '.join(map(str, value))}`"
    return f"`{value:,}`" if type(value) is int else f"`{value}`"


def escape(text: str) -> str:
    """Returns a text whose signs are none of Markdown's."""
    for sign in "\\|*<{":
        text = text.replace(sign, f"&#{ord(sign)};")
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
