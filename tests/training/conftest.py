"""Gradients computed by the current backend."""

import keras
import numpy as np
import pytest


def gradient_tensorflow(function, arrays, compiled):
    import tensorflow as tf

    @tf.function(jit_compile=compiled)
    def run(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = function(*tensors)
        return value, tape.gradient(value, tensors)

    return run(*map(tf.constant, arrays))


def gradient_jax(function, arrays, compiled):
    import jax

    run = jax.value_and_grad(function, argnums=tuple(range(len(arrays))))
    return (jax.jit(run) if compiled else run)(*map(jax.numpy.asarray, arrays))


def gradient_torch(function, arrays, compiled):
    import torch

    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    value = function(*tensors)
    value.backward()
    return value.detach(), [tensor.grad for tensor in tensors]


@pytest.fixture(params=[False, True], ids=["eager", "compiled"])
def value_and_gradients(request):
    """A function `(scalar function, *arrays) -> value, list of gradients`.

    A test that uses it runs twice on TensorFlow, without XLA and with it.
    """
    backend = keras.backend.backend()
    if backend != "tensorflow" and request.param is (backend == "torch"):
        pytest.skip("JAX trains with XLA, PyTorch has none")
    gradient = globals()[f"gradient_{backend}"]

    def run(function, *arrays):
        value, gradients = gradient(function, arrays, request.param)
        to_numpy = keras.ops.convert_to_numpy
        return float(value), [np.array(to_numpy(x)) for x in gradients]

    return run
