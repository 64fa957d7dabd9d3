"""The architecture: the imports that each package may have."""

import ast
import pathlib
import re
import sys

import pytest

pytestmark = pytest.mark.backend("torch")  # source is read, not run

ROOT = pathlib.Path(__file__).parents[1]

# Each package of keras_tfm with the packages that it may import besides itself.
# Imports point down only: a package never imports one that is listed below it.
MAY_IMPORT = {
    "types": set(),
    "file_reading": set(),
    "compile_cache": set(),
    "layers": {"types"},
    "decode": {"types", "file_reading"},
    "training": {"types", "file_reading"},
    "plot": set(),
    "models": {"types", "layers"},
    "runtime": {"types", "decode", "compile_cache"},
    "text": {"types", "file_reading", "layers", "models"},
    "zoo": {"types", "file_reading", "decode", "layers", "models", "text"},
    "engines": {"decode", "models", "runtime", "zoo"},
}
BELOW = set(MAY_IMPORT)
MAY_IMPORT["pipelines"] = BELOW - {"training"}
MAY_IMPORT["export"] = BELOW | {"pipelines"}
MAY_IMPORT["server"] = BELOW | {"pipelines", "export"}
MAY_IMPORT["recipes"] = BELOW | {"pipelines", "export"}
MAY_IMPORT["cli"] = BELOW | {"pipelines", "export", "server", "recipes"}
MAY_IMPORT["__main__"] = {"cli"}
MAY_IMPORT[""] = set(MAY_IMPORT)  # keras_tfm itself, which loads them on demand
# Methods that a user of Keras looks for on a model; they call packages above
# their own, which they import when they are called.
ON_CALL = {
    "keras_tfm/models/configured_model.py": {"pipelines"},  # from_preset
    "keras_tfm/models/generative_model.py": {"decode", "runtime"},  # generate
}

BACKENDS = {"tensorflow", "tensorflow_text", "jax", "torch"}
# Files that may use the API of a backend, and the reason.
BACKEND_PLACES = {
    "keras_tfm/text/": "tf.data and the tokenizers of tensorflow_text",
    "keras_tfm/export/": "SavedModel",
    "keras_tfm/training/random_state.py": "the global generators of PyTorch",
    "keras_tfm/training/processes.py": "numbers of processes, and their exchange",
    "keras_tfm/runtime/compile.py": "tf.function, jax.jit, torch.no_grad",
    "keras_tfm/runtime/capture.py": "capture and replay on PyTorch",
    "keras_tfm/runtime/bfloat16.py": "bfloat16 products on JAX",
    "keras_tfm/runtime/int8.py": "products of 8 bits on PyTorch",
    "keras_tfm/runtime/prepacked.py": "prepacked oneDNN weights on PyTorch",
}
# Files that may use private APIs of Keras.
KERAS_PRIVATE_PLACES = {
    "keras_tfm/layers/keras_internals.py",
    "keras_tfm/training/keras_internals.py",
    "keras_tfm/zoo/weight_loader.py",
}
# Packages that a module may import at its top; others are imported where used.
AT_THE_TOP = {"keras", "keras_tfm", "numpy", "sentencepiece"}
AT_THE_TOP |= set(sys.stdlib_module_names)
# Files that are imported on demand themselves, so that they import freely.
ON_DEMAND = re.compile(
    r"keras_tfm/(cli/options\.py|server/|recipes/|export/\w+_graph\.py"
    r"|runtime/(capture|bfloat16|int8|prepacked)\.py)"
)
NAMELESS = {"utils.py", "common.py", "helpers.py"}
# A folder at the root of a machine, but not the path of an address.
MACHINE_PATH = re.compile(r"(?<![\w.:/}$])/(?:work|root|home|Users)/\w")
TEXTS = {".py", ".md", ".toml", ".ipynb", ".json", ".yml", ".yaml", ".cfg", ""}


def sources(*folders):
    """Maps the path of every Python file in `folders` to its text."""
    files = sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return {
        file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in files
    }


def imports(path, source):
    """Yields `(line, dotted name, on demand)` of each import."""
    tree = ast.parse(source, path)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    inner = {
        id(n)
        for f in ast.walk(tree)
        if isinstance(f, functions) or is_for_type_checkers(f)
        for n in ast.walk(f)
    }
    for node in ast.walk(tree):
        for name in imported_names(path, node):
            yield node.lineno, name, id(node) in inner


def is_for_type_checkers(node):
    """Returns whether `node` is `if TYPE_CHECKING:`, which never runs."""
    test = getattr(node, "test", None)
    return isinstance(node, ast.If) and getattr(test, "id", "") == "TYPE_CHECKING"


def imported_names(path, node):
    """Lists the names that one node imports, `from a import b` as `a.b`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        folder = path.split("/")[: -node.level] if node.level else []
        start = ".".join([*folder, *filter(None, [node.module])])
        return [f"{start}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args:
        function = getattr(node.func, "attr", getattr(node.func, "id", None))
        argument = getattr(node.args[0], "value", None)
        if function in {"import_module", "__import__"} and isinstance(argument, str):
            return [argument]
    return []


def package_of(path_or_name):
    """Returns the package of a file or name; `""` is keras_tfm itself."""
    parts = re.split(r"[/.]", path_or_name.removesuffix(".py"))[1:]
    return parts[0] if parts and parts[0] != "__init__" else ""


def import_faults(tree):
    """Lists the forbidden imports in `tree`, a mapping of path to source."""
    faults = []
    for path, source in tree.items():
        for line, name, on_demand in imports(path, source):
            is_on_call = on_demand and package_of(name) in ON_CALL.get(path, ())
            fault = None if is_on_call else direction_fault(path, name)
            fault = fault or place_fault(path, name, on_demand)
            if fault:
                faults.append(f"{path}:{line} imports {name}: {fault}")
    return faults


def direction_fault(path, name):
    """Returns what is wrong with the direction of one import, or None."""
    if not path.startswith("keras_tfm/") or name.split(".")[0] != "keras_tfm":
        return None
    package, imported = package_of(path), package_of(name)
    if package not in MAY_IMPORT:
        return f"the package {package!r} is not in MAY_IMPORT"
    if name == "keras_tfm.__version__" or imported == package != "":
        return None
    if imported not in MAY_IMPORT[package]:
        return f"{package!r} may import {sorted(MAY_IMPORT[package])}"
    return None


def place_fault(path, name, on_demand):
    """Returns why an import is not allowed at its place, or None."""
    top = name.split(".")[0]
    if top in BACKENDS and not path.startswith(tuple(BACKEND_PLACES)):
        return "a backend's own API belongs in BACKEND_PLACES"
    if not path.startswith("keras_tfm/"):
        return None
    if name.startswith("keras.src") and path not in KERAS_PRIVATE_PLACES:
        return "a private API of Keras belongs in KERAS_PRIVATE_PLACES"
    if not on_demand and not ON_DEMAND.match(path) and top not in AT_THE_TOP:
        return "import it inside the function that uses it"
    return None


def texts():
    """Yields `(path, text)` of each text file that belongs to the project."""
    generated = {"__pycache__", "build", "dist", "runs"}
    for top in sorted(ROOT.iterdir()):
        if top.name.startswith(".") and top.name not in {".ci", ".github"}:
            continue
        for file in [top, *top.rglob("*")]:
            parts = set(file.relative_to(ROOT).parts)
            if file.is_file() and file.suffix in TEXTS and not parts & generated:
                yield file.relative_to(ROOT).as_posix(), file.read_text("utf-8")


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_imports_point_down_only(package):
    tree = sources("keras_tfm")
    faults = import_faults({p: s for p, s in tree.items() if package_of(p) == package})
    assert not faults, "\n".join(faults)


def test_every_package_is_listed_in_may_import():
    packages = {package_of(path) for path in sources("keras_tfm")}
    assert packages - set(MAY_IMPORT) == set()


def faults_of(path, source):
    """Returns the faults of one invented file."""
    return import_faults({path: source})


def test_an_import_that_points_up_is_found():
    source = "import os\nfrom keras_tfm.models import b"
    [fault] = faults_of("keras_tfm/layers/a.py", source)
    assert fault.startswith("keras_tfm/layers/a.py:2 imports keras_tfm.models.b:")
    assert faults_of("keras_tfm/layers/a.py", "from keras_tfm import models")
    assert faults_of("keras_tfm/layers/a.py", "from .. import models")
    assert faults_of("keras_tfm/layers/a.py", "from ..models import b")
    assert faults_of("keras_tfm/layers/a.py", "def f():\n    import keras_tfm.models")
    assert faults_of("keras_tfm/layers/a.py", "import keras_tfm")
    assert faults_of("keras_tfm/decode/a.py", "from keras_tfm.runtime import b")
    assert faults_of("keras_tfm/runtime/a.py", "from keras_tfm.models import b")
    assert faults_of("keras_tfm/pipelines/a.py", "from keras_tfm.export import b")
    assert faults_of("keras_tfm/export/a.py", "import keras_tfm.recipes.translation")
    assert faults_of("keras_tfm/attic/a.py", "from keras_tfm.layers import b")


def test_an_import_that_points_down_passes():
    assert not faults_of("keras_tfm/models/a.py", "from keras_tfm.layers import b")
    assert not faults_of("keras_tfm/layers/a.py", "from .masks import b\nimport keras")
    assert not faults_of("keras_tfm/__init__.py", "from keras_tfm import layers")
    assert not faults_of("keras_tfm/export/a.py", "from keras_tfm import __version__")
    assert not faults_of("keras_tfm/cli/a.py", "from keras_tfm.recipes import b")


def test_an_import_out_of_its_place_is_found():
    inside = "def f():\n    import tensorflow as tf\n    return tf"
    assert faults_of("keras_tfm/layers/a.py", inside)
    assert faults_of("keras_tfm/decode/beam.py", "def f():\n    from jax import jit")
    assert faults_of("keras_tfm/text/a.py", "import tensorflow as tf")
    assert faults_of("keras_tfm/training/a.py", "import sacrebleu")
    assert faults_of("keras_tfm/models/a.py", "x = importlib.import_module('torch.nn')")
    assert faults_of("keras_tfm/recipes/a.py", inside)
    assert faults_of("keras_tfm/models/a.py", "from keras.src.backend import b")
    assert not faults_of("keras_tfm/text/a.py", inside)
    assert not faults_of("keras_tfm/export/saved_model.py", inside)
    assert not faults_of("keras_tfm/runtime/compile.py", inside)
    assert not faults_of("keras_tfm/runtime/capture.py", "import torch")
    assert not faults_of("keras_tfm/recipes/a.py", "import tyro")
    typed = "if TYPE_CHECKING:\n    from matplotlib.figure import Figure"
    assert not faults_of("keras_tfm/plot/a.py", typed)
    assert not faults_of("keras_tfm/training/a.py", "def f():\n    import sacrebleu")


def test_every_file_is_named_after_its_content():
    tree = sources("keras_tfm", "tests", "benchmarks", "tools")
    assert [path for path in tree if pathlib.Path(path).name in NAMELESS] == []


def test_no_file_has_an_absolute_path_of_a_machine():
    assert MACHINE_PATH.search("open('" + "/home" + "/ann/corpus.txt')")  # it can fail
    assert not MACHINE_PATH.search("https://a.org/" + "home/page")
    assert [path for path, text in texts() if MACHINE_PATH.search(text)] == []
