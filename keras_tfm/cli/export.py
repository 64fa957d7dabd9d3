"""`keras-tfm export`."""

import pathlib
import sys

from keras_tfm import zoo
from keras_tfm.pipelines import load


def run(command):
    """Writes a model for other programs.

    Args:
        command: `options.Export`.
    """
    served = load(command.model, command.source_language, command.target_language)
    translates = hasattr(served, "translate")
    _check(command, translates)
    if command.form == "saved-model":
        options = {"version": command.version}
        if translates:
            options["num_hypotheses"] = command.num_hypotheses
            options["jit_compile"] = command.jit_compile
        served.export(command.folder, **options)
    elif command.form == "keras":
        served.save(command.folder)
    elif command.form == "ctranslate2":
        if not translates:
            raise ValueError(
                "CTranslate2 gets a translator. Received: a classifier. Ask for "
                "--form saved-model or transformers."
            )
        # What CTranslate2 puts behind each source itself.
        suffix = served.settings["source_suffix"]
        ends = suffix[-1:] == [served.search.options.end_id]
        suffix = suffix[:-1] if ends else suffix
        zoo.to_ctranslate2(
            served.model,
            served.vocabulary,
            command.folder,
            command.quantization,
            served.target_vocabulary,
            add_source_eos=ends,
        )
        _say_marks(served, suffix)
    elif translates:
        zoo.to_hugging_face(
            served.model,
            command.folder,
            served.vocabulary,
            served.target_vocabulary,
            options=served.settings,
        )
    else:
        zoo.to_hugging_face(
            served.model, command.folder, served.vocabulary, classes=served.classes
        )
    _say(pathlib.Path(command.folder))


def _say_marks(served, suffix):
    """Tells on standard error what CTranslate2 is given with each text."""
    both = served.vocabulary, served.target_vocabulary
    marks = {
        "before each source": (both[0], served.settings["source_prefix"]),
        "after each source": (both[0], suffix),
        "as target_prefix": (both[1], served.settings["target_prefix"]),
    }
    for where, (vocabulary, ids) in marks.items():
        if ids:
            pieces = " ".join(vocabulary.tokens(ids))
            print(
                f"To CTranslate2 give these pieces {where}: {pieces}", file=sys.stderr
            )


def _say(folder):
    """Tells on standard error what stands in a folder."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files) / 1e6
    names = ", ".join(sorted(each.name for each in folder.iterdir()))
    print(f"{folder}: {names}; {size:,.1f} MB", file=sys.stderr)


def _check(command, translates):
    """Refuses options that would do nothing."""
    saved_model, ctranslate2 = (
        command.form == form for form in ("saved-model", "ctranslate2")
    )
    fits = {
        "version": saved_model,
        "num_hypotheses": saved_model and translates,
        "jit_compile": saved_model and translates,
        "quantization": ctranslate2,
    }
    for name, fit in fits.items():
        given = getattr(command, name)
        if given is not None and given is not False and not fit:
            raise ValueError(
                f"--{name.replace('_', '-')} is not of --form {command.form}"
                f"{'' if translates else ' of a classifier'}. Received: {given}. "
                "Leave it out."
            )
