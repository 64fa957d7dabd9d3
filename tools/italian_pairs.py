"""Makes Italian training pairs from Spanish ones, for en-fr and fr-en.

Run      python -m tools.italian_pairs --text FILE [FILE ...] --out FOLDER
Needs    Debian's packages apertium and apertium-spa-ita, and sacrebleu; Tatoeba
         and Europarl in the folder that KERAS_TFM_DATA names; files of `--text`
         with Italian text, such as those of Debian's fortunes-it
Writes   en-it.tsv and it-en.tsv for `--additional-data` of the translation
         recipe: the pairs of this tool, and twice those of Tatoeba

Tatoeba has ten times as many Spanish as Italian sentences. Apertium translates
them from Spanish to Italian. Of the sentences whose words it knows, those stay
that the preset it-en translates back best, by chrF. Some words that Apertium
gets wrong are repaired, or their sentences dropped.

Pairs of neighboring words that no other Italian text has are a sign of a bad
translation. A sentence with more than four is dropped. One with fewer is good
enough to read, but not to learn from: in en-it.tsv its source begins with a
mark, which tells the model that the target is no good Italian.

Sources: Forcada et al. 2011, https://doi.org/10.1007/s10590-011-9090-0
(Apertium); Junczys-Dowmunt 2018, https://aclanthology.org/W18-6478 (choice of
pairs by a model of the other direction, there by its probability); Caswell et
al. 2019, https://aclanthology.org/W19-5206 (a mark before machine-made sources)
"""

import argparse
import gzip
import itertools
import pathlib
import re
import subprocess
from collections.abc import Iterable, Iterator

import sacrebleu

from keras_tfm import pipelines
from keras_tfm.recipes import downloads

# What Apertium writes before a word that one of its stages does not know.
UNKNOWN = re.compile(r"[*@#](?=\w)")
UNKNOWN_WORD = re.compile(r"[@#]\w|\*(?![A-ZÀ-Ý])\w")  # other than a name
SPANISH_MARKS = str.maketrans("", "", "¿¡")
SPANISH_WORD = re.compile(r"[¿¡áíñóú]|é[a-z]*(st|ar)")
# Words that Apertium often gets wrong, and English words that justify them.
DOUBTFUL = {
    "atto": "act",
    "atti": "act",
    "meteo": "weather",
    "stagione": "season",
    "stagioni": "season",
}
# Italian has no article before "mio padre".
RELATIVE = re.compile(
    r"\b(il|la|del|della|al|alla) "
    r"((?:mi|tu|su)[oa]|nostr[oa]|vostr[oa]) "
    r"(padre|madre|fratello|sorella|figlio|figlia|marito|moglie|zio|zia"
    r"|nonno|nonna|cugino|cugina|nipote)\b",
    re.IGNORECASE,
)
WITHOUT_ARTICLE = {"il": "", "la": "", "del": "di ", "della": "di "}
WITHOUT_ARTICLE |= {"al": "a ", "alla": "a "}
NAME = re.compile(r"\b(Tom|Mary|Maria)\b")
WORD = re.compile(r"[a-zà-ÿ]+'?|[.,!?]")
SENTENCE_END = re.compile(r"\n%\n|(?<=[.!?])\s")
EUROPARL = "europarl/europarl.lc.it.gz"
MAX_UNSEEN = 4
MARK = "~ "
KEPT_SHARE = 0.7


def main() -> None:
    """Reads, translates, chooses and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", nargs="+", required=True, type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    flags = parser.parse_args()
    flags.out.mkdir(parents=True, exist_ok=True)
    spanish, italian = (
        [line.split("\t")[:2] for line in read(f"tatoeba/eng-{name}.tsv.gz")]
        for name in ("spa", "ita")
    )
    translations = apertium([target for _, target in spanish])
    pairs = best(known_pairs([source for source, _ in spanish], translations))
    attested = word_pairs(line.replace("' ", "'") for line in read(EUROPARL))
    attested |= word_pairs(target for _, target in italian)
    for path in flags.text:
        text = path.read_text(encoding="utf-8", errors="replace")
        attested |= word_pairs(SENTENCE_END.split(text))
    chosen = list(fluent(pairs, attested))
    print(f"{len(chosen):,} of {len(pairs):,} pairs are fluent enough.")
    write(flags.out / "en-it.tsv", [*chosen, *italian, *italian])
    back = [(target, source.removeprefix(MARK)) for source, target in chosen]
    twice = 2 * [(target, source) for source, target in italian]
    write(flags.out / "it-en.tsv", [*back, *twice])


def read(name: str) -> list[str]:
    """Reads the lines of a file of a corpus."""
    with gzip.open(downloads.find(*name.split("/")), "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def write(path: pathlib.Path, pairs: Iterable[Iterable[str]]) -> None:
    """Writes pairs, one on a line."""
    lines = ["\t".join(pair) + "\n" for pair in pairs]
    path.write_text("".join(lines), encoding="utf-8")


def apertium(sentences: list[str]) -> list[str]:
    """Translates Spanish sentences to Italian."""
    finished = subprocess.run(
        ["apertium", "spa-ita"],
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


def best(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns the pairs that it-en translates back best, in their order."""
    translator = pipelines.Translator.from_preset("it-en", beam_size=1)
    back = translator.bulk([target for _, target in pairs])
    scores = [
        sacrebleu.sentence_chrf(translation.text, [source]).score
        for translation, (source, _) in zip(back, pairs, strict=True)
    ]
    order = sorted(range(len(pairs)), key=scores.__getitem__, reverse=True)
    return [pairs[index] for index in sorted(order[: round(KEPT_SHARE * len(order))])]


def word_pairs(texts: Iterable[str]) -> set[tuple[str, str]]:
    """Returns the pairs of neighboring words that texts have."""
    return {pair for text in texts for pair in neighbors(text)}


def neighbors(text: str) -> Iterator[tuple[str, str]]:
    """Yields the pairs of neighboring words, with those of both ends."""
    words = WORD.findall(text.lower().replace("’", "'").replace("\n", " "))
    yield from itertools.pairwise(["<s>", *words, "</s>"])


def fluent(
    pairs: Iterable[tuple[str, str]], attested: set[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Repairs targets, drops bad ones, and marks the sources of doubtful ones.

    Args:
        pairs: English and Italian sentences.
        attested: pairs of words that other Italian text has.
    """
    for source, target in pairs:
        unseen = sum(
            pair not in attested for pair in neighbors(NAME.sub("maria", target))
        )
        target = RELATIVE.sub(_without_article, target)
        if unseen <= MAX_UNSEEN and not _is_doubtful(source, target):
            yield (MARK + source if unseen else source), target


def _without_article(match):
    article, owner, relative = match.groups()
    text = f"{WITHOUT_ARTICLE[article.lower()]}{owner} {relative}"
    return text[:1].upper() + text[1:] if article[0].isupper() else text


def _is_doubtful(source, target):
    words = set(re.findall(r"[a-zà-ÿ]+", target.lower()))
    return bool(SPANISH_WORD.search(target)) or any(
        word in words and reason not in source.lower()
        for word, reason in DOUBTFUL.items()
    )


if __name__ == "__main__":
    main()
