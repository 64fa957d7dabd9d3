"""A weight file and a training run give the same results on three backends."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from tests import one_backend
from tests.layers.formulas import draw_weights

# The backends are compared once, in the suite for TensorFlow.
pytestmark = pytest.mark.backend("tensorflow")
ROOT = pathlib.Path(__file__).parents[1]
OTHER_BACKENDS = ["jax", "torch"]
# As in `make test-jax` and `make test-torch`.
FAST_COMPILATION = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Maps each installed backend to its results."""
    if keras.backend.backend() != "tensorflow":
        pytest.skip("the three are compared in TensorFlow's run")
    folder = tmp_path_factory.mktemp("backends")
    model = draw_weights(one_backend.make_model())
    model.save_weights(folder / "start.weights.h5")
    model.save(folder / "start.keras")
    backends = [name for name in OTHER_BACKENDS if importlib.util.find_spec(name)]
    if not backends:
        pytest.skip("neither JAX nor PyTorch is installed")
    running = [start(name, folder) for name in backends]
    one_backend.run(folder)
    for process in running:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    return {name: np.load(folder / f"{name}.npz") for name in ["tensorflow", *backends]}


def start(backend, folder):
    """Runs `one_backend` on another backend."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.one_backend", str(folder)],
        cwd=ROOT,
        env={**os.environ, **FAST_COMPILATION, "KERAS_BACKEND": backend},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("backend", OTHER_BACKENDS)
def test_backends_give_the_same_logits(results, backend):
    if backend not in results:
        pytest.skip(f"{backend} is not installed")
    expected = results["tensorflow"]["logits"]
    assert expected.std() > 0.1
    np.testing.assert_allclose(results[backend]["logits"], expected, atol=1e-5)
    for name in ("tensorflow", backend):  # and from a whole saved model
        np.testing.assert_allclose(results[name]["whole"], expected, atol=1e-5)


@pytest.mark.parametrize("backend", OTHER_BACKENDS)
def test_backends_train_with_the_same_losses(results, backend):
    if backend not in results:
        pytest.skip(f"{backend} is not installed")
    expected, actual = results["tensorflow"], results[backend]
    losses = expected["losses"]
    assert losses[-5:].mean() < losses[:5].mean() - 0.1  # it learns
    np.testing.assert_allclose(actual["losses"], losses, atol=2e-5)
    assert set(actual.files) == set(expected.files)
    for name in expected.files:
        if "/" in name:
            np.testing.assert_allclose(
                actual[name], expected[name], atol=1e-4, err_msg=name
            )


@pytest.mark.parametrize("backend", OTHER_BACKENDS)
def test_backends_find_the_same_hypotheses(results, backend):
    if backend not in results:
        pytest.skip(f"{backend} is not installed")
    expected, actual = results["tensorflow"], results[backend]
    names = [name for name in expected.files if name.startswith("search ")]
    assert sum(name.endswith(" ids") for name in names) == 11
    lengths = np.concatenate([expected[n].ravel() for n in names if "lengths" in n])
    assert len(set(lengths.tolist())) > 5  # hypotheses differ
    for name in names:
        if expected[name].dtype == "int32":
            np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)
        else:
            np.testing.assert_allclose(
                actual[name], expected[name], atol=1e-4, err_msg=name
            )
