"""`keras-tfm score`."""

import json

from keras_tfm.command import lines
from keras_tfm.command.translate import translator_of


def run(command):
    """Scores pairs.

    Args:
        command: `options.Score`.
    """
    translator = translator_of(command)
    found = _answers(translator, lines.pairs(command.files), command)
    lines.Output(None).write_all(found, False)


def _answers(translator, given, command):
    first = 1
    for some in lines.windows(given, command.window):
        with lines.placed(first):
            found = translator.score(some)
        first += len(some)
        for one in found:
            known = one.score != -float("inf")
            if command.form == "jsonl":
                answer = {
                    "score": one.score if known else None,
                    "tokens": one.tokens,
                    "token_scores": [round(gain, 6) for gain in one.token_scores],
                }
                yield json.dumps(answer, ensure_ascii=False)
            else:
                yield f"{one.score:.6f}"
