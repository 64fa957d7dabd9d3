"""Makes docs/benchmarks.md and its picture from the files in `results`.

Run      python -m benchmarks.page
Reads    page.md, the text, in which two kinds of comments stand for tables:
         `<!-- compare: NAME -->` for runs of `benchmarks.decode` on several
         processors, side by side, and `<!-- tables: NAME -->` for all other
         results. Both read `results/NAME.json` and `results/NAME_*.json`.
"""

import json
import pathlib
import re
from typing import Any

from benchmarks.decode import programs
from benchmarks.report import Column, cell_text, markdown_row, title

FOLDER = pathlib.Path(__file__).parent
PAGE = FOLDER.parent / "docs" / "benchmarks.md"
PICTURE = PAGE.with_suffix(".png")
PLOTTED = "search_beam4"
BASELINE = "CTranslate2 float32, 2 x 1"
COMMENT = re.compile(r"^<!-- (compare|tables): (\w+) -->$", re.M)
MODEL = re.compile(r"(AMD|Intel).*?(EPYC|Xeon)")
LETTERS = "abcdefghij"


def main() -> None:
    """Writes the page and the picture."""
    PAGE.write_text(make_page(), "utf-8")
    description = {"Description": json.dumps(plotted_ratios())}
    draw(plotted_ratios()).savefig(PICTURE, metadata=description)


def make_page() -> str:
    """Returns the page: the text with its tables."""
    makers = {"compare": compare, "tables": list_tables}
    text = (FOLDER / "page.md").read_text("utf-8")
    return COMMENT.sub(lambda match: makers[match[1]](read(match[2])), text)


def read(name: str) -> list[dict[str, Any]]:
    """Reads the results of a name, the newest of each processor first.

    Args:
        name: str. `NAME.json` and `NAME_*.json` belong to it.

    Returns:
        list of dict as `report` writes them, and `file`, the name of the file.
    """
    files = [*FOLDER.glob(f"results/{name}.json")]
    files += sorted(FOLDER.glob(f"results/{name}_*.json"))
    results = [json.loads(file.read_text("utf-8")) for file in files]
    for file, result in zip(files, results, strict=True):
        result["file"] = file.name
    results.sort(key=lambda result: result["date"], reverse=True)
    return sorted(results, key=lambda result: kind(result["processor"]))


def kind(processor: dict[str, Any]) -> str:
    """Returns the kind of a processor, and its fastest instructions."""
    model, features = processor["model"], processor["features"]
    match = MODEL.search(model)
    name = " ".join(match.groups()) if match else model
    order = ("amx", "avx512_bf16", "avx512_vnni")
    fastest = [word for word in order if word in features][:1]
    return ", ".join([name, *map(str.upper, fastest)])


def circumstances(result: dict[str, Any]) -> str:
    """Returns date, commit, processor and versions of a run, in a phrase."""
    processor, tables = result["processor"], result["tables"]
    cores = f"{processor['cores']} cores of {processor['model']}"
    features = ", ".join(word.upper() for word in processor["features"])
    parts = [
        result["date"] or "date not recorded",
        f"commit {result['commit']}",
        cores + (f" ({features})" if features else "") if processor["model"] else "",
        ", ".join(f"{name} {number}" for name, number in result["versions"].items()),
        f"[data](../benchmarks/results/{result['file']})",
    ]
    notes = [note.rstrip(".") for table in tables for note in table["notes"]]
    return ". ".join(["; ".join(filter(None, parts)), *notes]) + "."


def ratios(result: dict[str, Any]) -> dict[str, tuple]:
    """Maps each program to its speed, its ratio to `BASELINE`, and its BLEU."""
    [table] = result["tables"]
    names = [column["name"] for column in table["columns"]]
    rows = [dict(zip(names, row, strict=True)) for row in table["rows"]]
    speeds = {row["program"]: row["median"] for row in rows}
    return {
        row["program"]: (
            row["median"],
            row["median"] / speeds[BASELINE],
            row.get("BLEU"),
        )
        for row in rows
    }


def by_processor(results: list[dict]) -> dict[str, dict[str, tuple]]:
    """Maps kinds of processors to programs, each in the newest run that has it.

    Args:
        results: from `read`.

    Returns:
        dict of dicts from a program to `(speed, ratio, BLEU, result)`.
    """
    rows = {}
    for result in results:
        newest = rows.setdefault(kind(result["processor"]), {})
        for program, values in ratios(result).items():
            newest.setdefault(program, (*values, result))
    return rows


def run_marks(results: list[dict]) -> dict[str, str]:
    """Maps files of processors with several runs to a raised letter."""
    kinds = [kind(result["processor"]) for result in results]
    pairs = zip(results, kinds, strict=True)
    files = [result["file"] for result, name in pairs if kinds.count(name) > 1]
    letters = zip(files, LETTERS, strict=False)
    return {file: f" <sup>{letter}</sup>" for file, letter in letters}


def compare(results: list[dict]) -> str:
    """Makes one table of runs on several processors."""
    processors = by_processor(results)
    has_bleu = any("BLEU" in str(result["tables"]) for result in results)
    header = ["program"]
    for name in processors:
        header += [f"{name}, tokens/s", "ratio"] + (["BLEU"] if has_bleu else [])
    marks = run_marks(results)
    lines = [markdown_row(header), "|---" + "|--:" * (len(header) - 1) + "|"]
    for program in programs(cores=2):
        cells = [program]
        for rows in processors.values():
            speed, ratio, bleu, result = rows.get(program, (None,) * 4)
            mark = marks.get(result["file"], "") if result else ""
            cells.append(cell_text(Column("", format=",.0f"), speed) + mark)
            cells.append(cell_text(Column("", format=".2f"), ratio))
            cells += [cell_text(Column("", format=".2f"), bleu)] if has_bleu else []
        lines += [markdown_row(cells)] if any(cells[1:]) else []
    notes = []
    for result in results:
        heading, mark = result["tables"][0]["title"], marks.get(result["file"], "")
        heading = f"{capitalize(heading)}: " if heading else ""
        notes.append(f"{mark} {heading}{capitalize(circumstances(result))}".strip())
    return "\n".join([*lines, "", small("<br>\n".join(notes))])


def list_tables(results: list[dict]) -> str:
    """Makes a table of each result, without its empty columns."""
    lines = []
    for result in results:
        for table in result["tables"]:
            lines += [f"\n{capitalize(table['title'])}:\n"] if table["title"] else [""]
            lines += table_lines(table)
        lines += ["", small(capitalize(circumstances(result)))]
    return "\n".join(lines).strip() or "No result is in the repository yet."


def table_lines(table: dict[str, Any]) -> list[str]:
    """Formats the table of a result."""
    columns = [Column(**column) for column in table["columns"]]
    cells = list(zip(*table["rows"], strict=True))  # by column
    used = [i for i, column in enumerate(cells) if any(v is not None for v in column)]
    is_text = [isinstance(cells[i][0], str) for i in used]
    return [
        markdown_row(title(columns[i]) for i in used),
        "|" + "".join("---|" if text else "--:|" for text in is_text),
        *(
            markdown_row(cell_text(columns[i], row[i]) for i in used)
            for row in table["rows"]
        ),
    ]


def capitalize(text: str) -> str:
    """Returns text with a capital first letter."""
    return text[:1].upper() + text[1:]


def small(text: str) -> str:
    """Returns a line in small letters."""
    return f"<small>{text}</small>"


def plotted_ratios() -> dict[str, dict[str, float]]:
    """Maps processors to programs to the ratio, without shortlists."""
    processors = by_processor(read(PLOTTED))
    return {
        name: {
            program: round(rows[program][1], 2)
            for program in programs(cores=2)
            if program in rows and "shortlist" not in program
        }
        for name, rows in processors.items()
    }


def draw(processors: dict[str, dict[str, float]]) -> Any:
    """Draws a panel of bars for each processor, and returns the figure.

    Args:
        processors: from `plotted_ratios`.
    """
    from keras_tfm.plot.figures import COLORS, INK, QUIET, figure

    measured = {name for row in processors.values() for name in row} - {BASELINE}
    names = [name for name in programs(cores=2) if name in measured]
    canvas = figure((1.8 + 1.3 * len(processors), 0.31 * len(names) + 0.9))
    panels = canvas.subplots(1, len(processors), sharex=True, sharey=True)
    highest = max(ratio for row in processors.values() for ratio in row.values())
    for ax, (processor, row) in zip(panels, processors.items(), strict=True):
        ax.set_title(processor.replace(", ", "\n", 1), fontsize=11, color=INK)
        for place, name in enumerate(names):
            if name not in row:
                continue
            color = COLORS[0] if name.startswith("ours") else QUIET
            ax.barh(place, row[name], color=color, height=0.7)
            # Right of the longest bar, clear of the line.
            style = {"ha": "right", "va": "center", "color": INK, "fontsize": 11}
            ax.text(1.75 * highest, place, f"{row[name]:.2f}", **style)
        ax.axvline(1, color=INK, linewidth=1)
        ax.set(xlim=(0, 1.85 * highest), xticks=[])
        ax.tick_params(length=0, labelsize=11, labelcolor=INK)
        ax.spines[:].set_visible(False)
    panels[0].set_yticks(range(len(names)), [label_of(name) for name in names])
    panels[0].invert_yaxis()
    return canvas


def label_of(program: str) -> str:
    """Returns a short name of a program."""
    names = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
    for name, proper in names.items():
        program = program.replace(name, proper)
    program = program.replace(", 2 x 1", "").replace("Hugging Face ", "")
    program = program.replace("KerasHub BART", "KerasHub")
    return capitalize(program.removeprefix("ours, "))


if __name__ == "__main__":
    main()
