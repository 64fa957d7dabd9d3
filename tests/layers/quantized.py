"""Quantizes a model as a user would, without the noise Keras makes."""

import contextlib
import gc
import warnings

import pytest

# Keras multiplies int8 tensors of rank 3 so on PyTorch.
QUANTIZED = pytest.mark.filterwarnings(
    "ignore:The use of `x.T` on tensors of dimension other than 2:UserWarning"
)


@contextlib.contextmanager
def little_garbage():
    """Keras collects garbage for each layer, half a second in a big process."""
    gc.freeze()
    yield
    gc.unfreeze()


def quantize(model):
    """Turns the matrices of a model into int8, in place."""
    with warnings.catch_warnings(), little_garbage():
        # Keras warns of every layer that holds no matrix.
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        model.quantize("int8")
    return model
