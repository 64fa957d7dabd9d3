"""Fixtures of all tests: seeds, real data, the backend, hypothesis."""

import gc
import os
import pathlib
import re

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# What a command compiles here does not stay, and no test finds it.
os.environ["KERAS_TFM_COMPILED"] = ""

import hypothesis
import keras
import pytest

# No deadline: a compiled function takes seconds on its first call only.
hypothesis.settings.register_profile("home", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "home")


def pytest_report_header(config):
    """Names the backend at the top of a run."""
    return f"keras: {keras.__version__} on {keras.backend.backend()}"


@pytest.fixture(autouse=True, scope="module")
def freeze_garbage():
    """Lets Keras quantize in less than a second instead of ten.

    Keras collects garbage for each weight that it deletes. Without a freeze,
    each collection visits all objects of libraries and earlier modules.
    """
    gc.collect()
    gc.freeze()


OF_OTHER_BACKENDS = re.compile(r"^pytestmark = pytest\.mark\.backend\((.+?)\)", re.M)


def pytest_ignore_collect(collection_path):
    """Leaves out files of other backends, whose imports take a minute in all.

    A file that the command line names is collected, and its tests skip.
    """
    if collection_path.suffix != ".py":
        return None
    names = OF_OTHER_BACKENDS.search(collection_path.read_text("utf-8"))
    is_foreign = names and f'"{keras.backend.backend()}"' not in names[1]
    return True if is_foreign else None


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the slow tests too")


def pytest_runtest_setup(item):
    """Skips tests of other backends, and slow tests without `--slow`."""
    backend = keras.backend.backend()
    for marker in item.iter_markers("slow"):
        is_slow_here = backend in marker.args or not marker.args
        if is_slow_here and not item.config.getoption("slow"):
            pytest.skip("slow; `make test-all` runs it")
    for marker in item.iter_markers("backend"):
        if backend not in marker.args:
            pytest.skip(f"runs on {' and '.join(marker.args)}; this is {backend}")


@pytest.fixture(autouse=True)
def seeds():
    """Seeds Python, NumPy and the backend before each test."""
    keras.utils.set_random_seed(1)


@pytest.fixture(scope="session")
def data():
    """The folder of real texts that KERAS_TFM_DATA names."""
    name = os.environ.get("KERAS_TFM_DATA")
    if not name:
        pytest.skip("KERAS_TFM_DATA is unset: it names a folder of real texts")
    folder = pathlib.Path(name)
    if not folder.is_dir():
        pytest.fail(f"KERAS_TFM_DATA names no folder: {name}. Unset it to skip.")
    return folder
