"""Resuming a stopped run, which ends with the weights of an unbroken one."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_tfm.training import processes
from keras_tfm.training.folder_lock import lock_folder, unlock_folder
from keras_tfm.training.random_state import generator_states, set_generator_states
from keras_tfm.training.training_state import (
    FORMAT,
    check_finite,
    check_state,
    describe,
    read_state,
    reading_state,
    state_variables,
    write_state,
)

FILE_NAME = "training_state.npz"
# What callbacks of Keras, `Bleu` and the recipes remember.
REMEMBERED = ("best", "best_epoch", "wait", "cooldown_counter", "scores", "elapsed")
# Steps between checks of the loss; each waits for the device.
CHECK_EVERY = 100


class _Restored(NamedTuple):
    """What a state holds for the first epoch of the next `fit`.

    Attributes:
        callbacks: list of dict, what callbacks remember.
        metrics: list of arrays, metrics of the steps of an unfinished epoch.
        generators: list of arrays, see `generator_states`.
        steps_per_epoch: int or None.
    """

    callbacks: Sequence[dict] = ()
    metrics: Sequence[np.ndarray] = ()
    generators: Sequence[np.ndarray] = ()
    steps_per_epoch: int | None = None


class ResumeTraining(keras.callbacks.Callback):
    """Writes the whole state of a run regularly, to resume it exactly.

    The state is every variable of the model, those of its random seeds
    included, every variable of the optimizer, PyTorch's global generators, the
    number of finished epochs and steps, the history so far, and what other
    callbacks remember. A resumed run ends with the weights of a run that was
    never stopped, if its data depend on the number of the step alone. Arrays
    with `shuffle=True` do not.

    `fit` of this class calls `fit` of the model from where the run stands. To
    call that yourself, put this callback last in its list, so that it writes
    the state after the others have seen the epoch; pass it `initial_epoch=
    resume.restore(model)`, and data from step `initial_epoch * steps_per_epoch`
    on. After a stop inside of an epoch that `fit` trains only the remaining
    steps of this epoch and then ends, see `step`; a second one continues.

    Of several processes that train together the first one writes, in a folder
    that all of them read. A run may resume on another number of devices.

    The file `training_state.npz` is replaced atomically: a run that is killed
    while writing has the previous state. A state with a loss, weight or
    optimizer variable that is NaN or infinite is never written: training ends.
    While a process trains, its folder is locked. Nothing is pickled.

    Args:
        folder: string or path, of this run alone. Created if it does not exist.
        callbacks: list of other callbacks of the run whose state is written
            too, as `EarlyStopping`, `ReduceLROnPlateau`, `ModelCheckpoint` or
            `Bleu`.
        every_steps: int, 1 or more: write the state after so many steps of an
            epoch too; or None, after epochs only.

    Attributes:
        extra: dict of JSON values of your own. Written with each state, read
            by `restore`.
        step: int. Finished steps of the unfinished epoch. If it is not 0, `fit`
            of the model needs `steps_per_epoch` less these, and data from as
            many steps later.
        stopped: bool. A callback, such as `EarlyStopping`, has ended the run.
            `restore` has then set the weights that it ended with, which may be
            those of an earlier epoch. To train further, set it to False.

    Raises:
        ValueError: the file belongs to another model, optimizer, backend or
            list of callbacks, or cannot be read; another process trains in the
            folder, or processes see other folders; `fit` starts at another
            epoch than `restore` returned; or it is called in several processes
            with PyTorch.
        FloatingPointError: the loss, a weight or an optimizer variable is NaN
            or infinite.

    Example:
        ```python
        import tempfile
        import keras
        import numpy as np
        from keras_tfm import training

        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        stopping = keras.callbacks.EarlyStopping("loss")
        folder = tempfile.mkdtemp()
        resume = training.ResumeTraining(folder, callbacks=[stopping])
        epoch = resume.restore(model)  # 0 in an empty folder
        if not resume.stopped:
            x, y = np.ones((4, 2)), np.ones((4, 1))
            callbacks = [stopping, resume]
            model.fit(x, y, initial_epoch=epoch, callbacks=callbacks, verbose=0)
        print(resume.restore(model))  # 1
        ```
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        every_steps: int | None = None,
    ):
        super().__init__()
        if every_steps is not None and every_steps < 1:
            raise ValueError(
                f"`every_steps` must be None or at least 1; got {every_steps}."
            )
        self.path = pathlib.Path(folder) / FILE_NAME
        self.callbacks = list(callbacks)
        self.every_steps = every_steps
        self.extra = {}
        self.stopped = False
        self.step = 0
        self._epochs = 0  # finished
        self._history, self._history_epochs = {}, []
        self._restored = None  # until training begins
        self._starting = False
        # Of the epoch that is being trained: where it began, its steps so far,
        # and the states of generators to begin with.
        self._first_step = self._steps_done = 0
        self._generators = ()

    def fit(
        self,
        model: keras.Model,
        batches: Any,
        epochs: int,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        **options: Any,
    ) -> dict[str, list]:
        """Calls `model.fit` from where the run stands.

        Args:
            model: built and compiled Keras model.
            batches: `text.Batches`, or others with `steps_per_epoch` and
                `dataset(first_step, repeat)`, which depend on the number of
                their step alone.
            epochs: int, of the whole run.
            callbacks: list of callbacks; this one is added as the last.
            **options: other arguments of `model.fit`, as `validation_data`.

        Returns:
            `history`.

        Raises:
            TypeError: `batches` are arrays or a data set, which cannot begin at
                a step.
            ValueError: `epochs` is less than the run has trained.
        """
        if not (hasattr(batches, "steps_per_epoch") and hasattr(batches, "dataset")):
            raise TypeError(
                "`batches` must have `steps_per_epoch` and `dataset`, as "
                f"`text.Batches`; got {type(batches).__name__}. For other data call "
                "`fit` of the model with initial_epoch=resume.restore(model)."
            )
        is_partial = True
        while is_partial:
            epoch = self.restore(model)
            if epoch > epochs:
                raise ValueError(
                    f"`epochs` must be at least {epoch}, since the run in "
                    f"{str(self.path.parent)!r} has trained so many; got {epochs}. "
                    "Increase it, or name another folder."
                )
            if self.stopped or epoch == epochs:
                self._restore_best_weights(model)
                break
            steps, is_partial = batches.steps_per_epoch, self.step > 0
            model.fit(
                batches.dataset(first_step=epoch * steps + self.step, repeat=True),
                steps_per_epoch=steps - self.step,
                initial_epoch=epoch,
                epochs=epochs,
                shuffle=False,
                callbacks=[*callbacks, self],
                **options,
            )
        return self.history

    def restore(self, model: keras.Model) -> int:
        """Sets the model and its optimizer to the state in the folder.

        Args:
            model: built and compiled Keras model.

        Returns:
            int, the number of finished epochs: `initial_epoch` for `fit`. If
            the folder has no state, 0, and nothing changes.
        """
        self._check_processes()
        if not self.path.exists():
            return 0
        meta, arrays = read_state(self.path)
        variables = state_variables(model)
        with reading_state(self.path):
            check_state(self.path, meta, variables, self.callbacks)
            self._take(meta, arrays)
            for group, members in variables.items():
                for variable, array in zip(members, _group(arrays, group), strict=True):
                    variable.assign(array)
        if self.stopped:
            self._restore_best_weights(model)
        return self._epochs

    def _take(self, meta, arrays):
        """Takes over what the file says of the run."""
        self.extra = meta["extra"]
        self._epochs, self.step = meta["epochs"], meta["step"]
        self._history = meta["history"]
        self._history_epochs = meta["history_epochs"]
        self._restored = _Restored(
            [
                {**state, **_best_weights(arrays, number)}
                for number, state in enumerate(meta["callbacks"])
            ],
            _group(arrays, "metrics"),
            _group(arrays, "generators"),
            meta["steps_per_epoch"],
        )
        self.stopped = meta["stopped"]

    @property
    def history(self) -> dict[str, list]:
        """The logs of all finished epochs, lists by name as Keras' History."""
        return {key: list(values) for key, values in self._history.items()}

    def on_train_begin(self, logs: dict | None = None) -> None:
        processes.check_one_process("`fit`")
        state_variables(self.model)  # raises if there is nothing to resume
        if self._restored is None and self.path.exists():
            epochs = read_state(self.path, with_arrays=False)[0]["epochs"]
            raise ValueError(
                "`folder` must have no state of a run, which would be overwritten; got "
                f"{str(self.path)!r}, after {epochs} epochs. Resume the run with "
                "initial_epoch=resume.restore(model), or choose another folder."
            )
        if self.stopped:
            raise ValueError(
                f"A callback ended this run after {self._epochs} epochs; `fit` would "
                "train another epoch at each start. Call `fit` only if "
                "resume.stopped is False, or set it to False to train further."
            )
        if processes.is_first_process():
            lock_folder(self.path.parent)
        self._starting = True

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._first_step = self._steps_done = 0
        self._generators = generator_states()
        if not self._starting:
            return
        restored, steps = self._restored or _Restored(), self.params["steps"]
        if epoch != self._epochs:
            raise ValueError(
                f"`initial_epoch` of `fit` must be {self._epochs}, the epochs of the "
                f"restored state; got initial_epoch={epoch}. Pass initial_epoch="
                "resume.restore(model)."
            )
        total = restored.steps_per_epoch  # None for data of unknown length
        if self.step and total and steps != total - self.step:
            raise ValueError(
                f"`steps_per_epoch` of `fit` must be {total - self.step}, the steps "
                f"that remain of epoch {epoch + 1}; got steps_per_epoch={steps}. Pass "
                "the data from that step on, or call `fit` of this callback."
            )
        self._starting = False
        self._first_step = self._steps_done = self.step
        # By now all callbacks have reset themselves for this fit.
        for callback, state in zip(self.callbacks, restored.callbacks, strict=False):
            vars(callback).update(state)
        metrics = self.model.metrics_variables
        with reading_state(self.path):
            for variable, array in zip(metrics, restored.metrics, strict=False):
                variable.assign(array)
        self._generators = restored.generators or self._generators
        self._restored = _Restored()
        self.model.history.history.update(self.history)
        self.model.history.epoch[:0] = self._history_epochs

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        # PyTorch's data loader draws a number before the first batch of an
        # epoch, in each epoch or in that after a start only.
        if self._generators:
            with reading_state(self.path):
                set_generator_states(self._generators)
            self._generators = ()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        step, last_step = self._first_step + batch + 1, self._steps_done
        self._steps_done = step
        is_last = batch + 1 == self.params["steps"]
        if is_last or step // CHECK_EVERY > last_step // CHECK_EVERY:
            loss = float((logs or {}).get("loss", 0.0))
            if is_last or not np.isfinite(loss):
                # Before other callbacks save or score the weights.
                self._check_finite(loss)
        interval = self.every_steps
        if interval and not is_last and step // interval > last_step // interval:
            self._check_finite()
            self._write(metrics=self.model.metrics_variables)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        # On JAX the trainer has written its state to the variables by now.
        self._check_finite((logs or {}).get("loss", 0.0))
        for key, value in (logs or {}).items():
            self._history.setdefault(key, []).append(value)
        self._history_epochs.append(epoch)
        self._epochs, self.step, self._steps_done = epoch + 1, 0, 0
        self.stopped = bool(self.model.stop_training)
        self._write()
        if self._first_step:  # the next epoch has more steps
            self.model.stop_training = True

    def on_train_end(self, logs: dict | None = None) -> None:
        if self._starting:  # no epoch was left to train
            self._restore_best_weights(self.model)
        unlock_folder(self.path.parent)

    def _check_processes(self):
        """Rejects processes that do not see the same state."""
        state = None
        if self.path.exists():
            meta, _ = read_state(self.path, with_arrays=False)
            state = [meta["epochs"], meta["step"]]
        states = processes.gather(state)
        if states.count(state) < len(states):
            raise ValueError(
                "`folder` must be a folder that all processes share; got "
                f"{str(self.path.parent)!r}, in which they see {states} (epochs, steps "
                "of the next epoch; None without a state)."
            )

    def _check_finite(self, loss=0.0):
        advice = f"{str(self.path)!r} keeps the last finite state."
        check_finite(self.model, loss, advice if self.path.exists() else "")

    def _restore_best_weights(self, model):
        """Ends as `EarlyStopping` did at the end of an earlier fit."""
        states = self._restored.callbacks if self._restored else ()
        for callback, state in zip(self.callbacks, states, strict=False):
            weights = state.get("best_weights")
            if weights and getattr(callback, "restore_best_weights", False):
                model.set_weights(weights)

    def _write(self, metrics=()):
        variables = state_variables(self.model)
        steps = self.params["steps"]
        meta = {
            "format": FORMAT,
            "backend": keras.backend.backend(),
            "epochs": self._epochs,
            "step": self._steps_done,
            "steps_per_epoch": steps and steps + self._first_step,
            "stopped": self.stopped,
            "history": self._history,
            "history_epochs": self._history_epochs,
            "callbacks": [_state_of(callback) for callback in self.callbacks],
            "callback_names": [type(callback).__name__ for callback in self.callbacks],
            "extra": self.extra,
            **{group: describe(members) for group, members in variables.items()},
        }
        best_weights = {
            f"best_weights/{number}": getattr(callback, "best_weights", None) or []
            for number, callback in enumerate(self.callbacks)
        }
        extra_arrays = {"metrics": metrics, "generators": generator_states()}
        write_state(self.path, meta, {**variables, **best_weights, **extra_arrays})


def _state_of(callback):
    """Returns what a callback remembers between epochs, as JSON values."""
    state = {name: vars(callback).get(name) for name in REMEMBERED}
    return {name: value for name, value in state.items() if value is not None}


def _best_weights(arrays, number):
    """Returns the best weights that callback `number` has stored, if any."""
    weights = _group(arrays, f"best_weights/{number}")
    return {"best_weights": weights} if weights else {}


def _group(arrays, group):
    """Returns the arrays of a group in their order."""
    start = f"{group}/"
    indices = sorted(int(k.removeprefix(start)) for k in arrays if k.startswith(start))
    return [arrays[f"{start}{index}"] for index in indices]
