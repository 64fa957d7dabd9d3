"""Models that Marian has trained."""

from keras_tfm.zoo.marian.load import from_marian

__all__ = ["from_marian"]
