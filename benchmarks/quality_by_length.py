"""Scores runs of the translation recipe by the length of their sentences.

* Run      python -m benchmarks.quality_by_length --runs FOLDER ...
* Counts   for each run, parameters, tokens seen, operations and minutes of its
           training, and BLEU with half of its 95% interval over the test set;
           then the same of each range of source lengths, in words

The runs must have translated the same test set. Each is named by its folder,
for example `transformer` and `recurrent`.
"""

import bisect
import csv
import dataclasses
import json
import pathlib
from typing import Any, NamedTuple

from benchmarks import report
from benchmarks.report import Column

INTERVAL = Column("± 95%", format=".2f")
RUN_COLUMNS = [
    Column("run"),
    Column("parameters", format=",d"),
    Column("target tokens seen", "millions", ".1f"),
    Column("training", "FLOPs", ".2e"),
    Column("training", "minutes", ".1f"),
    Column("BLEU", format=".2f"),
    INTERVAL,
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(report.Flags):
    """Flags of this command."""

    runs: tuple[str, ...]
    """Run folders of the translation recipe, with the same test set."""
    lengths: tuple[int, ...] = (8, 12, 16)
    """First lengths of the second and further ranges, in words of a source."""
    min_sentences: int = 20
    """Sentences that a range must have to be scored."""
    picture: str = ""
    """File for a picture of the scores by length; empty: none."""


class Run(NamedTuple):
    """A run that has finished.

    Attributes:
        name: str, name of its folder.
        result: dict, its `result.json`.
        rows: list of (source, reference, translation), its test set.
    """

    name: str
    result: dict[str, Any]
    rows: list[tuple[str, str, str]]


def read(folder: pathlib.Path) -> Run:
    """Reads a run folder."""
    result = json.loads((folder / "result.json").read_text("utf-8"))
    with open(folder / "translations.tsv", encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    return Run(folder.resolve().name, result, [tuple(row) for row in rows])


def read_all(folders: tuple[str, ...]) -> list[Run]:
    """Reads run folders.

    Raises:
        ValueError: the test sets or the names differ.
    """
    runs = [read(pathlib.Path(folder)) for folder in folders]
    for run in runs[1:]:
        if [row[:2] for row in run.rows] != [row[:2] for row in runs[0].rows]:
            raise ValueError(
                f"--runs must have the same test set; got those of {runs[0].name} and "
                f"{run.name}, which differ."
            )
    if len({run.name for run in runs}) < len(runs):
        raise ValueError(f"--runs must have different names; got {' '.join(folders)}.")
    return runs


def run_row(run: Run) -> list[Any]:
    """Returns the row of a run in the first table."""
    result = run.result
    tokens = result["target_tokens_seen"] / 1e6
    scores = result["bleu"], result["bleu_half_width_95"]
    cost = result["training_flops"], result["training_minutes"]
    return [run.name, result["parameters"], tokens, *cost, *scores]


def ranges(run: Run, lengths: tuple[int, ...]) -> dict[str, list[int]]:
    """Returns the sentences of each range of lengths, as indices.

    Args:
        run: `Run`.
        lengths: increasing ints, where the second and further ranges begin.
    """
    starts = [1, *lengths]
    ends = [*(f"to {start - 1}" for start in lengths), "and more"]
    names = [f"{start} {end}" for start, end in zip(starts, ends, strict=True)]
    indices: dict[str, list[int]] = {name: [] for name in names}
    for index, (source, _, _) in enumerate(run.rows):
        place = bisect.bisect_right(lengths, len(source.split()))
        indices[names[place]].append(index)
    return indices


def score(run: Run, indices: list[int]) -> tuple[float, float]:
    """Returns BLEU of some sentences, and half of its 95% interval."""
    from keras_tfm.recipes import translation_scores

    tokenize = run.result["flags"]["bleu_tokenize"]
    rows = [run.rows[index] for index in indices]
    translations, references = [row[2] for row in rows], [row[1] for row in rows]
    bleu = translation_scores.metrics(tokenize)["BLEU"]
    result = bleu.corpus_score(translations, [references], n_bootstrap=1000)
    return result.score, result._ci  # sacrebleu has no public name for it


def length_rows(runs: list[Run], flags: Flags) -> list[list[Any]]:
    """Returns the rows of the second table, one for each range."""
    rows = []
    for name, indices in ranges(runs[0], flags.lengths).items():
        if len(indices) >= flags.min_sentences:
            scores = [number for run in runs for number in score(run, indices)]
            rows.append([name, len(indices), *scores])
    return rows


def draw(runs: list[Run], rows: list[list[Any]], title: str) -> Any:
    """Draws BLEU and its interval by length; returns the figure.

    Args:
        runs: list of `Run`.
        rows: from `length_rows`.
        title: str.
    """
    from keras_tfm.plot import figures

    ax = figures.axes(None, 5.0, 3.4)
    for number, run in enumerate(runs):
        scores, widths = zip(*(row[2 + 2 * number :][:2] for row in rows), strict=True)
        places = [
            place + 0.12 * (number - (len(runs) - 1) / 2) for place in range(len(rows))
        ]
        style = {"color": figures.COLORS[number], "marker": figures.MARKERS[number]}
        style |= {"label": run.name, "linewidth": 1.4, "elinewidth": 0.9}
        ax.errorbar(places, scores, yerr=widths, markersize=4, **style)
    ax.set_xticks(range(len(rows)), [row[0] for row in rows])
    figures.style_axes(ax, grid="y")
    ax.legend(frameon=False, fontsize=8, labelcolor=figures.INK)
    figures.set_labels(ax, title, "words of the source", "BLEU")
    return ax.figure


def main(flags: Flags) -> None:
    """Prints both tables."""
    runs = read_all(flags.runs)
    corpus = pathlib.Path(runs[0].result["flags"]["data"]).name
    columns = [Column("source, words"), Column("sentences", format=",d")]
    for run in runs:
        columns += [Column(f"{run.name}, BLEU", format=".2f"), INTERVAL]
    rows = length_rows(runs, flags)
    report.report(
        "quality_by_length",
        flags,
        report.Table(RUN_COLUMNS, map(run_row, runs), f"{corpus}, runs"),
        report.Table(columns, rows, f"{corpus}, by source length"),
    )
    if flags.picture:
        draw(runs, rows, corpus).savefig(flags.picture, dpi=150)


if __name__ == "__main__":
    main(report.parse(Flags, __doc__))
