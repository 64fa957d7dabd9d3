"""Every public class and function has an example, and every example runs."""

import ast
import importlib
import importlib.util
import inspect
import pathlib
import re

import pytest

from tests.test_docs import PACKAGES, public_objects

# Other tests check the results on every backend; examples run on one.
pytestmark = pytest.mark.backend("torch")

ROOT = pathlib.Path(__file__).parents[1]
SECTION = re.compile(r"^Examples?:\n(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^( *)```python\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
REQUIRES = re.compile(r"# requires: (.+)")


def examples(docstring):
    """Returns the fenced Python blocks of a docstring's `Example:` section."""
    sections = SECTION.findall(inspect.cleandoc(docstring or ""))
    blocks = [code for text in sections for _, code in FENCE.findall(text)]
    return [inspect.cleandoc(block) for block in blocks]


def docstrings(path):
    """Yields `(name, docstring)` of a module, its classes and functions."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, documented):
            yield getattr(node, "name", "module"), ast.get_docstring(node)


def files_with_examples():
    """Returns the paths of library files whose docstrings have examples."""
    paths = sorted((ROOT / "keras_tfm").rglob("*.py"))
    texts = {path: path.read_text("utf-8") for path in paths}
    return [path for path in paths if re.search(r"^\s*Examples?:$", texts[path], re.M)]


def missing_requirements(code):
    """Returns the names of `# requires: a, b` that cannot be imported."""
    requirement = REQUIRES.match(code)
    names = requirement[1].split(",") if requirement else []
    return [n.strip() for n in names if not importlib.util.find_spec(n.strip())]


def run_example(name, code):
    """Runs one example in a new namespace."""
    exec(compile(code, f"<example of {name}>", "exec"), {"__name__": "example"})


@pytest.mark.parametrize(
    "path", files_with_examples(), ids=lambda p: p.relative_to(ROOT).as_posix()
)
def test_examples_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    skipped, count = [], 0
    for name, docstring in docstrings(path):
        for code in examples(docstring):
            missing = missing_requirements(code)
            skipped += missing
            if not missing:
                run_example(name, code)
                count += 1
    if skipped and not count:
        pytest.skip(f"not installed: {', '.join(skipped)}")
    assert list(tmp_path.iterdir()) == [], "an example left files; use tempfile"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_object_has_an_example(package):
    objects = public_objects(importlib.import_module(f"keras_tfm.{package}"))
    lacking = [name for name, value in objects.items() if not examples(value.__doc__)]
    assert not lacking, "without an example: " + " ".join(lacking)


def test_examples_are_read_from_a_docstring():
    docstring = """Adds.

    Example:
        ```python
        # requires: os, no_such_module
        if True:
            print(1)
        ```

        Words between two blocks.

        ```python
        print(2)
        ```

    Source: none.
    """
    code = "# requires: os, no_such_module\nif True:\n    print(1)"
    assert examples(docstring) == [code, "print(2)"]
    assert missing_requirements(code) == ["no_such_module"]
    assert examples("Adds.\n\nArgs:\n    a: int.\n") == []


def test_an_example_that_fails_is_found():
    with pytest.raises(ZeroDivisionError):
        run_example("nothing", "1 / 0")
