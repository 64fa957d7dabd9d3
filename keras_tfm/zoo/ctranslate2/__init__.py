"""Models of CTranslate2, read and written."""

from keras_tfm.zoo.ctranslate2.load import from_ctranslate2
from keras_tfm.zoo.ctranslate2.save import to_ctranslate2

__all__ = ["from_ctranslate2", "to_ctranslate2"]
