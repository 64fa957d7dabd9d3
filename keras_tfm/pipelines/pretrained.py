"""Finds models by name: presets, packages, hub repositories and folders."""

import difflib
import os
import pathlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from keras_tfm import zoo
from keras_tfm.decode.option_checks import check_stored
from keras_tfm.decode.options import Options
from keras_tfm.file_reading import read_json, reading
from keras_tfm.pipelines.packaged import PACKAGED, packaged_folder
from keras_tfm.pipelines.saving import (
    KNOWN_WORDS,
    LEXICONS,
    UNFINISHED,
    read_model,
    read_words,
)
from keras_tfm.pipelines.text_config import TextConfig, split_changes
from keras_tfm.zoo.huggingface.hub import is_transformers
from keras_tfm.zoo.keras_hub.load import FILES as KERAS_HUB_FILES
from keras_tfm.zoo.keras_hub.load import is_preset
from keras_tfm.zoo.marian.firefox import FIREFOX, download_firefox
from keras_tfm.zoo.repositories import HUB, download

# Files of `save`, CTranslate2 and KerasHub in a repository.
REPOSITORY_FILES = [
    *("model.keras", "*.model", "shortlist.npz", "model.bin", "*vocabulary.*"),
    *(KNOWN_WORDS, LEXICONS),
    *KERAS_HUB_FILES,
]
# Small files that tell these repositories from those of transformers.
MARKERS = ["translator.json", "classifier.json", "*_vocabulary.*"]
SHIPPED = pathlib.Path(__file__).parents[1] / "presets"  # a folder for each


class Preset(NamedTuple):
    """Describes a pretrained model that the package ships.

    Attributes:
        name: str.
        task: `"translation"` or `"classification"`.
        languages: tuple of str: source and target language; or the language of
            the texts that a classifier reads.
        parameters: int.
        megabytes: float, size of its folder, which presets may share.
        license: str, of weights and data.
        data: str, what it was trained on.
        scores: dict from str to float, on the test set named in its card.
        card: path of the model card, in Markdown.

    Example:
        ```python
        from keras_tfm.pipelines import presets

        [preset] = [preset for preset in presets() if preset.name == "en-de"]
        assert preset.task == "translation" and preset.languages == ("en", "de")
        ```
    """

    name: str
    task: str
    languages: tuple[str, ...]
    parameters: int
    megabytes: float
    license: str
    data: str
    scores: dict[str, float]
    card: pathlib.Path


def presets() -> list[Preset]:
    """Lists the pretrained models that the package ships.

    Returns:
        list of `Preset`, by name.

    Example:
        ```python
        from keras_tfm import pipelines

        assert "en-de" in [preset.name for preset in pipelines.presets()]
        ```
    """
    described = _shipped()
    return [_preset(name, *described[name]) for name in sorted(described)]


def resolve(
    name: str | os.PathLike | Preset, task: str, target_language: str | None = None
) -> tuple[pathlib.Path | zoo.Imported, dict[str, Any]]:
    """Finds the model that a name stands for.

    Args:
        name: see `Translator.from_preset`; or a `Preset`.
        task: `"translation"` or `"classification"`.
        target_language: see `Translator.from_preset`.

    Returns:
        A folder that `save` has written, or `Imported`; and a dict of the
        arguments that come with it.

    Raises:
        ValueError: there is no such name, or it is of another task.
        FileNotFoundError: the folder does not hold a known model.
    """
    shipped, name = _shipped(), _checked_name(name)
    if name in shipped:
        folder, description = shipped[name]
        if description["task"] != task:
            raise ValueError(
                f"`name` must be a preset for {task}; got {name!r}, which is for "
                f"{description['task']}."
            )
        return _read_folder(folder, description, target_language)
    check_name(name)
    if isinstance(name, str) and name.startswith(HUB):
        if _is_of_transformers(name):
            return _with_vocabulary(zoo.from_hugging_face(name), name)
        name = download(name, REPOSITORY_FILES)
    return _read_folder(pathlib.Path(name), None, target_language)


def load_model(name: str | os.PathLike | Preset) -> keras.Model:
    """Loads a model without its vocabulary.

    Args:
        name: see `Translator.from_preset`.

    Raises:
        ValueError: there is no such name.
        FileNotFoundError: the folder does not hold a known model.
    """
    place = locate(name)
    check_name(place)
    if isinstance(place, str) and place.startswith(HUB):
        if _is_of_transformers(place):
            return zoo.from_hugging_face(place).model
        place = download(place, REPOSITORY_FILES)
    model = _read_format(pathlib.Path(place))
    return (
        read_model(model / "model.keras")
        if isinstance(model, pathlib.Path)
        else (model.model)
    )


def _is_of_transformers(name):
    """Reads small files of a repository, before larger ones."""
    folder = download(name, ["config.json", *MARKERS])
    return not is_preset(folder) and not any(any(folder.glob(m)) for m in MARKERS)


def locate(name: str | os.PathLike | Preset) -> pathlib.Path | str:
    """Returns the folder of a model on this machine, or else its name.

    Args:
        name: as of `resolve`.
    """
    shipped, name = _shipped(), _checked_name(name)
    if name in shipped:
        return shipped[name][0]
    return pathlib.Path(name) if pathlib.Path(name).is_dir() else os.fspath(name)


def languages_of(name: str | os.PathLike | Preset) -> tuple[str, ...]:
    """Returns the languages of a preset; empty where a model does not say them.

    Args:
        name: as of `resolve`.
    """
    if isinstance(name, str) and name in PACKAGED:
        return PACKAGED[name].languages
    if isinstance(name, str) and name.startswith(FIREFOX):
        return tuple(name.removeprefix(FIREFOX).partition("@")[0].split("-", 1))
    name = _checked_name(name)
    _, description = _shipped().get(name, (None, None))
    file = pathlib.Path(name) / "preset.json"
    with reading(file, "the description of a preset"):
        description = description or read_json(file)
        return tuple(map(str, description.get("languages", ())))


def check_name(name: str | os.PathLike | Preset) -> None:
    """Raises if a name stands for nothing, without loading the model.

    Args:
        name: as of `resolve`.

    Raises:
        ValueError: there is no such name.
    """
    name = _checked_name(name)
    shipped = {preset.name: preset.task for preset in presets()}
    if name in shipped or (isinstance(name, str) and name.startswith(HUB)):
        return
    if not pathlib.Path(name).is_dir():
        nearest = difflib.get_close_matches(os.fspath(name), [*shipped, *PACKAGED], n=1)
        raise ValueError(
            "`name` must be a shipped preset, a folder, or a repository as "
            f"'{HUB}owner/name' or '{FIREFOX}en-fr'; got {os.fspath(name)!r}."
            + (f" Did you mean {nearest[0]!r}?" if nearest else "")
            + f" Shipped are {shipped}; {', '.join(PACKAGED)} need another package."
        )


def _checked_name(name):
    if isinstance(name, Preset):
        return name.name
    if not isinstance(name, str | os.PathLike) or not os.fspath(name):
        raise ValueError(
            f"`name` must be a str or a path; got {name!r:.80} of type "
            f"{type(name).__name__}."
        )
    if isinstance(name, str) and name.startswith(FIREFOX):
        return download_firefox(name)
    is_packaged = name in PACKAGED and not pathlib.Path(name).is_dir()
    return packaged_folder(name) if is_packaged else name


def _read_folder(folder, description, target_language):
    """Reads a folder by the program that wrote it, and its preset.json."""
    model, options = _read_format(folder), {}
    if isinstance(model, zoo.Imported):
        model, options = _with_vocabulary(model, folder)
    file = folder / "preset.json"
    with reading(file, "the description of a preset"):
        description = description or read_json(file)
        languages = [*map(str, description.get("languages", ()))]
    if target_language is not None:
        languages[1:] = [target_language]
    # `Translator.load` reads those beside a saved model.
    words = {} if model == folder else read_words(folder, "-".join(languages))
    arguments = {**words, **options}
    with reading(file, "the description of a preset"):
        has_tags = bool(description.get("language_tags"))  # of several languages
        # A saved translator has the tag of its language in translator.json.
        if has_tags and isinstance(model, zoo.Imported):
            tags = model.vocabulary.languages
            arguments["source_prefix"] = tags[description["languages"][-1]]
        arguments |= description.get("arguments", {})
        if description and description.get("task") != "classification":
            options, text = split_changes(arguments)
            Options(**{"beam_size": 4, **check_stored(options)})
            TextConfig(**text)
    return model, arguments


def _read_format(folder):
    """Returns the folder that `save` has written, or `Imported`."""
    for saved in (folder, folder / "model", folder / UNFINISHED):
        if (saved / "model.keras").is_file():
            return saved
    if is_transformers(folder):
        return zoo.from_hugging_face(folder)
    if is_preset(folder):
        return zoo.from_keras_hub(folder)
    if any(folder.glob("*_vocabulary.*")) and (folder / "model.bin").is_file():
        return zoo.from_ctranslate2(folder)
    if any([*folder.glob("*.npz"), *folder.glob("*.bin")]):
        return zoo.from_marian(folder)
    if (folder / "saved_model.pb").is_file():
        raise FileNotFoundError(
            f"{os.fspath(folder)!r} holds a SavedModel, which "
            "`tensorflow.saved_model.load` reads. Name the model that was exported."
        )
    if (folder / "flags.json").is_file():
        raise FileNotFoundError(
            f"{os.fspath(folder)!r} holds a run that has not begun to train. Resume it "
            "with the command that started it."
        )
    raise FileNotFoundError(
        f"{os.fspath(folder)!r} does not hold a model of a recipe, transformers, "
        "KerasHub, Marian or CTranslate2; it has "
        f"{sorted(path.name for path in folder.iterdir())[:8]}."
    )


def _with_vocabulary(imported, place):
    if imported.vocabulary is None:
        raise ValueError(
            f"{os.fspath(place)} has no vocabulary that can be read: a SentencePiece "
            "model, or a `tokenizer.json` of one, of WordPiece or of bytes. Add the "
            "file, or load the model by `keras_tfm.zoo` and pass a vocabulary to the "
            "pipeline."
        )
    return imported, dict(imported.options or {})


def _shipped():
    """The folder and the description of each shipped name.

    A multilingual model has a name for each direction, unless another preset
    has that name.
    """
    shipped, directions = {}, {}
    for file in sorted(SHIPPED.glob("*/preset.json")):
        folder, description = file.parent, dict(read_json(file))
        for name, changes in description.get("directions", {}).items():
            directions.setdefault(name, (folder, {**description, **changes}))
        shipped[folder.name] = folder, description
    return {**directions, **shipped}


def _preset(name, folder, description):
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Preset(
        name,
        description["task"],
        tuple(description["languages"]),
        description["parameters"],
        round(size / 1e6, 1),
        description["license"],
        description["data"],
        description["scores"],
        folder / "README.md",
    )


def loading_once(load: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns a function that loads each name once, for all threads.

    Args:
        load: function of a name.
    """
    lock, loaded = threading.Lock(), {}

    def load_once(name):
        if name not in loaded:
            with lock:
                if name not in loaded:
                    loaded[name] = load(name)
        return loaded[name]

    return load_once
