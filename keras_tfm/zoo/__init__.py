"""Other programs' weights, as models of this library."""

from keras_tfm.zoo.hugging_face import Imported, from_hugging_face

__all__ = ["Imported", "from_hugging_face"]
