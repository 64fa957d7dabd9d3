"""The gradient of a scalar with respect to one array, on any backend."""

import keras

from tests.layers.formulas import numpy


def gradient(function, array):
    """Differentiates `function(tensor) -> scalar` at `array`."""
    return numpy(GRADIENTS[keras.backend.backend()](function, array))


def _tensorflow(function, array):
    import tensorflow as tf

    tensor = tf.constant(array)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        value = function(tensor)
    return tape.gradient(value, tensor)


def _jax(function, array):
    import jax

    return jax.grad(function)(jax.numpy.asarray(array))


def _torch(function, array):
    import torch

    tensor = torch.tensor(array, requires_grad=True)
    function(tensor).backward()
    return tensor.grad


GRADIENTS = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}
