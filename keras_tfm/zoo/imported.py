"""What is read from other programs."""

from typing import NamedTuple

import keras

from keras_tfm.text import TokenizersVocabulary, Vocabulary


class Imported(NamedTuple):
    """What a folder or preset held.

    Attributes:
        model: Keras model.
        vocabulary: `TokenizersVocabulary`, of a translation model `Vocabulary`;
            None if the folder has none.
        classes: list of str, the classes of a classifier; else None.
        search: dict, settings of `serving.Translator` for a model that
            generates, as its configuration has them; else None.
        target_vocabulary: `Vocabulary` of the target, where it is another.
        tokens: pair of lists of str, of source and target: what each id stands
            for; None where a vocabulary says it.
    """

    model: keras.Model
    vocabulary: TokenizersVocabulary | Vocabulary | None
    classes: list[str] | None
    search: dict | None = None
    target_vocabulary: Vocabulary | None = None
    tokens: tuple[list[str], list[str]] | None = None
