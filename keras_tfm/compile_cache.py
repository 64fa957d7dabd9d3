"""Keeps compiled functions on disk, so that the next process starts sooner.

It imports no backend, since these read the variables when they are imported.
"""

import hashlib
import os
import pathlib
import platform

VARIABLE = "KERAS_TFM_COMPILED"
TENSORFLOW_OPTION = "tf_xla_persistent_cache_directory"


def folder() -> pathlib.Path | None:
    """Makes and returns the folder of compiled functions of this processor.

    The variable `KERAS_TFM_COMPILED` names the folder that it is in; its
    default is `keras_tfm/compiled` in the folder of Keras.

    Returns:
        None if the variable is empty, or if the folder cannot be written.

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
