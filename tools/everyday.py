"""Scores a translator on everyday inputs, numbers and names.

Run      python -m tools.everyday en-de [--list] [--numbers 1000] [--names 300]
Prints   a Markdown table of the inputs of `tests/data/everyday` by kind: the
         share that is right, and right or with a small slip; then generated
         sentences with numbers and with names; then loops, and words that
         neither the training corpus nor the source has.

A translation is right if it equals an accepted answer but for spaces, final
punctuation and the case of the first letter; in chat, of all letters. A small
slip has a chrF of at least SLIP with the nearest accepted answer. In the files
` | ` separates answers, `[a/b]` stands for a or b, and `\\n` for a line break.
"""

import argparse
import collections
import gzip
import itertools
import os
import pathlib
import random
import re
import unicodedata
from collections.abc import Set
from typing import NamedTuple

from keras_tfm import pipelines
from keras_tfm.pipelines.loops import has_loop

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "data" / "everyday"
SLIP = 70  # chrF, calibrated by reading: README of the folder
MAX_ANSWERS = 2_000  # alternatives of a line
CODES = {"de": "deu", "es": "spa", "fr": "fra", "it": "ita"}


class Case(NamedTuple):
    """An input, its kind, and the answers that are accepted.

    An answer has lines, and a line has alternatives.
    """

    kind: str
    source: str
    accepted: list[list[list[str]]]

    @property
    def texts(self) -> list[str]:
        """Answers: alternatives of a single line; else the first ones."""
        texts = []
        for lines in self.accepted:
            is_single = len(lines) == 1
            first = "\n".join(line[0] for line in lines)
            texts += lines[0] if is_single else [first]
        return texts


def expand(answer: str) -> list[str]:
    """Writes out the alternatives `[a/b]` of an answer."""
    parts = re.split(r"\[([^\]]*)\]", answer)
    options = [
        part.split("/") if number % 2 else [part] for number, part in enumerate(parts)
    ]
    texts = map("".join, itertools.product(*options))
    return list(dict.fromkeys(itertools.islice(texts, MAX_ANSWERS)))


def read_cases(file: pathlib.Path) -> list[Case]:
    """Reads a file of `tests/data/everyday`."""
    cases = []
    for row in file.read_text("utf-8").splitlines()[1:]:
        kind, source, accepted = row.split("\t")
        answers = [
            [list(map(tidy, expand(line))) for line in answer.split("\\n")]
            for answer in accepted.split(" | ")
        ]
        cases.append(Case(kind, source.replace("\\n", "\n"), answers))
    return cases


def tidy(text: str) -> str:
    """Removes doubled spaces, and spaces before punctuation and at the ends."""
    text = text.replace("\u00a0", " ").replace("\u202f", " ").replace("’", "'")
    text = re.sub(r"[^\S\n]+", " ", text)
    return re.sub(r" (?=[,.;:!?%]|$)", "", text, flags=re.MULTILINE).strip()


def normalize(line: str) -> str:
    """Removes final punctuation and the case of the first letter, too."""
    line = re.sub(r"[\s.!?…]+$", "", re.sub(r"[¡¿]", "", tidy(line))).strip()
    return line[:1].lower() + line[1:].replace("ẞ", "SS")


def judge(case: Case, translation: str, vocabulary: Set[str] = frozenset()) -> str:
    """Returns `"right"`, `"slip"` or `"wrong"`.

    Args:
        case: `Case`.
        translation: str.
        vocabulary: set of str, words of the target language; if it is not
            empty, a slip has no other words.
    """
    from sacrebleu.metrics import CHRF

    def plain(line):
        return normalize(line).lower() if case.kind == "chat" else normalize(line)

    lines = list(filter(None, map(plain, translation.split("\n"))))
    chrf, scores = CHRF(), [0.0]
    for answer in case.accepted:
        answer = [list(map(plain, line)) for line in answer]
        answer = [line for line in answer if line != [""]]
        if len(answer) != len(lines):
            continue
        pairs = list(zip(lines, answer, strict=True))
        if all(line in alternatives for line, alternatives in pairs):
            return "right"
        nearest = "\n".join(
            max(
                alternatives,
                key=lambda text, line=line: chrf.sentence_score(line, [text]).score,
            )
            for line, alternatives in pairs
        )
        scores.append(chrf.sentence_score("\n".join(lines), [nearest]).score)
    is_complete = (
        keeps_numbers(case, translation)
        and all(word in translation for word in names_of(case) | symbols(case.source))
        and not re.search(r"\b(\w+) \1\b", translation, flags=re.IGNORECASE)
        and not (vocabulary and invented_words(case, translation, vocabulary))
    )
    return "slip" if max(scores) >= SLIP and is_complete else "wrong"


def symbols(text: str) -> set[str]:
    """Returns the emoji and other symbols of a text."""
    return {symbol for symbol in text if unicodedata.category(symbol) == "So"}


def invented_words(case: Case, translation: str, vocabulary: Set[str]) -> list[str]:
    """Lists the words that neither vocabulary, source nor answers have."""
    expected = {word for answer in case.texts for word in words_of(answer)}
    expected |= {*words_of(case.source)}
    words = words_of(translation)
    return [word for word in words if word not in expected and word not in vocabulary]


def numbers(text: str) -> list[str]:
    """Returns the runs of digits of a text, sorted; thousands are not split."""
    text = text.replace("\u00a0", " ").replace("\u202f", " ")
    for _ in range(3):
        text = re.sub(r"(?<=\d)[., ](?=\d{3}(?!\d))", "", text)
    return sorted(re.findall(r"\d+", text))


def keeps_numbers(case: Case, translation: str) -> bool:
    """Whether the numbers are those of the source or of an accepted answer."""
    forms = [numbers(text) for text in (case.source, *case.texts)]
    return numbers(translation) in forms


def names_of(case: Case) -> set[str]:
    """Returns the capitalized words that the source and all answers have."""
    names = set(re.findall(r"\b[A-Z][\w'-]{2,}", case.source))
    return {name for name in names if all(name in text for text in case.texts)}


def training_words(source: str, target: str) -> set[str]:
    """Returns the words of the target side of Tatoeba in KERAS_TFM_DATA."""
    foreign = target if source == "en" else source
    data = os.environ.get("KERAS_TFM_DATA", "")
    file = pathlib.Path(data, "tatoeba", f"eng-{CODES.get(foreign)}.tsv.gz")
    if not data or not file.is_file():
        return set()
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        column = 1 if source == "en" else 0
        sentences = (line.rstrip("\n").split("\t")[column] for line in lines)
        return {word for text in sentences for word in words_of(text)}


def words_of(text: str) -> list[str]:
    """Returns the words of four letters or more, in lower case."""
    return re.findall(r"[^\W\d_]{4,}", text.lower())


def generate(kind: str, language: str, count: int, seed: int) -> list[Case]:
    """Fills templates of `numbers.tsv` or `names.tsv` with drawn values."""
    table: dict = collections.defaultdict(list)
    for row in (FOLDER / f"{kind}.tsv").read_text("utf-8").splitlines():
        name, text = row.split("\t")
        table[name].append(text)
    rng, cases = random.Random(seed), []
    for number in range(count):
        if kind == "names":
            slots = ("first", "last", "town")
            values = {slot: rng.choice(table[slot][0].split()) for slot in slots}
        else:
            values = draw_numbers(rng, language)
        template = table[language][number % len(table[language])]
        expected = [values[slot] for slot in re.findall(r"\{(\w+)\}", template)]
        accepted = [[[value]] for value in expected]
        cases.append(Case(kind, template.format(**values), accepted))
    return cases


def draw_numbers(rng: random.Random, language: str) -> dict[str, str]:
    """Draws a value for each slot of `numbers.tsv`, as a language writes it."""
    marks = {"en": ",.", "fr": " ,"}.get(language, ".,")

    def write(value):
        return f"{value:,}".translate(str.maketrans({",": marks[0], ".": marks[1]}))

    amount = write(rng.choice((rng.randint(2, 999), rng.randint(200, 99_999) / 100)))
    clock = f"{rng.randint(2, 23)}:{rng.randint(10, 59)}"
    return {
        "small": str(rng.randint(2, 999)),
        "big": write(rng.randint(100, 10 ** rng.randint(3, 7))),
        "code": str(rng.randint(1_000, 10 ** rng.randint(5, 8))),
        "time": clock.replace(":", " h ") if language == "fr" else clock,
        "price": f"€{amount}" if language == "en" else f"{amount} €",
        "year": str(rng.randint(1400, 2049)),
        "decimal": write(rng.randint(11, 999) / 10),
    }


def print_kinds(
    cases: list[Case], translations: list[str], vocabulary: Set[str]
) -> None:
    """Prints the table of verdicts by kind."""
    counts: dict = collections.defaultdict(collections.Counter)
    for case, translation in zip(cases, translations, strict=True):
        verdict = judge(case, translation, vocabulary)
        for kind in (case.kind, "all"):
            counts[kind][verdict] += 1
    print("| kind | inputs | right | right or small slip |\n|---|---|---|---|")
    for kind in (*dict.fromkeys(case.kind for case in cases), "all"):
        right, slips = counts[kind]["right"], counts[kind]["slip"]
        total = counts[kind].total()
        shares = f"{right / total:.0%} | {(right + slips) / total:.0%}"
        print(f"| {kind} | {total} | {shares} |")


def print_kept(cases: list[Case], translations: list[str], options) -> None:
    """Prints the shares whose numbers and names were kept."""
    pairs = list(zip(cases, translations, strict=True))
    shares = {
        "numbers, everyday": [
            keeps_numbers(case, text) for case, text in pairs if numbers(case.source)
        ],
        "names, everyday": [
            all(name in text for name in names_of(case))
            for case, text in pairs
            if case.kind == "name"
        ],
    }
    language = options.translator.split("-")[0]
    for kind, count in (("numbers", options.numbers), ("names", options.names)):
        generated = generate(kind, options.source or language, count, options.seed)
        texts = options.translate([case.source for case in generated])
        verdicts = []
        for case, text in zip(generated, texts, strict=True):
            if kind == "numbers":
                verdicts.append(numbers(text) == numbers(case.source))
            else:
                verdicts.append(all(name in text for name in case.texts))
            if options.list and not verdicts[-1]:
                print(f"{kind}: {case.source} -> {text}")
        shares[f"{kind}, generated"] = verdicts
    print("\n| kept | inputs | share |\n|---|---|---|")
    for name, verdicts in shares.items():
        if verdicts:
            share = sum(verdicts) / len(verdicts)
            print(f"| {name} | {len(verdicts):,} | {share:.1%} |")


def print_faults(
    cases: list[Case], translations: list[str], vocabulary: Set[str]
) -> None:
    """Prints loops, and words that were seen nowhere."""
    for case, translation in zip(cases, translations, strict=True):
        if has_loop(translation) and not has_loop(case.source):
            print(f"* loop: {case.source!r} -> {translation!r}")
        words = invented_words(case, translation, vocabulary) if vocabulary else []
        if words:
            invented = ", ".join(words)
            print(f"* not a word: {invented}: {case.source!r} -> {translation!r}")


def main() -> None:
    """Translates and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("translator", help="a preset or a folder")
    parser.add_argument("--source", help="source language, unless the name says so")
    parser.add_argument(
        "--target", help="target language, unless a preset's name says so"
    )
    parser.add_argument("--numbers", type=int, default=1_000, help="sentences")
    parser.add_argument("--names", type=int, default=300, help="sentences")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="print what is not right")
    options = parser.parse_args()
    source, _, target = pathlib.Path(options.translator).name.partition("-")
    source, target = options.source or source, options.target or target
    chosen = {"target_language": options.target} if options.target else {}
    translator = pipelines.Translator.from_preset(options.translator, **chosen)
    options.translate = lambda texts: list(translator(texts))
    cases = read_cases(FOLDER / f"{source}-{target}.tsv")
    translations = options.translate([case.source for case in cases])
    vocabulary = training_words(source, target)
    if options.list:
        for case, translation in zip(cases, translations, strict=True):
            verdict = judge(case, translation, vocabulary)
            if verdict != "right":
                print(f"{verdict} ({case.kind}): {case.source!r} -> {translation!r}")
        print()
    print_kinds(cases, translations, vocabulary)
    print_kept(cases, translations, options)
    print()
    print_faults(cases, translations, vocabulary)


if __name__ == "__main__":
    main()
