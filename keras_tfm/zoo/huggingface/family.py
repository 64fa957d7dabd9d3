"""What one family of architectures of transformers has to state."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import keras

from keras_tfm.file_reading import Config
from keras_tfm.layers import gelu_tanh
from keras_tfm.zoo.huggingface.tokenizer_folder import TokenizerFolder
from keras_tfm.zoo.huggingface.weights_folder import WeightsFolder
from keras_tfm.zoo.token_permutation import TokenPermutation
from keras_tfm.zoo.weight_mapping import WeightMapping

# Activations by their names in transformers.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


@dataclasses.dataclass
class Checkpoint:
    """A folder of transformers that is being read.

    Attributes:
        folder: path.
        config: `Config` of `config.json`.
        tensors: `WeightsFolder`.
        head: str, one of the family's heads.
        num_classes: int, of a new classification layer; or None.
        tokenizer: `TokenizerFolder`.
        permutation: `TokenPermutation`; None where ids stay.
        target_permutation: as `permutation`, of the target; often the same.
    """

    folder: pathlib.Path
    config: Config
    tensors: WeightsFolder
    head: str
    num_classes: int | None
    tokenizer: TokenizerFolder
    permutation: TokenPermutation | None = None
    target_permutation: TokenPermutation | None = None

    @property
    def model_type(self) -> str:
        """The name of the architecture in `config.json`."""
        return self.config["model_type"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Describes how architectures of transformers become models here.

    A new family is one module with a `Family`, and its name in
    `load.FAMILIES`.

    Attributes:
        model_types: names of its architectures in `config.json`.
        heads: heads that are read, the default first: `"encoder"`,
            `"masked_lm"`, `"classifier"`, `"seq2seq"`, `"causal_lm"`.
        permutations: function from the config and the `TokenizerFolder` to the
            `TokenPermutation` of source and target; None where ids stay.
        arguments: function from the `Checkpoint` to the arguments of the model.
        build: function from the `Checkpoint` and these arguments to the model.
        weights: function from the model and the `Checkpoint` to the weight
            mapping.
        ignored: regular expressions of tensors that mean nothing here, such
            as buffers, copies and other heads.
        vocabulary: function from the `Checkpoint` and the model to a dict of
            fields of `Imported`.
        decoding: function from the `Checkpoint` to decoding options over those
            of `generation_config.json`; None for models that do not generate.

    Example:
        ```python
        from keras_tfm.zoo.huggingface import bart, load

        print("marian" in bart.FAMILY.model_types, bart.FAMILY in load.FAMILIES)
        ```
    """

    model_types: tuple[str, ...]
    heads: tuple[str, ...]
    permutations: (
        Callable[[Config, TokenizerFolder], tuple[TokenPermutation, TokenPermutation]]
        | None
    )
    arguments: Callable[[Checkpoint], dict[str, Any]]
    build: Callable[[Checkpoint, dict[str, Any]], keras.Model]
    weights: Callable[[keras.Model, Checkpoint], WeightMapping]
    ignored: tuple[str, ...]
    vocabulary: Callable[[Checkpoint, keras.Model], dict[str, Any]]
    decoding: Callable[[Checkpoint], dict[str, Any]] | None = None


def activation(config: Config, name: str, default: str | None = None) -> str | Callable:
    """Reads the Keras activation that a config names.

    Args:
        config: `Config`.
        name: str, of the value.
        default: str, where there is no such value; or None.

    Raises:
        ValueError: the activation is not supported.
    """
    function = config.string(name, default) if default else config.string(name)
    if function not in ACTIVATIONS:
        raise ValueError(
            f"{config.file}: `{name}` must be one of {sorted(ACTIVATIONS)}; got "
            f"{function!r}."
        )
    return ACTIVATIONS[function]


def check_plain(config: Config, expected: dict[str, Any]) -> None:
    """Checks that a config sets nothing that the models here lack.

    Args:
        config: `Config`.
        expected: dict from names to the only value that is supported.

    Raises:
        ValueError: a value differs.
    """
    wrong = {k: config[k] for k, v in expected.items() if config.get(k, v) != v}
    if wrong:
        supported = {name: expected[name] for name in wrong}
        raise ValueError(f"{config.file} must have {supported}; got {wrong}.")
