"""What a layer that holds layers has to remember when it is quantized."""

import keras


def dtype_config(layer):
    """Serialises the dtype policy of a layer together with those inside it.

    `quantize` changes the policies of the layers that hold matrices and not
    that of the layer around them, from whose config they are made again.

    Args:
        layer: `keras.layers.Layer` or `keras.Model`, built or not.

    Returns:
        A config for the `dtype` argument: a policy, or a map from the path of
        each quantized layer to its policy.
    """
    policy = layer.dtype_policy
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        policy = policy.default_policy
    inside = layer._flatten_layers(include_self=False)
    quantized = {
        each.path: each.dtype_policy[each.path]
        if isinstance(each.dtype_policy, keras.dtype_policies.DTypePolicyMap)
        else each.dtype_policy
        for each in inside
        if each.quantization_mode is not None
    }
    if quantized:
        policy = keras.dtype_policies.DTypePolicyMap(policy, quantized)
    return keras.dtype_policies.serialize(policy)


def settle_policies(layer):
    """Gives quantized layers inside a built layer each its own policy.

    Keras builds a layer from the map of policies that a file holds, but cannot
    save it again as long as it keeps the map.

    Args:
        layer: built `keras.layers.Layer` or `keras.Model`.
    """
    for each in layer._flatten_layers(include_self=False):
        policy = each.dtype_policy
        is_map = isinstance(policy, keras.dtype_policies.DTypePolicyMap)
        if is_map and each.quantization_mode is not None:
            # The setter would write into the map, which is every layer's.
            each._dtype_policy = policy[each.path]
