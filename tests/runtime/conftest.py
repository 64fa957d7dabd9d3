"""The Transformer of the decoding tests, and a list of compilations."""

import sys

import keras

from keras_tfm import runtime
from tests.decode.conftest import transformer

__all__ = ["transformer"]


def count_compilations(monkeypatch):
    """Returns a list that gets the name of each function that is compiled.

    A name is added for each new function and each new set of shapes.
    """
    keys, names = set(), []

    def compiled(function, *options, **keywords):
        call = runtime.compiled(function, *options, **keywords)

        def counting(*arguments):
            shapes = [tuple(x.shape) for x in keras.tree.flatten(arguments)]
            name = getattr(function, "func", function).__name__
            # By id, since each decoder has its own compiled functions.
            key = name, id(function), str(shapes)
            names.extend([] if key in keys else [name])
            keys.add(key)
            return call(*arguments)

        return counting

    monkeypatch.setattr(sys.modules["keras_tfm.runtime.compile"], "compiled", compiled)
    return names
