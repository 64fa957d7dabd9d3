"""`keras-tfm translate`."""

import functools
import json
import math
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from keras_tfm.cli import lines, output
from keras_tfm.cli.options import Languages, Translate
from keras_tfm.pipelines import Translator, pretrained
from keras_tfm.text.files import chunks

OPTIONAL = {"target_prefix": str, "constraints": list}


def load_translator(flags: Languages, **changes: Any) -> Translator:
    """Loads the translator that a command names.

    Args:
        flags: of a command with `model`.
        **changes: of `Translator.from_preset`; None leaves a default.
    """
    changes = {name: value for name, value in changes.items() if value is not None}
    return Translator.from_preset(
        flags.model, flags.source_language, flags.target_language, **changes
    )


def run(flags: Translate) -> None:
    """Translates.

    A line of text that cannot be translated is reported, and its output is an
    empty line; the others are translated.

    Args:
        flags: `options.Translate`.

    Raises:
        ValueError: a line could not be translated; the others are written.
    """
    if flags.format == "text" and flags.num_hypotheses is not None:
        raise ValueError(
            f"--num-hypotheses needs --format jsonl; got {flags.num_hypotheses} with "
            "--format text."
        )
    identity = output.prepare(flags, pretrained.locate(flags.model))
    translator = load_translator(
        flags,
        beam_size=flags.beam_size,
        matmul_precision=flags.matmul_precision,
        batch_size=flags.batch_size,
        batch_tokens=flags.batch_tokens,
    )
    if flags.num_hypotheses is not None:  # rejected before an output is created
        translator.translate([], num_hypotheses=flags.num_hypotheses)
    job = Job(translator, flags)
    output.write(flags, identity, lines.read(flags.files), job, flags.progress)
    if job.truncated and flags.format == "text":  # JSON has it in each answer
        print(
            f"{job.truncated:,} translations were truncated at their maximum length.",
            file=sys.stderr,
        )
    if job.rejected:
        raise ValueError(
            f"{job.rejected:,} lines could not be translated, and are empty in the "
            "output; all others are written."
        )


class Job:
    """Translates lines; counts truncated translations and rejected lines.

    Args:
        translator: `Translator`.
        flags: `options.Translate`.
    """

    def __init__(self, translator: Translator, flags: Translate):
        self.translator, self.flags = translator, flags
        self.truncated = self.rejected = 0

    def __call__(self, items: Iterable[str], first: int) -> Iterator[str]:
        if self.flags.format == "jsonl":
            yield from self._json_answers(items, first)
            return
        for chunk in chunks(items, self.flags.window):
            errors = []
            translations = lines.answers_or_none(
                self.translator.translate,
                chunk,
                first,
                lambda number, error, errors=errors: errors.append((number, error)),
            )
            if len(errors) == len(chunk) > 1:  # no line is at fault
                raise errors[0][1]
            self._report(errors)
            first += len(chunk)
            for translation in translations:
                self.truncated += bool(translation and translation.truncated)
                yield translation.text if translation else ""

    def _report(self, errors):
        self.rejected += len(errors)
        for number, error in errors:
            place = lines.location(self.flags.files, number)
            print(f"keras-tfm: {place}: {error}", file=sys.stderr)

    def _json_answers(self, items, first):
        count = self.flags.num_hypotheses
        options = {} if count is None else {"num_hypotheses": count}
        translate = functools.partial(_translate_objects, self.translator, options)
        objects = lines.objects(items, ["source"], OPTIONAL, first)
        for chunk in chunks(objects, self.flags.window):
            results = lines.answers(translate, chunk, first)
            first += len(chunk)
            for result, item in zip(results, chunk, strict=True):
                answer = {
                    **lines.id_of(item),
                    "source": result.source,
                    "translation": result.text,
                    "score": _json_number(result.score),
                    "truncated": result.truncated,
                    "hypotheses": [
                        {
                            "text": hypothesis.text,
                            "score": _json_number(hypothesis.score),
                        }
                        for hypothesis in result.hypotheses[: count or 1]
                    ],
                }
                yield json.dumps(answer, ensure_ascii=False)


def _translate_objects(translator, options, items):
    return translator.translate(
        [item["source"] for item in items],
        target_prefix=[item.get("target_prefix") for item in items],
        constraints=[item.get("constraints") for item in items],
        **options,
    )


def _json_number(value):
    """Returns None for minus infinity, which JSON does not have."""
    return None if value == -math.inf else round(value, 6)
