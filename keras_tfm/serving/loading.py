"""A translator or a classifier, whichever a name stands for."""

from keras_tfm.serving.classifier import Classifier
from keras_tfm.serving.translator import Translator


def load(name, source_language=None, target_language=None, **settings):
    """Loads what translates or labels text, whoever has trained it.

    Args:
        name: str or path, see `Translator.from_preset`.
        source_language: str or None, likewise.
        target_language: str or None, likewise.
        **settings: of `Translator`; a classifier takes none of them.

    Returns:
        `Translator` or `Classifier`.

    Raises:
        ValueError, FileNotFoundError: there is no such model.
    """
    try:
        return Translator.from_preset(
            name, source_language, target_language, **settings
        )
    except (ValueError, FileNotFoundError) as fault:
        try:
            return Classifier.from_preset(name)
        except (ValueError, FileNotFoundError):
            raise fault from None
