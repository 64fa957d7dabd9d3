"""`keras-tfm score`."""

import json

from keras_tfm.command import lines
from keras_tfm.command.translate import translator_of
from keras_tfm.text.files import windows

NAMES = ["source", "target"]  # in an object


def run(command):
    """Scores pairs.

    Args:
        command: `options.Score`.
    """
    lines.check_window(command.window)
    translator = translator_of(command)
    if command.form == "jsonl":
        given = lines.objects(lines.read(command.files), NAMES, {})
    else:
        given = lines.pairs(command.files)
    lines.Output(None).write_all(_answers(translator, given, command), False)


def _answers(translator, given, command):
    first = 1
    for some in windows(given, command.window):
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
