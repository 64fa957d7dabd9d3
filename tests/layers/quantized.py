"""Quantizes a model as a user would, without the warnings of Keras."""

import contextlib
import gc
import warnings

import pytest

# Keras uses `x.T` to multiply int8 tensors of rank 3 on PyTorch.
QUANTIZED = pytest.mark.filterwarnings(
    "ignore:The use of `x.T` on tensors of dimension other than 2:UserWarning"
)


@contextlib.contextmanager
def few_garbage_collections():
    """Keras collects garbage for each layer: 0.5 seconds in a big process."""
    gc.freeze()
    yield
    gc.unfreeze()


def quantize(model, config="int8"):
    """Converts the matrices of a model to int8, or by a config, in place."""
    with warnings.catch_warnings(), few_garbage_collections():
        # Keras warns of every layer that holds no matrix.
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        if isinstance(config, str):
            model.quantize(config)
        else:
            model.quantize(config=config)
    return model
