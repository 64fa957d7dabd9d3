"""`import keras_tfm` loads few packages and no second backend."""

import json
import pkgutil
import subprocess
import sys

import pytest

import keras_tfm

# What the library may load on top of Keras and the standard library.
LIGHT = {"keras_tfm", "keras", "numpy", "sentencepiece", "_sentencepiece"}
# Recipes are programs: they load what they need when they start.
PACKAGES = {package.name for package in pkgutil.iter_modules(keras_tfm.__path__)}
PACKAGES -= {"recipes", "__main__"}
PROGRAM = """
import json, sys
import keras
loaded = set(sys.modules)
{imports}
print(json.dumps(sorted(set(sys.modules) - loaded)))
"""


def packages_loaded_by(imports):
    """Returns the packages that `imports` adds to those of `import keras`."""
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(imports=imports)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    modules = json.loads(process.stdout.splitlines()[-1])
    packages = {name.split(".")[0] for name in modules}
    return packages - set(sys.stdlib_module_names)


@pytest.mark.slow("tensorflow", "jax")
def test_the_library_imports_light_packages_only():
    imports = [f"import keras_tfm.{package}" for package in sorted(PACKAGES)]
    packages = packages_loaded_by("\n".join(["import keras_tfm", *imports]))
    assert "keras_tfm" in packages
    assert packages <= LIGHT


@pytest.mark.backend("torch")
def test_a_heavy_import_is_found():
    assert {"babel", "sacrebleu"} <= packages_loaded_by("import babel, sacrebleu")
