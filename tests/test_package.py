"""The wheel holds the library, its recipes and its presets, nothing else."""

import email
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

pytestmark = pytest.mark.backend("torch")  # no backend is used

ROOT = pathlib.Path(__file__).parents[1]
# MB. 39 of them are the weights of the presets; the rest is text.
SIZE_LIMIT = 43
# A program that builds one kind of wheel, as pip asks the backend to.
BUILD = """
import os, sys
os.chdir(sys.argv[1])
from hatchling import build
print(build.build_editable(sys.argv[2]) if sys.argv[3] == "editable"
      else build.build_wheel(sys.argv[2]))
"""


def build(kind, folder):
    """Builds a wheel as pip does, without a network, and returns its path."""
    process = subprocess.run(
        [sys.executable, "-c", BUILD, str(ROOT), str(folder), kind],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return folder / process.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling")
    path = build("wheel", tmp_path_factory.mktemp("wheel"))
    with zipfile.ZipFile(path) as archive:
        yield archive


def metadata(archive):
    [name] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(archive.read(name))


def test_the_wheel_has_one_top_level_package(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"keras_tfm"}


def test_the_wheel_has_every_file_of_the_library(wheel):
    names = set(wheel.namelist())
    files = [file for file in (ROOT / "keras_tfm").rglob("*") if file.is_file()]
    expected = {
        file.relative_to(ROOT).as_posix()
        for file in files
        if "__pycache__" not in file.parts
    }
    assert expected - names == set()
    assert "keras_tfm/recipes/translation.py" in names
    assert "keras_tfm/presets/en-de/README.md" in names
    assert "keras_tfm/py.typed" in names


def test_the_wheel_has_no_file_that_the_repository_ignores(wheel):
    assert [n for n in wheel.namelist() if "__pycache__" in n] == []


def test_the_wheel_is_at_most_as_large_as_allowed(wheel):
    size = pathlib.Path(wheel.filename).stat().st_size / 1e6
    assert size <= SIZE_LIMIT, f"{size:.1f} MB"


def test_the_command_starts_the_command_line(wheel):
    [name] = [n for n in wheel.namelist() if n.endswith("entry_points.txt")]
    assert "keras-tfm = keras_tfm.cli:main" in wheel.read(name).decode()


def test_serving_needs_no_ray_and_a_cluster_does(wheel):
    requirements = metadata(wheel).get_all("Requires-Dist")
    requirements_of = {
        extra: [r for r in requirements if r.endswith(f"extra == '{extra}'")]
        for extra in ("serve", "cluster")
    }
    assert not any(r.startswith("ray") for r in requirements_of["serve"])
    assert any(r.startswith("ray[") for r in requirements_of["cluster"])


def test_packages_without_a_wheel_for_python_3_14_have_a_marker(wheel):
    requirements = metadata(wheel).get_all("Requires-Dist")
    limited = [r for r in requirements if re.match("tensorflow|keras-nlp|tf2onnx", r)]
    assert len(limited) >= 4
    assert all("python_version < '3.14'" in r for r in limited)


def test_an_editable_install_exposes_only_the_library(tmp_path):
    pytest.importorskip("hatchling")
    pytest.importorskip("editables", reason="editables is not installed")
    with zipfile.ZipFile(build("editable", tmp_path)) as archive:
        files = [n for n in archive.namelist() if ".dist-info/" not in n]
        code = "".join(archive.read(n).decode() for n in files)
    assert "keras_tfm" in code and "map_module" in code
    # A path in a .pth file would expose everything that lies beside keras_tfm.
    assert f"\n{ROOT}\n" not in f"\n{code}\n"
