"""`keras-tfm inspect`."""

from typing import Any

from keras_tfm.cli.options import Inspect
from keras_tfm.pipelines import Translator, load, pivoting, presets
from keras_tfm.pipelines.packaged import PACKAGED
from keras_tfm.pipelines.pretrained import languages_of

MAX_LENGTH = 12  # entries of a list that are printed


def run(flags: Inspect) -> None:
    """Prints the configuration of a model, or the list of presets.

    Of a pair of languages that two presets make, and of detected languages, it
    prints the presets and the configuration of each.

    Args:
        flags: `options.Inspect`.
    """
    if flags.model is None:
        _list_presets()
        return
    routes = _routes(flags.model)
    if not routes:
        _print_model(flags.model, flags.source_language, flags.target_language)
        return
    for source, route in routes.items():
        print(f"from {source}: {', then '.join(route)}")
    for name in sorted({name for route in routes.values() for name in route}):
        print(f"\n{name}")
        _print_model(name)


def _routes(name):
    """The presets of a translator of several, by source language."""
    if target := pivoting.auto_target(name):
        return pivoting.routes_to(target)
    names = pivoting.pivot_names(name)
    return {name.partition("-")[0]: names} if names else {}


def _print_model(name, source_language=None, target_language=None):
    pipeline: Any = load(name, source_language, target_language)
    model, vocabulary = pipeline.model, pipeline.vocabulary
    print(f"{type(pipeline).__name__} with a {type(model).__name__}")
    if languages := languages_of(name):
        print(f"languages: {' to '.join(languages)}")
    print(f"parameters: {model.count_params():,}")
    print(f"vocabulary: {type(vocabulary).__name__}, {vocabulary.size:,} tokens")
    if isinstance(pipeline, Translator):
        target = pipeline.target_vocabulary
        if target is not vocabulary:
            print(f"target vocabulary: {type(target).__name__}, {target.size:,} tokens")
        config = pipeline.changes()
    else:
        config = {
            "classes": pipeline.classes,
            "paired": pipeline.paired,
            "max_length": pipeline.max_length,
        }
    network = dict(getattr(model, "config", None) or model.encoder.config)
    if "encoder" in network:  # of a classifier
        network.update(network.pop("encoder").config)
    for title, values in (("network", network), ("pipeline", config)):
        print(f"{title}:")
        for name, value in values.items():
            print(f"  {name}: {_shortened(value)}")


def _shortened(value):
    """A value, or the number of entries of a long list."""
    is_long = isinstance(value, list | tuple) and len(value) > MAX_LENGTH
    return f"{len(value):,} entries" if is_long else value


def _list_presets():
    for preset in presets():
        scores = ", ".join(f"{name} {value}" for name, value in preset.scores.items())
        print(
            f"{preset.name}: {preset.task}, {' to '.join(preset.languages)}, "
            f"{preset.parameters:,} parameters, {preset.megabytes} MB, "
            f"{preset.license}; {preset.data}; {scores}"
        )
    for name, model in PACKAGED.items():
        languages = " to ".join(model.languages)
        print(f"{name}: translation, {languages}, of the package {model.distribution}")
