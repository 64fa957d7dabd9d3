"""`keras-tfm inspect`."""

from keras_tfm.serving import Classifier, Translator, presets


def served_of(command):
    """Loads what a command names, a translator or a classifier.

    Args:
        command: with `model`, `source_language` and `target_language`.
    """
    named = (command.source_language, command.target_language)
    try:
        return Translator.from_preset(command.model, *named)
    except (ValueError, FileNotFoundError) as fault:
        try:
            return Classifier.from_preset(command.model)
        except (ValueError, FileNotFoundError):
            raise fault from None


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
    served = served_of(command)
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
    network = getattr(model, "settings", None) or model.encoder.settings
    for title, values in (("network", network), ("settings", settings)):
        print(f"{title}:")
        for name, value in values.items():
            print(f"  {name}: {value}")
