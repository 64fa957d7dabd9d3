"""`keras-tfm translate`."""

import dataclasses
import functools
import json
import math
import sys
from typing import Any

from keras_tfm.cli import lines, output, ray_cluster
from keras_tfm.cli.bulk import Job
from keras_tfm.cli.options import Languages, Speed, Translate
from keras_tfm.pipelines import (
    Glossary,
    GlossaryTranslator,
    Translator,
    pivoting,
    pretrained,
    translate_markup,
)
from keras_tfm.pipelines.alignment import pharaoh
from keras_tfm.pipelines.sentences import SEPARATOR
from keras_tfm.text.sides import Sides

OPTIONAL = {"target_prefix": str, "constraints": list}


def load_translator(flags: Languages, **changes: Any) -> pivoting.AnyTranslator:
    """Loads the translator that a command names.

    Args:
        flags: of a command with `model`.
        **changes: of `Translator.from_preset`; None leaves a default.
    """
    changes = {name: value for name, value in changes.items() if value is not None}
    languages = (flags.source_language, flags.target_language)
    translator = pivoting.load_pair(flags.model, *languages, **changes)
    if changes.get("engine") == "auto" and isinstance(translator, Translator):
        print(f"Engine: {translator.decoder.options.engine}", file=sys.stderr)
    return translator


def speed_options(flags: Speed) -> dict[str, str | None]:
    """Returns the flags of `Speed` as options of decoding.

    Args:
        flags: of a command.
    """
    names = [field.name for field in dataclasses.fields(Speed)]
    return {name: getattr(flags, name) for name in names}


def languages_of(flags: Languages) -> Sides | None:
    """Returns the codes of source and target, or None if one is not known.

    Args:
        flags: of a command with `model`.
    """
    codes = [*pretrained.languages_of(flags.model), None, None]
    source = flags.source_language or codes[0]
    target = flags.target_language or codes[1]
    return (source, target) if source and target else None


def run(flags: Translate) -> None:
    """Translates.

    Args:
        flags: `options.Translate`.

    Raises:
        ValueError: a line has no translation; the others are written.
    """
    if flags.format == "text" and flags.num_hypotheses is not None:
        raise ValueError(
            f"--num-hypotheses needs --format jsonl; got {flags.num_hypotheses} with "
            "--format text."
        )
    if flags.markup and (flags.num_hypotheses or flags.alignments):
        raise ValueError(
            f"--markup works without --num-hypotheses and --alignments; got "
            f"num_hypotheses={flags.num_hypotheses}, alignments={flags.alignments!r}."
        )
    if flags.cluster is not None:
        if flags.alignments is not None:
            raise ValueError(
                f"--alignments works without --cluster; got {flags.alignments!r}."
            )
        from keras_tfm.cli import cluster_translation

        cluster_translation.run(flags)
        return
    ray_cluster.check_alone(flags)
    identity = output.prepare(flags, pretrained.locate(flags.model))
    if identity is not None and flags.glossary is not None:
        identity["glossary"] = output.fingerprints(flags.glossary)
    if flags.alignments is not None:
        identity = None
        _check_alignments(flags)
    job, _ = write(load(flags), flags, identity)
    job.check()


def _check_alignments(flags):
    """Rejects a file for alignments that is read, or is the output."""
    path = output.check_name(flags.alignments, "--alignments")
    inputs = [*(flags.files or ["-"]), flags.glossary]
    output.check(flags.alignments, inputs, "--alignments")
    if flags.output is not None and path == output.check_name(flags.output):
        raise ValueError(
            f"--alignments and --output must be two files; got {flags.output!r} for "
            "both. Name another."
        )


def load(flags: Translate) -> pivoting.AnyTranslator | GlossaryTranslator:
    """Loads the translator, and checks the flags that depend on it.

    Args:
        flags: `options.Translate`.
    """
    if flags.markup and pivoting.auto_target(flags.model):
        raise ValueError(f"--markup needs a source language; got {flags.model!r}.")
    glossary = None if flags.glossary is None else Glossary(flags.glossary)
    translator = load_translator(
        flags,
        beam_size=flags.beam_size,
        **speed_options(flags),
        batch_size=flags.batch_size,
        batch_tokens=flags.batch_tokens,
        return_attention=None if flags.alignments is None else True,
        protect=flags.protect or None,
        match_numbers=flags.match_numbers,
        lower_capitals=flags.lower_capitals,
        add_final_mark=flags.add_final_mark,
        avoid_loops=flags.avoid_loops,
    )
    if glossary is not None:
        if not isinstance(translator, Translator):
            raise ValueError(f"--glossary needs one model; got {flags.model!r}.")
        translator = GlossaryTranslator(translator, glossary)
    if flags.num_hypotheses is not None:  # rejected before an output is created
        translator.translate([], num_hypotheses=flags.num_hypotheses)
    return translator


def write(
    translator: pivoting.AnyTranslator | GlossaryTranslator,
    flags: Translate,
    identity: dict | None,
) -> tuple[Job, int]:
    """Translates files and writes the output.

    Args:
        translator: of `load`.
        flags: `options.Translate`.
        identity: of `output.prepare`.

    Returns:
        The `Job`, and the number of lines of the output.
    """
    items, answer = lines.read(flags.files), translator.translate
    if flags.format == "jsonl":
        optional = {} if flags.markup or flags.glossary else OPTIONAL
        items = lines.objects(items, ["source"], optional)
        answer = functools.partial(_translate_objects, translator, flags)
    elif flags.markup:
        answer = functools.partial(_translate_markup, translator, flags)
    writer = Writer(flags)
    job = Job(answer, writer, flags)
    answer = job
    if flags.alignments is not None:
        answer = functools.partial(_split_alignments, flags.alignments, job)
    count = output.write(flags, identity, items, answer, flags.progress)
    if writer.truncated and flags.format == "text":  # JSON has it in each answer
        print(
            f"{writer.truncated:,} translations were truncated at their maximum "
            "length.",
            file=sys.stderr,
        )
    if writer.unmet and flags.format == "text":
        message = f"Terms of the glossary that were not met: {writer.unmet:,}."
        print(message, file=sys.stderr)
    return job, count


class Writer:
    """Writes translations as lines; counts truncated ones and unmet terms.

    Args:
        flags: `options.Translate`.
    """

    def __init__(self, flags: Translate):
        self.flags, self.truncated, self.unmet = flags, 0, 0

    def __call__(self, item: lines.Item, result: Any) -> str:
        if self.flags.markup:
            return self._markup(item, result)
        self.truncated += result.truncated
        self.unmet += len(result.unmet_terms)
        if result.number_mismatch and self.flags.format == "text":
            place = f"{item.file}, line {item.line:,}"
            print(f"keras-tfm: {place}: the numbers differ.", file=sys.stderr)
        line, alignment = result.text, None
        if self.flags.alignments is not None:
            alignment = pharaoh(result.hypotheses[0].alignment or [])
        if self.flags.format == "jsonl":
            line = self._json(item, result, alignment)
        return line if alignment is None else line + SEPARATOR + alignment

    def _markup(self, item, result):
        if self.flags.format == "text":
            return result
        answer = {**item.id, "source": item.content["source"], "translation": result}
        return json.dumps(answer, ensure_ascii=False)

    def _json(self, item, result, alignment):
        hypotheses = [
            {"text": hypothesis.text, "score": _json_number(hypothesis.score)}
            for hypothesis in result.hypotheses[: self.flags.num_hypotheses or 1]
        ]
        answer = {
            **item.id,
            "source": result.source,
            "translation": result.text,
            "score": _json_number(result.score),
            "truncated": result.truncated,
            "number_mismatch": result.number_mismatch,
            "hypotheses": hypotheses,
            **({} if alignment is None else {"alignment": alignment}),
            **({"unmet_terms": result.unmet_terms} if self.flags.glossary else {}),
        }
        return json.dumps(answer, ensure_ascii=False)


def _split_alignments(path, job, items, first):
    """Writes the alignments at the ends of lines, and yields the lines."""
    with open(path, "w", encoding="utf-8") as file:
        for line in job(items, first):
            text, _, alignment = line.partition(SEPARATOR)
            file.write(alignment + "\n")  # empty for a line without an answer
            yield text


def _translate_markup(translator, flags, texts):
    return translate_markup(translator, texts, flags.markup)


def _translate_objects(translator, flags, items):
    if flags.markup:
        sources = [item["source"] for item in items]
        return _translate_markup(translator, flags, sources)
    count = flags.num_hypotheses
    options = {} if count is None else {"num_hypotheses": count}
    for name in OPTIONAL:
        values = [item.get(name) for item in items]
        if any(values):
            options[name] = values
    return translator.translate([item["source"] for item in items], **options)


def _json_number(value):
    """Returns None for minus infinity, which JSON does not have."""
    return None if value == -math.inf else round(value, 6)
