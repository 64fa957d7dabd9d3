"""`keras-tfm export`."""

import pathlib
import sys
import warnings

from keras_tfm import export, zoo
from keras_tfm.cli.options import Export
from keras_tfm.pipelines import AutoTranslator, PivotTranslator, Translator, load
from keras_tfm.zoo.imported import MISSING_STEPS, missing_steps


def run(flags: Export) -> None:
    """Writes a model for another program.

    Args:
        flags: `options.Export`.
    """
    pipeline = load(flags.model, flags.source_language, flags.target_language)
    translates = isinstance(pipeline, Translator)
    if isinstance(pipeline, PivotTranslator | AutoTranslator):
        raise ValueError(
            f"MODEL must be one model; got {flags.model!r}, which translates by "
            "several. Export each of its models, see `keras-tfm inspect`."
        )
    _check(flags, translates)
    options = pipeline.changes() if translates and flags.format != "keras" else {}
    if message := missing_steps(options):
        print(f"keras-tfm: {message}", file=sys.stderr)
    with warnings.catch_warnings():  # which would print it again
        warnings.filterwarnings("ignore", message=MISSING_STEPS)
        _write(pipeline, flags)
    _report(pathlib.Path(flags.folder))


def _write(pipeline, flags):
    translates = isinstance(pipeline, Translator)
    if flags.format == "saved-model":
        options = {"version": flags.version}
        if translates:
            options["num_hypotheses"] = flags.num_hypotheses
            options["jit_compile"] = flags.jit_compile
        export.saved_model(pipeline, flags.folder, **options)
    elif flags.format == "keras":
        pipeline.save(flags.folder)
    elif flags.format == "ctranslate2":
        _write_ctranslate2(pipeline, flags)
    elif translates:
        zoo.to_hugging_face(
            pipeline.model,
            flags.folder,
            pipeline.vocabulary,
            pipeline.target_vocabulary,
            options=pipeline.changes(),
        )
    else:
        zoo.to_hugging_face(
            pipeline.model,
            flags.folder,
            pipeline.vocabulary,
            classes=pipeline.classes,
        )


def _write_ctranslate2(translator, flags):
    # CTranslate2 itself appends the end token to each source.
    suffix = list(translator.config.source_suffix)
    adds_end = suffix[-1:] == [translator.decoder.options.end_id]
    suffix = suffix[:-1] if adds_end else suffix
    zoo.to_ctranslate2(
        translator.model,
        translator.vocabulary,
        flags.folder,
        flags.quantization,
        translator.target_vocabulary,
        add_source_eos=adds_end,
    )
    source, target = translator.vocabulary, translator.target_vocabulary
    for place, vocabulary, ids in (
        ("before each source", source, translator.config.source_prefix),
        ("after each source", source, suffix),
        ("as target_prefix", target, translator.config.target_prefix),
    ):
        if ids:
            tokens = " ".join(vocabulary.tokens(ids))
            print(
                f"Pass these tokens to CTranslate2 {place}: {tokens}", file=sys.stderr
            )


def _report(folder):
    """Prints the content of a folder on standard error."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files) / 1e6
    names = ", ".join(sorted(path.name for path in folder.iterdir()))
    print(f"{folder}: {names}; {size:,.1f} MB", file=sys.stderr)


def _check(flags, translates):
    """Rejects flags that would have no effect."""
    saved_model = flags.format == "saved-model"
    has_effect = {
        "version": saved_model,
        "num_hypotheses": saved_model and translates,
        "jit_compile": saved_model and translates,
        "quantization": flags.format == "ctranslate2",
    }
    for name, effective in has_effect.items():
        value = getattr(flags, name)
        if value is not None and value is not False and not effective:
            kind = "" if translates else " of a classifier"
            raise ValueError(
                f"--{name.replace('_', '-')} has no effect with --format "
                f"{flags.format}{kind}; got {value}. Leave it out."
            )
    if flags.format == "ctranslate2" and not translates:
        raise ValueError(
            "--format ctranslate2 needs a translator; got a classifier. Use --format "
            "saved-model or transformers."
        )
