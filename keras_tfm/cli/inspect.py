"""`keras-tfm inspect`."""

from keras_tfm.pipelines import load, presets


def run(command):
    """Tells what a model is.

    Args:
        command: `options.Inspect`.
    """
    if command.model is None:
        for one in presets():
            scores = ", ".join(f"{name} {value}" for name, value in one.scores.items())
            print(
                f"{one.name}: {one.task}, {' to '.join(one.languages)}, "
                f"{one.parameters:,} parameters, {one.megabytes} MB, {one.licence}; "
                f"{one.data}; {scores}"
            )
        return
    served = load(command.model, command.source_language, command.target_language)
    model, vocabulary = served.model, served.vocabulary
    print(f"{type(served).__name__} of a {type(model).__name__}")
    print(f"parameters: {model.count_params():,}")
    print(f"vocabulary: {type(vocabulary).__name__}, {vocabulary.size:,} pieces")
    if hasattr(served, "translate"):
        other = served.target_vocabulary
        if other is not vocabulary:
            print(f"of the target: {type(other).__name__}, {other.size:,} pieces")
        settings = served.settings
    else:
        settings = {
            "classes": served.classes,
            "paired": served.paired,
            "max_length": served.max_length,
        }
    network = getattr(model, "config", None) or model.encoder.config
    for title, values in (("network", network), ("settings", settings)):
        print(f"{title}:")
        for name, value in values.items():
            print(f"  {name}: {value}")
