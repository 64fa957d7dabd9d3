"""Uploads models to the Hugging Face hub, with a model card."""

import json
import os
import pathlib
import re

from keras_tfm.file_reading import read_json, reading
from keras_tfm.pipelines.pretrained import REPOSITORY_FILES
from keras_tfm.pipelines.saving import CLASSIFIER_FILES, TRANSLATOR_FILES
from keras_tfm.zoo import repositories
from keras_tfm.zoo.huggingface.hub import SAFETENSORS, SMALL_FILES
from keras_tfm.zoo.keras_hub.load import is_preset

NAME = re.compile(r"hf://[\w.-]+/[\w.-]+(@[\w./-]+)?")
LANGUAGE = re.compile(r"[a-z]{2,3}")  # a code that the hub accepts
WEIGHTS = ("model.keras", "*.safetensors", "*.weights.h5", "model.bin")
FILES = [*REPOSITORY_FILES, *SMALL_FILES, *SAFETENSORS]
CLASSES = {"translation": "Translator", "text-classification": "Classifier"}
PRESET_TASKS = {"translation": "translation", "classification": "text-classification"}


def upload(folder: str | os.PathLike, name: str, private: bool = False) -> None:
    """Uploads a model, so that `from_preset(name)` loads it anywhere.

    Only the files of the model are uploaded: those of `save`, of a preset, of
    KerasHub, CTranslate2 or transformers (safetensors). If `folder` is a
    recipe's run, its folder `model` is uploaded. The model card is the folder's
    `README.md`, or a short generated card. Unless the card states them already,
    languages and task, by which the hub finds models, are added at its start.

    Args:
        folder: path.
        name: str, `"hf://owner/name"`. The repository is created if it does
            not exist, with the token of `hf auth login`.
        private: bool. A new repository is private.

    Raises:
        ValueError: `name` is not the name of a repository.
        FileNotFoundError: the folder does not hold a model, or the hub cannot
            be reached.
        ImportError: `huggingface-hub` is not installed.

    Example:
        ```python
        from keras_tfm import pipelines

        try:
            pipelines.upload("runs/no-such-run", "hf://me/name")
        except FileNotFoundError as error:
            print(error)  # `folder` must hold a model; ...
        ```
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(
            f"`name` must be a repository as 'hf://owner/name'; got {name!r}."
        )
    folder = pathlib.Path(folder)
    if (folder / "model" / "model.keras").is_file():
        folder /= "model"
    if not any(any(folder.glob(pattern)) for pattern in WEIGHTS):
        raise FileNotFoundError(
            f"`folder` must hold a model; got {os.fspath(folder)!r} without any of "
            f"{list(WEIGHTS)}. Save one there with `Translator.save`."
        )
    repositories.upload(folder, name, FILES, model_card(folder, name), private)


def model_card(folder: pathlib.Path, name: str) -> str:
    """Returns the card of a model in Markdown, with metadata for the hub.

    Args:
        folder: path of the model.
        name: str, `"hf://owner/name"`.
    """
    file, preset = folder / repositories.CARD, read_json(folder / "preset.json")
    with reading(file, "a model card"):
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if text.startswith("---\n"):
        return text
    with reading(folder / "preset.json", "the description of a preset"):
        languages = [n for n in preset.get("languages", ()) if LANGUAGE.fullmatch(n)]
        task = PRESET_TASKS.get(preset.get("task"))
    if (folder / TRANSLATOR_FILES[-1]).is_file():
        task = "translation"
    elif (folder / CLASSIFIER_FILES[-1]).is_file():
        task = "text-classification"
    library = "keras-hub" if is_preset(folder) else "keras-tfm"
    metadata = {"library_name": library, "pipeline_tag": task, "language": languages}
    lines = [f"{k}: {json.dumps(v)}" for k, v in metadata.items() if v]
    head = "\n".join(["---", *lines, "tags:", "- keras-tfm", "---", "", ""])
    return head + (text or _short_card(name, task, preset))


def _short_card(name, task, preset):
    class_name = CLASSES.get(task, "Translator")
    facts = [
        f"* {title}: {preset[key]}"
        for title, key in (("Data", "data"), ("License", "license"))
        if preset.get(key)
    ]
    return "\n".join(
        [
            f"# {name.rpartition('/')[2].partition('@')[0]}",
            "",
            f"A {task or 'Transformer'} model for keras_tfm.",
            "",
            "```python",
            f"from keras_tfm.pipelines import {class_name}",
            "",
            f'pipeline = {class_name}.from_preset("{name}")',
            'print(pipeline("Where is the station?"))',
            "```",
            *(["", *facts] if facts else []),
            "",
        ]
    )
