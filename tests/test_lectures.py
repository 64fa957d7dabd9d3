"""Each statement of the lecture notes is shown and asserted somewhere."""

import pathlib
import re
import shlex

import pytest

from keras_tfm.cli import encode, options
from keras_tfm.recipes import flags, translation, translation_defaults

pytestmark = pytest.mark.backend("torch")  # text is read; nothing is computed

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs/lectures.md"
COLUMNS = ["statement", "shown in", "asserted by"]
TOPICS = {
    "Embeddings",
    "Positions",
    "Attention",
    "Heads",
    "Masks",
    "Feed-forward networks",
    "Residuals and normalization",
    "Encoder and decoder",
    "Training",
    "Inference",
    "Recurrent networks",
    "Results of the paper",
}
REFERENCE = re.compile(r"\[([^\[\]]+)\]\[([^\[\]]+)\]")
DEFINITION = re.compile(r"^\[([^\[\]]+)\]: (\S+)$", re.M)
ITS_CELLS = "its cells"
LIMITS = "[Limits](#limits)"


def tables(text):
    """Maps the heading of each table to its rows, as lists of cells."""
    rows, heading = {}, None
    for line in text.splitlines():
        heading = line[3:] if line.startswith("## ") else heading
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            rows.setdefault(heading, []).append(cells)
    assert all(table[:2] == [COLUMNS, ["---"] * 3] for table in rows.values())
    return {name: table[2:] for name, table in rows.items()}


def sections(notebook):
    """Maps headings of a notebook, without their dollars, to their cells."""
    source = notebook.with_suffix(".py").read_text("utf-8")
    headings = re.split(r"^# ##? (.+)$", source, flags=re.M)[1:]
    names = [re.sub(r"[$\\]", "", name) for name in headings[::2]]
    return dict(zip(names, headings[1::2], strict=True))


def link_fault(text, path):
    """Says what is wrong with a link to `path`; empty if nothing is."""
    if not path.is_file():
        return f"{text}: there is no {path}"
    name = text.strip("`")
    if path.suffix == ".ipynb":
        number, heading = name.split(" ", 1)
        is_right = path.name.startswith(f"{number}_") and heading in sections(path)
        return "" if is_right else f"{text}: {path.name} has no such section"
    if text == name:  # prose
        return ""
    is_defined = re.search(rf"^(def|class) {name}\b", path.read_text("utf-8"), re.M)
    return "" if is_defined else f"{text}: {path.name} has no such definition"


def faults(text):
    """Lists the faults of the page."""
    definitions = dict(DEFINITION.findall(text))
    messages = []
    for label, reference in REFERENCE.findall(text):
        if reference not in definitions:
            messages.append(f"{label}: {reference} is not defined")
            continue
        messages.append(link_fault(label, PAGE.parent / definitions[reference]))
    for statement, sections_cell, asserted in sum(tables(text).values(), []):
        if not (statement and sections_cell and asserted):
            messages.append(f"an empty cell: {statement}")
        elif not REFERENCE.search(sections_cell) and sections_cell != LIMITS:
            messages.append(f"shown nowhere: {statement}")
        elif ITS_CELLS in asserted:
            messages += cells_without_assertions(sections_cell, definitions)
        elif not REFERENCE.search(asserted):
            messages.append(f"asserted nowhere: {statement}")
    return [message for message in messages if message]


def cells_without_assertions(sections_cell, definitions):
    """Lists the sections among links that assert nothing."""
    links = [
        (label, PAGE.parent / definitions[reference])
        for label, reference in REFERENCE.findall(sections_cell)
        if definitions.get(reference, "").endswith(".ipynb")
    ]
    assertion = re.compile(r"^ *(assert |np\.testing\.)", re.M)
    empty = [
        f"{label}: no assertion"
        for label, path in links
        if not assertion.search(sections(path).get(label.split(" ", 1)[1], ""))
    ]
    return empty if links else [f"{sections_cell}: no cells"]


def test_every_link_of_the_page_leads_somewhere():
    text = PAGE.read_text("utf-8")
    assert faults(text) == []
    assert len(REFERENCE.findall(text)) > 300
    assert {name for name, _ in DEFINITION.findall(text)} == {
        reference for _, reference in REFERENCE.findall(text)
    }


def test_all_topics_have_statements():
    rows = tables(PAGE.read_text("utf-8"))
    assert set(rows) == TOPICS
    assert all(rows.values())
    assert sum(map(len, rows.values())) >= 147
    statements = [row[0] for table in rows.values() for row in table]
    assert len(set(statements)) == len(statements)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("| a | [1 Nothing][1] | [`faults`][t] |", "no such section"),
        ("| a | [2 Rotating hands][1] | [`faults`][t] |", "no such section"),
        ("| a | [1 Rotating hands][1] | [`test_nothing`][t] |", "no such definition"),
        ("| a | [1 Rotating hands][1] | [`faults`][u] |", "u is not defined"),
        ("| a | [1 Rotating hands][1] | [`faults`][v] |", "there is no"),
        ("| a | [1 Rotating hands][1] |  |", "an empty cell: a"),
        ("| a | in a book | [`faults`][t] |", "shown nowhere: a"),
        ("| a | [1 Rotating hands][1] | by nobody |", "asserted nowhere: a"),
        ("| a | [3 Residuals and normalization][3] | its cells |", "no assertion"),
        ("| a | [`faults`][t] | its cells |", "no cells"),
    ],
)
def test_a_fault_of_the_page_is_found(row, message):
    page = f"""## Topic

| statement | shown in | asserted by |
|---|---|---|
| right | [1 Rotating hands][1] | its cells |
{row}

[1]: ../notebooks/1_embedding_and_positions.ipynb
[3]: ../notebooks/3_residuals_and_normalization.ipynb
[t]: ../tests/test_lectures.py
[v]: ../tests/nothing.py
"""
    [found_fault] = faults(page)
    assert message in found_fault


def test_the_commands_of_the_limits_have_valid_flags():
    limits = PAGE.read_text("utf-8").split("## Limits")[1]
    commands = {"encode": [], "train": []}
    for line in re.findall(r"^.*keras-tfm .+$", limits, re.M):
        _, name, *arguments = shlex.split(line[line.index("keras-tfm") :])
        commands[name].append(arguments)
    [encoding] = commands["encode"]
    corpus = flags.parse(options.Encode, "", encoding)
    encode.check(corpus)
    assert len(commands["train"]) == 2
    for recipe, *arguments in commands["train"]:
        assert recipe == "translation"
        translation_defaults.check(flags.parse(translation.Flags, "", arguments))
    wmt, parsing = (
        flags.parse(translation.Flags, "", arguments)
        for _, *arguments in commands["train"]
    )
    assert (wmt.data, wmt.source, wmt.target) == (
        corpus.out,
        corpus.source_language,
        corpus.target_language,
    )
    assert (wmt.size, wmt.beam_size, wmt.batch_tokens) == ("base", 4, 25_000)
    assert tuple(parsing.num_layers) == (4, 4) and parsing.beam_size == 21
