"""One compiled program from a function of a model, on each backend.

The one place outside `text` and `serving` where a backend's own API stands,
with `record`, `packed` and `narrow`, which it uses: Keras compiles what `fit`
and `predict` run, but has no call that compiles a function of tensors.
"""

import threading

import keras

PRECISIONS = ("float32", "bfloat16")


class Weights:
    """The weights of a model, as its programs take them.

    Args:
        model: a Keras model; what has no variables, such as a toy, is as good.
        matmul_precision: `"float32"`; or `"bfloat16"`, on JAX and PyTorch:
            products of float32 numbers by the model's float32 weights are of
            bfloat16, on PyTorch those of steps alone, whose results are rounded
            to it too. What is quantised, has LoRA or another policy stays.

    Raises:
        ValueError: another precision, or bfloat16 on TensorFlow.
    """

    def __init__(self, model, matmul_precision="float32"):
        if matmul_precision not in PRECISIONS:
            raise ValueError(
                f"`matmul_precision` is one of {PRECISIONS}. Received: "
                f"{matmul_precision!r}."
            )
        self.narrow = matmul_precision == "bfloat16"
        if self.narrow and keras.config.backend() == "tensorflow":
            raise ValueError(
                "TensorFlow has no product of bfloat16 that is float32. Received: "
                "matmul_precision='bfloat16'. Set KERAS_BACKEND=jax or torch."
            )
        self.model, self.variables, self._narrow_of = model, [], None
        if self.narrow and keras.config.backend() == "jax":
            from keras_tfm.runtime.bfloat16 import Narrow

            self._narrow_of = Narrow()
        self.look()

    def look(self):
        """Finds the variables: LoRA and quantisation give a model others."""
        self.variables = list(getattr(self.model, "variables", []))

    def values(self):
        """What the variables hold now, as JAX's programs take it."""
        variables = self.variables  # which another thread may look for anew
        values = [variable.value for variable in variables]
        if self._narrow_of is None:
            return values
        return values, self._narrow_of(variables, values)


def compiled(function, model, jit_compile=True, donate=False):
    """Compiles a function that calls the layers of a model.

    The values of weights are read anew at every call, so that a function
    compiled before training decodes with the weights after it.

    Args:
        function: a function of structures of tensors, giving another.
        model: the Keras model whose variables it uses; what has none, such as
            a toy, is as good. Or its `Weights`: those that it last found.
        jit_compile: bool. On TensorFlow, compile with XLA; else a graph. JAX
            always compiles; PyTorch runs eagerly, which is faster than
            `torch.compile` for a search of changing shapes.
        donate: bool. The first argument is given away: on JAX the result is
            written where it stood, without a copy.

    Returns:
        A function of the same arguments, which always have one structure. Each
        new shape is compiled once.
    """
    if not isinstance(model, Weights):
        weights = Weights(model)
        program = compiled(function, weights, jit_compile, donate)

        def looking(*arguments):
            weights.look()
            return program(*arguments)

        return looking
    weights, backend = model, keras.config.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        traced, variables_then, lock = {}, [], threading.Lock()

        def call(*arguments):
            # Shape by shape: TensorFlow warns where it traces many by itself.
            leaves = keras.tree.flatten(arguments)
            shapes = tuple((tuple(x.shape), x.dtype) for x in leaves)
            variables = weights.variables
            if [*map(id, variables)] != [*map(id, variables_then)]:
                traced.clear()
                variables_then[:] = variables
            if shapes in traced:
                return traced[shapes](*arguments)
            with lock:  # or threads would compile the same
                if shapes not in traced:
                    traced[shapes] = trace(arguments)
            return traced[shapes](*arguments)

        def trace(arguments):
            specifications = keras.tree.map_structure(
                lambda x: tf.TensorSpec(x.shape, x.dtype), arguments
            )
            # A concrete function asks for arguments that have a default too. No
            # autograph: it would read the source files again.
            program = tf.function(
                lambda *given: function(*given),
                jit_compile=jit_compile,
                autograph=False,
            )
            return program.get_concrete_function(*specifications)

        return call
    if backend == "jax":
        import jax

        def stateless(values, *arguments):
            # As arguments: JAX would bake captured weights into the program.
            with keras.StatelessScope(zip(weights.variables, values, strict=True)):
                return function(*arguments)

        if weights.narrow:
            from keras_tfm.runtime.bfloat16 import narrowed

            stateless = narrowed(stateless, lambda: weights.variables)
        program = jax.jit(stateless, donate_argnums=(1,) if donate else ())
        return lambda *arguments: program(weights.values(), *arguments)
    import torch

    def eager(*arguments):
        with torch.inference_mode():
            return function(*arguments)

    return eager


def player(function, weights):
    """Makes what on PyTorch plays a function as it was recorded.

    It stands in a compiled function, and elsewhere does nothing.

    Args:
        function: a function of structures of tensors, giving another, without
            loops; see `keras_tfm.runtime.capture`.
        weights: as of `compiled`.

    Returns:
        A function without arguments, which gives the function to call. That
        may be called as long as no other weights take the place of the model's.
    """
    if keras.config.backend() != "torch":
        return lambda: function
    from keras_tfm.runtime.capture import Recorded

    recorded, variables_then = Recorded(function, weights.narrow), []

    def ready():
        variables = [variable.value for variable in weights.variables]
        if [*map(id, variables)] != [*map(id, variables_then)]:
            recorded.forget()
            variables_then[:] = variables
        recorded.look()
        return recorded

    return ready
