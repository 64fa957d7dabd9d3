"""The architecture: what may import what, and where."""

import ast
import pathlib
import re
import sys

import pytest

pytestmark = pytest.mark.backend("torch")  # of no backend: once is enough

ROOT = pathlib.Path(__file__).parents[1]

# Rooms of keras_tfm, each with the rooms it may import; "" is keras_tfm itself.
MAY_IMPORT = {
    "layers": {"layers"},
    "decode": {"decode"},
    "training": {"training"},
    "models": {"layers", "models"},
    "text": {"layers", "models", "text"},
    "zoo": {"decode", "layers", "models", "text", "zoo"},
    "plot": {"plot"},
    "serving": {"decode", "layers", "models", "plot", "serving", "text", "zoo"},
    "command": {"command", "serving", "text", "training", "zoo"},
}
MAY_IMPORT[""] = set(MAY_IMPORT)
BACKENDS = {"tensorflow", "tensorflow_text", "jax", "torch"}
# Where a backend may be imported, inside a function.
BACKEND_PLACES = re.compile(
    r"keras_tfm/(text/|serving[/.]|decode/(compile|narrow|packed|record)\.py$)"
)
# Themselves imported inside a function.
LATER = {
    "keras_tfm/decode/narrow.py",
    "keras_tfm/decode/packed.py",
    "keras_tfm/decode/record.py",
    "keras_tfm/serving/server/app.py",
    "keras_tfm/serving/server/start.py",
    "keras_tfm/serving/server/tensorflow_serving.py",
}
# What `import keras_tfm` may load; the rest is imported where it is used.
AT_IMPORT = {"keras", "keras_tfm", "numpy", "sentencepiece", *sys.stdlib_module_names}
NAMELESS = {"utils.py", "common.py", "helpers.py"}
# A folder at the root of somebody's machine, but not the path of an address.
MACHINE_PATH = re.compile(r"(?<![\w.:/}$])/(?:work|root|home|Users)/\w")
TEXTS = {".py", ".md", ".toml", ".ipynb", ".json", ".yml", ".cfg", ""}


def sources(*folders):
    """Maps the path of every Python file in `folders` to its text."""
    files = sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return {
        file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in files
    }


def imports(path, source):
    """Yields `(line, dotted name, inside a function)` of each import."""
    tree = ast.parse(source, path)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    inner = {
        id(n) for f in ast.walk(tree) if isinstance(f, functions) for n in ast.walk(f)
    }
    for node in ast.walk(tree):
        for name in imported_names(path, node):
            yield node.lineno, name, id(node) in inner


def imported_names(path, node):
    """Lists the names that one node imports, `from a import b` as `a.b`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        package = path.split("/")[: -node.level] if node.level else []
        start = ".".join([*package, *filter(None, [node.module])])
        return [f"{start}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args:
        called = getattr(node.func, "attr", getattr(node.func, "id", None))
        first = getattr(node.args[0], "value", None)
        if called in {"import_module", "__import__"} and isinstance(first, str):
            return [first]
    return []


def room(path_or_name):
    """Gives the room of a file or dotted name; `""` is keras_tfm itself."""
    parts = re.split(r"[/.]", path_or_name.removesuffix(".py"))[1:]
    return parts[0] if parts and parts[0] != "__init__" else ""


def arrows_up(tree):
    """Says each forbidden import in `tree`, a mapping of path to source."""
    faults = []
    for path, source in tree.items():
        for line, name, inside in imports(path, source):
            fault = arrow_fault(path, name) or place_fault(path, name, inside)
            if fault:
                faults.append(f"{path}:{line} imports {name}: {fault}")
    return faults


def arrow_fault(path, name):
    """Says what is wrong with the direction of one import, or gives None."""
    top = name.split(".")[0]
    if not path.startswith("keras_tfm/"):
        return None
    if top == "recipes":
        return "nothing imports a recipe"
    if top != "keras_tfm":
        return None
    if room(path) not in MAY_IMPORT:
        return f"the room {room(path)!r} has no line in MAY_IMPORT"
    if name == "keras_tfm.__version__":
        return None
    if room(name) not in MAY_IMPORT[room(path)]:
        return f"{room(path)!r} may import {sorted(MAY_IMPORT[room(path)])}"
    return None


def place_fault(path, name, inside):
    """Says why one import may not stand at this place, or gives None."""
    top = name.split(".")[0]
    if top in BACKENDS and not BACKEND_PLACES.match(path):
        return "a backend's own API belongs in text, serving or decode/compile.py"
    inside = inside or path in LATER
    if path.startswith("keras_tfm/") and not inside and top not in AT_IMPORT:
        return "import it inside the function that uses it"
    return None


def texts():
    """Yields `(path, text)` of each text file that belongs to the project."""
    passed_over = {"__pycache__", "build", "dist", "runs"}
    for top in sorted(ROOT.iterdir()):
        if top.name.startswith(".") and top.name != ".ci":
            continue
        for file in [top, *top.rglob("*")]:
            parts = set(file.relative_to(ROOT).parts)
            if file.is_file() and file.suffix in TEXTS and not parts & passed_over:
                yield file.relative_to(ROOT).as_posix(), file.read_text("utf-8")


def test_no_import_points_up():
    tree = sources("keras_tfm", "recipes")
    assert tree
    faults = arrows_up(tree)
    assert not faults, "\n".join(faults)


def planted(path, source):
    """Runs `arrows_up` over one invented file."""
    return arrows_up({path: source})


def test_an_arrow_up_is_found():
    up = planted("keras_tfm/layers/a.py", "import os\nfrom keras_tfm.models import b")
    assert len(up) == 1
    assert up[0].startswith("keras_tfm/layers/a.py:2 imports keras_tfm.models.b:")
    assert planted("keras_tfm/layers/a.py", "from keras_tfm import models")
    assert planted("keras_tfm/layers/a.py", "from .. import models")
    assert planted("keras_tfm/layers/a.py", "from ..models import b")
    assert planted("keras_tfm/layers/a.py", "def f():\n    import keras_tfm.models")
    assert planted("keras_tfm/layers/a.py", "import keras_tfm")
    assert planted("keras_tfm/decode/a.py", "from keras_tfm.models import b")
    assert planted("keras_tfm/training/a.py", "from keras_tfm.decode import b")
    assert planted("keras_tfm/serving.py", "import keras_tfm.recipes.translation")
    assert planted("keras_tfm/attic/a.py", "from keras_tfm.layers import b")


def test_an_arrow_down_passes():
    assert not planted("keras_tfm/models/a.py", "from keras_tfm.layers import b")
    assert not planted("keras_tfm/layers/a.py", "from .masks import b\nimport keras")
    assert not planted("keras_tfm/__init__.py", "from keras_tfm import layers, models")
    assert not planted("keras_tfm/serving.py", "from keras_tfm import __version__")
    assert not planted("recipes/a.py", "from recipes import b\nimport keras_tfm")


def test_an_import_out_of_its_place_is_found():
    inside = "def f():\n    import tensorflow as tf\n    return tf"
    assert planted("keras_tfm/layers/a.py", inside)
    assert planted("keras_tfm/decode/beam.py", "def f():\n    from jax import jit")
    assert planted("keras_tfm/text/a.py", "import tensorflow as tf")
    assert planted("keras_tfm/training/a.py", "import sacrebleu")
    assert planted("keras_tfm/models/a.py", "x = importlib.import_module('torch.nn')")
    assert planted("recipes/a.py", inside)
    assert not planted("keras_tfm/text/a.py", inside)
    assert not planted("keras_tfm/serving/export.py", inside)
    assert not planted("keras_tfm/decode/compile.py", inside)
    assert not planted("keras_tfm/training/a.py", "def f():\n    import sacrebleu")


def test_every_file_is_named_after_the_thing_in_it():
    tree = sources("keras_tfm", "recipes", "tests", "benchmarks")
    assert [path for path in tree if pathlib.Path(path).name in NAMELESS] == []


def test_no_file_names_a_folder_of_one_machine():
    assert MACHINE_PATH.search("open('" + "/home" + "/ann/corpus.txt')")  # it can fail
    assert not MACHINE_PATH.search("https://a.org/" + "home/page")
    assert [path for path, text in texts() if MACHINE_PATH.search(text)] == []
