"""The contract that every layer of the library meets."""

import inspect
import json

import keras
import numpy as np
from keras import ops

from tests.layers.formulas import draw_weights, numpy

# Arguments of `KernelLayer`, none at its default; constraints act in updates.
WEIGHT_OPTIONS = {
    "kernel_initializer": "zeros",
    "bias_initializer": "ones",
    "kernel_regularizer": "l2",
    "bias_regularizer": "l1",
    "kernel_constraint": "non_neg",
    "bias_constraint": "unit_norm",
}
# Tolerance for rounding to the compute dtype, where outputs have variance 1.
HALF = {"mixed_float16": 2e-2, "mixed_bfloat16": 1.5e-1}


def check_layer(layer, *inputs, folder, **masks):
    """Checks that a layer meets the contract.

    Args:
        layer: a layer without dropout. No argument of it has its default value,
            since a test cannot see that a default is lost.
        *inputs: arrays of its first call arguments.
        folder: path. The model is saved there.
        **masks: arrays of further call arguments.
    """
    expected = numpy(layer(*inputs, **masks))
    draw_weights(layer)
    expected = numpy(layer(*inputs, **masks))
    check_shapes(layer, expected, *inputs, **masks)
    check_config(layer)
    check_half_precision(layer, expected, *inputs, **masks)
    check_model(layer, expected, *inputs, folder=folder, **masks)


def check_shapes(layer, expected, *inputs, **masks):
    """`compute_output_shape` agrees with the output, also for unknown sizes."""
    names = list(inspect.signature(layer.compute_output_shape).parameters)
    shapes = [array.shape for array in inputs][: len(names)]
    assert tuple(layer.compute_output_shape(*shapes)) == expected.shape
    symbols, unknown = symbolic(layer, *inputs, **masks)
    shapes = [symbol.shape for symbol in symbols][: len(names)]
    assert unknown.shape == tuple(layer.compute_output_shape(*shapes))
    assert unknown.shape[0] is None


def check_config(layer):
    """Every argument is in the config under its name, and is restored."""
    config = json.loads(json.dumps(layer.get_config()))  # plain values only
    classes = [c for c in type(layer).__mro__ if c.__module__.startswith("keras_tfm")]
    defaults = {}
    for owner in classes:  # a base class has the options of weights
        defaults |= inspect.signature(owner.__init__).parameters
    names = set(defaults) - {"kwargs", "self", "args"}
    assert names <= set(config)
    default_names = [name for name in names if config[name] == defaults[name].default]
    assert default_names == [], f"a default cannot get lost, so set {default_names}"
    rebuilt = type(layer).from_config(layer.get_config())
    assert json.loads(json.dumps(rebuilt.get_config())) == config
    for name in names:
        assert hasattr(rebuilt, name)


def check_half_precision(layer, expected, *inputs, **masks):
    """The output in half precision is that of float32, rounded."""
    for policy, tolerance in HALF.items():
        config = {**layer.get_config(), "dtype": policy}
        half = type(layer).from_config(config)
        half(*inputs, **masks)
        half.set_weights(layer.get_weights())
        output = half(*inputs, **masks)
        dtype = keras.backend.standardize_dtype(output.dtype)
        assert dtype == policy.removeprefix("mixed_")
        np.testing.assert_allclose(numpy(output), expected, atol=tolerance)
        assert all(weight.dtype == "float32" for weight in half.weights)


def symbolic(layer, *inputs, **masks):
    """Calls a layer on symbols of unknown batch and lengths."""

    def symbol(array):
        last = array.shape[-1:] if array.dtype == "float32" else (None,)
        shape = (None,) * (array.ndim - 2) + last
        return keras.Input(shape, dtype=array.dtype)

    positional = [symbol(array) for array in inputs]
    keywords = {name: symbol(array) for name, array in masks.items()}
    return [*positional, *keywords.values()], layer(*positional, **keywords)


def check_model(layer, expected, *inputs, folder, **masks):
    """A compiled model of the layer runs at any size, trains, and is saved."""
    model = keras.Model(*symbolic(layer, *inputs, **masks))
    # Keras does not compile for PyTorch by itself either.
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() != "torch")
    arrays = [*inputs, *masks.values()]
    np.testing.assert_allclose(
        model.predict(arrays, verbose=0), expected, rtol=1e-4, atol=1e-5
    )
    shorter = [shorten(array) for array in arrays]
    np.testing.assert_allclose(
        numpy(model(shorter)), numpy(rerun(layer, shorter, masks)), atol=1e-5
    )
    path = str(folder / "layer.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    np.testing.assert_allclose(
        numpy(loaded(arrays)), numpy(model(arrays)), rtol=1e-5, atol=1e-6
    )
    if model.trainable_weights:
        initial_weights = [weight.copy() for weight in model.get_weights()]
        loss = model.train_on_batch(arrays, np.zeros_like(expected))
        assert np.isfinite(np.asarray(loss)).all()
        pairs = zip(initial_weights, model.get_weights(), strict=True)
        assert any(not np.array_equal(old, new) for old, new in pairs)


def shorten(array):
    """Returns the first example, with one position less on each length axis."""
    is_attention_mask = array.dtype == bool and array.ndim > 2
    return array[:1, ..., :-1, :-1] if is_attention_mask else array[:1, :-1]


def rerun(layer, arrays, masks):
    """Calls the layer itself on arrays in the order of the model's inputs."""
    count = len(arrays) - len(masks)
    arrays = [ops.convert_to_tensor(array) for array in arrays]
    return layer(*arrays[:count], **dict(zip(masks, arrays[count:], strict=True)))
