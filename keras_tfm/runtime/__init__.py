"""Compiled decoding: from a model and options to hypotheses."""

from keras_tfm.runtime.compile import compiled
from keras_tfm.runtime.continuous import ContinuousDecoder
from keras_tfm.runtime.decoder import Decoder

__all__ = ["ContinuousDecoder", "Decoder", "compiled"]
