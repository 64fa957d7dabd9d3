"""Blocks as PyTorch holds them, and whether transformers has such blocks."""

from typing import Any

import keras
import numpy as np

from keras_tfm.zoo import layer_arrays
from keras_tfm.zoo.huggingface.family import ACTIVATIONS
from keras_tfm.zoo.weight_mapping import layer_at

ALL_CHANNELS = slice(None)  # in their order


def activation_name(function) -> str:
    """Returns the name that transformers has for an activation.

    Args:
        function: Keras activation.

    Raises:
        ValueError: transformers has none.
    """
    names = {keras.activations.get(v): k for k, v in ACTIVATIONS.items()}
    name = names.get(keras.activations.get(function))
    if name is None:
        raise ValueError(
            f"`activation` must be one of {sorted(ACTIVATIONS)} for transformers; got "
            f"{function!r}."
        )
    return name


def check_supported(
    architecture: str, config: dict[str, Any], supported: dict[str, tuple]
) -> None:
    """Rejects a model that an architecture of transformers cannot hold.

    Args:
        architecture: str.
        config: dict, of the model.
        supported: dict from some of its names to tuples of supported values.

    Raises:
        ValueError: a value is not supported.
    """
    wrong = {k: config[k] for k, v in supported.items() if config[k] not in v}
    if wrong:
        expected = ", ".join(f"{name}={supported[name][0]!r}" for name in wrong)
        raise ValueError(
            f"`model` must have {expected} to become a {architecture} of transformers; "
            f"got {wrong}. It has nothing for this model."
        )


def supported_blocks(config) -> dict[str, tuple]:
    """Returns what `check_supported` expects of the blocks of any model.

    Args:
        config: mapping, of a `Transformer` or `Encoder`.
    """
    head_dim = config["embedding_dim"] // config["num_heads"]
    return {
        "gated": (False,),
        "normalization": ("layer_norm",),
        "score": ("scaled_dot",),
        "num_key_value_heads": (None, config["num_heads"]),
        "key_dim": (None, head_dim),
        "value_dim": (None, head_dim),
    }


def layer_tensors(
    layer: keras.layers.Layer,
    name: str,
    order=ALL_CHANNELS,
    reads_channels: bool = True,
) -> dict[str, np.ndarray]:
    """Returns the tensors of a projection or normalization.

    Args:
        layer: built layer.
        name: str, in transformers.
        order: int array `(D,)`: our channel of each of theirs.
        reads_channels: bool. The inputs of a projection, not its outputs, are
            the D channels between blocks.

    Returns:
        dict of two float32 arrays.
    """
    if isinstance(layer, keras.layers.LayerNormalization):
        weight, bias = (values[order] for values in layer_arrays.norm(layer))
    else:  # by x W^T + b
        weight, bias = layer_arrays.kernel(layer).T, layer_arrays.bias(layer)
        if reads_channels:
            weight = weight[:, order]
        else:
            weight, bias = weight[order], bias[order]
    return {
        f"{name}.weight": np.ascontiguousarray(weight),
        f"{name}.bias": np.ascontiguousarray(bias),
    }


def block_tensors(
    blocks: list[keras.layers.Layer],
    names: dict[str, str],
    stem: str,
    order=ALL_CHANNELS,
) -> dict[str, np.ndarray]:
    """Returns the tensors of a stack of blocks.

    Args:
        blocks: list of blocks.
        names: dict from paths of our layers to names; see
            `weight_mapping.blocks`.
        stem: str with `{}` for the number of the block.
        order: of `layer_tensors`.

    Returns:
        dict of float32 arrays.
    """
    tensors = {}
    for number, block in enumerate(blocks):
        for path, name in names.items():
            layer, reads = layer_at(block, path), not path.endswith("output_dense")
            if layer is not None:
                name = stem.format(number) + name
                tensors |= layer_tensors(layer, name, order, reads)
    return tensors
