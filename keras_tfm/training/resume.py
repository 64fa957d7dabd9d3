"""Going on with a run that was stopped, to the weights it would have had."""

import pathlib

import keras

from keras_tfm.training.training_state import (
    FORMAT,
    check_state,
    describe,
    read_state,
    state_variables,
    write_state,
)

# What callbacks of Keras and Bleu remember from epoch to epoch.
REMEMBERED = ("best", "best_epoch", "wait", "cooldown_counter", "scores")


class ResumeTraining(keras.callbacks.Callback):
    """Writes the whole state of a run after each epoch, to go on from there.

    The state is every variable of the model, those of its random seeds
    included, every variable of the optimizer, the number of epochs done, the
    curves so far, and what the given callbacks remember. A run that goes on
    from it ends with the weights of a run that was never stopped, if its data
    depend on the epoch alone: `initial_epoch * steps_per_epoch` is the first
    step to read. With arrays and `shuffle=True` they do not.

    ```python
    resume = ResumeTraining(folder, callbacks=[stopping])
    epoch = resume.restore(model)  # 0 in an empty folder
    data = batches.dataset(first_step=epoch * steps)
    if not resume.stopped:
        model.fit(data, initial_epoch=epoch, callbacks=[stopping, resume], ...)
    ```

    Put it last among the callbacks, so that it writes what the others made of
    the epoch. The file `training_state.npz` is replaced in one move: a run
    killed while writing has that of the epoch before. Nothing is pickled.

    Args:
        folder: string or path. Made if it does not exist; one for each run.
        callbacks: list of other callbacks of the run whose memory is kept, as
            `EarlyStopping`, `ReduceLROnPlateau`, `ModelCheckpoint` or `Bleu`.

    Attributes:
        extra: dict of JSON values of your own. Written with each epoch, read
            by `restore`.
        stopped: bool. A callback, such as `EarlyStopping`, has ended the run.
            `restore` has then set the weights that it ended with, which may be
            those of an earlier epoch. To go on from them, set it to False.

    Raises:
        ValueError: the file belongs to another model, optimizer, backend or
            list of callbacks, or cannot be read; or `fit` starts elsewhere
            than `restore` said.
    """

    def __init__(self, folder, callbacks=()):
        super().__init__()
        self.path = pathlib.Path(folder) / "training_state.npz"
        self.callbacks = list(callbacks)
        self.extra = {}
        self.stopped = False
        self._epochs = 0  # done, by what was restored
        self._history, self._history_epochs = {}, []
        self._memories = None  # of the callbacks, until training begins
        self._starting = False

    def restore(self, model):
        """Sets the model and its optimizer to the state in the folder.

        Args:
            model: built and compiled Keras model.

        Returns:
            int, the epochs already done: `initial_epoch` for `fit`. 0, and
            nothing is changed, if the folder holds no state.
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
        self._memories = [
            {**memory, **stored_weights(arrays, number)}
            for number, memory in enumerate(meta["callbacks"])
        ]
        self.stopped = meta["stopped"]
        if self.stopped:
            self._restore_best_weights(model)
        return self._epochs

    @property
    def history(self):
        """The curves of all epochs done, dict of lists as Keras' History."""
        return {key: list(values) for key, values in self._history.items()}

    def on_train_begin(self, logs=None):
        state_variables(self.model)  # raises if there is nothing to restart
        if self._memories is None and self.path.exists():
            epochs = read_state(self.path)[0]["epochs"]
            raise ValueError(
                "This folder holds the state of a run, which would be lost. Received: "
                f"{str(self.path)!r}, after {epochs} epochs. Go on with it by "
                "initial_epoch=resume.restore(model), or choose another folder."
            )
        if self.stopped:
            raise ValueError(
                f"A callback ended this run after {self._epochs} epochs, and one more "
                "would be trained at each start. Do not call fit if resume.stopped; "
                "or set that to False, to go on all the same."
            )
        self._starting = True

    def on_epoch_begin(self, epoch, logs=None):
        if not self._starting:
            return
        if epoch != self._epochs:
            raise ValueError(
                f"The state is that after {self._epochs} epochs. Received: a fit that "
                f"starts with initial_epoch={epoch}. Give fit initial_epoch="
                "resume.restore(model)."
            )
        self._starting = False
        # By now all callbacks have made themselves empty for this fit.
        for callback, memory in zip(self.callbacks, self._memories or [], strict=False):
            vars(callback).update(memory)
        self._memories = []
        self.model.history.history.update(self.history)
        self.model.history.epoch[:0] = self._history_epochs

    def on_train_end(self, logs=None):
        if self._starting:  # No epoch was left: what the last fit would have done.
            self._restore_best_weights(self.model)

    def on_epoch_end(self, epoch, logs=None):
        # On JAX the trainer has put its state back into the variables by now.
        for key, value in (logs or {}).items():
            self._history.setdefault(key, []).append(value)
        self._history_epochs.append(epoch)
        self._epochs = epoch + 1
        self.stopped = bool(self.model.stop_training)
        self._write(state_variables(self.model))

    def _restore_best_weights(self, model):
        """Ends as `EarlyStopping` did, whose own end was an earlier fit's."""
        for callback, memory in zip(self.callbacks, self._memories or [], strict=False):
            best = memory.get("best_weights")
            if best and getattr(callback, "restore_best_weights", False):
                model.set_weights(best)

    def _write(self, variables):
        meta = {
            "format": FORMAT,
            "backend": keras.backend.backend(),
            "epochs": self._epochs,
            "stopped": self.stopped,
            "history": self._history,
            "history_epochs": self._history_epochs,
            "callbacks": [memory_of(callback) for callback in self.callbacks],
            "callback_names": [type(callback).__name__ for callback in self.callbacks],
            "extra": self.extra,
            **{group: describe(members) for group, members in variables.items()},
        }
        kept = {
            f"best_weights/{number}": getattr(callback, "best_weights", None) or []
            for number, callback in enumerate(self.callbacks)
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_state(self.path, meta, {**variables, **kept})


def memory_of(callback):
    """Gives what a callback remembers between epochs, as JSON values."""
    held = {name: vars(callback).get(name) for name in REMEMBERED}
    return {name: value for name, value in held.items() if value is not None}


def stored_weights(arrays, number):
    """Gives the best weights that callback `number` kept, if it kept any."""
    start = f"best_weights/{number}/"
    indices = sorted(int(k.removeprefix(start)) for k in arrays if k.startswith(start))
    found = [arrays[f"{start}{index}"] for index in indices]
    return {"best_weights": found} if found else {}
