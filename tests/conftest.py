"""What every test stands on: seeds, real data, the backend, hypothesis."""

import gc
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import hypothesis
import keras
import pytest

# No deadline: a compiled function takes seconds on its first call only.
hypothesis.settings.register_profile("home", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "home")


def pytest_report_header(config):
    """Says at the top of a run which backend it is about."""
    return f"keras: {keras.__version__} on {keras.backend.backend()}"


@pytest.fixture(autouse=True, scope="module")
def little_to_look_through():
    """Lets Keras quantise in less than a second instead of ten.

    It collects garbage for each weight that it deletes, and each time all that
    the libraries and the modules before have made would be looked through.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item):
    """Skips a test marked for other backends than this run's."""
    here = keras.backend.backend()
    for marker in item.iter_markers("backend"):
        if here not in marker.args:
            pytest.skip(f"runs on {' and '.join(marker.args)}; this is {here}")


@pytest.fixture(autouse=True)
def seeds():
    """Seeds Python, NumPy and the backend alike before each test."""
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
