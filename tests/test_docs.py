"""Docstrings match signatures, and the code in the pages runs."""

import contextlib
import dataclasses
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
# These packages are run from the command line, not imported.
COMMAND_LINE = {"cli", "recipes", "server"}
PACKAGES = sorted(
    package.name
    for package in pkgutil.iter_modules(keras_tfm.__path__)
    if package.ispkg and package.name not in COMMAND_LINE
)
ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*):(?:\s|$)")
NAMES = re.compile(r"(\w+, )*\w+,")
TIME_LIMIT = 600  # seconds for all Python blocks of one page together
PAGES = ["README.md", "CONTRIBUTING.md", "benchmarks/README.md"] + sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("docs", "keras_tfm/recipes", "keras_tfm/presets")
    for path in (ROOT / folder).rglob("*.md")
)
DOTTED_NAME = re.compile(r"\bkeras_tfm(?:\.[A-Za-z_]\w*)+(?![\w/])")
IMPORT = re.compile(r"^from (keras_tfm[\w.]*) import ([\w, ]+)$", re.M)
# New and changed files of guides: see test_guides_for_contributors.py.
NEW_CODE = re.compile(r"^```(python\n# \S+\.py|diff)\n.*?^```$", re.M | re.S)

torch_only = pytest.mark.backend("torch")  # no backend is used


def public_objects(package):
    """Maps dotted name to object for all that a package exports."""
    if not hasattr(package, "__all__"):
        return objects_of_module(package)
    objects = {}
    for name in package.__all__:
        value = getattr(package, name)
        if inspect.ismodule(value):
            objects |= public_objects(value)
        elif callable(value):
            objects[f"{package.__name__}.{name}"] = value
    return objects


def objects_of_module(module):
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
        entry = line.strip() if indent == depth else ""
        if NAMES.fullmatch(entry):  # more names follow on the next line
            names += entry.rstrip(",").split(", ")
        elif match := ENTRY.match(entry):
            names += match[1].replace("*", "").split(", ")
    return names


def parameters(function):
    """Splits the parameters of `function` into required and optional ones."""
    kinds = inspect.Parameter
    required, optional = [], []
    for name, parameter in inspect.signature(function).parameters.items():
        starred = parameter.kind in {kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL}
        if name != "self":
            (optional if starred else required).append(name)
    return required, optional


def is_defined_here(function):
    """Returns whether `function` belongs to this library, not to Keras."""
    owner = getattr(function, "__module__", "").split(".")[0]
    return owner not in {"keras", "builtins"}


def differences(name, title, entries, required, optional):
    """Lists how a section differs from a signature, as sentences."""
    faults = [
        f"{name}: `{title}:` leaves out {p}" for p in required if p not in entries
    ]
    for parameter in dict.fromkeys(entries):
        if parameter not in required + optional:
            faults.append(f"{name}: `{title}:` has {parameter}, the signature not")
        if entries.count(parameter) > 1:
            faults.append(f"{name}: `{title}:` has {parameter} twice")
    return faults


def docstring_faults(name, value):
    """Lists the faults of the docstring of one public object."""
    docstring = inspect.cleandoc(value.__doc__ or "")
    if not docstring:
        return [f"{name}: no docstring"]
    is_protocol = getattr(value, "_is_protocol", False)
    function, arguments = value, docstring
    if inspect.isclass(value):
        function = value.__init__
    documented = is_defined_here(function) and not is_protocol
    if documented and inspect.isclass(value):
        # A base class documents the constructor that a subclass inherits.
        owner = next(base for base in value.__mro__ if "__init__" in vars(base))
        arguments = inspect.cleandoc(owner.__doc__ or "")
    required, optional = parameters(function) if documented else ([], [])
    has_attributes = dataclasses.is_dataclass(value) and "Attributes:" in arguments
    title = "Attributes" if has_attributes else "Args"
    entries = section_names(arguments, title)
    faults = differences(name, title, entries, required, optional)
    is_layer = inspect.isclass(value) and issubclass(value, keras.layers.Layer)
    if is_layer and is_defined_here(value.call):
        required, optional = parameters(value.call)
        optional += [p for p in required if p == "training"]
        required = [p for p in required if p != "training"]
        entries = section_names(docstring, "Call arguments")
        faults += differences(name, "Call arguments", entries, required, optional)
    return faults


@torch_only
@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_name_exactly_the_arguments(package):
    objects = public_objects(importlib.import_module(f"keras_tfm.{package}"))
    assert objects
    faults = []
    for name, value in objects.items():
        faults += docstring_faults(name, value)
    assert not faults, "\n".join(faults)


class FaultyLayer(keras.layers.Layer):
    """A layer whose docstring differs from its signature.

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


@torch_only
def test_a_docstring_that_differs_is_found():
    assert docstring_faults("FaultyLayer", FaultyLayer) == [
        "FaultyLayer: `Args:` leaves out depth",
        "FaultyLayer: `Args:` has ghost, the signature not",
        "FaultyLayer: `Call arguments:` leaves out mask",
    ]
    assert docstring_faults("bare", lambda x: x) == ["bare: no docstring"]
    assert docstring_faults("inherited", keras.layers.Add) == []


def blocks(text, language):
    """Yields `(heading, line, code)` of each fenced block that is run.

    A block directly below `<!-- not run: reason -->` is skipped.
    """
    heading, not_run, start, lines = "", False, None, []
    for number, line in enumerate(text.splitlines(), 1):
        if start is None and line.startswith("```"):
            start, kind, lines = number, line[3:].strip(), []
        elif start is None:
            heading = line if line.startswith("#") else heading
            if line.strip():
                not_run = re.fullmatch(r"<!-- not run: .+ -->", line) is not None
        elif line.startswith("```"):
            if kind == language and not not_run:
                yield heading, start, "\n".join(lines)
            start, not_run = None, False
        else:
            lines.append(line)


def script(text, name):
    """Returns one program of the Python blocks: a namespace for each heading.

    Each block keeps its line numbers, so that a traceback points into the text.
    """
    lines = ["from collections import defaultdict", "spaces = defaultdict(dict)"]
    for heading, start, code in blocks(text, "python"):
        source = "\n" * start + code
        lines.append(f"names = spaces[{heading!r}]")
        lines.append(f"exec(compile({source!r}, {name!r}, 'exec'), names)")
    return "\n".join(lines)


def run_blocks(text, folder, backend="tensorflow", name="README.md"):
    """Runs the Python blocks of `text` in a fresh process inside `folder`."""
    return subprocess.run(
        [sys.executable, "-c", script(text, name)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": backend},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
    )


@pytest.mark.slow("tensorflow")
@pytest.mark.backend("tensorflow", "torch")
def test_python_in_the_readme_runs(tmp_path):
    text = (ROOT / "README.md").read_text("utf-8")
    assert list(blocks(text, "python"))
    process = run_blocks(text, tmp_path, keras.backend.backend())
    assert process.returncode == 0, process.stderr[-4000:]


@torch_only
def test_python_in_the_page_of_decoding_runs(tmp_path):
    text = (ROOT / "docs" / "decoding.md").read_text("utf-8")
    process = run_blocks(text, tmp_path, keras.backend.backend(), "decoding.md")
    assert process.returncode == 0, process.stderr[-4000:]
    assert "(2, 2, 6)" in process.stdout and "Wo ist der Bahnhof?" in process.stdout


@torch_only
def test_blocks_share_names_below_one_heading_only(tmp_path):
    text = (
        "# A\n```python\nx = 1\n```\n<!-- not run: costs money -->\n"
        "```python\nx = 2\n```\n```bash\nmake tea\n```\n"
        "```python\nassert x == 1\n```\n# B\n```python\nx + 1\n```\n"
    )
    assert [line for _, line, _ in blocks(text, "python")] == [2, 12, 16]
    process = run_blocks(text, tmp_path)
    assert process.returncode == 1
    assert 'File "README.md", line 17' in process.stderr
    assert "NameError: name 'x' is not defined" in process.stderr


def shell_lines(text):
    """Lists the lines of all bash blocks, without their comments."""
    lines = [line for _, _, code in blocks(text, "bash") for line in code.splitlines()]
    return [line.split("#")[0].strip() for line in lines]


def shell_faults(text, targets):
    """Lists targets, recipes and commands of bash blocks that do not exist."""
    code = "\n".join(shell_lines(text))
    used_targets = re.findall(r"\bmake ([a-z][\w-]*)", code)
    faults = [f"make {target}" for target in used_targets if target not in targets]
    for module in re.findall(r"python3? -m (keras_tfm\.[\w.]+)", code):
        if not (ROOT / module.replace(".", "/")).with_suffix(".py").is_file():
            faults.append(f"python -m {module}")
    names = re.findall(r"^keras-tfm ([a-z]+)", code, re.M)
    return faults + [f"keras-tfm {name}" for name in names if name not in COMMANDS]


def make_targets():
    """Lists the phony targets of the Makefile, with variables expanded."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    suites = [f"test-{name}" for name in ("tensorflow", "jax", "torch")]
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.M)[1]
    return phony.replace("$(SUITES)", " ".join(suites)).split()


@torch_only
@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_pages_exist(page):
    text = (ROOT / page).read_text("utf-8")
    assert shell_faults(text, make_targets()) == []


def name_faults(text):
    """Lists the names of this library in a page that do not exist."""
    text = NEW_CODE.sub("", text)
    names = DOTTED_NAME.findall(text)
    for module, imported in IMPORT.findall(text):
        names += [f"{module}.{name.strip()}" for name in imported.split(",")]
    faults = []
    for name in names:
        package, _, attributes = name.partition(".")
        # As an attribute first: importing `keras_tfm.presets` would replace the
        # function with the folder of that name.
        for form in (f"{package}:{attributes}", name):
            with contextlib.suppress(ImportError, AttributeError):
                pkgutil.resolve_name(form)
                break
        else:
            faults.append(name)
    return faults


@torch_only
def test_a_name_of_a_page_does_not_hide_a_function():
    assert name_faults("`keras_tfm.presets`") == []
    assert callable(keras_tfm.presets)


@torch_only
# Ray raises it when it is imported.
@pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`")
@pytest.mark.parametrize("page", PAGES)
def test_names_in_the_pages_exist(page):
    assert name_faults((ROOT / page).read_text("utf-8")) == []


@torch_only
def test_a_name_that_is_missing_is_found():
    text = "`keras_tfm.serving.Classifier`, `keras_tfm.decode.BeamSearch`\n"
    text += "from keras_tfm import decode, serving\n"
    assert name_faults(text) == ["keras_tfm.serving.Classifier", "keras_tfm.serving"]


@torch_only
def test_the_readme_is_at_most_200_lines_of_120_characters():
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= 200
    assert [line for line in lines if len(line) > 120] == []


@torch_only
def test_the_readme_shows_the_two_commands():
    lines = shell_lines((ROOT / "README.md").read_text("utf-8"))
    assert {"make translate", "make test"} <= set(lines)


@torch_only
def test_a_command_that_is_missing_is_found():
    lines = [
        "make test  # make haste",
        "make tea",
        "python -m keras_tfm.recipes.nothing",
    ]
    lines += ["keras-tfm translate a b", "keras-tfm brew"]
    text = "\n".join(["```bash", *lines, "```"])
    assert shell_faults(text, make_targets()) == [
        "make tea",
        "python -m keras_tfm.recipes.nothing",
        "keras-tfm brew",
    ]
