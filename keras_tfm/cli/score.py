"""`keras-tfm score`."""

import functools
import json

from keras_tfm.cli import lines
from keras_tfm.cli.translate import translator_of
from keras_tfm.pipelines import pretrained as preset
from keras_tfm.text.files import chunks

NAMES = ["source", "target"]  # in an object


def run(command):
    """Scores pairs.

    Args:
        command: `options.Score`.
    """
    of = lines.basis(command, preset.place(command.model))
    translator = translator_of(command)
    if command.form == "jsonl":
        given = lines.objects(lines.read(command.files), NAMES, {})
    else:
        given = lines.pairs(command.files)
    answers = functools.partial(_answers, translator, command)
    lines.write(command, of, given, answers, None if command.output else False)


def _answers(translator, command, given, first):
    for some in chunks(given, command.window):
        asked = some
        if command.form == "jsonl":
            asked = lines.texts_of(some, NAMES)
        found = lines.answered(translator.score, asked, first)
        first += len(some)
        for one, item in zip(found, some, strict=True):
            known = one.score != -float("inf")
            if command.form == "jsonl":
                answer = {
                    **lines.same_id(item),
                    "score": one.score if known else None,
                    "tokens": one.tokens,
                    "token_scores": [round(gain, 6) for gain in one.token_scores],
                }
                yield json.dumps(answer, ensure_ascii=False)
            else:
                yield f"{one.score:.6f}"
