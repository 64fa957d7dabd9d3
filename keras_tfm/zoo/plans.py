"""Which tensor of a file a variable of ours gets, and how it is turned.

A plan is a list of triples: a variable, the names of tensors, and a function of
their arrays that gives the variable's value.
"""

import math

import keras
import numpy as np

from keras_tfm.layers import gelu_tanh

NEVER = -1e9  # a logit
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
        kernel, width = layer.kernel, _width(layer)
        theirs = (width, math.prod(kernel.shape) // width)
        # They map by x W^T + b, without an axis of heads.
        pairs = [(kernel, "weight", _reshaped(theirs, kernel.shape, transpose=True))]
        if layer.bias is not None:
            shape = layer.bias.shape
            pairs.append((layer.bias, "bias", _reshaped((width,), shape)))
    return [(variable, [f"{name}.{part}"], make) for variable, part, make in pairs]


def _width(layer):
    """How many numbers a projection gives for one vector."""
    if isinstance(layer, keras.layers.Dense):
        return layer.kernel.shape[-1]
    inputs, kernel, outputs = layer.equation.replace("->", ",").split(",")
    sizes = zip(kernel, layer.kernel.shape, strict=True)
    return math.prod(size for axis, size in sizes if axis not in inputs)


def _reshaped(before, after, transpose=False):
    def make(array):
        if array.shape != before:
            return array  # which is refused
        return (array.T if transpose else array).reshape(after)

    return make


def logits_bias(model):
    """Gives the variable that is added to the logits.

    Args:
        model: `Transformer` with `logits_bias`.
    """
    if model.projection is None:
        return model.target_embedding.bias
    return model.projection.bias


class Ids:
    """Which token of theirs has which id here.

    Padding, the unknown token, the start and the end are 0 to 3; the others
    follow in their order. Where decoding starts with padding or with the end,
    the start here is a token of its own, which has the same row, and a bias by
    which it is never said.

    Args:
        size: int, V of theirs.
        pad_id: int, of theirs, as those that follow.
        unknown_id: int.
        start_id: int, the first token that the decoder reads.
        end_id: int.

    Attributes:
        size: int, V here.
        order: int array, the id of theirs that each id here stands for.
        start_id, end_id: int, here.
        unknown_id: int, of theirs.
        has_own_start: bool.

    Raises:
        ValueError: an id is outside the vocabulary, or two are one.
    """

    start_id, end_id = 2, 3

    def __init__(self, size, pad_id, unknown_id, start_id, end_id):
        first = [pad_id, unknown_id, start_id, end_id]
        known = all(isinstance(i, int) and 0 <= i < size for i in first)
        if not known or len({pad_id, unknown_id, end_id}) < 3 or start_id == unknown_id:
            raise ValueError(
                "Padding, the unknown token and the end are three of the vocabulary, "
                f"and one is the start. Received: {pad_id}, {unknown_id} and {end_id}, "
                f"start {start_id}, of vocab_size={size}."
            )
        self.order = np.array([*first, *(i for i in range(size) if i not in first)])
        self.size, self.unknown_id = len(self.order), unknown_id
        self.has_own_start = start_id in (pad_id, end_id)
        # Of two rows that are one of theirs, the start is the second choice.
        self._ours = {self.order[2]: 2}
        self._ours |= {theirs: i for i, theirs in enumerate(self.order) if i != 2}
        self._theirs = size

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
        """
        # Another size is refused by its shape.
        return table[self.order] if len(table) == self._theirs else table

    def bias(self, given=None):
        """Gives the bias of the logits in the order here.

        Args:
            given: array `(1, V)` of theirs, or None for zeros.
        """
        if given is None:
            given = np.zeros((1, self._theirs), "float32")
        found = self.rows(given[0])
        if self.has_own_start and len(found) == self.size:
            found[self.start_id] = NEVER
        return found
