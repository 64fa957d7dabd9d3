"""Reads the models of other programs, and writes models for them."""

from keras_tfm.zoo.comet import from_comet
from keras_tfm.zoo.ctranslate2 import from_ctranslate2, to_ctranslate2
from keras_tfm.zoo.huggingface import from_hugging_face, to_hugging_face
from keras_tfm.zoo.imported import Imported
from keras_tfm.zoo.keras_hub import from_keras_hub, to_keras_hub
from keras_tfm.zoo.marian import from_marian

__all__ = [
    "Imported",
    "from_comet",
    "from_ctranslate2",
    "from_hugging_face",
    "from_keras_hub",
    "from_marian",
    "to_ctranslate2",
    "to_hugging_face",
    "to_keras_hub",
]
