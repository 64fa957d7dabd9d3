"""A translator or a classifier, whichever a name stands for."""

import os
import pathlib

from keras_tfm.pipelines import pretrained as preset
from keras_tfm.pipelines.classifier import FILES, Classifier
from keras_tfm.pipelines.translator import Translator


def load(name, source_language=None, target_language=None, usual=None, **settings):
    """Loads what translates or labels text, whoever has trained it.

    Args:
        name: str or path, see `Translator.from_preset`.
        source_language: str or None, likewise.
        target_language: str or None, likewise.
        usual: dict of settings of `Translator`, which no classifier misses; or
            None.
        **settings: of `Translator`.

    Returns:
        `Translator` or `Classifier`.

    Raises:
        ValueError, FileNotFoundError: there is no such model, or it is a
            classifier, which has no languages and no such settings.
    """
    if (pathlib.Path(preset.place(name)) / FILES[-1]).is_file():
        found = Classifier.from_preset(name)
    else:
        try:
            return Translator.from_preset(
                name, source_language, target_language, **{**(usual or {}), **settings}
            )
        except (ValueError, FileNotFoundError) as fault:
            try:
                found = Classifier.from_preset(name)
            except (ValueError, FileNotFoundError):
                raise fault from None
    languages = {"source_language": source_language, "target_language": target_language}
    given = {key: value for key, value in {**languages, **settings}.items() if value}
    if given:
        raise ValueError(
            f"{os.fspath(name)!r} labels texts: settings are of translators. Received: "
            f"{given}. Leave them out."
        )
    return found
