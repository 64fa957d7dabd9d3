"""Configs of layers that hold layers, before and after `quantize`."""

import inspect
from typing import Any

import keras

CONFIGS = (
    keras.quantizers.Int8QuantizationConfig,
    keras.quantizers.Int4QuantizationConfig,
)


@keras.saving.register_keras_serializable(package="keras_tfm")
class QuantizedPolicies(keras.dtype_policies.DTypePolicyMap):
    """Maps quantized layers to their policies and quantization configs.

    A policy does not say whether a layer quantizes its inputs too. Without its
    config a layer that is loaded would do so, and return other numbers.

    Args:
        default_policy: dtype policy of the other layers.
        policy_map: dict from path to dtype policy.
        quantization_configs: dict from path to `keras.quantizers` config, of
            the layers whose config is not the default of int8.
    """

    def __init__(
        self,
        default_policy: keras.dtype_policies.DTypePolicy | str | None = None,
        policy_map: dict[str, keras.dtype_policies.DTypePolicy] | None = None,
        quantization_configs: dict[str, Any] | None = None,
    ):
        super().__init__(default_policy, policy_map)
        self.quantization_configs = quantization_configs or {}

    def get_config(self) -> dict:
        configs = keras.saving.serialize_keras_object(self.quantization_configs)
        return {**super().get_config(), "quantization_configs": configs}

    @classmethod
    def from_config(
        cls, config: dict, custom_objects: dict | None = None
    ) -> "QuantizedPolicies":
        names = ("policy_map", "quantization_configs")
        objects = {
            name: keras.saving.deserialize_keras_object(config[name], custom_objects)
            for name in names
        }
        return cls(**{**config, **objects})


def layer_config(layer: keras.layers.Layer, owner: type) -> dict:
    """Serializes the constructor arguments of a layer for `get_config`.

    Args:
        layer: a layer that has each argument as an attribute of the same name.
        owner: the class whose constructor is meant, since a subclass may have
            further arguments.

    Returns:
        dict of plain values, `"dtype"` from `dtype_config` among them.
    """
    config = {"dtype": dtype_config(layer)}
    for name, parameter in inspect.signature(owner.__init__).parameters.items():
        if name != "self" and parameter.kind != parameter.VAR_KEYWORD:
            config[name] = _serialize(name, getattr(layer, name))
    return config


def _serialize(name: str, value: object) -> object:
    if isinstance(value, keras.layers.Layer):
        config = keras.saving.serialize_keras_object(value)
        # The outer layer builds it, and so decides on its shapes and its path.
        config.pop("build_config", None)
        return config
    kinds = ("initializer", "regularizer", "constraint")
    if name.endswith(kinds) and value is not None:
        return getattr(keras, f"{name.split('_')[-1]}s").serialize(value)
    return keras.activations.serialize(value) if callable(value) else value


def dtype_config(layer: keras.layers.Layer) -> dict:
    """Serializes the dtype policy of a layer together with those inside it.

    `quantize` changes the policies of the layers that hold matrices and not
    that of the layer around them, from whose config they are made again.

    Args:
        layer: `keras.layers.Layer` or `keras.Model`, built or not.

    Returns:
        A config for the `dtype` argument: a policy, or a map from the path of
        each quantized layer to its policy.
    """
    policy = layer.dtype_policy
    # A map is what a file held; its default is the policy of this layer.
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        policy = policy.default_policy
    inner_layers = layer._flatten_layers(include_self=False)
    inner_layers = [x for x in inner_layers if x.quantization_mode is not None]
    quantized = {
        inner.path: inner.dtype_policy[inner.path]
        if isinstance(inner.dtype_policy, keras.dtype_policies.DTypePolicyMap)
        else inner.dtype_policy
        for inner in inner_layers
    }
    configs = {inner.path: _quantization_config(inner) for inner in inner_layers}
    configs = {path: config for path, config in configs.items() if config is not None}
    if configs:
        policy = QuantizedPolicies(policy, quantized, configs)
    elif quantized:
        policy = keras.dtype_policies.DTypePolicyMap(policy, quantized)
    return keras.dtype_policies.serialize(policy)


def _quantization_config(layer):
    """Returns the quantization config of a layer, or None for the default."""
    config = getattr(layer, "quantization_config", None)
    default = keras.quantizers.Int8QuantizationConfig()
    is_default = type(config) is type(default) and (
        config.get_config() == default.get_config()
    )
    return config if isinstance(config, CONFIGS) and not is_default else None


def settle_policies(layer: keras.layers.Layer) -> None:
    """Replaces the policy map of quantized inner layers by their own policy.

    Keras builds a layer from the map of policies that a file holds, but cannot
    save it again as long as it keeps the map.

    Args:
        layer: built `keras.layers.Layer` or `keras.Model`.
    """
    for inner in layer._flatten_layers(include_self=False):
        policy = inner.dtype_policy
        is_map = isinstance(policy, keras.dtype_policies.DTypePolicyMap)
        if is_map and inner.quantization_mode is not None:
            configs = getattr(policy, "quantization_configs", {})
            if inner.path in configs:
                inner.quantization_config = config = configs[inner.path]
                inner.inputs_quantizer = config.activation_quantizer
            # The setter would write into the map, which all layers share.
            inner._dtype_policy = policy[inner.path]
