"""One compiled program from a function of a model, on each backend.

The one place outside `text` and `serving` where a backend's own API stands,
with `record` and `packed`, which it uses: Keras compiles what `fit` and
`predict` run, but has no call that compiles a function of tensors.
"""

import threading

import keras


def compiled(function, model, jit_compile=True, donate=False):
    """Compiles a function that calls the layers of a model.

    The model's weights are read anew at every call, so that a function
    compiled before training decodes with the weights after it.

    Args:
        function: a function of structures of tensors, giving another.
        model: the Keras model whose variables it uses; what has none, such as
            a toy, is as good.
        jit_compile: bool. On TensorFlow, compile with XLA; else a graph. JAX
            always compiles; PyTorch runs eagerly, which is faster than
            `torch.compile` for a search of changing shapes.
        donate: bool. The first argument is given away: on JAX the result is
            written where it stood, without a copy.

    Returns:
        A function of the same arguments, which always have one structure. Each
        new shape is compiled once.
    """
    backend = keras.config.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        traced, variables_then, lock = {}, [], threading.Lock()

        def call(*arguments):
            # Shape by shape: TensorFlow warns where it traces many by itself.
            leaves = keras.tree.flatten(arguments)
            shapes = tuple((tuple(x.shape), x.dtype) for x in leaves)
            # LoRA and quantisation give a model other variables.
            variables = getattr(model, "variables", [])
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

        def variables():
            return getattr(model, "variables", [])

        def stateless(values, *arguments):
            # As arguments: JAX would bake captured weights into the program.
            with keras.StatelessScope(zip(variables(), values, strict=True)):
                return function(*arguments)

        program = jax.jit(stateless, donate_argnums=(1,) if donate else ())
        return lambda *arguments: program(
            [variable.value for variable in variables()], *arguments
        )
    import torch

    def eager(*arguments):
        with torch.inference_mode():
            return function(*arguments)

    return eager


def player(function, model):
    """Makes what on PyTorch plays a function as it was recorded.

    It stands in a compiled function, and elsewhere does nothing.

    Args:
        function: a function of structures of tensors, giving another, without
            loops; see `keras_tfm.decode.record`.
        model: as of `compiled`.

    Returns:
        A function without arguments, which gives the function to call. That
        may be called as long as no other weights take the place of the model's.
    """
    if keras.config.backend() != "torch":
        return lambda: function
    from keras_tfm.decode.record import Recorded

    recorded, variables_then = Recorded(function), []

    def ready():
        # LoRA and quantisation give a model other variables.
        variables = [variable.value for variable in getattr(model, "variables", [])]
        if [*map(id, variables)] != [*map(id, variables_then)]:
            recorded.forget()
            variables_then[:] = variables
        recorded.look()
        return recorded

    return ready
