# ruff: noqa: T201
"""Kills runs of the translation recipe at random moments, and resumes them.

    EXAMPLES=20 KERAS_BACKEND=jax python -m tests.recipes.kill_runs

One run is never stopped. Each other is killed at a random moment of its whole
time, up to the figures that it draws, and started again in its folder. It must
end with the same state, model and translations, bit for bit. Processes are
forked, so that libraries are imported once; compiled functions of JAX are kept
in a folder.
"""

import contextlib
import importlib
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
import traceback

import keras
import numpy as np

from keras_tfm.recipes import translation
from tests.recipes.animals import flags_for, write_tsv

CHANGES = {
    "num_layers": (1, 1),
    "dropout": 0.2,
    "subword_sampling": 0.3,
    "num_buckets": 1,
    "batch_tokens": 512,
    "epochs": 4,
    "evaluate_every": 4,
    "beam_size": 1,
    "save_every": 7,
}


def keep_compiled_functions(folder):
    """Lets all processes of JAX share what they compile.

    JAX has read its environment by now.
    """
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def start(flags, log):
    """Starts a run in a process of its own; returns its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        with open(log, "a") as file, contextlib.redirect_stdout(file):
            translation.main(flags)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def wait(child):
    """Waits for the end of a run; returns its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def results(out):
    """Returns what must be equal: arrays by name, and translations."""
    with np.load(out / "restart" / "training_state.npz") as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(str(arrays.pop("meta")))
    history = {k: v for k, v in meta["history"].items() if k != "seconds"}
    return arrays, history, (out / "translations.tsv").read_bytes()


def differences(out, expected):
    """Lists the names of what differs from the uninterrupted run."""
    arrays, *texts = results(out)
    names = [
        name
        for name in arrays.keys() | expected[0].keys()
        if not np.array_equal(arrays.get(name), expected[0].get(name))
    ]
    pairs = zip(("history", "translations"), texts, expected[1:], strict=True)
    return names + [
        name for name, actual, expected_text in pairs if actual != expected_text
    ]


def progress_of(out):
    """Returns how far a killed run came."""
    file = out / "restart" / "training_state.npz"
    if not file.exists():
        return "no state"
    with np.load(file) as contents:
        meta = json.loads(str(contents["meta"]))
    return f"epoch {meta['epochs']}, step {meta['step']}"


def main(num_kills, seed):
    """Prints a line for each kill; returns the number of faults."""
    faults, draw = 0, random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if keras.backend.backend() == "jax":
            keep_compiled_functions(folder / "compiled")
        importlib.import_module("tensorflow")  # of tf.data, once for all
        corpus = write_tsv(folder / "animals.tsv")

        def flags_of(name):
            return flags_for(corpus, folder / name, **CHANGES)

        for name in ("first", "whole"):  # the first one fills the cache
            began = time.monotonic()
            assert wait(start(flags_of(name), folder / "log")) == 0
            duration = time.monotonic() - began
        expected = results(folder / "whole")
        assert not differences(folder / "first", expected), "a run is not repeatable"
        name = keras.backend.backend()
        print(f"{name}: a whole run takes {duration:.1f} s", flush=True)
        for number in range(num_kills):
            out, delay = folder / f"run{number}", draw.uniform(0, duration)
            child = start(flags_of(out.name), folder / "log")
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)
            killed = wait(child) == -signal.SIGKILL
            reached = progress_of(out) if killed else "finished before"
            status = wait(start(flags_of(out.name), folder / "log"))
            wrong = differences(out, expected) if status == 0 else [f"status {status}"]
            faults += bool(wrong)
            print(f"{delay:5.1f} s, {reached}: {wrong or 'equal'}", flush=True)
        print(f"{num_kills - faults} of {num_kills} ended as the uninterrupted run")
    return faults


if __name__ == "__main__":
    sys.exit(main(int(os.environ.get("EXAMPLES", "1")), seed=0) > 0)
