"""Command-line flags from dataclasses whose fields have docstrings."""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
import typing
from typing import Annotated, Any, Literal

import tyro

JitCompile = Literal["auto", "on", "off"]  # of a training step, by XLA


def jit_argument(choice: JitCompile) -> bool | str:
    """Returns a choice as the argument `jit_compile` of `compile`."""
    return {"auto": "auto", "on": True, "off": False}[choice]


def compiles_buckets(choice: JitCompile) -> bool:
    """Returns whether XLA compiles a training step for each bucket."""
    import keras  # the flags alone do not need it

    by_default = keras.config.backend() != "torch"  # Keras' "auto"
    return by_default if choice == "auto" else choice == "on"


def field_docs(cls: type) -> dict[str, str]:
    """Returns the docstring below each field of a class, as one paragraph.

    tyro keeps the line breaks of such docstrings, which tears the lines of
    `--help`.

    Args:
        cls: class, whose source is read.

    Returns:
        dict from field names to str.
    """
    try:
        source = inspect.getsource(cls)
    except OSError:  # a program without its source
        return {}
    [definition] = ast.parse(textwrap.dedent(source)).body
    docs = {}
    for field, doc in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr):
            docs[field.target.id] = " ".join(ast.literal_eval(doc.value).split())
    return docs


def documented(cls: type) -> type:
    """Makes a subclass whose flags have the docstrings of its fields as help.

    Args:
        cls: dataclass.

    Returns:
        dataclass with the same fields, name and docstring.
    """
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            docs |= field_docs(base)
    fields = [
        (
            field.name,
            Annotated[field.type, _argument(field, docs.get(field.name))],
            field,
        )
        for field in dataclasses.fields(cls)
    ]
    subclass = dataclasses.make_dataclass(
        cls.__name__,
        fields,
        bases=(cls,),
        frozen=cls.__dataclass_params__.frozen,
        kw_only=True,
    )
    subclass.__doc__ = inspect.getdoc(cls)
    return subclass


def _argument(field, doc):
    """Returns what tyro shows of a flag."""
    options = {"help": doc}
    if field.default is None:  # "{None}|STR" and "(default: None)" say nothing
        options["help_behavior_hint"] = ""
        union = field.type
        if typing.get_origin(union) is Annotated:
            union = typing.get_args(union)[0]
        types = [kind for kind in typing.get_args(union) if kind is not type(None)]
        options["metavar"] = _metavar(types[0]) if types else None
    return tyro.conf.arg(**{name: x for name, x in options.items() if x is not None})


def _metavar(kind):
    if kind is bool:
        return "{True,False}"
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        return "{" + ",".join(arguments) + "}"
    if arguments:  # a tuple
        return " ".join(map(_metavar, arguments))
    return kind.__name__.upper()


def with_flags(message: str, flags: Any) -> str:
    """Returns an error with flags in place of the parameters of their name.

    Args:
        message: str, such as "`held_out` must be ...; got held_out=0."
        flags: dataclass instance. `held_out` becomes --held-out if it has it.
    """
    # What is positional has no flag. tyro marks it in `Annotated`.
    positional = tyro.conf.Positional[str].__metadata__[0]
    names = {
        field.name
        for field in dataclasses.fields(flags)
        if positional not in getattr(field.type, "__metadata__", ())
    }
    # Parameters of `Vocabulary.train` and of `Comet.load`.
    renamed = {"size": "vocabulary_size", "encoder": "comet_encoder"}
    renamed = {name: flag for name, flag in renamed.items() if flag in names}

    def flag(match):
        name = match[1] or match[2]
        name = renamed.get(name, name)
        return f"--{name.replace('_', '-')}" if name in names else match[0]

    return re.sub(r"`(\w+)`|\b(\w+)(?==)", flag, message)


def parse(flags: type, description: str, arguments: list[str] | None = None) -> Any:
    """Reads the flags of a command line.

    Args:
        flags: dataclass. Its bases that are dataclasses become the groups of
            `--help`; flag names have no prefix.
        description: str, the beginning of the help.
        arguments: list of str, or None for those of the process.

    Returns:
        An instance of `flags`.
    """
    groups = [base for base in flags.__bases__ if dataclasses.is_dataclass(base)]
    fields = [
        (group.__name__.lower(), documented(group)) for group in groups or [flags]
    ]
    grouped = tyro.cli(
        tyro.conf.OmitArgPrefixes[dataclasses.make_dataclass("Flags", fields)],
        prog=_command(flags.__module__),
        description=description,
        args=arguments,
    )
    values: dict[str, Any] = {}
    for name, _ in fields:
        group = getattr(grouped, name)
        values |= {
            field.name: getattr(group, field.name)
            for field in dataclasses.fields(group)
        }
    return flags(**values)


def _command(module):
    """Returns the command whose flags a module has; None for the program."""
    package, _, recipe = module.rpartition(".")
    if package == "keras_tfm.recipes":
        return f"keras-tfm train {recipe.replace('_', '-')}"
    # Of `python -m` the program is the path of the file.
    spec = sys.modules[module].__spec__
    return f"python -m {spec.name}" if spec else None
