"""`keras-tfm classify`."""

import json
import sys

from keras_tfm.cli import lines, output
from keras_tfm.cli.bulk import Job
from keras_tfm.cli.options import Classify
from keras_tfm.pipelines import Classifier, pretrained
from keras_tfm.pipelines.classifier import Prediction

BLANK = Prediction(None, 0.0, {}, False)  # of a blank line


def run(flags: Classify) -> None:
    """Classifies lines; the answer to a blank line is blank.

    Args:
        flags: `options.Classify`.

    Raises:
        ValueError: a line has no label; the others are written.
    """
    identity = output.prepare(flags, pretrained.locate(flags.model))
    classifier = Classifier.from_preset(flags.model)
    as_json, names = flags.format == "jsonl", _names(classifier)
    if as_json:
        items = lines.objects(lines.read(flags.files), names, {})
    elif classifier.paired:
        report, rows = lines.pairs(flags.files, flags, format="tsv", header=False)
        items = lines.items(report.name, rows)
    else:
        items = lines.read(flags.files)

    def answer(contents):
        return _classify(
            classifier, lines.texts_of(contents, names) if as_json else contents
        )

    num_truncated = 0

    def write(item, prediction):
        nonlocal num_truncated
        num_truncated += prediction.truncated
        return (_json_line if as_json else _line)(item, prediction)

    job = Job(answer, write, flags)
    output.write(flags, identity, items, job, None if flags.output else False)
    if num_truncated and not as_json:  # JSON has it in each answer
        print(
            f"{num_truncated:,} texts were truncated at {classifier.max_length:,} "
            "tokens.",
            file=sys.stderr,
        )
    job.check()


def _names(classifier):
    return ["text", "second"] if classifier.paired else ["text"]


def _has_tokens(text, vocabulary):
    """Whether a text, or both texts of a pair, have a token."""
    sides = [text] if isinstance(text, str) else text
    return all(side.strip() and vocabulary.encode([side])[0] for side in sides)


def _classify(classifier, texts):
    has_tokens = [_has_tokens(text, classifier.vocabulary) for text in texts]
    selected = [
        text for text, is_text in zip(texts, has_tokens, strict=True) if is_text
    ]
    predictions = iter(classifier(selected))
    return [next(predictions) if is_text else BLANK for is_text in has_tokens]


def _json_line(item, prediction):
    answer = {
        **item.id,
        "label": prediction.label,
        "probabilities": prediction.probabilities,
        "truncated": prediction.truncated,
    }
    return json.dumps(answer, ensure_ascii=False)


def _line(_, prediction):
    if prediction is BLANK:
        return ""
    label = prediction.label
    label = label if isinstance(label, str) else ",".join(label)
    return f"{label}\t{prediction.probability:.4f}"
