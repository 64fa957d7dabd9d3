"""Programs that decode: ours, on a backend of Keras, or CTranslate2.

`make_decoder` chooses by `decode.Options.engine`.
"""

from keras_tfm.engines.choice import make_decoder
from keras_tfm.engines.ctranslate2_decoder import CTranslate2Decoder

__all__ = ["CTranslate2Decoder", "make_decoder"]
