"""The Transformer of *Attention Is All You Need* as a Keras 3 library."""

from keras_tfm import decode, layers, models, plot, serving, text, training, zoo
from keras_tfm.serving import presets

__version__ = "0.1.0"

__all__ = [
    "decode",
    "layers",
    "models",
    "plot",
    "presets",
    "serving",
    "text",
    "training",
    "zoo",
]
