"""A resumed run ends with the weights of an uninterrupted run."""

import contextlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_tfm.training import Bleu, CheckpointAverage, ResumeTraining

FOLDER = pathlib.Path(__file__).parent
SCRIPT = FOLDER / "run_to_kill.py"
specification = importlib.util.spec_from_file_location("run_to_kill", SCRIPT)
example = importlib.util.module_from_spec(specification)
specification.loader.exec_module(example)


def check_equal(model, expected):
    pairs = zip(example.state(model), example.state(expected), strict=True)
    for actual, expected_variable in pairs:
        np.testing.assert_array_equal(actual, expected_variable)


@contextlib.contextmanager
def killed_in_the_second_epoch(folder):
    """Runs the example in a subprocess, and kills it when the block ends."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(FOLDER.parents[1]),
        "KERAS_BACKEND": keras.backend.backend(),
    }
    child = subprocess.Popen(
        [sys.executable, SCRIPT, folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    message = None
    try:
        yield
        message = child.stdout.readline()
    finally:
        child.kill()  # SIGKILL: it cannot write anything
        _, errors = child.communicate()
    assert message == "in the middle of the second epoch\n", errors
    assert child.returncode != 0


def with_units(units, optimizer="adam"):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)])
    model.compile(optimizer, "mse")
    return model


def fit(model, *callbacks, **options):
    x = np.ones((2, 2), "float32")
    y = np.ones((2, model.output_shape[-1]), "float32")
    return model.fit(x, y, verbose=0, callbacks=list(callbacks), **options)


def run_epochs(folder, epochs, *callbacks, remember=()):
    """Starts or resumes a run that compiles fast; returns model and history."""
    model, resume = with_units(3), ResumeTraining(folder, remember)
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    epoch = resume.restore(model)
    all_callbacks = [*callbacks, *remember, resume]
    return model, fit(model, *all_callbacks, initial_epoch=epoch, epochs=epochs)


def test_a_killed_run_resumes_to_the_weights_of_an_uninterrupted_run(tmp_path):
    with killed_in_the_second_epoch(tmp_path / "killed"):
        network, batches = example.prepare()
        history = example.fit(tmp_path / "whole", network, batches)
    expected = example.state(network)
    # One network, since it takes seconds to compile; all of it is restored.
    resume = ResumeTraining(tmp_path / "killed")
    assert resume.restore(network) == 1
    assert 2 == resume.step < batches.steps_per_epoch  # the middle of an epoch
    middle = example.state(network)
    assert not all(map(np.array_equal, middle, expected))
    continued = example.fit(tmp_path / "killed", network, batches)
    assert continued == history
    assert len(set(history["loss"])) == 3
    for actual, expected_variable in zip(example.state(network), expected, strict=True):
        np.testing.assert_array_equal(actual, expected_variable)


def test_an_empty_folder_starts_from_the_first_epoch(tmp_path):
    model = with_units(3)
    initial = example.state(model)
    assert ResumeTraining(tmp_path / "none").restore(model) == 0
    assert not (tmp_path / "none").exists()
    for actual, expected in zip(example.state(model), initial, strict=False):
        np.testing.assert_array_equal(actual, expected)


def test_early_stopping_resumes_with_its_best_weights_and_patience(tmp_path):
    def stopping():
        return keras.callbacks.EarlyStopping(
            "score", mode="max", patience=3, restore_best_weights=True
        )

    def scores(*values):
        # The best epoch is the second; the fifth is the third without progress.
        return keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: logs.update(score=values[epoch])
        )

    score_callbacks = [scores(1.0, 3.0, 2.0, 2.5, 2.0, 9.0, 9.0)]
    results = []
    for name, last_epochs in [("whole", [7]), ("resumed", [3, 7])]:
        for epochs in last_epochs:
            callback = stopping()
            model, history = run_epochs(
                tmp_path / name, epochs, *score_callbacks, remember=[callback]
            )
        results.append((model, history.history["score"]))
        assert callback.best == 3.0
    assert results[0][1] == results[1][1] == [1.0, 3.0, 2.0, 2.5, 2.0]
    for actual, expected in zip(
        *(model.get_weights() for model, _ in results), strict=True
    ):
        np.testing.assert_array_equal(actual, expected)


def test_a_run_that_a_callback_ended_is_not_resumed(tmp_path):
    def stopping():
        return keras.callbacks.EarlyStopping(
            "loss", mode="max", patience=patience, restore_best_weights=True
        )

    patience = 1
    model, history = run_epochs(tmp_path, 9, remember=[stopping()])
    assert len(history.epoch) == 2  # the loss falls in each epoch
    best = model.get_weights()
    restored, resume = with_units(3), ResumeTraining(tmp_path, [stopping()])
    epochs = resume.restore(restored)
    assert resume.stopped and epochs == 2
    for actual, expected in zip(restored.get_weights(), best, strict=True):
        np.testing.assert_array_equal(actual, expected)
    with pytest.raises(ValueError, match="ended this run after 2 epochs"):
        fit(restored, resume, epochs=9, initial_epoch=2)
    resume.stopped = False
    assert fit(restored, resume, epochs=3, initial_epoch=2).epoch == [0, 1, 2]
    patience = 5  # a run that reaches its last epoch has the best weights too
    whole, _ = run_epochs(tmp_path / "whole", 2, remember=[stopping()])
    resumed, _ = run_epochs(tmp_path / "whole", 2, remember=[stopping()])
    for actual, expected in zip(
        resumed.get_weights(), whole.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(actual, expected)
    unfinished = ResumeTraining(tmp_path / "other")
    fit(with_units(3), unfinished, epochs=2)
    assert not unfinished.stopped


def test_bleu_repeats_its_last_scores_after_resuming(tmp_path):
    def bleu():
        return Bleu(
            ["ein Haus"], ["A house."], lambda texts: ["A house."], every_epochs=3
        )

    run_epochs(tmp_path, 3, remember=[bleu()])
    _, history = run_epochs(tmp_path, 5, remember=[bleu()])
    assert len(history.history["val_chrf"]) == 3  # of epochs 3, 4 and 5


def test_extra_values_are_saved_and_restored(tmp_path):
    resume = ResumeTraining(tmp_path)
    resume.extra["corpus"] = {"pairs": 29_000, "sides": ["de", "en"]}
    fit(with_units(3), resume)
    restored = ResumeTraining(tmp_path)
    restored.restore(with_units(3))
    assert restored.extra == {"corpus": {"pairs": 29_000, "sides": ["de", "en"]}}


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_float16"])
def test_half_precision_is_restored_exactly(tmp_path, policy):
    keras.config.set_dtype_policy(policy)
    try:
        model, _ = run_epochs(tmp_path, 2)
        restored = with_units(3)
        ResumeTraining(tmp_path).restore(restored)
    finally:
        keras.config.set_dtype_policy("float32")
    check_equal(restored, model)


def test_an_interrupted_write_leaves_the_previous_state(tmp_path, monkeypatch):
    run_epochs(tmp_path, 1)
    initial_bytes = (tmp_path / "training_state.npz").read_bytes()

    def write_half(file, **arrays):
        file.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", write_half)
    with pytest.raises(OSError, match="no space left"):
        run_epochs(tmp_path, 2)
    monkeypatch.undo()
    assert (tmp_path / "training_state.npz").read_bytes() == initial_bytes
    run_epochs(tmp_path, 2)


def test_the_file_is_replaced_atomically(tmp_path):
    run_epochs(tmp_path, 1)
    initial_bytes = (tmp_path / "training_state.npz").read_bytes()
    os.link(tmp_path / "training_state.npz", tmp_path / "same file")
    run_epochs(tmp_path, 2)
    assert (tmp_path / "same file").read_bytes() == initial_bytes
    assert (tmp_path / "training_state.npz").read_bytes() != initial_bytes


def test_the_file_has_no_pickled_objects(tmp_path):
    run_epochs(tmp_path, 1)
    with np.load(tmp_path / "training_state.npz", allow_pickle=False) as file:
        meta = json.loads(str(file["meta"]))
        assert all(file[name].dtype.hasobject is False for name in file.files)
    assert meta["epochs"] == 1


def test_an_epoch_that_was_stopped_is_trained_to_its_end(tmp_path):
    x, y = np.ones((6, 2), "float32"), np.ones((6, 3), "float32")

    def train(folder, stop_at=None):
        def stop(batch, logs):
            if batch == stop_at:
                raise InterruptedError

        model, resume = with_units(3), ResumeTraining(folder, every_steps=2)
        model.set_weights([0.1 * np.ones(w.shape) for w in model.get_weights()])
        epoch, step = resume.restore(model), resume.step
        watch = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
        history = model.fit(
            x[step:], y[step:], batch_size=1, shuffle=False, verbose=0,
            initial_epoch=epoch, epochs=2, callbacks=[watch, resume],
        )  # fmt: skip
        return model, history

    whole, expected = train(tmp_path / "whole")
    folder = tmp_path / "stopped"
    with pytest.raises(InterruptedError):
        train(folder, stop_at=5)
    model, resume = with_units(3), ResumeTraining(folder, every_steps=2)
    assert (resume.restore(model), resume.step) == (0, 4)
    with pytest.raises(ValueError, match="must be 2, the steps that remain of epoch 1"):
        model.fit(x, y, batch_size=1, shuffle=False, verbose=0, callbacks=[resume])
    _, first = train(folder)  # the two remaining steps, and no more
    assert first.epoch == [0]
    resumed, history = train(folder)
    assert history.epoch == [0, 1]
    assert history.history == expected.history
    check_equal(resumed, whole)


def test_weights_that_are_not_finite_end_the_run_and_replace_nothing(tmp_path):
    folder, averages = tmp_path / "state", tmp_path / "averages"
    model, resume = with_units(3, "sgd"), ResumeTraining(folder)
    average = CheckpointAverage(averages)
    fit(model, average, resume)
    files = [folder / "training_state.npz", averages / "epoch_0001.weights.h5"]
    contents = [file.read_bytes() for file in files]
    finite = model.get_weights()
    model.optimizer.learning_rate = np.inf
    words = "must be finite; got .* training has diverged.*keeps the last finite state"
    with pytest.raises(FloatingPointError, match=words):
        fit(model, average, resume, initial_epoch=1, epochs=9)
    assert [file.read_bytes() for file in files] == contents
    with pytest.raises(FloatingPointError, match="keeps the weights of before"):
        fit(model, average, initial_epoch=1, epochs=2)
    assert [path.name for path in average.paths()] == ["epoch_0001.weights.h5"]
    restored = with_units(3, "sgd")
    assert ResumeTraining(folder).restore(restored) == 1
    for actual, expected in zip(restored.get_weights(), finite, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.backend("torch")
def test_a_loss_that_is_not_finite_ends_the_run_inside_an_epoch(tmp_path):
    model = with_units(3)
    model.compile("sgd", lambda y_true, y_pred: float("nan") * (y_pred - y_pred))
    batches = []
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: batches.append(batch)
    )
    x, y = np.ones((300, 2), "float32"), np.ones((300, 3), "float32")
    with pytest.raises(FloatingPointError, match="got loss=nan|non-finite"):
        model.fit(x, y, batch_size=1, verbose=0,
                  callbacks=[watch, ResumeTraining(tmp_path)])  # fmt: skip
    assert len(batches) == 100
    assert not (tmp_path / "training_state.npz").exists()


LOCK = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
file.write("process 7 on elsewhere")
file.flush()
print("locked", flush=True)
time.sleep(600)
"""


@pytest.mark.backend("torch")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
@pytest.mark.parametrize("callback", [ResumeTraining, CheckpointAverage])
def test_a_folder_in_which_another_process_trains_is_rejected(callback, tmp_path):
    command = [sys.executable, "-c", LOCK, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "locked\n"
            with pytest.raises(ValueError, match="in which process 7 on elsewhere"):
                fit(with_units(3), callback(tmp_path))
            assert os.listdir(tmp_path) == [".lock"]
        finally:
            child.kill()
    fit(with_units(3), callback(tmp_path))  # a lock ends with its process


def test_the_state_of_another_model_is_rejected_without_changes(tmp_path):
    fit(with_units(3), ResumeTraining(tmp_path))
    wider = with_units(4)
    initial = wider.get_weights()
    words = (
        r"variable of the model: expected .*kernel', \[2, 4\]\], got .*kernel', \[2, 3"
    )
    with pytest.raises(ValueError, match=words):
        ResumeTraining(tmp_path).restore(wider)
    for actual, expected in zip(wider.get_weights(), initial, strict=True):
        np.testing.assert_array_equal(actual, expected)
    words = r"variables of the optimizer: expected 4, got 6\. Build what"
    with pytest.raises(ValueError, match=words):
        ResumeTraining(tmp_path).restore(
            with_units(3, keras.optimizers.SGD(momentum=0.9))
        )
    words = r"variable of the optimizer: expected \['adamax.* got \['adam\w*/iteration"
    with pytest.raises(ValueError, match=words):
        ResumeTraining(tmp_path).restore(with_units(3, "adamax"))
    stopping = keras.callbacks.EarlyStopping("loss")
    words = r"callbacks: expected \['EarlyStopping'\], got \[\]"
    with pytest.raises(ValueError, match=words):
        ResumeTraining(tmp_path, [stopping]).restore(with_units(3))


def test_the_state_of_another_backend_is_rejected(tmp_path, monkeypatch):
    fit(with_units(3), ResumeTraining(tmp_path))
    backend = keras.backend.backend()
    monkeypatch.setattr(keras.backend, "backend", lambda: "abacus")
    with pytest.raises(ValueError, match=f"backend: expected abacus, got {backend}"):
        ResumeTraining(tmp_path).restore(with_units(3))


def test_a_run_is_not_overwritten_without_restore(tmp_path):
    fit(with_units(3), ResumeTraining(tmp_path))
    initial_bytes = (tmp_path / "training_state.npz").read_bytes()
    with pytest.raises(ValueError, match="after 1 epochs. Resume the run with"):
        fit(with_units(3), ResumeTraining(tmp_path))
    model, resume = with_units(3), ResumeTraining(tmp_path)
    assert resume.restore(model) == 1
    with pytest.raises(ValueError, match="must be 1, .* got initial_epoch=0"):
        fit(model, resume, epochs=2)
    assert (tmp_path / "training_state.npz").read_bytes() == initial_bytes
    fit(model, resume, epochs=2, initial_epoch=1)
    fit(model, resume, epochs=3, initial_epoch=2)  # the same object resumes
    assert ResumeTraining(tmp_path).restore(model) == 3


def test_fit_rejects_data_that_cannot_begin_at_a_step(tmp_path):
    model, x = with_units(1), np.ones((4, 2), "float32")
    with pytest.raises(TypeError, match="`batches` must have .* got tuple. For other"):
        ResumeTraining(tmp_path).fit(model, (x, x[:, :1]), epochs=1)


def test_a_damaged_file_and_a_model_without_optimizer_are_rejected(tmp_path):
    (tmp_path / "training_state.npz").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(ValueError, match="training_state.npz cannot be read"):
        ResumeTraining(tmp_path).restore(with_units(3))
    (tmp_path / "training_state.npz").unlink()
    with pytest.raises(ValueError, match="must be None or at least 1; got 0"):
        ResumeTraining(tmp_path, every_steps=0)
    fit(with_units(3), ResumeTraining(tmp_path))
    bare = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    with pytest.raises(
        ValueError, match="must be built and compiled; got .* optimizer=None"
    ):
        ResumeTraining(tmp_path).restore(bare)
