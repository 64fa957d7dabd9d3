"""Blocks of ours as transformers' have them, and whether they can be."""

import operator

import keras
import numpy as np

from keras_tfm.zoo import arrays, plans

EVERY = slice(None)  # channels, in their order


def activation(function):
    """Names an activation as transformers does.

    Args:
        function: Keras activation.

    Raises:
        ValueError: it has none such.
    """
    known = {keras.activations.get(v): k for k, v in plans.ACTIVATIONS.items()}
    name = known.get(keras.activations.get(function))
    if name is None:
        raise ValueError(
            f"Activations that transformers has: {sorted(plans.ACTIVATIONS)}. "
            f"Received: {function!r}."
        )
    return name


def check(name, given, wanted):
    """Refuses a model of another shape than theirs.

    Args:
        name: str, of theirs.
        given: dict of settings.
        wanted: dict from some of their names to tuples of what may be.

    Raises:
        ValueError: there is something else.
    """
    wrong = {k: given[k] for k, may in wanted.items() if given[k] not in may}
    if wrong:
        shape = ", ".join(f"{key}={wanted[key][0]!r}" for key in wrong)
        raise ValueError(
            f"A {name} of transformers has {shape}. Received: {wrong}. It has nothing "
            "for this model."
        )


def block_shape(settings):
    """Tells what `check` wants of every block.

    Args:
        settings: mapping, of a `Transformer` or `Encoder`.
    """
    head = settings["embedding_dim"] // settings["num_heads"]
    return {
        "gated": (False,),
        "normalization": ("layer_norm",),
        "score": ("scaled_dot",),
        "num_key_value_heads": (None, settings["num_heads"]),
        "key_dim": (None, head),
        "value_dim": (None, head),
    }


def layer(one, name, order=EVERY, reads=True):
    """Gives the tensors of a projection or normalisation, as PyTorch has them.

    Args:
        one: built layer.
        name: str, of theirs.
        order: int array `(D,)`: our channel of each of theirs.
        reads: bool. It reads the D channels between blocks, or else gives
            them.

    Returns:
        dict of two float32 arrays.
    """
    if isinstance(one, keras.layers.LayerNormalization):
        weight, bias = (values[order] for values in arrays.norm(one))
    else:
        # They map by x W^T + b.
        weight, bias = arrays.kernel(one).T, arrays.bias(one)
        if reads:
            weight = weight[:, order]
        else:
            weight, bias = weight[order], bias[order]
    return {
        f"{name}.weight": np.ascontiguousarray(weight),
        f"{name}.bias": np.ascontiguousarray(bias),
    }


def blocks(stack, names, stem, order=EVERY):
    """Gives the tensors of a stack.

    Args:
        stack: list of blocks.
        names: dict from our layers to theirs.
        stem: str with the place of a number.
        order: of `layer`.

    Returns:
        dict of float32 arrays.
    """
    tensors = {}
    for number, block in enumerate(stack):
        for ours, theirs in names.items():
            tensors |= layer(
                operator.attrgetter(ours)(block),
                f"{stem.format(number)}.{theirs}",
                order,
                reads=not ours.endswith("output_dense"),
            )
    return tensors
