"""`keras-tfm score`."""

import json
import math

from keras_tfm.cli import lines, output
from keras_tfm.cli.bulk import Job
from keras_tfm.cli.options import Score
from keras_tfm.cli.translate import languages_of, load_translator
from keras_tfm.pipelines import Translator, pretrained

NAMES = [*lines.SIDES]  # of an object


def run(flags: Score) -> None:
    """Scores pairs of source and translation.

    Args:
        flags: `options.Score`.

    Raises:
        ValueError: a pair has no score; the others are written.
    """
    as_json = flags.format == "jsonl"
    if as_json and (flags.source_column or flags.target_column):
        raise ValueError(
            "--format jsonl reads objects with 'source' and 'target'; got "
            "--source-column or --target-column too. Leave out one of them."
        )
    identity = output.prepare(flags, pretrained.locate(flags.model))
    translator = load_translator(flags)
    if not isinstance(translator, Translator):
        raise ValueError(
            f"MODEL must be one model, which has scores; got {flags.model!r}. Score "
            "with each of its models."
        )
    report = None
    if as_json:
        items = lines.objects(lines.read(flags.files), NAMES, {})
    else:
        report, rows = lines.pairs(flags.files, flags, languages_of(flags))
        items = lines.items(report.name, rows)

    def answer(contents):
        pairs = lines.texts_of(contents, NAMES) if as_json else contents
        return translator.score(pairs)

    job = Job(answer, _json_line if as_json else _line, flags)
    output.write(flags, identity, items, job, None if flags.output else False)
    if report is not None:
        report.log()  # the header
    job.check()


def _line(_, result):
    return f"{result.score:.6f}"


def _json_line(item, result):
    answer = {
        **item.id,
        "score": result.score if math.isfinite(result.score) else None,
        "tokens": result.tokens,
        "token_scores": [round(score, 6) for score in result.token_scores],
    }
    return json.dumps(answer, ensure_ascii=False)
