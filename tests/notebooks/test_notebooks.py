"""Notebooks run from top to bottom, and the committed outputs are current."""

import base64
import io
import pathlib
import re

import nbformat
import numpy as np
import pytest
from PIL import Image

from keras_tfm import plot
from notebooks import run
from tests.test_structure import MACHINE_PATH

PATHS = run.paths()
PICTURE_LIMIT = 150_000  # characters of a picture in the `.ipynb`
FILE_LIMIT = 1_000_000
# Output that differs between runs: an address in memory, or a line of a log,
# which begins with its time.
UNSTABLE = re.compile(
    r" at 0x[0-9a-f]{6,}|^(?:\d{4}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d\b", re.MULTILINE
)

every_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
# They train for a minute or longer.
# The others run always.
SLOW = {"3_residuals_and_normalization", "4_translate", "6_classify"}
SLOW |= {"5_recurrent_against_transformer", "7_your_own_model"}


def committed(path):
    return nbformat.read(path.with_suffix(".ipynb"), as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook):
    return [output for cell in code(notebook) for output in cell.outputs]


def text_of(output):
    """Returns all text of an output."""
    data = output.get("data", {})
    texts = [text for kind, text in data.items() if not kind.startswith("image/")]
    return "\n".join([output.get("text", ""), *map(str, texts)])


def faults(path, notebook):
    """Lists what is wrong with a committed notebook, without running it."""
    messages = []
    cells = [(cell.cell_type, cell.source) for cell in run.read(path).cells]
    if [(cell.cell_type, cell.source) for cell in notebook.cells] != cells:
        messages.append("its cells are not those of the .py")
    counts = [cell.execution_count for cell in code(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        messages.append(f"it was not executed from top to bottom: {counts}")
    for output in outputs(notebook):
        if output.output_type == "error" or output.get("name") == "stderr":
            messages.append(f"an error or a warning stands in it: {output}")
        for kind, content in output.get("data", {}).items():
            if kind.startswith("image/") and len(content) > PICTURE_LIMIT:
                messages.append(f"a picture has {len(content)} characters")
        text = text_of(output)
        if MACHINE_PATH.search(text) or UNSTABLE.search(text):
            messages.append(f"another run would not give this: {text}")
    if notebook.metadata != run.METADATA:
        messages.append(f"its metadata are {notebook.metadata}")
    return messages


def test_there_are_notebooks():
    assert len(PATHS) == 7
    committed_names = {path.stem for path in run.FOLDER.glob("*.ipynb")}
    assert committed_names == {path.stem for path in PATHS}


@every_notebook
def test_committed_notebooks_have_no_faults(path):
    file = path.with_suffix(".ipynb")
    assert faults(path, committed(path)) == []
    assert file.stat().st_size <= FILE_LIMIT
    assert not MACHINE_PATH.search(file.read_text("utf-8"))


def test_a_fault_of_a_committed_notebook_is_found():
    path = PATHS[0]

    def change(function):
        notebook = committed(path)
        function(notebook)
        return faults(path, notebook)

    def print_out(name, text):
        output = nbformat.v4.new_output("stream", name=name, text=text)
        return lambda notebook: code(notebook)[0].outputs.append(output)

    def enlarge(notebook):
        data = {"image/png": "A" * (PICTURE_LIMIT + 1)}
        output = nbformat.v4.new_output("display_data", data)
        code(notebook)[0].outputs.append(output)

    [fault] = change(lambda notebook: notebook.cells.pop(0))
    assert "cells" in fault
    [fault] = change(lambda notebook: code(notebook)[0].update(execution_count=2))
    assert "top to bottom: [2, 2, 3" in fault
    [fault] = change(enlarge)
    assert "150001 characters" in fault
    assert change(print_out("stdout", "fine")) == []
    [fault] = change(print_out("stderr", "UserWarning"))
    assert "UserWarning" in fault
    for text in ("<Layer at 0x7f3a2b1c>", "12:30:01 done", "saved in /" + "home/ann"):
        [fault] = change(print_out("stdout", text))
        assert text in fault


def top(path):
    cell = run.read(path).cells[0]
    assert cell.cell_type == "markdown"
    return cell.source


@every_notebook
def test_the_first_cell_states_content_duration_and_sources(path):
    assert top(path).startswith("# ")
    for word in ("**You will see** ", "**Takes** ", "**Follows** "):
        assert word in top(path)
    assert top(path).count(f"/blob/main/notebooks/{path.stem}.ipynb") == 1  # Colab


@pytest.mark.parametrize(
    ("number", "sources"),
    [
        (1, "kazemnejad.com kikaben.com illustrated-transformer data-science-blog.com"),
        (2, "annotated-transformer data-science-blog.com 1409.0473 1508.04025"),
        # PowerNorm, AdaNorm, batch norm in Transformers of images.
        (3, "annotated-transformer 2003.07845 1911.07013 Yao_Leveraging_Batch"),
        (4, "illustrated-transformer"),
        (5, "1409.0473 1211.5063"),
        (7, "1810.00825 2005.12872"),
    ],
)
def test_the_sources_of_the_notes_are_cited(number, sources):
    follows = top(PATHS[number - 1]).split("**Follows** ")[1]
    assert [name for name in sources.split() if name not in follows] == []


@every_notebook
def test_a_notebook_has_assertions_and_imports_no_backend(path):
    source = "\n".join(cell.source for cell in code(run.read(path)))
    assert len(re.findall(r"^ *(?:assert |np\.testing\.)", source, re.M)) >= 5
    assert not re.search(r"\b(?:import|from) (?:tensorflow|torch|jax)\b", source)


@pytest.mark.backend("torch")  # the fastest: it compiles nothing
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.slow] if path.stem in SLOW else [])
        for path in PATHS
    ],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    notebook = run.read(path)
    run.execute(notebook, str(tmp_path))
    assert all(cell.execution_count for cell in code(notebook))


def test_fewer_colors_change_a_picture_hardly():
    figure = plot.position_products(np.random.default_rng(0).normal(size=(40, 8)))
    file = io.BytesIO()
    figure.savefig(file)
    reduced = base64.b64decode(run.reduce_colors(base64.b64encode(file.getvalue())))
    assert len(reduced) < len(file.getvalue()) / 2
    original, copy = (
        np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), "int32")
        for data in (file.getvalue(), reduced)
    )
    assert np.abs(original - copy).mean() < 2  # of 255


@pytest.mark.backend("torch")
def test_a_failed_assertion_stops_the_run(tmp_path):
    false = pathlib.Path(tmp_path, "0_false.py")
    false.write_text("# %%\nassert 1 + 1 == 3\n", encoding="utf-8")
    with pytest.raises(Exception, match=r"assert 1 \+ 1 == 3"):
        run.execute(run.read(false), str(tmp_path))


@every_notebook
def test_the_readme_lists_each_notebook_and_its_duration(path):
    page = (run.FOLDER / "README.md").read_text("utf-8")
    [row] = [line for line in page.splitlines() if f"({path.stem}.ipynb)" in line]
    takes = row.split("|")[-2].strip()
    assert f"**Takes** {takes}" in top(path)
