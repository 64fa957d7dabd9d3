"""`keras-tfm translate`."""

import functools
import json
import sys

from keras_tfm.cli import lines
from keras_tfm.pipelines import Translator
from keras_tfm.pipelines import pretrained as preset
from keras_tfm.text.files import chunks

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
    if command.form == "text" and command.num_hypotheses is not None:
        raise ValueError(
            "A line has one translation. Received: --num-hypotheses "
            f"{command.num_hypotheses}. Ask for --form jsonl."
        )
    of = lines.basis(command, preset.place(command.model))
    # Before a file is begun: what names nothing leaves none.
    translator = translator_of(
        command,
        beam_size=command.beam_size,
        matmul_precision=command.matmul_precision,
        batch_size=command.batch_size,
        batch_tokens=command.batch_tokens,
    )
    if command.num_hypotheses is not None:
        translator.translate([], num_hypotheses=command.num_hypotheses)
    answers = functools.partial(_answers, translator, command)
    given = lines.read(command.files)
    lines.write(command, of, given, answers, command.progress)
    if command.form == "text" and translator.cut:  # JSON says it of each
        print(
            f"{translator.cut:,} translations were cut at their limit of tokens.",
            file=sys.stderr,
        )


def _answers(translator, command, given, first):
    if command.form == "text":
        return translator.bulk(given, command.window)
    return _objects(translator, command, given, first)


def _objects(translator, command, given, first):
    items = lines.objects(given, ["source"], KNOWN, first)
    asked, count = {}, command.num_hypotheses
    if count is not None:
        asked["num_hypotheses"] = count

    def translated(some):
        return translator.translate(
            [one["source"] for one in some],
            target_prefix=[one.get("target_prefix") for one in some],
            constraints=[one.get("constraints") for one in some],
            **asked,
        )

    for some in chunks(items, command.window):
        found = lines.answered(translated, some, first)
        first += len(some)
        for one, item in zip(found, some, strict=True):
            hypotheses = [
                {"text": each.text, "score": _number(each.score)}
                for each in one.hypotheses[: count or 1]
            ]
            answer = {
                **lines.same_id(item),
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
