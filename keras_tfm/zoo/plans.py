"""Which tensor of a file a variable of ours gets, and how it is turned.

A plan is a list of triples: a variable, the names of tensors, and a function of
their arrays that gives the variable's value.
"""

import functools
import math
import re

import keras
import numpy as np
from keras import ops

# Keras has no public way to give up variables that wait for their values.
from keras.src.backend.common import global_state

from keras_tfm.layers import gelu_tanh
from keras_tfm.models import stacks

NEVER = -1e4  # a logit; smoothed labels give each of V its 1e4 / V
WAITING = "uninitialized_variables"
LARGER = 5  # times, that a variable may be than the tensors it is made of
FLOATS = ("float", "bfloat")
# As `transformers` names them.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def activation(name):
    """Gives the Keras activation of that name in transformers.

    Args:
        name: str.

    Raises:
        ValueError: it is not read.
    """
    if name not in ACTIVATIONS:
        raise ValueError(
            f"Activations that are read: {sorted(ACTIVATIONS)}. Received: {name!r}."
        )
    return ACTIVATIONS[name]


def same(array):
    """The value is the tensor itself."""
    return array


def layer_plan(layer, name):
    """Plans a projection or a normalisation of PyTorch.

    Args:
        layer: built `Dense`, `EinsumDense`, `LayerNormalization` or
            `RMSNormalization`.
        name: str, before `.weight` and `.bias`.

    Returns:
        A plan of one variable or two.
    """
    if isinstance(layer, keras.layers.RMSNormalization):
        return [(layer.scale, [f"{name}.weight"], same)]
    if isinstance(layer, keras.layers.LayerNormalization):
        pairs = ((layer.gamma, "weight", same), (layer.beta, "bias", same))
    else:
        kernel, width = layer.kernel, width_of(layer)
        theirs = (width, math.prod(kernel.shape) // width)
        # They map by x W^T + b, without an axis of heads.
        pairs = [(kernel, "weight", reshaped(theirs, kernel.shape, transpose=True))]
        if layer.bias is not None:
            shape = layer.bias.shape
            pairs.append((layer.bias, "bias", reshaped((width,), shape)))
    return [(variable, [f"{name}.{part}"], make) for variable, part, make in pairs]


def columns_plan(layer, kernel, bias=None, part=0, parts=1):
    """Plans a projection x W + b, of which several may stand side by side.

    Args:
        layer: built `Dense` or `EinsumDense`.
        kernel: str, the name of W, without an axis of heads.
        bias: str, the name of b, if the layer has one.
        part: int: which of those side by side.
        parts: int: how many there are, all of one width.

    Returns:
        A plan of one variable or two.
    """
    width = width_of(layer)

    def make(array, shape):
        if array.size != parts * math.prod(shape) or array.shape[-1] != parts * width:
            return array  # which is refused
        return array[..., part * width : (part + 1) * width].reshape(shape)

    pairs = [(layer.kernel, kernel), (layer.bias, bias)]
    return [
        (variable, [name], functools.partial(make, shape=tuple(variable.shape)))
        for variable, name in pairs
        if variable is not None
    ]


def width_of(layer):
    """Tells how many numbers a projection gives for one vector.

    Args:
        layer: built `Dense` or `EinsumDense`.
    """
    if isinstance(layer, keras.layers.Dense):
        return layer.kernel.shape[-1]
    inputs, kernel, outputs = layer.equation.replace("->", ",").split(",")
    sizes = zip(kernel, layer.kernel.shape, strict=True)
    return math.prod(size for axis, size in sizes if axis not in inputs)


def reshaped(before, after, transpose=False):
    """Gives a function that turns an array from one shape to another.

    Args:
        before: tuple of int, the shape it must have; another is left as it is,
            and then refused.
        after: tuple of int.
        transpose: bool. Transposed first.
    """

    def make(array):
        if array.shape != before:
            return array  # which is refused
        return (array.T if transpose else array).reshape(after)

    return make


def output_plan(model, ids, kernel, bias=None, turned=False):
    """Plans what gives a `Transformer` its logits, but for a tied table.

    Args:
        model: `Transformer`.
        ids, kernel, bias, turned: of `logits_plan`.

    Returns:
        A plan of up to two variables.
    """
    table, projection = model.target_embedding, model.projection
    return logits_plan(table, projection, ids, kernel, bias, turned)


def logits_plan(table, projection, ids, kernel, bias=None, turned=False):
    """Plans what gives logits, but for a tied table.

    Args:
        table: `TokenAndPositionEmbedding`.
        projection: `keras.layers.Dense`, or None for the table.
        ids: `Ids` of what is said.
        kernel: str, the name of the projection, if it is not tied.
        bias: str, the name of its bias; or None.
        turned: bool. The projection is `(D, V)`, as here, and not `(V, D)`.

    Returns:
        A plan of up to two variables.
    """
    plan = []
    if projection is not None:

        def make(array):
            return ids.rows(array.T if turned else array).T

        plan.append((projection.kernel, [kernel], make))
    variable = stacks.logits_bias(table, projection)
    if variable is not None:
        plan.append((variable, [bias] if bias else [], ids.bias))
    return plan


def check(plan, source, shapes, left=(), advice=""):
    """Refuses weights of which some are missing, or mean nothing here.

    Args:
        plan: see above.
        source: path, what is named in an error.
        shapes: dict by the names of all tensors.
        left: tuple of str, regular expressions: a tensor whose whole name is
            one of them means nothing here.
        advice: str, what else may help.

    Raises:
        ValueError: there are such, which are named.
    """
    wanted = {name for _, names, _ in plan for name in names}
    missing = sorted(wanted - set(shapes))
    unknown = sorted(
        name
        for name in set(shapes) - wanted
        if not any(re.fullmatch(one, name) for one in left)
    )
    if missing or unknown:
        raise ValueError(
            f"{source}: weights and configuration do not fit. Received: {len(missing)} "
            f"missing, {missing[:8]}; {len(unknown)} unknown, {unknown[:8]}. Check "
            f"that both are of one model{advice}."
        )
    for variable, names, _ in plan:
        given = sum(math.prod(shapes[name]) for name in names)
        # A few rows may be added to a table: no more is made than was given.
        if names and math.prod(variable.shape) > LARGER * max(given, 1):
            raise misfit(source, names[0], shapes[names[0]], variable)


def misfit(source, name, shape, variable):
    """Makes the error of a tensor of another shape than is wanted.

    Args:
        source: path.
        name: str, of the tensor.
        shape: tuple of int, of the tensor.
        variable: that it was for.
    """
    return ValueError(
        f"{source}: {name!r} does not fit the configuration. Received: shape "
        f"{tuple(shape)} for {variable.path} of shape {tuple(variable.shape)}."
    )


class Filling:
    """A model made inside gets the values of a plan, and no others before.

    A model usually has random values first, and each variable then both these
    and the new ones, which for a table of words is much. Inside, its variables
    wait; as the scope ends each is made with the value that it is to have.

    Args:
        source: path, what is named in an error.

    Raises:
        ValueError: at the end, a tensor of another shape than the others want.
    """

    def __init__(self, source):
        self._source, self._errors = source, []
        self._scope = keras.StatelessScope()

    def __enter__(self):
        self._waiting = list(global_state.get_global_attribute(WAITING) or [])
        self._scope.__enter__()
        return self

    def fill(self, plan, array):
        """Gives the variables of a plan their values when the scope ends.

        Args:
            plan: see above.
            array: function of a tensor's name, giving it.
        """
        rounded = [v.path for v, _, _ in plan if not v.dtype.startswith(FLOATS)]
        if rounded:
            raise ValueError(
                "Weights are read into variables of floats. Received: integers for "
                f"{rounded[:4]}. Load the model in float32, and quantise it then."
            )
        for variable, names, make in plan:
            # Keras has no public way to say later what a variable begins with.
            variable._initializer = functools.partial(
                self._value, variable, names, make, array
            )

    def __exit__(self, *error):
        if error[0] is not None:  # nothing is made of what was begun
            global_state.set_global_attribute(WAITING, self._waiting)
        self._scope.__exit__(*error)
        if self._errors and error[0] is None:
            raise self._errors[0]

    def _value(self, variable, names, make, array, shape, dtype):
        # An error here would leave Keras with variables that it tries to make
        # ever after.
        try:
            shapes = []

            def read(name):
                found = array(name)
                shapes.append(found.shape)
                return found

            # Nothing holds what was read once it has been turned.
            value = make(*map(read, names))
            if value.shape != tuple(shape):
                raise misfit(self._source, names[0], shapes[0], variable)
            return ops.cast(ops.convert_to_tensor(value), dtype)
        except Exception as fault:
            self._errors.append(fault)
            return ops.zeros(shape, dtype)


class Ids:
    """Which token of theirs has which id here.

    Padding, the unknown token, the start and the end are 0 to 3; the others
    follow in their order. Where decoding starts with padding or with the end,
    the start here is a token of its own, which has the same row. Such a one,
    and what theirs does not have, has a bias by which it is never said.

    Args:
        size: int, V of theirs.
        pad_id: int of theirs, as those that follow, or None.
        unknown_id: int, or None.
        start_id: int, the first token that the decoder reads; or None, where it
            reads zeros.
        end_id: int.

    Attributes:
        size: int, V here.
        order: int array, the id of theirs that each id here stands for; -1
            where there is none.
        start_id, end_id: int, here.
        unknown_id: int or None, of theirs.
        added: list of int: what is never said.

    Raises:
        ValueError: an id is outside the vocabulary, or two are one.
    """

    start_id, end_id = 2, 3

    def __init__(self, size, pad_id, unknown_id, start_id, end_id):
        first = [pad_id, unknown_id, start_id, end_id]
        given = [i for i in first if i is not None]
        known = all(isinstance(i, int) for i in (size, *given))
        known = known and all(0 <= i < size for i in given)
        apart = [i for i in (pad_id, unknown_id, end_id) if i is not None]
        mixed = len(set(apart)) < len(apart)
        mixed = mixed or (start_id is not None and start_id == unknown_id)
        if not known or mixed or end_id is None:
            raise ValueError(
                "Padding, the unknown token and the end are three of the vocabulary, "
                f"and one is the start. Received: {pad_id}, {unknown_id} and {end_id}, "
                f"start {start_id}, of vocab_size={size}."
            )
        rest = [i for i in range(size) if i not in given]
        self.order = np.array([-1 if i is None else i for i in first] + rest)
        self.size, self.unknown_id = len(self.order), unknown_id
        self.added = [i for i in range(3) if self.order[i] < 0]
        if start_id is not None and start_id in (pad_id, end_id):
            self.added.append(2)
        # Of two rows that are one of theirs, the start is the second choice.
        self._ours = {self.order[2]: 2}
        self._ours |= {theirs: i for i, theirs in enumerate(self.order) if i != 2}
        self._theirs = size

    @classmethod
    def of(cls, config, unknown_id, start_id):
        """Takes what a configuration of transformers says.

        Args:
            config: dict.
            unknown_id: int, which it does not say.
            start_id: int, where it says none.
        """
        given = config.get("decoder_start_token_id")
        return cls(
            config["vocab_size"],
            config["pad_token_id"],
            unknown_id,
            start_id if given is None else given,
            config["eos_token_id"],
        )

    def ours(self, theirs):
        """Gives the id here of a token of theirs.

        Args:
            theirs: int.
        """
        return self._ours[theirs]

    def rows(self, table):
        """Puts the rows of a table into the order here.

        Args:
            table: array `(V, ...)`.

        Raises:
            ValueError: it has another number of rows.
        """
        if len(table) != self._theirs:
            raise ValueError(
                "A table has a row for each token of the vocabulary. Received: "
                f"{len(table)} rows, and {self._theirs} tokens."
            )
        found = table[self.order]
        found[self.order < 0] = 0
        return found

    def bias(self, given=None):
        """Gives the bias of the logits in the order here.

        Args:
            given: array `(1, V)` or `(V,)` of theirs, or None for zeros.
        """
        if given is None:
            given = np.zeros(self._theirs, "float32")
        found = self.rows(given.reshape(-1)).astype("float32")  # half has no such
        found[self.added] = NEVER
        return found
