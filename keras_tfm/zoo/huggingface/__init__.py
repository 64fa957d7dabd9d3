"""Models of transformers, read and written."""

from keras_tfm.zoo.huggingface.load import from_hugging_face
from keras_tfm.zoo.huggingface.save import to_hugging_face

__all__ = ["from_hugging_face", "to_hugging_face"]
