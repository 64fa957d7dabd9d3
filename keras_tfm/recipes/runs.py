"""What all recipes share: flags, the run folder, minutes, memory, versions."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import keras

from keras_tfm import training
from keras_tfm.file_reading import read_json
from keras_tfm.recipes.flags import parse, with_flags
from keras_tfm.text import tf_data
from keras_tfm.training import folder_lock, processes, training_state

if TYPE_CHECKING:  # a module of type stubs alone
    from _typeshed import DataclassInstance

PACKAGES = ("keras", "tensorflow", "jax", "torch", "sentencepiece")
VOCABULARY = "vocabulary.model"  # file in a run folder
# Names of flags that differ from those of their fields.
FLAG_NAMES = {"init_from": "from"}
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
PRETRAINING = "pretraining"  # folder in a run folder, until the run has finished
# Flags by range; a recipe has some of them. None passes: it is chosen later.
RANGES = (
    (
        ("dropout", "attention_dropout", "word_dropout", "label_smoothing"),
        lambda value: 0 <= value < 1,
        "at least 0 and less than 1",
    ),
    (
        ("learning_rate", "clip_norm", "temperature"),
        lambda value: 0 < value < math.inf,
        "greater than 0",
    ),
    (("weight_decay",), lambda value: 0 <= value < math.inf, "at least 0"),
    # NumPy takes 32 bits, and a recipe also the next number.
    (("seed",), lambda value: 0 <= value < 2**32 - 1, f"from 0 to {2**32 - 2:,}"),
    (
        ("subword_sampling",),
        lambda value: 0 < value <= 1,
        "greater than 0 and at most 1",
    ),
    (("max_bad_rate",), lambda value: 0 <= value <= 1, "from 0 to 1"),
    (
        ("character_coverage",),
        lambda value: 0.98 <= value <= 1,
        "from 0.98 to 1",
    ),
    (("unpunctuated_rate",), lambda value: 0 <= value <= 1, "from 0 to 1"),
    (
        (
            "concatenation_rate",
            "short_rate",
            "word_rate",
            "phrase_rate",
            "everyday_rate",
            "copy_rate",
        ),
        lambda value: 0 <= value <= 10,
        "from 0 to 10",
    ),
)


def start(
    main: Callable,
    flags: type,
    description: str,
    arguments: list[str] | None = None,
) -> None:
    """Runs a recipe with the flags of the command line.

    Bad input ends the process with a sentence instead of a traceback.

    Args:
        main: function of the flags.
        flags: dataclass, see `parse`.
        description: str.
        arguments: list of str, or None for those of the process.
    """
    values = parse(flags, description, arguments)
    try:
        main(values)
    # ImportError: `--from` names a model of a package that is not installed.
    # FloatingPointError: training has diverged.
    except (ValueError, OSError, ImportError, FloatingPointError) as error:
        sys.exit(with_flags(str(error), values))  # to standard error, with status 1
    except KeyboardInterrupt as interrupt:
        print(f"\nStopped. {interrupt}".rstrip(), file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


@contextlib.contextmanager
def run_folder(out: pathlib.Path) -> Iterator[None]:
    """Locks a run folder, and says how a run that is stopped is resumed.

    That is after Ctrl-C, and when the disk is full.

    Of several processes the first one locks it.

    Args:
        out: path of the run folder. Created if it does not exist; removed if
            it was empty and nothing but a vocabulary was written to it.

    Raises:
        ValueError: another process trains in the folder.
        KeyboardInterrupt: with the sentence as its text.
        OSError: the same, when the disk is full.
    """
    is_first = processes.is_first_process()
    is_new = not _names_in(out) - {folder_lock.FILE_NAME}
    if is_first:
        folder_lock.lock_folder(out, "out")
    processes.wait_for_all("run folder")
    try:
        yield
    except BaseException as error:
        # On JAX, Keras may raise an error of its own when it is interrupted.
        errors = [error]
        while errors[-1] is not None:
            errors.append(errors[-1].__context__)
        if any(isinstance(error, KeyboardInterrupt) for error in errors):
            raise KeyboardInterrupt(_how_to_resume(out)) from None
        # HDF5 describes the write that failed, not what to do.
        if isinstance(error, OSError) and error.errno in FULL_DISK:
            raise OSError(
                f"The disk is full: the run in {os.fspath(out)!r} cannot be written. "
                f"Free some space. {_how_to_resume(out)}"
            ) from error
        raise
    finally:
        if is_first:
            is_unused = _names_in(out) <= {folder_lock.FILE_NAME, VOCABULARY}
            if is_new and is_unused and out.is_dir():  # else it was deleted
                shutil.rmtree(out)
            folder_lock.unlock_folder(out)


def _names_in(folder):
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _how_to_resume(out):
    if not is_resumable(out):
        return "No state was saved yet: the same command starts from the first epoch."
    file, stage = state_file(out), ""
    if not file.exists():
        file, stage = state_file(out / PRETRAINING), " of the pretraining"
    state, _ = training_state.read_state(file, with_arrays=False)
    epochs, step = state["epochs"], state["step"]
    place = f"after epoch {epochs}{stage}"
    if step:
        place = f"in epoch {epochs + 1}{stage}, after {step:,} steps"
    return f"The same command resumes the run in {os.fspath(out)!r} {place}."


def check_ranges(flags: "DataclassInstance") -> None:
    """Rejects flags outside `RANGES`.

    Args:
        flags: dataclass instance.

    Raises:
        ValueError: a flag is out of its range.
    """
    for names, fits, expected in RANGES:
        for name in names:
            value = getattr(flags, name, None)
            if value is not None and not fits(value):
                raise ValueError(f"--{_flag(name)} must be {expected}; got {value}.")


def check_at_least(
    flags: "DataclassInstance", minimum: int, names: Iterable[str]
) -> None:
    """Rejects flags that are below a minimum; None passes.

    Args:
        flags: dataclass instance.
        minimum: int.
        names: str, flags to check.

    Raises:
        ValueError: a flag is below the minimum.
    """
    for name in names:
        value = getattr(flags, name)
        if value is not None and not value >= minimum:
            raise ValueError(
                f"--{_flag(name)} must be at least {minimum}; got {value}."
            )


def _flag(name):
    return name.replace("_", "-")


def identity(flags: "DataclassInstance", *datasets: Iterable) -> dict:
    """Returns what must stay the same when a run is resumed.

    Args:
        flags: dataclass instance.
        *datasets: `text.Pairs`, `text.EncodedCorpus`, `text.LabeledDataset` or
            lists of str.

    Returns:
        dict of JSON values: the flags, the backend and a digest of the text.
    """
    digest = hashlib.sha256()
    for dataset in datasets:
        # An encoded corpus is not read: its folder has a checksum.
        fingerprint = getattr(dataset, "fingerprint", None)
        for example in [fingerprint] if fingerprint else dataset:
            digest.update(repr(example).encode() + b"\n")
    values = dataclasses.asdict(flags) | {
        "backend": keras.config.backend(),
        "text_sha256": digest.hexdigest(),
    }
    return json.loads(json.dumps(values))  # lists for tuples, as when read back


def is_resumable(out: pathlib.Path) -> bool:
    """Returns whether a folder holds the state of a run or its pretraining."""
    return any(state_file(folder).exists() for folder in (out, out / PRETRAINING))


def state_file(out: pathlib.Path) -> pathlib.Path:
    """Returns the file of `ResumeTraining` in a run folder."""
    return out / "restart" / "training_state.npz"


def check_folder(out: pathlib.Path, values: dict, resumable: Iterable[str]) -> None:
    """Rejects a run folder that holds a run with other flags.

    Args:
        out: path of the run folder.
        values: dict of JSON values, see `identity`.
        resumable: names of the values that may change.

    Raises:
        ValueError: the run there has other flags.
    """
    if not is_resumable(out):
        return
    stored = read_json(out / "flags.json")
    changes = [
        f"{FLAG_NAMES.get(name, name)}: {stored.get(name)!r:.60} before, {value!r} now"
        for name, value in values.items()
        if name not in resumable
        # A flag that the older run did not have yet counts as unset.
        and (stored[name] != value if name in stored else value)
    ]
    if changes:
        raise ValueError(
            f"--out {out} holds a run with other flags ({'; '.join(changes)}, by its "
            "flags.json). Name another folder with --out, or remove that one."
        )
    print(f"Resuming the run in {out}")


def make_callbacks(
    flags: Any,
    out: pathlib.Path,
    first: Sequence[keras.callbacks.Callback] = (),
    last: Sequence[keras.callbacks.Callback] = (),
) -> tuple[list, training.CheckpointAverage, training.ResumeTraining]:
    """Makes the callbacks that all recipes share.

    Args:
        flags: dataclass instance with `average_last` and `save_every`.
        out: path of the run folder.
        first, last: callbacks before the weights of an epoch are saved, and
            after. What they remember is part of the state of the run.

    Returns:
        The list of callbacks, without the last one; `CheckpointAverage`, which
        is one of them; and the last one, `ResumeTraining`.
    """
    first = [*first, Seconds()]
    remembering = [*first, *last]
    average = training.CheckpointAverage(out / "averages", last=flags.average_last)
    last = [*last]
    if processes.is_first_process() and tf_data.has_tensorflow():
        # Keras writes these logs with TensorFlow.
        last.append(keras.callbacks.TensorBoard(out / "tensorboard"))
    resume = training.ResumeTraining(
        state_file(out).parent, remembering, flags.save_every
    )
    return [*first, average, *last], average, resume


def make_adamw(
    model: keras.Model,
    learning_rate: float,
    num_steps: int,
    warmup_steps: int,
    weight_decay: float,
    clip_norm: float,
) -> keras.optimizers.Optimizer:
    """Makes AdamW with linear warm-up and cosine decay to 0.

    Biases and the scales of normalization layers have no weight decay.

    Args:
        model: built Keras model.
        learning_rate: float > 0, the peak.
        num_steps: int, updates of the whole run.
        warmup_steps: int, updates until the peak; at least one is used.
        weight_decay: float >= 0.
        clip_norm: float > 0, maximum global norm of the gradients.

    Returns:
        `keras.optimizers.AdamW`.
    """
    warmup_steps = max(warmup_steps, 1)
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(
            0.0,
            max(num_steps - warmup_steps, 1),
            warmup_target=learning_rate,
            warmup_steps=warmup_steps,
        ),
        weight_decay=weight_decay,
        beta_2=0.98,
        global_clipnorm=clip_norm,
    )
    optimizer.exclude_from_weight_decay(
        [
            weight
            for weight in model.trainable_variables
            # The heads of attention have their biases as a matrix.
            if len(weight.shape) < 2 or weight.name == "bias"
        ]
    )
    return optimizer


class Seconds(keras.callbacks.Callback):
    """Adds the seconds of an epoch, scoring included, to the logs.

    Attributes:
        elapsed: float, seconds of the epoch so far, those before a resume
            included: `ResumeTraining` saves and restores it.
    """

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self.elapsed, self._last = 0.0, time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        time_now = time.perf_counter()
        self.elapsed, self._last = self.elapsed + time_now - self._last, time_now

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.on_train_batch_end(0)
        logs["seconds"] = round(self.elapsed, 2)
        self.elapsed = 0.0


def peak_memory() -> float | None:
    """Returns the peak memory of the process, in GiB; None on Windows."""
    try:
        import resource
    except ImportError:
        return None
    unit = 2**30 if sys.platform == "darwin" else 2**20
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 2)


def versions(*packages: str) -> dict[str, str | None]:
    """Returns the versions of libraries, and the commit of the checkout.

    Args:
        *packages: names of distributions, in addition to `PACKAGES`.

    Returns:
        dict of str; None for what is not installed.
    """
    table: dict[str, str | None] = {
        "python": sys.version.split()[0],
        "backend": keras.config.backend(),
    }
    for name in (*PACKAGES, *packages):
        try:
            table[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            table[name] = None
    folder = pathlib.Path(__file__).parent
    command = ["git", "-C", os.fspath(folder), "rev-parse", "--short", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        table["commit"] = answer.stdout.strip() or None
    except OSError:  # git is not installed
        table["commit"] = None
    return table


def write_json(file: pathlib.Path, content: dict) -> None:
    """Writes a JSON file whole or not at all, in the first process alone."""
    if not processes.is_first_process():
        return
    partial = file.with_suffix(".partial")
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)
