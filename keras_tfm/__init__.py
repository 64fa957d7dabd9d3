"""The Transformer of *Attention Is All You Need* as a Keras 3 library.

Subpackages are imported when they are first used, so that `import keras_tfm`
and `keras-tfm --help` do not wait for Keras.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_tfm import (
        decode,
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
