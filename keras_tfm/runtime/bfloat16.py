"""On JAX: products by a weight, of bfloat16 and with sums in float32.

A processor that multiplies bfloat16 (AVX512_BF16, AMX) takes half the time for
it that it takes for float32, but XLA uses that only where the sums are asked
for in float32. Neither Keras nor a JAX setting asks for that on a processor; so
a program is read as JAX has traced it, and its products by weights are asked
for in that way. All else stays as it is.
"""

import jax
import jax.numpy as jnp
from jax.extend import core

LEAST = 2**14  # elements of a weight; a product by fewer is no cost


class Narrow:
    """The weights of products, in bfloat16 and as products want them.

    Each is kept until its variable has another value: JAX's never change.
    """

    def __init__(self):
        self.known = {}

    def __call__(self, variables, values):
        """Gives a narrow weight for each variable, or None.

        Args:
            variables: list of Keras variables.
            values: list of their values.
        """
        known = {
            id(variable): self._of(variable, value)
            for variable, value in zip(variables, values, strict=True)
        }
        self.known = known
        return [known[id(variable)][1] for variable in variables]

    def _of(self, variable, value):
        before = self.known.get(id(variable))
        if before is not None and before[0] is value:
            return before
        if value.dtype != jnp.float32 or value.ndim < 2 or value.size < LEAST:
            return value, None
        # A table is multiplied the other way round, and XLA would turn it anew
        # in each program.
        turned = value.T if _is_table(variable) else value
        return value, turned.astype(jnp.bfloat16)


def _is_table(variable):
    return variable.name == "embeddings" and len(variable.shape) == 2


class _Weight:
    """A weight within a program: as it is, and narrow.

    `order` are the axes of the first that are those of the second.
    """

    def __init__(self, value, narrow, order):
        self.value, self.narrow, self.order = value, narrow, order

    def turned(self, permutation):
        """The weight after a transposition."""
        places = {axis: place for place, axis in enumerate(permutation)}
        return _Weight(
            jnp.transpose(self.value, permutation),
            self.narrow,
            tuple(places[axis] for axis in self.order),
        )

    def multiplied(self, x, over, under):
        """The product, or None where another way is faster or the only one."""
        count = len(under)
        straight = self.order == tuple(range(len(self.order)))
        first = tuple(under) == tuple(range(count))
        last = tuple(over) == tuple(range(x.ndim - count, x.ndim))
        if not (straight and first and last):
            return None
        return jax.lax.dot_general(
            x.astype(jnp.bfloat16),
            self.narrow,
            ((over, under), ((), ())),
            preferred_element_type=jnp.float32,
        )


def narrowed(function, variables):
    """Makes a function multiply by narrow weights.

    Args:
        function: `(values, *arguments) -> result`, structures of arrays;
            `values` are those of the variables.
        variables: function without arguments, that gives the Keras variables.

    Returns:
        A function of `((values, narrow), *arguments)`, where `narrow` is of
        `Narrow`.
    """

    def call(weights, *arguments):
        values, narrow = weights
        program, shape = jax.make_jaxpr(function, return_shape=True)(values, *arguments)
        marked = []
        for variable, value, one in zip(variables(), values, narrow, strict=True):
            if one is not None:
                order = (1, 0) if _is_table(variable) else tuple(range(value.ndim))
                value = _Weight(value, one, order)
            marked.append(value)
        found = _run(program, [*marked, *jax.tree.leaves(arguments)])
        return jax.tree.unflatten(jax.tree.structure(shape), map(_plain, found))

    return call


def _plain(x):
    return x.value if isinstance(x, _Weight) else x


def _run(program, arguments):
    """Does what a traced program does, operation after operation."""
    known = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
    known.update(zip(program.jaxpr.invars, arguments, strict=True))
    for equation in program.jaxpr.eqns:
        given = [
            x.val if isinstance(x, core.Literal) else known[x] for x in equation.invars
        ]
        with equation.ctx.manager:
            results = _done(equation, given)
        known.update(zip(equation.outvars, results, strict=True))
    return [
        x.val if isinstance(x, core.Literal) else known[x]
        for x in program.jaxpr.outvars
    ]


def _done(equation, given):
    """The results of one operation."""
    name, parameters = equation.primitive.name, equation.params
    if name in ("jit", "pjit"):
        return _run(parameters["jaxpr"], given)
    if name == "transpose" and not isinstance(given[0], _Weight):
        # Else XLA may join it with a product, to one that it cannot run.
        given = [jax.lax.optimization_barrier(given[0])]
    if any(isinstance(x, _Weight) for x in given):
        if name == "transpose":
            return [given[0].turned(parameters["permutation"])]
        if name == "while":
            return _loop(parameters, given)
        if name == "dot_general" and isinstance(given[1], _Weight):
            x, weight = _plain(given[0]), given[1]
            (over, under), (rows, _) = parameters["dimension_numbers"]
            if not rows and x.dtype == jnp.float32:
                product = weight.multiplied(x, over, under)
                if product is not None:
                    return [product]
    options = equation.primitive.get_bind_params(parameters)
    results = equation.primitive.bind(*map(_plain, given), **options)
    return results if equation.primitive.multiple_results else [results]


def _loop(parameters, given):
    """A loop of which some constants are weights."""
    here, there = parameters["cond_nconsts"], parameters["body_nconsts"]
    asked, done = given[:here], given[here : here + there]

    def goes_on(state):
        return _run(parameters["cond_jaxpr"], [*asked, *state])[0]

    def turn(state):
        return [*map(_plain, _run(parameters["body_jaxpr"], [*done, *state]))]

    state = [*map(_plain, given[here + there :])]
    return jax.lax.while_loop(goes_on, turn, state)
