"""Models by name: those in the package, other programs', and a run's."""

import os
import pathlib
from typing import NamedTuple

from keras_tfm import zoo
from keras_tfm.zoo.config_file import read_json
from keras_tfm.zoo.huggingface.load import HUB

SHIPPED = pathlib.Path(__file__).parents[1] / "presets"  # a folder for each
TASKS = ("translation", "classification")


class Preset(NamedTuple):
    """A model with weights that the package has.

    Attributes:
        name: str.
        task: `"translation"` or `"classification"`.
        languages: tuple of str: source and target; or that of the texts.
        parameters: int.
        megabytes: float, of its folder, which others may have too.
        licence: str, of weights and data.
        data: str, what it was trained on.
        scores: dict from str to float, on the test named in its card.
        card: path of the model card, in Markdown.
    """

    name: str
    task: str
    languages: tuple[str, ...]
    parameters: int
    megabytes: float
    licence: str
    data: str
    scores: dict[str, float]
    card: pathlib.Path


def presets() -> list[Preset]:
    """Lists the models that come with the package.

    Returns:
        list of `Preset`, by name.
    """
    found = _shipped()
    return [_preset(name, *found[name]) for name in sorted(found)]


def find(name, task):
    """Finds what a name of a preset stands for.

    Args:
        name: str or path: a name of `presets`, or one of these; a repository
            as `"hf://owner/name"`; or a folder: of a recipe's run, saved here,
            or written by transformers, Marian or CTranslate2.
        task: of `TASKS`.

    Returns:
        A folder that `save` has written, and a dict of settings; or `Imported`
        and a dict of settings.

    Raises:
        ValueError: there is no such name, or it is of another task.
        FileNotFoundError: the folder holds no model that is known.
    """
    shipped, name = _shipped(), _named(name)
    if name in shipped:
        folder, described = shipped[name]
        if described["task"] != task:
            raise ValueError(
                f"A preset for {task} is wanted. Received: {name!r}, which is for "
                f"{described['task']}."
            )
        return _in_folder(folder, described)
    check(name)
    if isinstance(name, str) and name.startswith(HUB):
        return _settled(zoo.from_hugging_face(name))
    return _in_folder(pathlib.Path(name))


def place(name):
    """Tells where the files of a model are, as far as they are on this machine.

    Args:
        name: str or path, as of `find`.

    Returns:
        Path of the folder, of one in the package too; else the name itself.
    """
    shipped, name = _shipped(), _named(name)
    if name in shipped:
        return shipped[name][0]
    return pathlib.Path(name) if pathlib.Path(name).is_dir() else name


def check(name):
    """Refuses a name that stands for nothing, without loading what it names.

    Args:
        name: str or path, as of `find`.

    Raises:
        ValueError: there is no such name.
    """
    shipped, name = {one.name: one.task for one in presets()}, _named(name)
    if name in shipped or isinstance(name, str) and name.startswith(HUB):
        return
    if not pathlib.Path(name).is_dir():
        raise ValueError(
            "A preset is one in the package, a folder, or a repository as "
            f"'{HUB}owner/name'. Received: {os.fspath(name)!r}, which is none; in "
            f"the package are: {shipped}."
        )


def _named(name):
    if isinstance(name, Preset):
        return name.name
    if not isinstance(name, (str, os.PathLike)) or not os.fspath(name):
        raise ValueError(
            "A preset is named by a str, or a folder by its path. Received: "
            f"{name!r:.80}, of type {type(name).__name__}."
        )
    return name


def _in_folder(folder, described=None):
    """Reads a folder as that of the program that has written it."""
    found, settings = _written_by_others(folder)
    if not (folder / "preset.json").is_file():
        return found, settings
    described = described or _described(folder)
    if described.get("marks"):  # of several targets, each by its mark
        marks = found.vocabulary.languages
        settings["source_prefix"] = marks[described["languages"][-1]]
    return found, {**settings, **described.get("settings", {})}


def _written_by_others(folder):
    for saved in (folder, folder / "model"):
        if (saved / "model.keras").is_file():
            return saved, {}
    config = folder / "config.json"
    if config.is_file() and "model_type" in read_json(config):
        return _settled(zoo.from_hugging_face(folder))
    if any(folder.glob("*_vocabulary.*")) and (folder / "model.bin").is_file():
        return _settled(zoo.from_ctranslate2(folder))
    marian = [path for kind in ("*.npz", "*.bin") for path in folder.glob(kind)]
    if marian:
        return _settled(zoo.from_marian(folder))
    if (folder / "saved_model.pb").is_file():
        raise FileNotFoundError(
            f"{os.fspath(folder)!r} holds a SavedModel, which TensorFlow reads: "
            "`tensorflow.saved_model.load`. Name the model that was exported."
        )
    raise FileNotFoundError(
        f"{os.fspath(folder)!r} holds no model of a recipe, transformers, Marian or "
        f"CTranslate2. Received: {sorted(path.name for path in folder.iterdir())[:8]}."
    )


def _settled(imported):
    if imported.vocabulary is None:
        raise ValueError(
            "With the model comes no vocabulary that is read, so that it takes no "
            "text: a SentencePiece model, or a `tokenizer.json` of one, of WordPiece "
            "or of bytes. Put it there, or load the model by `keras_tfm.zoo`, and give "
            "it one."
        )
    return imported, dict(imported.options or {})


def _shipped():
    """The folder of each name, and what it says of itself.

    One that is good for several pairs of languages has a name for each, unless
    there is one of that name.
    """
    found, more = {}, {}
    if not SHIPPED.is_dir():
        return found
    for folder in sorted(path.parent for path in SHIPPED.glob("*/preset.json")):
        described = _described(folder)
        for name, own in described.get("directions", {}).items():
            more.setdefault(name, (folder, {**described, **own}))
        found[folder.name] = folder, described
    return {**more, **found}


def _described(folder):
    return read_json(folder / "preset.json")


def _preset(name, folder, described):
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Preset(
        name,
        described["task"],
        tuple(described["languages"]),
        described["parameters"],
        round(size / 1e6, 1),
        described["licence"],
        described["data"],
        described["scores"],
        folder / "README.md",
    )
