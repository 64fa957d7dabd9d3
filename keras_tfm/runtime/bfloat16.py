"""Multiplies by weights in bfloat16, with float32 sums (JAX).

A processor that multiplies bfloat16 (AVX512_BF16, AMX) takes half the time that
it takes for float32. XLA uses these instructions only for products of bfloat16
whose result is float32, and neither Keras nor a setting of JAX asks for them.
So a function is read as JAX has traced it, and its products by weights are
replaced by such products. Everything else stays as it is.

Private API, tested with jax 0.10: `jax.extend.core.Literal`, and of jaxprs
`eqns`, `invars`, `outvars`, `constvars`, `ctx.manager`, `Primitive.bind` and
`get_bind_params`. `probe` raises where it is missing; decoding then multiplies
in float32, which gives the same ids but for rounding.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

MIN_ELEMENTS = 2**14  # smaller weights: their products take no time


class Bfloat16Weights:
    """Keeps a bfloat16 copy of each weight, in the layout of its products.

    A copy is made anew when its variable has another value. JAX arrays never
    change in place.

    Example:
        ```python
        import keras

        if keras.config.backend() == "jax":
            from keras_tfm.runtime.bfloat16 import Bfloat16Weights

            weight = keras.Variable(keras.ops.ones((128, 128)))
            [copy] = Bfloat16Weights()([weight], [weight.value])
            assert copy.dtype == "bfloat16"
        ```
    """

    def __init__(self):
        self.copies = {}  # by id of the variable: its value and the copy

    def __call__(self, variables: Sequence, values: Sequence) -> list:
        """Returns a copy for each variable; None for a small or integer one.

        Args:
            variables: list of Keras variables.
            values: list of their values.
        """
        self.copies = copies = {
            id(variable): self._copy(variable, value)
            for variable, value in zip(variables, values, strict=True)
        }
        return [copies[id(variable)][1] for variable in variables]

    def _copy(self, variable, value):
        previous = self.copies.get(id(variable))
        if previous is not None and previous[0] is value:
            return previous
        if value.dtype != jnp.float32 or value.ndim < 2 or value.size < MIN_ELEMENTS:
            return value, None
        # Logits multiply by the transposed embedding matrix, which XLA would
        # transpose anew in each call.
        value_in_layout = value.T if _is_embedding(variable) else value
        return value, value_in_layout.astype(jnp.bfloat16)


def _is_embedding(variable):
    return variable.name == "embeddings" and len(variable.shape) == 2


class _TracedWeight:
    """A weight inside a traced function.

    Args:
        value: the float32 array.
        copy: the bfloat16 array.
        axes: the axes of `value` that are those of `copy`, in its order.
    """

    def __init__(self, value, copy, axes):
        self.value, self.copy, self.axes = value, copy, axes

    def transposed(self, permutation):
        new_axis = {axis: i for i, axis in enumerate(permutation)}
        value = jnp.transpose(self.value, permutation)
        return _TracedWeight(
            value, self.copy, tuple(new_axis[axis] for axis in self.axes)
        )

    def multiplied(self, x, x_axes, weight_axes):
        """Returns the product in bfloat16; None where float32 is faster."""
        count = len(weight_axes)
        is_in_layout = self.axes == tuple(range(len(self.axes)))
        is_leading = tuple(weight_axes) == tuple(range(count))
        is_trailing = tuple(x_axes) == tuple(range(x.ndim - count, x.ndim))
        if not (is_in_layout and is_leading and is_trailing):
            return None
        return jax.lax.dot_general(
            x.astype(jnp.bfloat16),
            self.copy,
            ((x_axes, weight_axes), ((), ())),
            preferred_element_type=jnp.float32,
        )


def with_bfloat16_products(function: Callable, variables: Callable) -> Callable:
    """Returns a function that multiplies by bfloat16 weights.

    Args:
        function: `(values, *arguments) -> result`, structures of arrays;
            `values` are those of the variables.
        variables: function without arguments that returns the Keras variables.

    Returns:
        Function of `((values, copies), *arguments)`, where `copies` come from
        `Bfloat16Weights`.
    """

    def call(weights: Any, *arguments: Any) -> Any:
        values, copies = weights
        jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(values, *arguments)
        inputs = []
        for variable, value, copy in zip(variables(), values, copies, strict=True):
            if copy is not None:
                reverse = _is_embedding(variable)
                axes = (1, 0) if reverse else tuple(range(value.ndim))
                value = _TracedWeight(value, copy, axes)
            inputs.append(value)
        outputs = _evaluate(jaxpr, [*inputs, *jax.tree.leaves(arguments)])
        return jax.tree.unflatten(jax.tree.structure(shapes), map(_array, outputs))

    return call


def probe() -> None:
    """Raises an exception where the private API is not as expected."""
    function = with_bfloat16_products(lambda values, x: x * 2.0, lambda: [])
    if float(function(([], []), jnp.ones(()))) != 2.0:
        raise AttributeError("a traced function does not repeat its result")


def _array(x):
    return x.value if isinstance(x, _TracedWeight) else x


def _evaluate(closed_jaxpr, arguments):
    """Evaluates a traced function, operation by operation."""
    jaxpr = closed_jaxpr.jaxpr
    values = dict(zip(jaxpr.constvars, closed_jaxpr.consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def read(x):
        return x.val if isinstance(x, core.Literal) else values[x]

    for equation in jaxpr.eqns:
        inputs = [read(x) for x in equation.invars]
        with equation.ctx.manager:
            outputs = _evaluate_equation(equation, inputs)
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(x) for x in jaxpr.outvars]


def _evaluate_equation(equation, inputs):
    """Returns the outputs of one operation."""
    name, parameters = equation.primitive.name, equation.params
    if name in ("jit", "pjit"):
        return _evaluate(parameters["jaxpr"], inputs)
    if name == "transpose" and not isinstance(inputs[0], _TracedWeight):
        # XLA would fuse it with a product of bfloat16 that it cannot compile.
        inputs = [jax.lax.optimization_barrier(inputs[0])]
    if any(isinstance(x, _TracedWeight) for x in inputs):
        if name == "transpose":
            return [inputs[0].transposed(parameters["permutation"])]
        if name == "while":
            return _evaluate_loop(parameters, inputs)
        product = _product(parameters, inputs) if name == "dot_general" else None
        if product is not None:
            return [product]
    options = equation.primitive.get_bind_params(parameters)
    outputs = equation.primitive.bind(*map(_array, inputs), **options)
    return outputs if equation.primitive.multiple_results else [outputs]


def _product(parameters, inputs):
    """Returns a product by a weight in bfloat16; None where it is another."""
    x, weight = _array(inputs[0]), inputs[1]
    (x_axes, weight_axes), (batch_axes, _) = parameters["dimension_numbers"]
    if not isinstance(weight, _TracedWeight) or batch_axes or x.dtype != jnp.float32:
        return None
    return weight.multiplied(x, x_axes, weight_axes)


def _evaluate_loop(parameters, inputs):
    """Evaluates a loop that has weights among its constants."""
    num_cond, num_body = parameters["cond_nconsts"], parameters["body_nconsts"]
    cond_constants = inputs[:num_cond]
    body_constants = inputs[num_cond : num_cond + num_body]

    def cond(state):
        return _evaluate(parameters["cond_jaxpr"], [*cond_constants, *state])[0]

    def body(state):
        outputs = _evaluate(parameters["body_jaxpr"], [*body_constants, *state])
        return [*map(_array, outputs)]

    state = [*map(_array, inputs[num_cond + num_body :])]
    return jax.lax.while_loop(cond, body, state)
