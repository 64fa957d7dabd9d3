"""`keras-tfm classify`."""

import json

from keras_tfm.command import lines
from keras_tfm.serving import Classifier


def run(command):
    """Labels lines.

    Args:
        command: `options.Classify`.
    """
    classifier = Classifier.from_preset(command.model)
    if classifier.paired:
        given = lines.pairs(command.files)
    else:
        given = lines.read(command.files)
    lines.Output(None).write_all(_answers(classifier, given, command), False)


def _answers(classifier, given, command):
    first = 1
    for some in lines.windows(given, command.window):
        with lines.placed(first):
            found = classifier(some)
        first += len(some)
        for one in found:
            if command.form == "jsonl":
                answer = {
                    "label": one.label,
                    "probabilities": one.probabilities,
                    "truncated": one.truncated,
                }
                yield json.dumps(answer, ensure_ascii=False)
            else:
                label = one.label
                label = label if isinstance(label, str) else ",".join(label)
                yield f"{label}\t{one.probability:.4f}"
