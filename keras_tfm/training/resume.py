"""Resuming a stopped run, which ends with the weights of an unbroken one."""

import os
import pathlib
from collections.abc import Sequence

import keras

from keras_tfm.training.training_state import (
    FORMAT,
    check_state,
    describe,
    read_state,
    state_variables,
    write_state,
)

FILE_NAME = "training_state.npz"
# What callbacks of Keras and `Bleu` remember from epoch to epoch.
REMEMBERED = ("best", "best_epoch", "wait", "cooldown_counter", "scores")


class ResumeTraining(keras.callbacks.Callback):
    """Writes the whole state of a run after each epoch, to resume it.

    The state is every variable of the model, those of its random seeds
    included, every variable of the optimizer, the number of finished epochs,
    the history so far, and what other callbacks remember. A resumed run ends
    with the weights of a run that was never stopped, if its data depend on the
    epoch alone: `initial_epoch * steps_per_epoch` is the first step to read.
    Arrays with `shuffle=True` do not.

    Put it last among the callbacks, so that it writes the state after the
    others have seen the epoch. The file `training_state.npz` is replaced
    atomically: a run killed while writing has that of the epoch before.
    Nothing is pickled.

    Args:
        folder: string or path, of this run alone. Created if it does not exist.
        callbacks: list of other callbacks of the run whose state is written
            too, as `EarlyStopping`, `ReduceLROnPlateau`, `ModelCheckpoint` or
            `Bleu`.

    Attributes:
        extra: dict of JSON values of your own. Written with each epoch, read
            by `restore`.
        stopped: bool. A callback, such as `EarlyStopping`, has ended the run.
            `restore` has then set the weights that it ended with, which may be
            those of an earlier epoch. To train further, set it to False.

    Raises:
        ValueError: the file belongs to another model, optimizer, backend or
            list of callbacks, or cannot be read; or `fit` starts at another
            epoch than `restore` returned.

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
    ):
        super().__init__()
        self.path = pathlib.Path(folder) / FILE_NAME
        self.callbacks = list(callbacks)
        self.extra = {}
        self.stopped = False
        self._epochs = 0  # finished
        self._history, self._history_epochs = {}, []
        self._callback_states = None  # of `restore`, until training begins
        self._starting = False

    def restore(self, model: keras.Model) -> int:
        """Sets the model and its optimizer to the state in the folder.

        Args:
            model: built and compiled Keras model.

        Returns:
            int, the number of finished epochs: `initial_epoch` for `fit`. If
            the folder has no state, 0, and nothing changes.
        """
        if not self.path.exists():
            return 0
        meta, arrays = read_state(self.path)
        variables = state_variables(model)
        check_state(self.path, meta, variables, self.callbacks)
        for group, members in variables.items():
            for number, variable in enumerate(members):
                variable.assign(arrays[f"{group}/{number}"])
        self.extra = meta["extra"]
        self._epochs = meta["epochs"]
        self._history = meta["history"]
        self._history_epochs = meta["history_epochs"]
        self._callback_states = [
            {**state, **_best_weights(arrays, number)}
            for number, state in enumerate(meta["callbacks"])
        ]
        self.stopped = meta["stopped"]
        if self.stopped:
            self._restore_best_weights(model)
        return self._epochs

    @property
    def history(self) -> dict[str, list]:
        """The logs of all finished epochs, lists by name as Keras' History."""
        return {key: list(values) for key, values in self._history.items()}

    def on_train_begin(self, logs: dict | None = None) -> None:
        state_variables(self.model)  # raises if there is nothing to resume
        if self._callback_states is None and self.path.exists():
            epochs = read_state(self.path)[0]["epochs"]
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
        self._starting = True

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        if not self._starting:
            return
        if epoch != self._epochs:
            raise ValueError(
                f"`initial_epoch` of `fit` must be {self._epochs}, the epochs of the "
                f"restored state; got initial_epoch={epoch}. Pass initial_epoch="
                "resume.restore(model)."
            )
        self._starting = False
        # By now all callbacks have reset themselves for this fit.
        states = self._callback_states or []
        for callback, state in zip(self.callbacks, states, strict=False):
            vars(callback).update(state)
        self._callback_states = []
        self.model.history.history.update(self.history)
        self.model.history.epoch[:0] = self._history_epochs

    def on_train_end(self, logs: dict | None = None) -> None:
        if self._starting:  # no epoch was left to train
            self._restore_best_weights(self.model)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        # On JAX the trainer has written its state to the variables by now.
        for key, value in (logs or {}).items():
            self._history.setdefault(key, []).append(value)
        self._history_epochs.append(epoch)
        self._epochs = epoch + 1
        self.stopped = bool(self.model.stop_training)
        self._write(state_variables(self.model))

    def _restore_best_weights(self, model):
        """Ends as `EarlyStopping` did at the end of an earlier fit."""
        states = self._callback_states or []
        for callback, state in zip(self.callbacks, states, strict=False):
            weights = state.get("best_weights")
            if weights and getattr(callback, "restore_best_weights", False):
                model.set_weights(weights)

    def _write(self, variables):
        meta = {
            "format": FORMAT,
            "backend": keras.backend.backend(),
            "epochs": self._epochs,
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
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_state(self.path, meta, {**variables, **best_weights})


def _state_of(callback):
    """Returns what a callback remembers between epochs, as JSON values."""
    state = {name: vars(callback).get(name) for name in REMEMBERED}
    return {name: value for name, value in state.items() if value is not None}


def _best_weights(arrays, number):
    """Returns the best weights that callback `number` has stored, if any."""
    start = f"best_weights/{number}/"
    indices = sorted(int(k.removeprefix(start)) for k in arrays if k.startswith(start))
    weights = [arrays[f"{start}{index}"] for index in indices]
    return {"best_weights": weights} if weights else {}
