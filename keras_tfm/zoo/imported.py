"""What is read from other programs."""

from typing import NamedTuple

import keras

from keras_tfm.text import TokenizersVocabulary


class Imported(NamedTuple):
    """What a folder or preset held.

    Attributes:
        model: Keras model.
        vocabulary: `TokenizersVocabulary`; None if the folder has none.
        classes: list of str, the classes of a classifier; else None.
    """

    model: keras.Model
    vocabulary: TokenizersVocabulary | None
    classes: list[str] | None
