"""Connects a command to a Ray cluster."""

import contextlib
import importlib
import os
import pathlib
import secrets
import tempfile
import types
from collections.abc import Iterator, Sequence

from keras_tfm.cli.options import Cluster
from keras_tfm.pipelines import pretrained

# Variables of this process that its workers need too.
VARIABLES = ("KERAS_BACKEND", "KERAS_HOME", "TF_CPP_MIN_LOG_LEVEL", "XLA_FLAGS")
FLAGS = ("workers", "gpus_per_worker", "cpus_per_worker")
MIN_RAY = (2, 59)  # earlier ones need no token, whatever the variables say
TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")


def check_alone(flags: Cluster, names: Sequence[str] = FLAGS) -> None:
    """Rejects flags of a cluster in a command without one.

    Args:
        flags: `options.Cluster`.
        names: str, the flags.

    Raises:
        ValueError: such a flag is set.
    """
    for name in names:
        if getattr(flags, name) != getattr(Cluster, name):
            flag = name.replace("_", "-")
            raise ValueError(
                f"--{flag} needs --cluster; got {getattr(flags, name)} without it. "
                "Add --cluster auto, or leave it out."
            )


def check(flags: Cluster) -> None:
    """Rejects numbers of workers, GPUs and CPUs that are out of their range.

    Args:
        flags: `options.Cluster`.

    Raises:
        ValueError: a number is out of its range.
    """
    if flags.workers < 1:
        raise ValueError(f"--workers must be at least 1; got {flags.workers}.")
    for name in FLAGS[1:]:
        value, flag = getattr(flags, name), name.replace("_", "-")
        if not (0 <= value < 1 or value == int(value) >= 0):
            raise ValueError(
                f"--{flag} must be a fraction below 1, or a whole number; got {value}."
            )


def absolute(model: str) -> str:
    """Returns the absolute path of a folder, or else the name of a model.

    Workers have other working folders.
    """
    folder = pretrained.locate(model)
    is_local = isinstance(folder, pathlib.Path) and folder == pathlib.Path(model)
    return str(folder.resolve()) if is_local else model


def variables() -> dict[str, str]:
    """Returns the environment variables that workers take from this process."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def import_ray(extra: str) -> types.ModuleType:
    """Returns Ray with a part of it loaded.

    Args:
        extra: str: `"data"`, `"train"` or `"serve"`.

    Raises:
        ImportError: it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        importlib.import_module(f"ray.{extra}")
        return importlib.import_module("ray")
    except ImportError as error:
        raise ImportError(
            f"A cluster needs Ray, which cannot be imported ({error}). Install "
            "`keras-tfm[cluster]`."
        ) from error


@contextlib.contextmanager
def connect(address: str, extra: str, shows_output: bool = False) -> Iterator[None]:
    """Connects to a cluster for the time of a `with` block.

    A cluster that is started here, `"local"`, asks for a token that only this
    run has: Ray's ports are open to the network, and accept code.

    Args:
        address: str: `"auto"`, `"local"` or the address of a head node.
        extra: str, what of Ray is needed: `"data"`, `"train"` or `"serve"`.
        shows_output: bool. Print here what workers print.

    Raises:
        ImportError: Ray is not installed, or asks for no token.
        ConnectionError: there is no cluster at the address.
    """
    with _token() if address == "local" else contextlib.nullcontext():
        ray = import_ray(extra)
        version = tuple(map(int, ray.__version__.split(".")[:2]))
        if address == "local" and version < MIN_RAY:
            raise ImportError(
                "--cluster local needs Ray 2.59 or later, whose ports ask for a token; "
                f"got Ray {ray.__version__}. Run `pip install --upgrade "
                "'keras-tfm[cluster]'`."
            )
        try:
            ray.init(
                address,
                logging_level="error",
                log_to_driver=shows_output,
                include_dashboard=False if address == "local" else None,
                runtime_env={"env_vars": variables()},
            )
        except (ConnectionError, ValueError) as error:
            raise ConnectionError(
                f"--cluster must name a running Ray cluster; got {address!r} "
                f"({error}). Start one with `ray start --head`, or use --cluster local."
            ) from error
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _token() -> Iterator[None]:
    """Sets the variables of a new token in a file that only this user reads."""
    earlier = {name: os.environ.pop(name, None) for name in TOKEN_VARIABLES}
    with tempfile.TemporaryDirectory(prefix="keras-tfm-") as folder:  # mode 0700
        path = pathlib.Path(folder, "token")
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32), encoding="utf-8")
        os.environ |= dict(zip(TOKEN_VARIABLES, ("token", str(path)), strict=True))
        try:
            yield
        finally:
            for name, value in earlier.items():
                del os.environ[name]
                if value is not None:
                    os.environ[name] = value
