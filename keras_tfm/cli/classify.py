"""`keras-tfm classify`."""

import functools
import json

from keras_tfm.cli import lines
from keras_tfm.pipelines import Classifier
from keras_tfm.pipelines import pretrained as preset
from keras_tfm.pipelines.classifier import Prediction
from keras_tfm.text.files import chunks

NOTHING = Prediction(None, 0.0, {}, False)  # of a blank line


def run(command):
    """Labels lines; of a blank one nothing is said.

    Args:
        command: `options.Classify`.
    """
    of = lines.basis(command, preset.place(command.model))
    classifier = Classifier.from_preset(command.model)
    if command.form == "jsonl":
        given = lines.objects(lines.read(command.files), _names(classifier), {})
    elif classifier.paired:
        given = lines.pairs(command.files)
    else:
        given = lines.read(command.files)
    answers = functools.partial(_answers, classifier, command)
    lines.write(command, of, given, answers, None if command.output else False)


def _says(text, vocabulary):
    """Whether there is something to label, on both sides of a pair."""
    sides = [text] if isinstance(text, str) else text
    return all(side.strip() and vocabulary.encode([side])[0] for side in sides)


def _names(classifier):
    return ["text", "second"] if classifier.paired else ["text"]


def _answers(classifier, command, given, first):
    def labelled(some):
        found = iter(classifier([text for text, known in some if known]))
        return [next(found) if known else NOTHING for _, known in some]

    for some in chunks(given, command.window):
        texts = some
        if command.form == "jsonl":
            texts = lines.texts_of(some, _names(classifier))
        says = [_says(text, classifier.vocabulary) for text in texts]
        found = lines.answered(labelled, list(zip(texts, says, strict=True)), first)
        first += len(some)
        for one, item in zip(found, some, strict=True):
            if one is NOTHING and command.form != "jsonl":
                yield ""
            elif command.form == "jsonl":
                answer = {
                    **lines.same_id(item),
                    "label": one.label,
                    "probabilities": one.probabilities,
                    "truncated": one.truncated,
                }
                yield json.dumps(answer, ensure_ascii=False)
            else:
                label = one.label
                label = label if isinstance(label, str) else ",".join(label)
                yield f"{label}\t{one.probability:.4f}"
