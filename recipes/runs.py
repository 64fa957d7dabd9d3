"""What every run leaves and asks: its folder, its minutes, its versions."""

import json
import os
import pathlib
import subprocess
import sys
import time
from importlib import metadata

import keras

PACKAGES = ("keras", "tensorflow", "jax", "torch", "sentencepiece")


def has_begun(out: pathlib.Path) -> bool:
    """Tells whether an epoch is finished: before that, nothing is bound."""
    return (out / "restart" / "restart.npz").exists()


def check_folder(out: pathlib.Path, now: dict, free: tuple):
    """Checks that a run that is already in the folder has the same settings.

    Args:
        out: path of the run's folder.
        now: dict of JSON values, the settings and what else has to be as it
            was.
        free: tuple of str, keys of it that may change.

    Raises:
        ValueError: the run there has other settings.
    """
    if not has_begun(out):
        return
    before = json.loads((out / "settings.json").read_text(encoding="utf-8"))
    changed = [
        f"{k}: {before.get(k)!r} before, {now[k]!r} now"
        for k in now
        if k not in free and before.get(k) != now[k]
    ]
    if changed:
        raise ValueError(
            f"{out} holds a run of other settings ({'; '.join(changed)}). "
            "Name another folder with --out, or remove that one."
        )
    print(f"Continuing the run in {out}")


class Seconds(keras.callbacks.Callback):
    """Puts the seconds that an epoch and its score took into the logs."""

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        logs["seconds"] = round(time.perf_counter() - self.start, 2)


def peak_memory() -> float | None:
    """Gives the most memory the process has held, in GiB; None on Windows."""
    try:
        import resource
    except ImportError:
        return None
    unit = 2**30 if sys.platform == "darwin" else 2**20
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 2)


def versions(*packages: str) -> dict:
    """Versions of what a run stands on, and the commit of the checkout.

    Args:
        *packages: names of distributions, beyond those of every run.

    Returns:
        dict of str, None where there is none.
    """
    found = {"python": sys.version.split()[0], "backend": keras.config.backend()}
    for name in (*PACKAGES, *packages):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    here = pathlib.Path(__file__).parent
    command = ["git", "-C", os.fspath(here), "rev-parse", "--short", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        found["commit"] = answer.stdout.strip() or None
    except OSError:  # no git
        found["commit"] = None
    return found


def write_json(file: pathlib.Path, content: dict):
    """Writes a file whole or not at all."""
    half = file.with_suffix(".half")
    content = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    half.write_text(content, encoding="utf-8")
    half.replace(file)
