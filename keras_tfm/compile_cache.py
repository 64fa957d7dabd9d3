"""Keeps compiled functions on disk, so that the next process starts sooner.

It imports no backend, since these read the variables when they are imported.
"""

import contextlib
import hashlib
import os
import pathlib
import platform
import re
import shutil

VARIABLE = "KERAS_TFM_COMPILED"
TENSORFLOW_OPTION = "tf_xla_persistent_cache_directory"
TENSORFLOW_FILES = "xla_compile_cache__*"
# TensorFlow raises an error when the disk is full; a server keeps 66 MB.
MIN_FREE_BYTES = 500_000_000


def folder() -> pathlib.Path | None:
    """Makes and returns the folder of compiled functions of this processor.

    The variable `KERAS_TFM_COMPILED` names the folder that it is in; its
    default is `keras_tfm/compiled` in the folder of Keras.

    Returns:
        None if the variable is empty, if the folder cannot be written, or if
        its disk is almost full.

    Example:
        ```python
        import os
        import tempfile

        from keras_tfm import compile_cache

        os.environ["KERAS_TFM_COMPILED"] = tempfile.mkdtemp()
        assert compile_cache.folder().is_dir()
        os.environ["KERAS_TFM_COMPILED"] = ""
        assert compile_cache.folder() is None
        ```
    """
    home = os.environ.get("KERAS_HOME", "~/.keras")
    name = os.environ.get(VARIABLE, os.path.join(home, "keras_tfm", "compiled"))
    if not name:
        return None
    try:
        path = pathlib.Path(name).expanduser() / processor()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if shutil.disk_usage(path).free < MIN_FREE_BYTES:
            return None
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    return path if os.access(path, os.W_OK | os.X_OK) else None


def processor() -> str:
    """Returns a name of the processor's instructions.

    What is compiled for one processor may be invalid on another, and homes are
    shared by machines.
    """
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:  # no Linux
        lines = [platform.processor()]
    features = [line for line in lines if line.startswith(("flags", "Features"))]
    digest = hashlib.sha256("".join(features[:1] or lines[:1]).encode())
    return f"{platform.machine() or 'unknown'}-{digest.hexdigest()[:8]}"


def variables(path: str | os.PathLike) -> dict[str, str]:
    """Returns variables of the environment that let a backend use a folder.

    JAX and TensorFlow use it; PyTorch compiles nothing. Variables that a user
    has set stay.

    Args:
        path: the folder.
    """
    defaults = {
        "JAX_COMPILATION_CACHE_DIR": str(path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    new = {name: os.environ.get(name, value) for name, value in defaults.items()}
    flags = os.environ.get("TF_XLA_FLAGS", "")
    if TENSORFLOW_OPTION not in flags:
        # Quotes, since spaces separate flags.
        flags = f'{flags} --{TENSORFLOW_OPTION}="{path}"'.strip()
    return new | {"TF_XLA_FLAGS": flags}


def discard() -> bool:
    """Deletes TensorFlow's files of compiled functions.

    TensorFlow raises an error if it cannot read or write such a file. JAX
    compiles without it.

    Returns:
        False if TensorFlow keeps none: its variable names no folder.

    Example:
        ```python
        from keras_tfm import compile_cache

        print(compile_cache.discard())  # False
        ```
    """
    flags = os.environ.get("TF_XLA_FLAGS", "")
    match = re.search(rf'--{TENSORFLOW_OPTION}=(?:"([^"]*)"|(\S+))', flags)
    if match is None or not (match[1] or match[2]):
        return False
    with contextlib.suppress(OSError):
        for file in pathlib.Path(match[1] or match[2]).glob(TENSORFLOW_FILES):
            with contextlib.suppress(OSError):  # another process has deleted it
                file.unlink()
    return True
