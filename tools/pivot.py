"""Makes training pairs of a language that has few, by way of a third one.

Run      python -m tools.pivot --pairs eng-spa.tsv.gz --mode spa-ita \\
             --back it-en --keep 0.7 --out eng-ita.pivot.tsv
Needs    Apertium and its data for the mode, such as Debian's apertium-spa-ita,
         and sacrebleu
Writes   tab-separated pairs: the first column of `--pairs`, and the second
         column as Apertium translates it. Sentences with words that Apertium
         does not know are left out, except capitalized ones, which are names.

A preset translates each sentence back. The pairs are sorted by the chrF of the
back-translation with the first column, and the best are written.

Source: Forcada et al. 2011, https://doi.org/10.1007/s10590-011-9090-0
(Apertium); Junczys-Dowmunt 2018, https://aclanthology.org/W18-6478 (choice of
pairs by a translation model of the other direction, there by its probability)
"""

import argparse
import gzip
import pathlib
import re
import subprocess

import sacrebleu

from keras_tfm import pipelines

# What Apertium writes before a word that a stage does not know.
UNKNOWN = re.compile(r"[*@#](?=\w)")
UNKNOWN_WORD = re.compile(r"[@#]\w|\*(?![A-ZÀ-Ý])\w")
SPANISH_MARKS = str.maketrans("", "", "¿¡")


def main() -> None:
    """Reads the pairs, translates, scores and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", required=True, type=pathlib.Path)
    parser.add_argument("--mode", required=True, help="of Apertium, such as spa-ita")
    parser.add_argument("--back", required=True, help="preset, such as it-en")
    parser.add_argument("--keep", type=float, default=0.7, help="share of the pairs")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    flags = parser.parse_args()
    opened = gzip.open if flags.pairs.suffix == ".gz" else open
    with opened(flags.pairs, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t")[:2] for line in file]
    translations = apertium([row[1] for row in rows], flags.mode)
    pairs = known_pairs([row[0] for row in rows], translations)
    print(f"{len(pairs):,} of {len(rows):,} pairs have known words only.")
    translator = pipelines.Translator.from_preset(flags.back)
    back = translator.bulk([target for _, target in pairs], beam_size=1)
    scores = [
        sacrebleu.sentence_chrf(translation.text, [source]).score
        for translation, (source, _) in zip(back, pairs, strict=True)
    ]
    order = sorted(range(len(pairs)), key=scores.__getitem__, reverse=True)
    order = order[: round(flags.keep * len(order))]
    lines = ["\t".join(pairs[index]) + "\n" for index in sorted(order)]
    flags.out.write_text("".join(lines), encoding="utf-8")
    print(f"{len(order):,} pairs written, with chrF {scores[order[-1]]:.1f} or more.")


def apertium(sentences: list[str], mode: str) -> list[str]:
    """Translates sentences, one on a line."""
    finished = subprocess.run(
        ["apertium", mode],
        input="\n".join(sentences) + "\n",
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    return finished.stdout.splitlines()


def known_pairs(sources: list[str], translations: list[str]) -> list[tuple[str, str]]:
    """Returns the pairs whose translation has only known words and names."""
    pairs = {}
    for source, translation in zip(sources, translations, strict=True):
        if not UNKNOWN_WORD.search(translation):
            translation = UNKNOWN.sub("", translation).translate(SPANISH_MARKS)
            pairs[source, translation[:1].upper() + translation[1:]] = None
    return list(pairs)


if __name__ == "__main__":
    main()
