"""From arguments to an exit status."""

import importlib.util
import json
import os
import pathlib
import signal
import sys

# As a shell gives them for a signal.
INTERRUPTED, BROKEN_PIPE = 128 + signal.SIGINT, 141
# FloatingPointError: a model whose logits are NaN.
FAULTS = (ValueError, TypeError, OSError, ImportError, RuntimeError)
FAULTS += (FloatingPointError,)


def main(arguments=None) -> int:
    """Runs a command.

    Args:
        arguments: list of str, or None for those of the process.

    Returns:
        int, the exit status: 0; 1 for a fault, which is said on standard error;
        2 for options that are not there; 130 after Ctrl-C; 141 where nobody
        reads the output any more.
    """
    import tyro

    from keras_tfm.cli.options import COMMANDS

    command = tyro.extras.subcommand_cli_from_dict(
        COMMANDS,
        prog="keras-tfm",
        description="Translates and labels text with Transformers.",
        args=arguments,
    )
    _choose_backend()
    try:
        status = command.run()
        _flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        status = BROKEN_PIPE
    except FAULTS as error:
        print(f"keras-tfm: {error}", file=sys.stderr)
        status = 1
    if status:
        _leave_output()
    return status


def _flush():
    if sys.stdout is not None:  # nor is it where the shell has closed it
        sys.stdout.flush()


def _leave_output():
    """Gives up what cannot be written, which Python would try at its end."""
    try:
        _flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _choose_backend():
    """Takes one that is installed, where nobody has chosen such a one."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if os.environ.get("KERAS_BACKEND"):
        return
    home = pathlib.Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser()
    try:
        chosen = json.loads((home / "keras.json").read_text())["backend"]
    except (OSError, ValueError, KeyError, TypeError):
        chosen = "tensorflow"
    for name in (chosen, "tensorflow", "jax", "torch"):
        if importlib.util.find_spec(name) is not None:
            os.environ["KERAS_BACKEND"] = name
            return
