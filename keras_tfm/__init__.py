"""The Transformer of *Attention Is All You Need* as a Keras 3 library.

`import keras_tfm` imports `layers`, `models` and `training`, which registers
their classes with Keras, so that `keras.models.load_model` finds them. Other
subpackages are imported when they are first used. In the command `keras-tfm`
nothing is imported at once: its `--help` does not wait for Keras.
"""

import importlib
import pathlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_tfm import (
        decode,
        engines,
        export,
        layers,
        models,
        pipelines,
        plot,
        runtime,
        text,
        training,
        zoo,
    )
    from keras_tfm.pipelines import presets

__version__ = "0.1.0"

__all__ = [
    "decode",
    "engines",
    "export",
    "layers",
    "models",
    "pipelines",
    "plot",
    "presets",
    "runtime",
    "text",
    "training",
    "zoo",
]


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module 'keras_tfm' has no attribute {name!r}")
    if name == "presets":
        return importlib.import_module("keras_tfm.pipelines").presets
    return importlib.import_module(f"keras_tfm.{name}")


def __dir__():
    return sorted([*globals(), *__all__])


def _is_command():
    """Returns whether this process is `keras-tfm`, or `-m keras_tfm`."""
    program = sys.argv[0] if sys.argv else ""
    is_module = program == "-m" and "keras_tfm" in sys.orig_argv
    return is_module or pathlib.PurePath(program).stem == "keras-tfm"


if not _is_command():
    for _name in ("layers", "models", "training"):
        importlib.import_module(f"keras_tfm.{_name}")
