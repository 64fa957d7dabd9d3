"""Docstrings name what signatures name, and what the README shows runs."""

import importlib
import inspect
import os
import pathlib
import pkgutil
import re
import subprocess
import sys

import keras
import pytest

import keras_tfm
from keras_tfm.cli.options import COMMANDS

ROOT = pathlib.Path(__file__).parents[1]
ROOMS = [each.name for each in pkgutil.iter_modules(keras_tfm.__path__)]
ROOMS.remove("command")  # which is called by names on the command line alone
LISTED = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*):(?:\s|$)")
RUN_LIMIT = 600  # seconds for all Python blocks of the README together


def exported(room):
    """Maps dotted name to object for all that a package or module promises."""
    if not hasattr(room, "__all__"):
        return exported_by_module(room)
    found = {}
    for name in room.__all__:
        value = getattr(room, name)
        if inspect.ismodule(value):
            found |= exported(value)
        elif callable(value):
            found[f"{room.__name__}.{name}"] = value
    return found


def exported_by_module(module):
    """Maps dotted name to object for the public names that `module` defines."""
    return {
        f"{module.__name__}.{name}": value
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and value.__module__ == module.__name__
    }


def section_names(docstring, title):
    """Lists the names that a section of a docstring, as `Args:`, explains."""
    lines = docstring.splitlines()
    if f"{title}:" not in lines:
        return []
    names, depth = [], None
    for line in lines[lines.index(f"{title}:") + 1 :]:
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            continue
        if indent == 0:
            break
        depth = indent if depth is None else depth
        entry = LISTED.match(line.strip())
        if indent == depth and entry:
            names += entry[1].replace("*", "").split(", ")
    return names


def parameters(function):
    """Splits the parameters of `function` into those to explain and others."""
    kinds = inspect.Parameter
    must, may = [], []
    for name, parameter in inspect.signature(function).parameters.items():
        starred = parameter.kind in {kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL}
        if name != "self":
            (may if starred else must).append(name)
    return must, may


def is_own(function):
    """Tells whether `function` was written here, not inherited from Keras."""
    owner = getattr(function, "__module__", "").split(".")[0]
    return owner not in {"keras", "builtins"}


def difference(name, title, listed, must, may):
    """Says how a section differs from a signature, as a list of sentences."""
    faults = [f"{name}: `{title}:` leaves out {p}" for p in must if p not in listed]
    for parameter in dict.fromkeys(listed):
        if parameter not in must + may:
            faults.append(f"{name}: `{title}:` has {parameter}, the signature not")
        if listed.count(parameter) > 1:
            faults.append(f"{name}: `{title}:` has {parameter} twice")
    return faults


def docstring_faults(name, value):
    """Lists all that the docstring of one public object gets wrong."""
    docstring = inspect.cleandoc(value.__doc__ or "")
    if not docstring:
        return [f"{name}: no docstring"]
    function = value.__init__ if inspect.isclass(value) else value
    must, may = parameters(function) if is_own(function) else ([], [])
    faults = difference(name, "Args", section_names(docstring, "Args"), must, may)
    is_layer = inspect.isclass(value) and issubclass(value, keras.layers.Layer)
    if is_layer and is_own(value.call):
        must, may = parameters(value.call)
        may += [each for each in must if each == "training"]
        must = [each for each in must if each != "training"]
        title = "Call arguments"
        faults += difference(name, title, section_names(docstring, title), must, may)
    return faults


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_name_exactly_the_arguments(room):
    found = exported(importlib.import_module(f"keras_tfm.{room}"))
    assert found
    faults = []
    for name, value in found.items():
        faults += docstring_faults(name, value)
    assert not faults, "\n".join(faults)


class Planted(keras.layers.Layer):
    """Stands for a layer whose docstring went its own way.

    Args:
        width: int. Two lines of words, and in the second a colon that
            misleads: no name before it.
        ghost: int. Was an argument once.

    Call arguments:
        x: float `(B, D)`.
    """

    def __init__(self, width, depth=1, **kwargs):
        super().__init__(**kwargs)

    def call(self, x, mask=None, training=None):
        return x


def test_a_docstring_that_differs_is_found():
    assert docstring_faults("Planted", Planted) == [
        "Planted: `Args:` leaves out depth",
        "Planted: `Args:` has ghost, the signature not",
        "Planted: `Call arguments:` leaves out mask",
    ]
    assert docstring_faults("bare", lambda x: x) == ["bare: no docstring"]
    assert docstring_faults("inherited", keras.layers.Add) == []


def blocks(text, language):
    """Yields `(heading, line, code)` of each fenced block to be run.

    A block right below `<!-- not run: reason -->` is left out.
    """
    heading, held_back, start, held = "", False, None, []
    for number, line in enumerate(text.splitlines(), 1):
        if start is None and line.startswith("```"):
            start, kind, held = number, line[3:].strip(), []
        elif start is None:
            heading = line if line.startswith("#") else heading
            if line.strip():
                held_back = re.fullmatch(r"<!-- not run: .+ -->", line) is not None
        elif line.startswith("```"):
            if kind == language and not held_back:
                yield heading, start, "\n".join(held)
            start, held_back = None, False
        else:
            held.append(line)


def script(text):
    """Writes one program of the Python blocks: a namespace for each heading.

    Each block keeps its line numbers, so that a traceback points into the text.
    """
    lines = ["from collections import defaultdict", "spaces = defaultdict(dict)"]
    for heading, start, code in blocks(text, "python"):
        source = "\n" * start + code
        lines.append(f"names = spaces[{heading!r}]")
        lines.append(f"exec(compile({source!r}, 'README.md', 'exec'), names)")
    return "\n".join(lines)


def run_blocks(text, folder, backend="tensorflow"):
    """Runs the Python blocks of `text` in a fresh process inside `folder`."""
    return subprocess.run(
        [sys.executable, "-c", script(text)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": backend},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT,
    )


@pytest.mark.backend("tensorflow")
def test_python_in_the_readme_runs(tmp_path):
    text = (ROOT / "README.md").read_text("utf-8")
    assert list(blocks(text, "python"))
    done = run_blocks(text, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]


def test_python_in_the_page_of_search_runs(tmp_path):
    text = (ROOT / "docs" / "search.md").read_text("utf-8")
    done = run_blocks(text, tmp_path, keras.backend.backend())
    assert done.returncode == 0, done.stderr[-4000:]
    assert "(2, 2, 6)" in done.stdout and "Wo ist der Bahnhof?" in done.stdout


def test_blocks_share_names_below_one_heading_only(tmp_path):
    text = (
        "# A\n```python\nx = 1\n```\n<!-- not run: costs money -->\n"
        "```python\nx = 2\n```\n```bash\nmake tea\n```\n"
        "```python\nassert x == 1\n```\n# B\n```python\nx + 1\n```\n"
    )
    assert [line for _, line, _ in blocks(text, "python")] == [2, 12, 16]
    done = run_blocks(text, tmp_path)
    assert done.returncode == 1
    assert 'File "README.md", line 17' in done.stderr
    assert "NameError: name 'x' is not defined" in done.stderr


def shell_lines(text):
    """Lists the lines of all bash blocks, without their comments."""
    held = [line for _, _, code in blocks(text, "bash") for line in code.splitlines()]
    return [line.split("#")[0].strip() for line in held]


def shell_faults(text, targets):
    """Lists targets, recipes and commands of bash blocks that do not exist."""
    code = "\n".join(shell_lines(text))
    made = re.findall(r"\bmake ([a-z][\w-]*)", code)
    faults = [f"make {target}" for target in made if target not in targets]
    for module in re.findall(r"python3? -m (recipes\.\w+)", code):
        if not (ROOT / module.replace(".", "/")).with_suffix(".py").is_file():
            faults.append(f"python -m {module}")
    named = re.findall(r"^keras-tfm ([a-z]+)", code, re.M)
    return faults + [f"keras-tfm {name}" for name in named if name not in COMMANDS]


def make_targets():
    """Lists the targets that the Makefile declares phony, variables put in."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    suites = [f"test-{name}" for name in ("tensorflow", "jax", "torch")]
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.M)[1]
    return phony.replace("$(SUITES)", " ".join(suites)).split()


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "docs/serving.md", "docs/search.md"]
)
def test_commands_in_the_pages_exist(page):
    text = (ROOT / page).read_text("utf-8")
    assert shell_faults(text, make_targets()) == []


def test_the_readme_shows_the_two_commands():
    lines = shell_lines((ROOT / "README.md").read_text("utf-8"))
    assert {"make translate", "make test"} <= set(lines)


def test_a_command_that_is_missing_is_found():
    lines = ["make test  # make haste", "make tea", "python -m recipes.nothing"]
    lines += ["keras-tfm translate a b", "keras-tfm brew"]
    text = "\n".join(["```bash", *lines, "```"])
    assert shell_faults(text, make_targets()) == [
        "make tea",
        "python -m recipes.nothing",
        "keras-tfm brew",
    ]
