"""Writes translators and classifiers to folders, and reads them."""

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras

from keras_tfm import __version__
from keras_tfm.decode.option_checks import check_stored
from keras_tfm.decode.options import Options
from keras_tfm.decode.shortlist import Shortlist
from keras_tfm.file_reading import read_json, reading
from keras_tfm.pipelines.lexicon import Lexicon
from keras_tfm.pipelines.text_config import TextConfig
from keras_tfm.pipelines.texts import check_vocabulary_size
from keras_tfm.text.files import open_binary
from keras_tfm.text.tokenizers_vocabulary import load_vocabulary

if TYPE_CHECKING:
    from keras_tfm.pipelines.classifier import Classifier
    from keras_tfm.pipelines.translator import Translator

_log = logging.getLogger(__name__)

TRANSLATOR_FILES = ("model.keras", "source.model", "target.model", "translator.json")
CLASSIFIER_FILES = ("model.keras", "vocabulary.model", "classifier.json")
# The model of a recipe's run that has not finished. Its weights are those of
# the last epoch, in the folder CHECKPOINTS beside it.
UNFINISHED, CHECKPOINTS = "unfinished", "averages"
SHORTLIST = "shortlist.npz"  # of a translator that has one
KNOWN_WORDS = "known_words.txt"  # of a translator that has them, one a line
LEXICON = "lexicon.tsv"  # of a translator that has one
LEXICONS = "lexicon*.tsv"  # also those of the directions of one model
VERSION = "keras_tfm"  # entry of both JSON files: which version wrote them
# Not in translator.json: what the vocabulary knows; the shortlist, which has a
# file; what is best on one machine; and functions, which JSON cannot hold.
UNSAVED = {
    *("start_id", "end_id", "unk_id", "shortlist"),
    *("matmul_precision", "engine", "compute_type", "logits_processors"),
}


def save_translator(translator: "Translator", folder: str | os.PathLike) -> None:
    """Writes a translator, see `Translator.save`."""
    check_is_one_model(translator.model)
    options = translator.decoder.options
    if options.logits_processors:
        raise TypeError(
            "`logits_processors` cannot be saved: they are functions, and "
            f"{TRANSLATOR_FILES[3]} is JSON. Save "
            "`translator.replace(logits_processors=())`."
        )
    saved = set(Options.names()) - UNSAVED
    config = {
        VERSION: __version__,
        "options": {name: getattr(options, name) for name in sorted(saved)},
        "text": translator.config.saved(),
    }
    writers = {
        TRANSLATOR_FILES[1]: translator.vocabulary.save,
        TRANSLATOR_FILES[2]: translator.target_vocabulary.save,
        TRANSLATOR_FILES[3]: lambda path: _write_json(path, config),
    }
    if options.shortlist is not None:
        writers[SHORTLIST] = options.shortlist.save
    if translator.config.known_words:
        text = "\n".join(translator.config.known_words) + "\n"
        writers[KNOWN_WORDS] = lambda path: path.write_text(text, encoding="utf-8")
    if translator.config.lexicon is not None:
        writers[LEXICON] = translator.config.lexicon.save
    _write(translator.model, writers, folder)
    for name in {SHORTLIST, KNOWN_WORDS, LEXICON} - set(writers):
        (pathlib.Path(folder) / name).unlink(missing_ok=True)


def check_is_one_model(model: Any) -> None:
    """Raises a TypeError if a model, such as an ensemble, cannot be saved."""
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"`model` must be one Keras model to be saved; got a "
            f"{type(model).__name__}. Save the models of an ensemble by themselves."
        )


def read_translator(folder: str | os.PathLike) -> dict[str, Any]:
    """Reads what `save_translator` wrote.

    Args:
        folder: path.

    Returns:
        dict with `model`, `vocabulary`, `target_vocabulary`, `options` and
        `config`, a `TextConfig`.

    Raises:
        FileNotFoundError: the folder lacks a file.
        ValueError: a file is damaged.
    """
    folder = pathlib.Path(folder)
    model, source, target, file = check_files(folder, TRANSLATOR_FILES, "Translator")
    config = read_json(file)
    with _reading_saved(file, config):
        with reading(file, "the options of a translator"):
            check_entries(file, config, {VERSION: "", "options": {}, "text": {}})
            options, text = config.get("options", {}), config.get("text", {})
            check_entries(file, options, _saved_options())
            check_entries(file, text, TextConfig().saved())
            options = Options(**check_stored(options))
            text = TextConfig(**text, **read_words(folder))
        if (folder / SHORTLIST).is_file():
            shortlist = Shortlist.load(folder / SHORTLIST)
            with reading(folder / SHORTLIST, "a shortlist of this translator"):
                options = options.replace(shortlist=shortlist)
        vocabulary = target_vocabulary = load_vocabulary(source)
        if source.read_bytes() != target.read_bytes():
            target_vocabulary = load_vocabulary(target)
        network = read_model(model)
        for path, tokens, name in (
            (source, vocabulary, "vocabulary_size"),
            (target, target_vocabulary, "target_vocabulary_size"),
        ):
            with reading(path, "a vocabulary of this model"):
                check_vocabulary_size(tokens, network, name)
        return {
            "model": network,
            "vocabulary": vocabulary,
            "target_vocabulary": target_vocabulary,
            "options": options,
            "config": text,
        }


def _saved_options():
    """The options of `translator.json`, with their defaults."""
    fields = dataclasses.asdict(Options())
    return {name: fields[name] for name in fields if name not in UNSAVED}


@contextlib.contextmanager
def _reading_saved(file: pathlib.Path, config: Mapping[str, Any]) -> Iterator[None]:
    """Says of a fault in a saved folder that a newer version has written it."""
    try:
        yield
    except ValueError as error:
        version = str(config.get(VERSION))
        if _numbers(version) <= _numbers(__version__):
            raise
        raise ValueError(
            f"{error} {file} was written by keras_tfm {version:.20}, which is newer "
            f"than this keras_tfm {__version__}: run `pip install --upgrade keras-tfm`."
        ) from error


def _numbers(version):
    return [int(number) for number in re.findall(r"\d{1,9}", version)[:3]]


def read_words(folder: pathlib.Path, direction: str = "") -> dict[str, Any]:
    """Returns the arguments `known_words` and `lexicon`, if a folder has them.

    Args:
        folder: path.
        direction: str. For `"en-de"` it reads `lexicon.en-de.tsv` if the folder
            has that, else `lexicon.tsv`.

    Raises:
        FileNotFoundError: a folder, a pipe or a broken link has its name.
        ValueError: a file is damaged.
    """
    words: dict[str, Any] = {}
    file = folder / KNOWN_WORDS
    if os.path.lexists(file):
        with reading(file, "words, one a line"), open_binary(file) as content:
            lines = content.read().decode("utf-8-sig").splitlines()
        words["known_words"] = [line.strip() for line in lines if line.strip()]
    for name in (lexicon_name(direction), LEXICON):
        if os.path.lexists(folder / name):  # else a broken link would be none
            words["lexicon"] = Lexicon.load(folder / name)
            break
    return words


def lexicon_name(direction: str) -> str:
    """Returns the name of the file of a direction, of a model of several."""
    return f"lexicon.{direction}.tsv"


def save_classifier(classifier: "Classifier", folder: str | os.PathLike) -> None:
    """Writes a classifier, see `Classifier.save`."""
    config = {name: getattr(classifier, name) for name in CLASSIFIER_DEFAULTS}
    config[VERSION] = __version__
    writers = {
        CLASSIFIER_FILES[1]: classifier.vocabulary.save,
        CLASSIFIER_FILES[2]: lambda path: _write_json(path, config),
    }
    _write(classifier.model, writers, folder)


CLASSIFIER_DEFAULTS = {
    "classes": [],
    "paired": False,
    "max_length": 256,
    "batch_tokens": 4096,
    "threshold": 0.5,
}


def read_classifier(folder: str | os.PathLike) -> dict[str, Any]:
    """Reads what `save_classifier` wrote.

    Args:
        folder: path.

    Returns:
        dict of the arguments of `Classifier`.

    Raises:
        FileNotFoundError: the folder lacks a file.
        ValueError: a file is damaged.
    """
    model, vocabulary, file = check_files(folder, CLASSIFIER_FILES, "Classifier")
    config = read_json(file)
    with _reading_saved(file, config):
        check_entries(file, config, {VERSION: "", **CLASSIFIER_DEFAULTS})
        config.pop(VERSION, None)
        with reading(file, "the arguments of a classifier"):
            config["classes"] = list(config["classes"])
        arguments = {
            "model": read_model(model),
            "vocabulary": load_vocabulary(vocabulary),
        }
        return arguments | config


def check_files(
    folder: str | os.PathLike, files: Sequence[str], pipeline: str
) -> list[pathlib.Path]:
    """Returns the paths of the files of a saved pipeline.

    Args:
        folder: path.
        files: names of files.
        pipeline: str, `"Translator"` or `"Classifier"`.

    Raises:
        FileNotFoundError: the folder lacks a file.
    """
    folder = pathlib.Path(folder)
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{os.fspath(folder)!r} does not hold a saved {pipeline.lower()}: "
            f"{missing} missing. Name a folder that `{pipeline}.save` has written, "
            "such as the folder `model` of a recipe's run; "
            f"`{pipeline}.from_preset` reads other formats."
        )
    return [folder / name for name in files]


def check_entries(
    file: pathlib.Path, entries: Mapping[str, Any], defaults: Mapping[str, Any]
) -> None:
    """Raises a ValueError if a file has unknown or mistyped entries.

    Args:
        file: path, for the error.
        entries: dict.
        defaults: dict of the allowed names; an entry has the type of a default
            that is a dict, list, bool or str.
    """
    unknown = sorted(set(entries) - set(defaults))
    if unknown:
        raise ValueError(
            f"{file}: unknown entries {unknown}. Known are {sorted(defaults)}."
        )
    for name, value in entries.items():
        kind = type(defaults[name])
        if kind in (dict, list, bool, str) and not isinstance(value, kind):
            raise ValueError(
                f"{file}: {name!r} must be of type {kind.__name__}; got {value!r:.60}."
            )


def read_model(file: pathlib.Path) -> keras.Model:
    """Reads a Keras model; that of an unfinished run as its last epoch left it.

    Raises:
        ValueError: the file is damaged.
        FileNotFoundError: no epoch of the run has finished.
    """
    with reading(file, "a Keras model"):
        if not zipfile.is_zipfile(file):  # Keras would report a missing file
            raise ValueError(f"its {file.stat().st_size:,} bytes are no zip file")
        model = keras.models.load_model(file)
    if file.parent.name == UNFINISHED:
        _load_last_epoch(model, file.parents[1])
    return model


def _load_last_epoch(model, run):
    checkpoints = sorted((run / CHECKPOINTS).glob("epoch_*.weights.h5"))
    if not checkpoints:
        raise FileNotFoundError(
            f"{os.fspath(run)!r} holds a run that has not finished an epoch yet. Wait "
            "for it, or resume it with the command that started it."
        )
    with reading(checkpoints[-1], "the weights of an epoch"):
        model.load_weights(checkpoints[-1])
    epoch = int(checkpoints[-1].name.split(".")[0].removeprefix("epoch_"))
    _log.warning(
        f"{os.fspath(run)!r} holds a run that has not finished: its weights after "
        f"epoch {epoch}."
    )


def write_model(model: keras.Model, folder: str | os.PathLike) -> None:
    """Writes a model alone, as `model.keras` of a folder."""
    _write(model, {}, folder)


def _write(
    model: keras.Model, writers: Mapping[str, Callable], folder: str | os.PathLike
) -> None:
    """Writes `model.keras` and other files, all or none."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as unfinished:
        unfinished = pathlib.Path(unfinished)
        for name, write in writers.items():
            write(unfinished / name)
        # A copy, since a compiled model carries the optimizer of its backend;
        # by a file, since LoRA and int8 change the variables of `set_weights`.
        weights = unfinished / "copied.weights.h5"
        model.save_weights(weights)
        copy = type(model).from_config(model.get_config())
        copy.load_weights(weights)
        copy.trainable = True  # which layers were frozen belongs to that training
        copy.save(unfinished / "model.keras")
        for name in ("model.keras", *writers):
            os.replace(unfinished / name, folder / name)


def _write_json(path, config):
    text = json.dumps(config, indent=1, ensure_ascii=False, default=_as_list)
    path.write_text(text + "\n", encoding="utf-8")


def _as_list(value):
    """Arrays and NumPy's numbers, which JSON does not know."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"JSON cannot hold {value!r} of type {type(value).__name__}.")
