"""What every run leaves and asks: its folder, its minutes, its versions."""

import json
import math
import os
import pathlib
import subprocess
import sys
import time
from importlib import metadata

import keras
import tyro

PACKAGES = ("keras", "tensorflow", "jax", "torch", "sentencepiece")
# Settings by their ranges; a recipe has some of them.
RANGES = (
    (
        ("dropout", "attention_dropout", "word_dropout", "label_smoothing"),
        lambda value: 0 <= value < 1,
        "0 or more and below 1",
    ),
    (
        ("peak_rate", "clip_norm", "temperature"),
        lambda value: 0 < value < math.inf,
        "above 0",
    ),
    (("weight_decay",), lambda value: 0 <= value < math.inf, "0 or more"),
    (("subword_sampling",), lambda value: 0 < value <= 1, "above 0 and at most 1"),
)


def start(main, settings: type, description: str):
    """Runs a recipe as the command line says; of a fault it says the sentence.

    Args:
        main: function of the settings.
        settings: dataclass.
        description: str, what help begins with.
    """
    given = tyro.cli(settings, description=description)
    try:
        main(given)
    except (ValueError, FileNotFoundError) as error:
        sys.exit(str(error))  # to standard error, with status 1


def check_ranges(settings):
    """Refuses shares, rates and norms that no run is good with.

    Args:
        settings: dataclass. What is None is chosen later, and passes.

    Raises:
        ValueError: one is out of its range.
    """
    for names, fits, wanted in RANGES:
        for name in names:
            value = getattr(settings, name, None)
            if value is not None and not fits(value):
                flag = name.replace("_", "-")
                raise ValueError(f"--{flag} must be {wanted}. Received: {value}.")


def has_begun(out: pathlib.Path) -> bool:
    """Tells whether an epoch is finished: before that, nothing is bound."""
    return (out / "restart" / "training_state.npz").exists()


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
        # What there was no setting for is what an empty one says.
        if k not in free and (before[k] != now[k] if k in before else now[k])
    ]
    if changed:
        raise ValueError(
            f"{out} holds a run of other settings ({'; '.join(changed)}). "
            "Name another folder with --out, or remove that one."
        )
    print(f"Continuing the run in {out}")


def falling_adamw(
    model, peak_rate: float, updates: int, rise: int, weight_decay, clip_norm
):
    """Makes AdamW whose rate rises in a line and falls to 0 as a cosine.

    Args:
        model: built Keras model. Its biases, which heads may have as a matrix,
            and the scales of normalisations do not decay.
        peak_rate: float > 0.
        updates: int, of the whole run.
        rise: int, the updates until the peak; at least one.
        weight_decay: float >= 0.
        clip_norm: float > 0, the largest global norm of the gradients.

    Returns:
        `keras.optimizers.AdamW`.
    """
    rise = max(rise, 1)
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(
            0.0, max(updates - rise, 1), warmup_target=peak_rate, warmup_steps=rise
        ),
        weight_decay=weight_decay,
        beta_2=0.98,
        global_clipnorm=clip_norm,
    )
    optimizer.exclude_from_weight_decay(
        [
            weight
            for weight in model.trainable_variables
            if len(weight.shape) < 2 or weight.name == "bias"
        ]
    )
    return optimizer


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
