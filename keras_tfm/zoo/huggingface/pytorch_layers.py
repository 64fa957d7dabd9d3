"""What of a model transformers can hold."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from keras_tfm.zoo.huggingface.family import ACTIVATIONS


def activation_name(function: str | Callable) -> str:
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
        choices = {name: " or ".join(map(repr, supported[name])) for name in wrong}
        expected = ", ".join(f"{name}={values}" for name, values in choices.items())
        raise ValueError(
            f"`model` must have {expected} to become a {architecture} of transformers; "
            f"got {wrong}. Train a model with these values, or export another format."
        )


def supported_blocks(config: Mapping[str, Any]) -> dict[str, tuple]:
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


def add_missing_biases(tensors: dict[str, np.ndarray]) -> None:
    """Adds zeros as the bias of each projection that has none.

    Args:
        tensors: dict from names to arrays; it is changed.
    """
    for name, matrix in list(tensors.items()):
        if ".layer" in name and name.endswith(".weight"):
            bias = name.removesuffix("weight") + "bias"
            tensors.setdefault(bias, np.zeros(len(matrix), "float32"))
