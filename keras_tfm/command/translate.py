"""`keras-tfm translate`."""

import dataclasses
import itertools
import json

from keras_tfm.command import lines
from keras_tfm.serving import Translator

KNOWN = {"target_prefix": str, "constraints": list}


def translator_of(command, **settings):
    """Loads the translator that a command names.

    Args:
        command: with `model`, `source_language` and `target_language`.
        **settings: of `Translator`; those that are None are left out.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    return Translator.from_preset(
        command.model, command.source_language, command.target_language, **given
    )


def run(command):
    """Translates.

    Args:
        command: `options.Translate`.
    """
    if command.form == "text" and command.num_hypotheses != 1:
        raise ValueError(
            "A line has one translation. Received: --num-hypotheses "
            f"{command.num_hypotheses}. Ask for --form jsonl."
        )
    of = {**dataclasses.asdict(command), "files": lines.identity(command.files)}
    del of["progress"]
    output = lines.Output(command.output, of)
    translator = translator_of(
        command,
        beam_size=command.beam_size,
        batch_size=command.batch_size,
        batch_tokens=command.batch_tokens,
    )
    given = itertools.islice(lines.read(command.files), output.done, None)
    if command.form == "text":
        found = translator.bulk(given, command.window)
    else:
        found = _answers(translator, given, command)
    output.write_all(found, command.progress)


def _answers(translator, given, command):
    items = lines.objects(given, "source", KNOWN)
    for some in lines.windows(items, command.window):
        found = translator.translate(
            [one["source"] for one in some],
            target_prefix=[one.get("target_prefix") for one in some],
            constraints=[one.get("constraints") for one in some],
            num_hypotheses=command.num_hypotheses,
        )
        for one in found:
            hypotheses = [
                {"text": each.text, "score": _number(each.score)}
                for each in one.hypotheses
            ]
            answer = {
                "source": one.source,
                "translation": one.text,
                "score": _number(one.score),
                "finished": one.hypotheses[0].finished,
                "hypotheses": hypotheses,
            }
            yield json.dumps(answer, ensure_ascii=False)


def _number(value):
    """JSON has no infinity."""
    return None if value == -float("inf") else round(value, 6)
