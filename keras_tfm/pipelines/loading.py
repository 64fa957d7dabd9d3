"""Loads a translator or a classifier, whichever a name stands for."""

import os
import pathlib
from typing import Any

from keras_tfm.pipelines.classifier import Classifier
from keras_tfm.pipelines.pivoting import AnyTranslator, load_pair
from keras_tfm.pipelines.pretrained import locate
from keras_tfm.pipelines.saving import CLASSIFIER_FILES


def load(
    name: str | os.PathLike,
    source_language: str | None = None,
    target_language: str | None = None,
    defaults: dict[str, Any] | None = None,
    **changes: Any,
) -> AnyTranslator | Classifier:
    """Loads a pretrained translator or classifier.

    Args:
        name: see `Translator.from_preset`; or a pair of languages that two
            presets translate together, such as `"de-fr"`; or `"auto-fr"`, which
            detects the source language.
        source_language, target_language: see `Translator.from_preset`.
        defaults: dict of changes that apply to a translator only; or None.
        **changes: see `Translator.from_preset`. A classifier rejects them.

    Returns:
        `Translator`, `PivotTranslator`, `AutoTranslator` or `Classifier`.

    Raises:
        ValueError, FileNotFoundError: there is no such model, or it is a
            classifier and languages or changes are passed.
        ImportError: py3langid, which detects languages, is not installed.

    Example:
        ```python
        from keras_tfm import pipelines

        classifier = pipelines.load("sentiment-en")
        assert classifier("What a wonderful film!").label == "positive"
        ```
    """
    if (pathlib.Path(locate(name)) / CLASSIFIER_FILES[-1]).is_file():
        classifier = Classifier.from_preset(name)
    else:
        try:
            return load_pair(
                name,
                source_language,
                target_language,
                **{**(defaults or {}), **changes},
            )
        except (ValueError, FileNotFoundError) as error:
            try:
                classifier = Classifier.from_preset(name)
            except (ValueError, FileNotFoundError):
                raise error from None
    languages = {"source_language": source_language, "target_language": target_language}
    unsupported = {k: v for k, v in {**languages, **changes}.items() if v}
    if unsupported:
        raise ValueError(
            f"{os.fspath(name)!r} is a classifier, which has no languages and no "
            f"options of decoding; got {unsupported}. Leave them out."
        )
    return classifier
