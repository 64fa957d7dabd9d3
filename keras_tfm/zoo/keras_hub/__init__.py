"""Presets of KerasHub, read and written."""

from keras_tfm.zoo.keras_hub.load import from_keras_hub
from keras_tfm.zoo.keras_hub.save import to_keras_hub

__all__ = ["from_keras_hub", "to_keras_hub"]
