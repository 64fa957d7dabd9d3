"""Makes docs/results.md from the cards of the presets and the recipes' page.

    python -m tools.results

A row of a recipe is one whose command needs no other run. A card or table that
cannot be read is an error, so that the page never leaves a model out.
"""

import json
import pathlib
import re
from collections.abc import Iterable, Iterator

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"
PRESETS = "keras_tfm/presets"
RECIPES = "keras_tfm/recipes/README.md"
TEXT = """# Models and recipes

Quality with its 95% interval, from the cards of the presets and from the page
[recipes](../{recipes}); `python -m tools.results` makes this page. Speed is
on the page [benchmarks](benchmarks.md).

## Pretrained models

Each is part of the package: `Translator.from_preset("en-de")` from English to German,
`Classifier.from_preset("sentiment-en")`. Several presets may share one folder. Scores
are those of the weights in the package, on the test texts of the card, which also names
commit, command, date and weaknesses.

{presets}

## Recipes

Runs that need data alone. [Recipes](../{recipes}) has their machines, dates,
commits and memory, and further runs, such as those of the presets.

{runs}
"""
# A row that builds on another row, or a model that was replaced.
DEPENDENT = re.compile(r"\buntil\b|\bthe (same|previous|run)\b", re.IGNORECASE)
# Of a card in one line: examples of training, and of the test.
DATA = r"\* Data: .*?(\d[\d,]*)(?: training)? (pairs|texts)"
TESTED = r"(?:Evaluation|Tested on) (\d[\d,]*) (?:test )?(pairs|texts)"
# Headings of the recipes' tables.
RECIPE_NAMES = {
    "Results": "translation",
    "Classification": "classification",
    "Language models": "language model",
}
# The scores of a recipe by the columns of its table, and how they are called.
SCORES = {
    "BLEU, test (95%)": "BLEU {}",
    "chrF (95%)": "chrF {}",
    "accuracy, test (95%)": "accuracy {}%",
    "TF-IDF baseline, accuracy": "TF-IDF {}%",
    "perplexity, test: per token, per word": "perplexity {} (token, word)",
    "bits per character": "{} bits per character",
}


def main() -> None:
    """Writes the page."""
    PAGE.write_text(make_page(ROOT), "utf-8")


def make_page(root: pathlib.Path) -> str:
    """Returns the page.

    Args:
        root: Path of the repository.
    """
    header = ("preset", "BLEU or accuracy (95%)", "chrF or macro F1 (95%)")
    header += ("test set", "training data", "size, parameters", "license")
    presets = [
        row
        for file in sorted((root / PRESETS).glob("*/preset.json"))
        for row in preset_rows(file.parent)
    ]
    runs = table(
        ("recipe", "data", "result (95%)", "minutes", "command"),
        recipe_rows((root / RECIPES).read_text("utf-8")),
    )
    return TEXT.format(recipes=RECIPES, presets=table(header, presets), runs=runs)


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Formats a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def preset_rows(folder: pathlib.Path) -> Iterator[tuple[str, ...]]:
    """Yields a row for each name that shares the folder of a preset.

    Args:
        folder: Path with `preset.json` and the card.

    Raises:
        ValueError: the card lacks a fact, or contradicts `preset.json`.
    """
    preset = json.loads((folder / "preset.json").read_text("utf-8"))
    card = (folder / "README.md").read_text("utf-8")
    size = sum(f.stat().st_size for f in folder.iterdir() if f.name != "README.md")
    examples = search(DATA, card, folder.name)
    names = {folder.name: preset, **preset.get("directions", {})}
    for name, facts in names.items():
        yield (
            f"[`{name}`](../{PRESETS}/{folder.name}/README.md)",
            *quality(name, facts["scores"], card, len(names) > 1),
            search(TESTED, card, name) if facts is preset else "see the card",
            f"{preset['data'].split(',')[0]}, {examples}",
            f"{size / 1e6:.1f} MB, {preset['parameters'] / 1e6:.1f}M",
            preset["license"],
        )


def search(pattern: str, card: str, name: str) -> str:
    """Returns a number and what it counts, such as "2,000 pairs"."""
    match = re.search(pattern, " ".join(card.split()))
    if not match:
        raise ValueError(
            f"The card of a preset must have a text like {pattern!r}; the card of "
            f"{name} has none. Change the card, or the pattern in tools/results.py."
        )
    return " ".join(match.groups())


def quality(
    name: str, scores: dict[str, float], card: str, is_shared: bool
) -> list[str]:
    """Returns the scores of a preset with their intervals, from its card.

    Args:
        name: str, the preset or one of its directions.
        scores: dict of float, from `preset.json`.
        card: str.
        is_shared: whether rows of the card begin with the name of a direction.

    Raises:
        ValueError: the card has no such row, or another score.
    """
    header, *rows = [split(line) for line in card.splitlines() if line[:1] == "|"]
    label = f"{name}, " if is_shared else ""
    rows = [r for r in rows if r[0].startswith(label) and r[0].endswith("as here")]
    texts = []
    for score, value in scores.items():
        index = [title.startswith(score) for title in header].index(True)
        if len(rows) != 1 or not rows[0][index].startswith(f"{value:.2f}"):
            raise ValueError(
                f"The card of {name} must have one row `{label}..., as here`, with the "
                f"{score} of preset.json; expected {value:.2f}, got {rows}."
            )
        texts.append(rows[0][index] + "%" * header[index].endswith("%"))
    return texts


def recipe_rows(text: str) -> list[tuple[str, ...]]:
    """Returns a row for each run that needs no other run.

    Args:
        text: str, the page of the recipes.
    """
    heading, header, rows = "", None, {}
    for line in text.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if not line.startswith("|"):
            header = None
        elif header is None:
            header = split(line)
        elif {"corpus", "command"} <= {*header} and not line.startswith("|-"):
            cells = dict(zip(header, split(line), strict=True))
            if DEPENDENT.search(cells["corpus"]):
                continue
            anchor = heading.lower().replace(" ", "-")
            minutes = cells.get("minutes") or cells["training, minutes"]
            start = f", from {cells['from']}" if cells.get("from") else ""
            results = [
                form.format(cells[title].replace("**", ""))
                for title, form in SCORES.items()
                if title in cells
            ]
            # Of several runs of one command, the last is the newest.
            rows[cells["command"]] = (
                f"[{RECIPE_NAMES[heading]}](../{RECIPES}#{anchor})",
                cells["corpus"] + start,
                ", ".join(results),
                minutes,
                cells["command"],
            )
    return list(rows.values())


def split(line: str) -> list[str]:
    """Returns the cells of a row in Markdown."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


if __name__ == "__main__":
    main()
