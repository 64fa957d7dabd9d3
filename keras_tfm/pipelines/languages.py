"""Selects the languages of a multilingual model by its language tags."""

import pathlib
from typing import Any

from keras_tfm.pipelines.saving import TRANSLATOR_FILES, check_files
from keras_tfm.text.tokenizers_vocabulary import load_vocabulary
from keras_tfm.zoo.imported import Imported


def language_changes(
    model: Imported | pathlib.Path,
    selected: bool,
    source: str | None,
    target: str | None,
) -> dict[str, Any]:
    """Returns the changes that select a pair of languages.

    Args:
        model: `Imported`, or the folder of a saved translator.
        selected: bool. The tag of a target is selected already, so that no
            language is required.
        source, target: see `Translator.from_preset`.

    Returns:
        dict of arguments of `Translator`; empty if no language is named and
        none is required.

    Raises:
        ValueError: the model has no such languages, or a required one is not
            named.
    """
    imported = model.languages or {} if isinstance(model, Imported) else {}
    tags = {} if imported else _language_tags(model)
    # A saved translator has the tag it was trained for first.
    selected = bool(tags) and (selected or isinstance(model, pathlib.Path))
    names = sorted(imported or tags)
    if source is None and target is None and (selected or not names):
        return {}
    target_only = bool(tags) or (bool(imported) and model.tag_position == "target")
    fault = None
    if not names:
        fault = "the model has one pair of languages, without names"
    elif target is None or (source is None and not target_only):
        required = "`target_language`" if target_only else "both languages"
        fault = f"a multilingual model requires {required}"
    elif tags and source is not None:
        fault = "only the target has a language tag, so leave `source_language` out"
    elif tags and target not in tags:
        fault = f"the model translates to {', '.join(names)}"
    if fault:
        raise ValueError(
            "`source_language` and `target_language` must be languages of the model: "
            f"{fault}; got source_language={source!r}, target_language={target!r}. "
            + (f"The model has {names}." if names else "Leave both out.")
        )
    if imported:
        return model.options_for(source, target)
    return {"source_prefix": tags[target]}


def _language_tags(model):
    """The ids of the tag of each target language; empty without tags."""
    if isinstance(model, Imported):
        vocabulary = model.vocabulary
    else:
        file = check_files(model, TRANSLATOR_FILES, "Translator")[1]
        vocabulary = load_vocabulary(file)
    return getattr(vocabulary, "languages", {})
