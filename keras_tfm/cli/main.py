"""Parses the command line and turns errors into an exit status."""

import importlib.metadata
import importlib.util
import io
import json
import os
import pathlib
import signal
import sys

from keras_tfm import compile_cache

# Statuses that a shell gives for a signal.
INTERRUPTED, BROKEN_PIPE = 128 + signal.SIGINT, 141
# FloatingPointError: the logits of a model are NaN.
ERRORS = (ValueError, TypeError, OSError, ImportError, RuntimeError)
ERRORS += (FloatingPointError,)
# Commands that may compile what an earlier process has compiled.
COMPILING = {"serve", "translate", "classify", "evaluate", "score"}


def main(arguments: list[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: list of str, or None for those of the process.

    Returns:
        int, the exit status: 0; 1 for an error, printed on standard error; 130
        after Ctrl-C; 141 if the reader of the output is gone.

    Raises:
        SystemExit: help was printed (status 0), the flags are unknown (2), or
            a recipe rejects its input (1).

    Example:
        ```python
        from keras_tfm import cli

        status = cli.main(["inspect"])  # lists the presets
        assert status == 0
        ```
    """
    _prepare_streams()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["--version"]:
        print(f"keras-tfm {importlib.metadata.version('keras-tfm')}")
        return 0
    _choose_backend()
    _keep_compiled(arguments)
    try:
        status = _run(arguments)
        _flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        status = BROKEN_PIPE
    except MemoryError as error:
        print(
            f"keras-tfm: there is too little memory. {error}".rstrip(),
            "Stop other processes, or raise the limit, such as `ulimit -v`.",
            file=sys.stderr,
        )
        status = 1
    except ERRORS as error:
        print(f"keras-tfm: {error}", file=sys.stderr)
        status = 1
    if status:
        _discard_output()
    return status


def _prepare_streams():
    """Lets any message be printed: in any encoding, and on a closed stream."""
    if sys.stderr is None:
        # `print` would write on standard output; and a file that is opened
        # later would take the number of the stream.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _run(arguments):
    """Runs the command; returns its exit status."""
    import tyro

    from keras_tfm.cli.options import COMMANDS

    match arguments:
        # tyro does not know the flags of recipes.
        case ["train", name, *flags] if name not in {"-h", "--help"}:
            from keras_tfm.cli.train import run_recipe

            return run_recipe(name, flags)
    command = tyro.extras.subcommand_cli_from_dict(
        COMMANDS,
        prog="keras-tfm",
        description="Train Transformers, translate and classify text with them.",
        args=arguments,
    )
    return command.run()


def _flush():
    if sys.stdout is not None:  # it is None if the shell has closed it
        sys.stdout.flush()


def _discard_output():
    """Drops unwritable output, which Python would try to write when it ends."""
    try:
        _flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _choose_backend():
    """Selects an installed backend if the user has not selected one."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if os.environ.get("KERAS_BACKEND"):
        return
    home = pathlib.Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser()
    try:
        configured = json.loads((home / "keras.json").read_text())["backend"]
    except (OSError, ValueError, KeyError, TypeError):
        configured = "tensorflow"
    for name in (configured, "tensorflow", "jax", "torch"):
        if importlib.util.find_spec(name) is not None:
            os.environ["KERAS_BACKEND"] = name
            return


def _keep_compiled(arguments):
    """Lets commands keep compiled functions for the next process."""
    if COMPILING.isdisjoint(arguments[:1]):
        return
    folder = compile_cache.folder()
    if folder is not None:
        os.environ |= compile_cache.variables(folder)
