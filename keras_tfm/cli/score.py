"""`keras-tfm score`."""

import functools
import json
import math
from collections.abc import Iterator

from keras_tfm.cli import lines, output
from keras_tfm.cli.options import Score
from keras_tfm.cli.translate import load_translator
from keras_tfm.pipelines import pretrained
from keras_tfm.text.files import chunks

NAMES = ["source", "target"]  # of an object


def run(flags: Score) -> None:
    """Scores pairs of source and translation.

    Args:
        flags: `options.Score`.
    """
    identity = output.prepare(flags, pretrained.locate(flags.model))
    translator = load_translator(flags)
    if flags.format == "jsonl":
        items = lines.objects(lines.read(flags.files), NAMES, {})
    else:
        items = lines.pairs(flags.files)
    answer = functools.partial(_answers, translator, flags)
    output.write(flags, identity, items, answer, None if flags.output else False)


def _answers(translator, flags, items, first) -> Iterator[str]:
    as_json = flags.format == "jsonl"
    for chunk in chunks(items, flags.window):
        pairs = lines.texts_of(chunk, NAMES) if as_json else chunk
        results = lines.answers(translator.score, pairs, first)
        first += len(chunk)
        for result, item in zip(results, chunk, strict=True):
            if not as_json:
                yield f"{result.score:.6f}"
                continue
            answer = {
                **lines.id_of(item),
                "score": result.score if math.isfinite(result.score) else None,
                "tokens": result.tokens,
                "token_scores": [round(score, 6) for score in result.token_scores],
            }
            yield json.dumps(answer, ensure_ascii=False)
