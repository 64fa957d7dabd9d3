"""The guides work as they stand, and the pages of packages are complete."""

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from tests.test_docs import COMMAND_LINE, ROOT, blocks, public_objects

pytestmark = pytest.mark.backend("torch")

DOCS = ROOT / "docs"
# A row of the table of packages, whose first cell is a name in backticks.
ROW = re.compile(r"^\| `(\w+)` \|", re.M)
PACKAGES = ROW.findall((DOCS / "architecture.md").read_text("utf-8"))
PAGES = [
    DOCS / "decisions.md",
    *sorted((DOCS / "api").glob("*.md")),
    *sorted((DOCS / "contributing").glob("*.md")),
]
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.M)
LINK = re.compile(r"\]\(([^)\s]+)\)")
# What the guides tell to run, in one process.
GUIDE_TESTS = (
    "tests/layers/test_layer_scale.py",
    "tests/zoo/test_electra.py",
    "tests/zoo/test_family.py",
    "tests/recipes/test_reversal.py",
    "tests/cli/test_commands.py::test_version_and_recipes_are_listed",
    "tests/runtime/test_denormals.py",
    "tests/test_structure.py",
    "tests/test_measure.py",
    "tests/test_docs.py::test_docstrings_name_exactly_the_arguments[layers]",
    "tests/test_examples.py::test_every_public_object_has_an_example[layers]",
)


def apply_diff(code, folder):
    """Applies a diff without line numbers, in the order of its lines."""
    path, lines, position = None, [], 0
    for line in code.splitlines():
        mark, content = line[:1], line[1:]
        if line.startswith("+++ "):
            path, position = folder / line[4:], 0
            lines = path.read_text("utf-8").splitlines()
        elif mark == "+":
            lines.insert(position, content)
            position += 1
        else:
            assert content in lines[position:], f"{path} has no line {content!r}"
            position = lines.index(content, position)
            if mark == "-":
                del lines[position]
            else:
                position += 1
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def apply_guide(text, folder):
    """Writes and changes the files of a guide; returns their names."""
    names = []
    for _, _, code in blocks(text, "python"):
        name = re.match(r"# (\S+\.py)\n", code)
        assert name, f"a block begins with the name of its file: {code[:60]!r}"
        (folder / name[1]).write_text(code + "\n", encoding="utf-8")
        names.append(name[1])
    for _, _, code in blocks(text, "diff"):
        apply_diff(code, folder)
        names += re.findall(r"^\+\+\+ (\S+)", code, re.M)
    return names


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the library with all guides applied, and the names of files."""
    folder = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__", "presets")
    for name in ("keras_tfm", "tests", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copytree(DOCS, folder / "docs")
    shutil.copy(ROOT / "pyproject.toml", folder)
    names = []
    for guide in sorted((DOCS / "contributing").glob("*.md")):
        names += apply_guide(guide.read_text("utf-8"), folder)
    return folder, names


def run(arguments, folder):
    """Runs Python in a copy of the library, and returns its output."""
    environment = {"PYTHONPATH": str(folder), "KERAS_BACKEND": "torch"}
    process = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, (process.stdout + process.stderr)[-6000:]
    return process.stdout


def test_the_guides_work_as_they_stand(checkout):
    options = ["-q", "-p", "no:cacheprovider"]
    output = run(["-m", "pytest", *options, *GUIDE_TESTS], checkout[0])
    assert "skipped" not in output, output[-2000:]


def test_the_names_of_a_checkpoint_are_printed(checkout):
    pytest.importorskip("transformers")
    output = run(["print_names.py"], checkout[0])
    assert "encoder.layer.0.attention.self.query.weight [16, 16]" in output


def test_the_files_of_the_guides_are_formatted(checkout):
    pytest.importorskip("ruff")
    folder, names = checkout
    names = [name for name in names if "/" in name]  # no scripts
    for command in (["check"], ["format", "--check"]):
        run(["-m", "ruff", *command, *names], folder)


def test_a_diff_that_does_not_fit_is_found(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\ny = 2\n")
    apply_diff("+++ a.py\n x = 1\n+z = 3\n-y = 2\n+y = 4", tmp_path)
    assert (tmp_path / "a.py").read_text() == "x = 1\nz = 3\ny = 4\n"
    with pytest.raises(AssertionError, match="has no line 'x = 2'"):
        apply_diff("+++ a.py\n x = 2\n+z = 3", tmp_path)


def modules_of(module):
    """Yields a package and the modules that it exports."""
    yield module
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if inspect.ismodule(value):
            yield from modules_of(value)


def test_the_table_of_packages_is_complete():
    folders = {path.parent.name for path in (ROOT / "keras_tfm").glob("*/__init__.py")}
    assert set(PACKAGES) == folders
    index = (DOCS / "api" / "index.md").read_text("utf-8")
    links = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\)", index, re.M)
    assert sorted(links) == sorted((name, name) for name in PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_has_a_page_with_all_public_names(package):
    text = (DOCS / "api" / f"{package}.md").read_text("utf-8")
    assert text.startswith(f"# keras_tfm.{package}\n")
    for heading in ("**Belongs here**", "**Does not belong here**"):
        _, _, below = text.partition(heading)
        bullets, _, _ = below.strip().partition("\n\n")
        assert 2 <= len(re.findall(r"^\* ", bullets, re.M)) <= 5, heading
    directives = DIRECTIVE.findall(text)
    if package in COMMAND_LINE:
        assert directives == []
        return
    assert "\n## Reference\n" in text
    module = importlib.import_module(f"keras_tfm.{package}")
    modules = {m.__name__: m for m in modules_of(module)}
    objects = public_objects(module)
    # mkdocstrings shows a module in place of a function of the same name.
    hidden = [n for n in objects if (ROOT / f"{n.replace('.', '/')}.py").is_file()]
    functions = [f"{name}.{name.rpartition('.')[2]}" for name in hidden]
    assert sorted(directives) == sorted([*modules, *functions])
    # A directive shows the names of a module, not those of modules inside it.
    public_names = {
        f"{name}.{public}"
        for name in modules
        for public in getattr(modules[name], "__all__", vars(modules[name]))
    }
    assert set(objects) - public_names == set()


@pytest.mark.parametrize("package", sorted(COMMAND_LINE))
def test_the_table_of_a_command_line_package_is_complete(package):
    text = (DOCS / "api" / f"{package}.md").read_text("utf-8")
    if package == "server":
        names = {p.name for p in (ROOT / "keras_tfm/server").glob("[a-z]*.py")}
        assert set(re.findall(r"^\| `(\w+\.py)` \|", text, re.M)) == names
    if package == "recipes":
        from keras_tfm.cli.train import RECIPES

        assert set(re.findall(r"`keras-tfm train ([\w-]+)`", text)) == set(RECIPES)
    if package == "cli":
        from keras_tfm.cli.options import COMMANDS

        assert set(re.findall(r"^\| `keras-tfm (\w+)`", text, re.M)) == set(COMMANDS)


def slug(heading):
    """Returns the anchor of a heading, as GitHub makes it."""
    words = re.sub(r"[^\w\- ]", "", heading.lower())
    return words.replace(" ", "-")


def anchors(text):
    return {slug(line) for line in re.findall(r"^#+ (.+)$", text, re.M)}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(DOCS).as_posix())
def test_links_and_modules_of_a_page_exist(page):
    text = page.read_text("utf-8")
    for target in LINK.findall(text):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.is_file(), target
        assert not anchor or anchor in anchors(file.read_text("utf-8")), target
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    for name in re.findall(r"`([\w/]+\.py)`", prose):
        is_new = any(f"# {p}" in text for p in (name, f"keras_tfm/{name}"))
        folders = (ROOT / "keras_tfm", ROOT / "tests")
        exists = (ROOT / name).is_file() or any(
            next(folder.rglob(name), None) for folder in folders
        )
        assert exists or is_new, name


def test_each_decision_has_its_four_parts():
    text = (DOCS / "decisions.md").read_text("utf-8")
    # The last two sections are tables.
    entries = re.split(r"^## ", text, flags=re.M)[1:-2]
    assert len(entries) >= 15
    for entry in entries:
        parts = re.findall(r"^\*\*([\w ]+)\.\*\*", entry, re.M)
        assert parts == ["Context", "Choice", "Cost", "What would change it"], entry


def test_the_page_of_versions_has_the_bounds_of_the_package():
    text = (DOCS / "contributing" / "versioning.md").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    bounds = [project["requires-python"]]
    for extra in (project["dependencies"], *extras.values()):
        for requirement in extra:
            name = r"(keras|tensorflow|jax|torch|sentencepiece|ray\[\S+\])"
            bounds += re.findall(rf"^{name}([<>][\w.,<>=]+)", requirement)
    bounds = [b if isinstance(b, str) else b[1] for b in bounds]
    assert len(bounds) == 7
    assert [bound for bound in bounds if f"`{bound}`" not in text] == []
