"""Compiles functions of tensors that call a model, on each backend.

Keras compiles what `fit` and `predict` run, but has no call that compiles any
other function. So the backends' own APIs are used here, and in the modules
`capture` and `prepacked` (PyTorch) and `bfloat16` (JAX).
"""

import functools
import importlib
import threading
import warnings
from collections.abc import Callable, Hashable
from types import ModuleType
from typing import Any

import keras

from keras_tfm import compile_cache

CACHE_FILE = "/xla_compile_cache__"  # in errors about TensorFlow's folder
FALLBACKS = {
    "capture": "Decoding calls the layers at every step, which is slower.",
    "bfloat16": "Decoding multiplies in float32.",
}


class ModelWeights:
    """The weights of a model, as compiled functions take them.

    Args:
        model: a Keras model, or any object; without `variables` it has none.
        matmul_precision: `"float32"`; or `"bfloat16"` on JAX and PyTorch:
            float32 vectors and the model's float32 weights are multiplied in
            bfloat16; on PyTorch with results rounded to bfloat16. Or `"int8"`
            on PyTorch. There, `Decoder.score` and other devices than CPUs stay
            in float32. Weights that are quantized, have LoRA or another dtype
            policy stay as they are.

    Raises:
        ValueError: the backend or the processor lacks the precision.

    Example:
        ```python
        import keras
        from keras_tfm.runtime.compile import ModelWeights

        model = keras.Sequential([keras.layers.Dense(2)])
        model.build((None, 3))
        assert len(ModelWeights(model).variables) == 2
        ```
    """

    def __init__(self, model: Any, matmul_precision: str = "float32"):
        _check_precision(matmul_precision, getattr(model, "variables", []))
        self.precision = matmul_precision
        self.model, self.variables, self.copies = model, [], None
        self.products: dict = {}  # prepacked weights, see `capture`
        if matmul_precision == "bfloat16" and keras.config.backend() == "jax":
            module = optional_module("bfloat16")
            self.copies = module and module.Bfloat16Weights()
        self.refresh()

    def refresh(self) -> None:
        """Reads the list of variables, which LoRA and quantization change."""
        self.variables = list(getattr(self.model, "variables", []))

    def values(self) -> Any:
        """Returns the present values, as JAX's compiled functions take them."""
        variables = self.variables  # another thread may refresh them
        values = [variable.value for variable in variables]
        if self.copies is None:
            return values
        return values, self.copies(variables, values)


def _check_precision(precision, variables):
    """Raises a ValueError if the backend or the processor lacks a precision."""
    backend = keras.config.backend()
    if precision != "float32" and backend == "torch":
        devices = {variable.value.device.type for variable in variables} - {"cpu"}
        if devices:  # PyTorch packs weights on CPUs alone
            raise ValueError(
                f"`matmul_precision` must be 'float32' on {devices.pop()} with "
                f"PyTorch; got {precision!r}. Leave it out, or set "
                "KERAS_BACKEND=jax for 'bfloat16'."
            )
    if precision == "bfloat16" and backend == "tensorflow":
        raise ValueError(
            "`matmul_precision` must be 'float32' on TensorFlow, which has no "
            "product of bfloat16 with a float32 result; got 'bfloat16'. Set "
            "KERAS_BACKEND=jax or torch."
        )
    if precision == "int8" and backend != "torch":
        raise ValueError(
            "`matmul_precision='int8'` needs PyTorch, whose weights of 8 bits are "
            f"packed once; the backend is {backend}. Set KERAS_BACKEND=torch, or "
            "`engine='ctranslate2'` and `compute_type='int8'`."
        )
    if precision == "int8":
        from keras_tfm.runtime.int8 import INSTRUCTIONS, is_supported

        if not is_supported():
            raise ValueError(
                "`matmul_precision='int8'` needs a processor that has one of "
                f"{', '.join(INSTRUCTIONS)}, and torch 2.13. Choose 'float32' or "
                "'bfloat16'."
            )


@functools.cache  # and so one warning
def optional_module(name: str) -> ModuleType | None:
    """Imports a module of this package that uses a backend's private API.

    Args:
        name: `"capture"` or `"bfloat16"`.

    Returns:
        The module; or None, with one warning, where the private API is
        missing.
    """
    try:
        module = importlib.import_module(f"keras_tfm.runtime.{name}")
        module.probe()
    except Exception as error:  # of whatever kind: the fallback works
        warnings.warn(
            f"`keras_tfm.runtime.{name}` does not support this version of "
            f"{keras.config.backend()} ({error!r}). {FALLBACKS[name]}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return module


def compiled(
    function: Callable, model: Any, jit_compile: bool = True, donate: bool = False
) -> Callable:
    """Compiles a function that calls the layers of a model.

    Every call reads the present values of the weights, so that a function
    compiled before training uses the weights after it.

    Args:
        function: function of structures of tensors that returns another.
        model: the Keras model whose variables `function` uses, or any object;
            or a `ModelWeights`, whose list of variables is not refreshed.
        jit_compile: bool. On TensorFlow, True compiles with XLA, and False
            makes a graph. JAX always compiles. PyTorch runs eagerly, which is
            faster than `torch.compile` for searches of changing shapes.
        donate: bool. JAX writes the result into the memory of the first
            argument, which the caller must not use again.

    Returns:
        A function of the same arguments. Their structure must not change; each
        new shape is compiled once.

    Example:
        ```python
        import keras
        from keras_tfm import runtime

        layer = keras.layers.Dense(2, kernel_initializer="ones")
        layer.build((None, 3))
        function = runtime.compiled(layer, layer, jit_compile=False)
        assert function(keras.ops.ones((1, 3))).shape == (1, 2)
        ```
    """
    if not isinstance(model, ModelWeights):
        weights = ModelWeights(model)
        call = compiled(function, weights, jit_compile, donate)

        def refreshing(*arguments):
            weights.refresh()
            return call(*arguments)

        return refreshing
    backend = keras.config.backend()
    if backend == "tensorflow":
        return _compiled_by_tensorflow(function, model, jit_compile)
    if backend == "jax":
        return _compiled_by_jax(function, model, donate)
    return _eager_torch(function)


def _compiled_by_tensorflow(function, weights, jit_compile):
    import tensorflow as tf

    by_shapes, traced_variables, lock = {}, [], threading.Lock()
    successful = set()

    def call(*arguments):
        # TensorFlow warns where one function is traced for many shapes.
        tensors = keras.tree.flatten(arguments)
        shapes = tuple((tuple(x.shape), x.dtype) for x in tensors)
        variables = weights.variables
        if [*map(id, variables)] != [*map(id, traced_variables)]:
            by_shapes.clear()
            successful.clear()
            traced_variables[:] = variables
        if shapes not in by_shapes:
            with lock:  # two threads would compile the same
                if shapes not in by_shapes:
                    by_shapes[shapes] = trace(arguments)
        try:
            result = by_shapes[shapes](*arguments)
        except tf.errors.OpError as error:
            lacks_memory = isinstance(error, tf.errors.ResourceExhaustedError)
            if lacks_memory and CACHE_FILE not in error.message:
                raise
            if shapes in successful or not jit_compile or not compile_cache.discard():
                raise
            result = call_again(shapes, arguments, error)
        successful.add(shapes)
        return result

    def call_again(shapes, arguments, error):
        """Compiles and calls without the files that TensorFlow kept on disk."""
        warnings.warn(
            "TensorFlow cannot use its folder of compiled functions; the files in it "
            f"are deleted: {error.message:.300}",
            RuntimeWarning,
            stacklevel=4,
        )
        by_shapes[shapes] = trace(arguments)
        try:
            return by_shapes[shapes](*arguments)
        except tf.errors.OpError as error:
            if CACHE_FILE not in error.message:
                raise
            raise OSError(
                "TensorFlow cannot write to its folder of compiled functions: "
                f"{error.message:.300}. Free disk space, or set KERAS_TFM_COMPILED= "
                "to keep none."
            ) from error

    def trace(arguments):
        specs = keras.tree.map_structure(
            lambda x: tf.TensorSpec(x.shape, x.dtype), arguments
        )
        # A lambda, since a concrete function requires arguments that have a
        # default. No autograph, which would read the source files again.
        graph = tf.function(
            lambda *args: function(*args), jit_compile=jit_compile, autograph=False
        )
        return graph.get_concrete_function(*specs)

    return call


def _compiled_by_jax(function, weights, donate):
    import jax

    def stateless(values, *arguments):
        # As arguments, since JAX would make captured weights constants.
        with keras.StatelessScope(zip(weights.variables, values, strict=True)):
            return function(*arguments)

    if weights.copies is not None:
        from keras_tfm.runtime.bfloat16 import with_bfloat16_products

        stateless = with_bfloat16_products(stateless, lambda: weights.variables)
    call = jax.jit(stateless, donate_argnums=(1,) if donate else ())
    return lambda *arguments: call(weights.values(), *_over_devices(weights, arguments))


def _over_devices(weights, arguments):
    """Divides rows over the devices that hold the weights.

    The mesh is that of `keras.distribution`; its first axis divides the rows.
    What cannot be divided evenly is copied to all devices.
    """
    import jax

    values = (getattr(variable, "value", None) for variable in weights.variables)
    sharding = getattr(next(values, None), "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    if mesh is None or mesh.size == 1:
        return arguments
    axis = mesh.axis_names[0]

    def place(x):
        is_divisible = x.ndim > 0 and x.size > 0 and x.shape[0] % mesh.shape[axis] == 0
        spec = jax.sharding.PartitionSpec(*[axis] * is_divisible)
        return jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))

    return jax.tree.map(place, arguments)


def _eager_torch(function):
    import torch

    def eager(*arguments):
        with torch.inference_mode():
            return function(*arguments)

    return eager


class CompiledFunctions:
    """Compiles each function once and keeps it.

    Args:
        weights: `ModelWeights`.
        jit_compile: bool, as in `compiled`.

    Example:
        ```python
        from keras_tfm.runtime.compile import CompiledFunctions, ModelWeights

        functions = CompiledFunctions(ModelWeights(None), jit_compile=False)
        double = functions.get("double", lambda x: 2 * x)
        assert functions.get("double", None) is double
        ```
    """

    def __init__(self, weights: ModelWeights, jit_compile: bool = True):
        self.weights, self.jit_compile = weights, jit_compile
        self._functions = {}

    def get(self, key: Hashable, function: Callable, donate: bool = False) -> Callable:
        """Returns a compiled function, the same for the same key.

        Args:
            key: what the function does.
            function, donate: as in `compiled`.
        """
        if key not in self._functions:
            new = compiled(function, self.weights, self.jit_compile, donate)
            # Two threads may be here; the first one's function is for both.
            self._functions.setdefault(key, new)
        return self._functions[key]


def captured(
    function: Callable, weights: ModelWeights, max_operations: int | None = None
) -> Callable:
    """Prepares a function for capture and replay on PyTorch.

    On other backends it stays as it is.

    It belongs inside a compiled function.

    Args:
        function: function of structures of tensors that returns another,
            without loops; see `keras_tfm.runtime.capture`.
        weights: `ModelWeights` of the compiled function.
        max_operations: int >= 1, or None. A function of more operations for a
            shape is not replayed.

    Returns:
        A function without arguments that returns the function to call. The
        latter is valid until the weights of the model are replaced.

    Example:
        ```python
        from keras import ops
        from keras_tfm.runtime.compile import ModelWeights, captured

        ready = captured(lambda x: 2 * x, ModelWeights(None))
        assert float(ready()(ops.ones(()))) == 2.0
        ```
    """
    is_torch = keras.config.backend() == "torch"
    module = optional_module("capture") if is_torch else None
    if module is None:
        return lambda: function
    replay = module.CapturedFunction(
        function, weights.precision, weights.products, max_operations
    )
    captured_values = []

    def ready():
        values = [variable.value for variable in weights.variables]
        if [*map(id, values)] != [*map(id, captured_values)]:
            if captured_values:
                replay.clear()
            captured_values[:] = values
        replay.check_weights()
        return replay

    return ready
