"""`keras-tfm classify`."""

import functools
import json
from collections.abc import Iterator

from keras_tfm.cli import lines, output
from keras_tfm.cli.options import Classify
from keras_tfm.pipelines import Classifier, pretrained
from keras_tfm.pipelines.classifier import Prediction
from keras_tfm.text.files import chunks

BLANK = Prediction(None, 0.0, {}, False)  # of a blank line


def run(flags: Classify) -> None:
    """Classifies lines; the answer to a blank line is blank.

    Args:
        flags: `options.Classify`.
    """
    identity = output.prepare(flags, pretrained.locate(flags.model))
    classifier = Classifier.from_preset(flags.model)
    if flags.format == "jsonl":
        items = lines.objects(lines.read(flags.files), _names(classifier), {})
    elif classifier.paired:
        items = lines.pairs(flags.files)
    else:
        items = lines.read(flags.files)
    answer = functools.partial(_answers, classifier, flags)
    output.write(flags, identity, items, answer, None if flags.output else False)


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


def _answers(classifier, flags, items, first) -> Iterator[str]:
    as_json = flags.format == "jsonl"
    classify = functools.partial(_classify, classifier)
    for chunk in chunks(items, flags.window):
        texts = lines.texts_of(chunk, _names(classifier)) if as_json else chunk
        predictions = lines.answers(classify, list(texts), first)
        first += len(chunk)
        for prediction, item in zip(predictions, chunk, strict=True):
            if as_json:
                answer = {
                    **lines.id_of(item),
                    "label": prediction.label,
                    "probabilities": prediction.probabilities,
                    "truncated": prediction.truncated,
                }
                yield json.dumps(answer, ensure_ascii=False)
            else:
                yield _line(prediction)


def _line(prediction):
    if prediction is BLANK:
        return ""
    label = prediction.label
    label = label if isinstance(label, str) else ",".join(label)
    return f"{label}\t{prediction.probability:.4f}"
