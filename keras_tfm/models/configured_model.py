"""Options of the models, and the base that stores and serializes them."""

import inspect
import os
import types
from collections.abc import Callable
from typing import Any, Self, TypedDict

import keras

from keras_tfm.layers.checks import check_rates
from keras_tfm.layers.quantization import dtype_config, settle_policies
from keras_tfm.layers.transformer_block import TransformerBlock


class BlockOptions(TypedDict, total=False):
    """Options that a model passes to each of its blocks, by keyword.

    `layers.transformer_block.TransformerBlock` documents and validates them,
    and has their defaults where a model names no other.
    """

    key_dim: int | None
    value_dim: int | None
    attention_dropout: float
    activation_dropout: float
    activation: str | Callable
    gated: bool
    normalize_first: bool
    normalization: str
    epsilon: float
    use_bias: bool
    score: str
    num_key_value_heads: int | None


class KerasOptions(TypedDict, total=False):
    """Options of every Keras model."""

    name: str | None
    dtype: Any  # a policy, its name or its config
    trainable: bool


class ModelOptions(BlockOptions, KerasOptions, total=False):
    """Keyword arguments of a model of blocks, beside those that it lists."""


_PARAMETERS = inspect.signature(TransformerBlock.__init__).parameters
BLOCK_DEFAULTS = {
    name: _PARAMETERS[name].default for name in BlockOptions.__annotations__
}


class ConfiguredModel(keras.Model):
    """A functional Keras model that keeps the arguments it was made with.

    Args:
        inputs: dict of `keras.KerasTensor`.
        outputs: `keras.KerasTensor`.
        config: dict, arguments of the subclass by name.
        policy: dtype policy.
        options: dict, `KerasOptions`.

    Attributes:
        config: mapping of all arguments by name.

    Example:
        ```python
        from keras_tfm import models

        model = models.encoder_small(100)
        copy = models.Encoder.from_config(model.get_config())
        print(copy.config == model.config)  # True
        ```
    """

    def __init__(
        self,
        inputs: dict,
        outputs: Any,
        config: dict,
        policy: keras.DTypePolicy,
        options: dict,
    ):
        super().__init__(inputs=inputs, outputs=outputs, **options)
        settle_policies(self)
        self.dtype_policy = policy  # `compile` scales the loss of mixed_float16
        # Not a dict: Keras would track a position layer inside it.
        self.config = types.MappingProxyType(config)

    def get_config(self) -> dict:
        config = {"name": self.name, "trainable": self.trainable}
        config["dtype"] = dtype_config(self)
        # Keras itself forgets them: the layers are made anew.
        layers = self._flatten_layers(include_self=False)
        frozen = [x.path for x in layers if x.weights and not x.trainable]
        if self.trainable and frozen:
            config["frozen_layers"] = frozen
        for name, value in self.config.items():
            if isinstance(value, keras.layers.Layer):  # a position layer, an encoder
                value = keras.saving.serialize_keras_object(value)
            elif callable(value):  # an activation
                value = keras.activations.serialize(value)
            config[name] = value
        return config

    @classmethod
    def from_preset(cls, name: str | os.PathLike) -> Self:
        """Loads a pretrained model, without its vocabulary.

        `from_preset` of `pipelines.Translator` and `pipelines.Classifier` takes
        the same names, and loads the vocabulary too.

        Args:
            name: a shipped preset such as `"en-de"`, a folder that
                `save_to_preset`, a pipeline or a recipe has written, a
                repository as `"hf://owner/name"`, or a folder of another
                library.

        Returns:
            Model of this class.

        Raises:
            ValueError: there is no such name, or it is a model of another
                class.
            FileNotFoundError: the folder does not hold a known model.

        Example:
            ```python
            from keras_tfm import models

            model = models.Transformer.from_preset("en-de")
            print(model.config["embedding_dim"])
            ```
        """
        from keras_tfm.pipelines.pretrained import load_model

        model = load_model(name)
        if not isinstance(model, cls):
            raise ValueError(
                f"`name` must be a preset of a {cls.__name__}; got {name!r}, which is "
                f"a {type(model).__name__}. Call the `from_preset` of that class."
            )
        return model

    def save_to_preset(self, folder: str | os.PathLike) -> None:
        """Writes the model, without the optimizer, for `from_preset`.

        The vocabulary is not written: `pipelines.Translator.save` and
        `pipelines.Classifier.save` write both.

        Args:
            folder: path; made if there is none.

        Example:
            ```python
            import tempfile
            from keras_tfm import models

            with tempfile.TemporaryDirectory() as folder:
                models.encoder_small(100).save_to_preset(folder)
                model = models.Encoder.from_preset(folder)
            print(model.config["vocabulary_size"])  # 100
            ```
        """
        from keras_tfm.pipelines.saving import write_model

        write_model(self, folder)

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None) -> Self:
        arguments = dict(config)
        frozen = arguments.pop("frozen_layers", ())
        for name in ("positions", "encoder"):  # layers, if not the name of a kind
            if isinstance(config.get(name), dict):
                arguments[name] = keras.saving.deserialize_keras_object(
                    config[name], custom_objects=custom_objects
                )
        model = cls(**arguments)
        for layer in model._flatten_layers(include_self=False):
            if layer.weights and layer.path in frozen:
                layer.trainable = False
        return model


def split_options(options: dict, **defaults: Any) -> tuple:
    """Splits the keyword arguments of a model of blocks.

    Args:
        options: dict, `ModelOptions`.
        **defaults: options of the blocks that the model sets or defaults.

    Returns:
        dict of all options of a block; the dtype policy; and dict of the other
        `KerasOptions`.

    Raises:
        TypeError: an option has an unknown name.
        ValueError: `dropout` is not in [0, 1).
    """
    block = {**BLOCK_DEFAULTS, **defaults}
    # What the caller names goes before the defaults of the model.
    block |= {name: options[name] for name in options if name in BLOCK_DEFAULTS}
    check_rates(dropout=block["dropout"])  # Keras' own error names no argument
    keras_options = {
        name: options[name] for name in options if name not in BLOCK_DEFAULTS
    }
    return block, *take_policy(keras_options, expected=(*BLOCK_DEFAULTS,))


def take_policy(options: dict, default: Any = None, expected: tuple = ()) -> tuple:
    """Takes the dtype policy out of the keyword arguments of a model.

    Args:
        options: dict, `KerasOptions`.
        default: a policy, its name or config; None for Keras' own.
        expected: names of other options, for the error.

    Returns:
        `keras.DTypePolicy`, and dict of the other options.

    Raises:
        TypeError: an option has an unknown name, which Keras would ignore.
    """
    expected = (*expected, *KerasOptions.__annotations__)
    unknown = sorted(set(options) - set(expected))
    if unknown:
        raise TypeError(
            f"Unknown options of a model: expected some of {', '.join(expected)}; got "
            f"{', '.join(unknown)}."
        )
    # None counts as missing: Keras passes it on.
    dtype = options.get("dtype") or default or keras.config.dtype_policy()
    keras_options = {name: value for name, value in options.items() if name != "dtype"}
    return keras.dtype_policies.get(dtype), keras_options


def inputs_like(model: keras.Model) -> dict[str, keras.KerasTensor]:
    """Makes new inputs with the names, shapes and dtypes of a model's inputs.

    Args:
        model: functional Keras model of a dict.

    Returns:
        dict of `keras.KerasTensor` by name.
    """
    return {
        tensor.name: keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=tensor.name)
        for tensor in model.inputs
    }


def hidden_model(model: keras.Model, hidden: keras.KerasTensor) -> keras.Model:
    """Makes a model that ends at an inner tensor of a functional model.

    Args:
        model: functional Keras model of a dict.
        hidden: `keras.KerasTensor` inside it.

    Returns:
        `keras.Model`, which shares its layers.
    """
    inputs = {tensor.name: tensor for tensor in model.inputs}
    inner = keras.Model(inputs, hidden, name=f"{model.name}_hidden")
    inner.dtype_policy = model.dtype_policy  # for `compile`, as above
    return inner
