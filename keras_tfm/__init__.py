"""The Transformer of *Attention Is All You Need* as a Keras 3 library."""

import importlib

__version__ = "0.1.0"

ROOMS = ("decode", "layers", "models", "plot", "serving", "text", "training", "zoo")

__all__ = [
    "decode",
    "layers",
    "models",
    "plot",
    "presets",
    "serving",
    "text",
    "training",
    "zoo",
]


def __getattr__(name):
    # Rooms are read when they are entered: the command line's help needs none.
    if name in ROOMS:
        return importlib.import_module(f"keras_tfm.{name}")
    if name == "presets":
        return importlib.import_module("keras_tfm.serving").presets
    raise AttributeError(f"module 'keras_tfm' has no attribute {name!r}")


def __dir__():
    return [*__all__, "__version__"]
