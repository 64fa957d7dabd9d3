"""Commands keep compiled functions for the next process."""

import os
import pathlib
import shutil
import subprocess
import sys

import keras
import pytest

from keras_tfm import cli, compile_cache

NAMES = ("JAX_COMPILATION_CACHE_DIR", "TF_XLA_FLAGS", "KERAS_HOME")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in (*NAMES, compile_cache.VARIABLE):
        monkeypatch.delenv(name, raising=False)


def test_the_folder_is_private_and_in_that_of_keras(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    folder = compile_cache.folder()
    assert folder.parent == tmp_path / "home" / "keras_tfm" / "compiled"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert compile_cache.folder() == folder


def test_each_kind_of_processor_has_a_folder(monkeypatch):
    names = set()
    for flags in ("avx2", "avx2 avx512f"):
        text = f"processor : 0\nflags : {flags}\n\nprocessor : 1\nflags : {flags}\n"
        monkeypatch.setattr(pathlib.Path, "read_text", lambda *_, text=text: text)
        names.add(compile_cache.processor())
    assert len(names) == 2


@pytest.mark.parametrize("name", ["", "file", "file/below", "/proc/here", "~nobody0/x"])
def test_without_a_folder_nothing_is_kept(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("file").touch()
    monkeypatch.setenv(compile_cache.VARIABLE, name)
    assert compile_cache.folder() is None
    module = sys.modules["keras_tfm.cli.main"]
    monkeypatch.setattr(module, "_run", lambda arguments: 0)
    assert cli.main(["serve"]) == 0
    assert not any(variable in os.environ for variable in NAMES)


def test_variables_of_the_user_stay(monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "mine")
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_auto_jit=1")
    variables = compile_cache.variables("ours")
    assert variables["JAX_COMPILATION_CACHE_DIR"] == "mine"
    option, flags = compile_cache.TENSORFLOW_OPTION, variables["TF_XLA_FLAGS"]
    assert flags == f'--tf_xla_auto_jit=1 --{option}="ours"'
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_persistent_cache_directory=mine")
    flags = compile_cache.variables("ours")["TF_XLA_FLAGS"]
    assert flags == "--tf_xla_persistent_cache_directory=mine"


def test_an_almost_full_disk_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv(compile_cache.VARIABLE, str(tmp_path))
    assert compile_cache.folder() is not None
    usage = shutil.disk_usage(tmp_path)._replace(free=100_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert compile_cache.folder() is None


def test_only_files_of_tensorflow_are_discarded(tmp_path, monkeypatch):
    assert not compile_cache.discard()
    folder = tmp_path / "a b"
    folder.mkdir()
    names = ["xla_compile_cache__1__2__XLA_CPU_JIT.pb", "mine"]
    for name in names:
        (folder / name).touch()
    monkeypatch.setenv("TF_XLA_FLAGS", compile_cache.variables(folder)["TF_XLA_FLAGS"])
    assert compile_cache.discard()
    assert [path.name for path in folder.iterdir()] == ["mine"]
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_persistent_cache_directory=none/x")
    assert compile_cache.discard()


PROGRAM = """
import keras
from keras_tfm import runtime

layer = keras.layers.Dense(2, kernel_initializer="ones")
layer.build((None, 3))
function = runtime.compiled(layer, layer)
print(float(function(keras.ops.ones((1, 3)))[0, 0]))
"""


def run_program(folder, **options):
    environment = {**os.environ, **compile_cache.variables(folder)}
    environment |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, **options
    )


@pytest.mark.backend("tensorflow")
@pytest.mark.parametrize("size", [0, 1_000])
def test_damaged_files_of_tensorflow_are_compiled_again(size, tmp_path):
    assert run_program(tmp_path).stdout == "3.0\n"
    files = [*tmp_path.iterdir()]
    assert files
    for path in files:
        os.truncate(path, size)
    process = run_program(tmp_path)
    assert process.stdout == "3.0\n", process.stderr
    assert "folder of compiled functions" in process.stderr
    process = run_program(tmp_path)
    assert process.stdout == "3.0\n"
    assert "folder of compiled functions" not in process.stderr


@pytest.mark.backend("tensorflow")
def test_the_error_of_a_full_disk_names_the_folder(tmp_path):
    resource = pytest.importorskip("resource")

    def limit_files():  # as a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))

    process = run_program(tmp_path, preexec_fn=limit_files)
    assert "OSError: TensorFlow cannot write to its folder of" in process.stderr


@pytest.mark.backend("tensorflow", "jax")
def test_the_next_process_finds_what_the_first_has_compiled(tmp_path):
    folder = tmp_path / "a b"
    environment = {**os.environ, compile_cache.VARIABLE: str(folder)}
    environment |= {"KERAS_BACKEND": keras.backend.backend()}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3"}  # as the command sets it
    command = [sys.executable, "-m", "keras_tfm", "translate", "en-de"]
    outputs, files = [], []
    for _ in range(2):
        process = subprocess.run(
            command,
            input="Good morning.\n",
            env=environment,
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, process.stderr
        assert "AOT" not in process.stderr  # JAX logs it as an error
        outputs.append(process.stdout)
        files.append({path.name for path in folder.glob("*/*")})
    assert outputs[0] == outputs[1]
    assert files[0] == files[1] != set()
