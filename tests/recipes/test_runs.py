"""Flags, errors and run folders, which all recipes share."""

import errno
import runpy
import shutil

import keras
import pytest

from keras_tfm.cli.options import COMMANDS
from keras_tfm.recipes import runs, translation, translation_defaults
from keras_tfm.recipes.flags import with_flags
from keras_tfm.training import training_state

pytestmark = pytest.mark.backend("torch")


# The module is imported already, and runs again as a command.
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("name", ["classification", "language_model", "translation"])
def test_bad_data_ends_a_command_with_one_sentence(name, tmp_path, monkeypatch):
    file = str(tmp_path / "nothing.tsv")
    monkeypatch.setattr("sys.argv", [name, "--data", file])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"keras_tfm.recipes.{name}", run_name="__main__")
    # Python prints text to standard error and exits with status 1.
    assert isinstance(end.value.code, str) and "nothing.tsv" in end.value.code


def test_an_internal_error_keeps_its_traceback(monkeypatch):
    import dataclasses

    @dataclasses.dataclass
    class Flags:
        rate: float = 0.5

    def fail(flags, kind):
        raise kind(f"Received: {flags.rate}.")

    monkeypatch.setattr("sys.argv", ["x", "--rate", "2"])
    with pytest.raises(TypeError, match="Received: 2.0."):
        runs.start(lambda flags: fail(flags, TypeError), Flags, "")
    for kind in (ValueError, FileNotFoundError, ImportError):
        with pytest.raises(SystemExit, match="Received: 2.0."):
            runs.start(lambda flags, kind=kind: fail(flags, kind), Flags, "")


def test_errors_name_flags_in_place_of_parameters(monkeypatch):
    def fail(flags):
        raise ValueError("`held_out` and `size` must fit; got held_out=3, size=9.")

    monkeypatch.setattr("sys.argv", ["x"])
    with pytest.raises(SystemExit) as end:
        runs.start(fail, translation.Flags, "")
    assert end.value.code == (
        "--held-out and --vocabulary-size must fit; got --held-out=3, "
        "--vocabulary-size=9."
    )
    command = COMMANDS["score"](model="en-de")
    message = with_flags("`model` and `source_language` must fit.", command)
    assert message == "`model` and --source-language must fit."


def test_a_run_without_a_newer_flag_resumes(tmp_path):
    (tmp_path / "restart").mkdir()
    (tmp_path / "restart" / "training_state.npz").touch()
    (tmp_path / "flags.json").write_text('{"batch": 0}')
    runs.check_folder(tmp_path, {"batch": 0, "more": []}, ())
    for flags in ({"batch": 0, "more": ["fr"]}, {"batch": None, "more": []}):
        with pytest.raises(ValueError, match="a run with other flags"):
            runs.check_folder(tmp_path, flags, ())


def write_progress(out, epochs, step):
    """Writes the state of a run that has come so far."""
    file = runs.state_file(out)
    file.parent.mkdir(parents=True)
    training_state.write_state(file, {"epochs": epochs, "step": step}, {})


@pytest.mark.parametrize(
    ("progress", "message"),
    [
        (None, "No state was saved yet: the same command starts from the first epoch."),
        ((2, 0), "The same command resumes the run in '{out}' after epoch 2."),
        (
            (0, 3_000),
            "The same command resumes the run in '{out}' in epoch 1, after 3,000 "
            "steps.",
        ),
    ],
)
def test_after_ctrl_c_one_line_says_how_to_resume(
    progress, message, tmp_path, monkeypatch, capsys
):
    def interrupt(flags):
        with runs.run_folder(tmp_path / "run"):
            if progress:
                write_progress(tmp_path / "run", *progress)
            try:
                raise KeyboardInterrupt
            finally:  # as Keras on JAX, where an interrupted step has no result
                raise RuntimeError("Array has been deleted")

    monkeypatch.setattr("sys.argv", ["x"])
    with pytest.raises(SystemExit) as end:
        runs.start(interrupt, translation.Flags, "")
    assert end.value.code == 130
    expected = message.format(out=tmp_path / "run")
    assert capsys.readouterr().err.strip() == f"Stopped. {expected}"


def test_a_full_disk_ends_a_command_with_one_sentence(tmp_path, monkeypatch):
    def fill(flags):
        with runs.run_folder(tmp_path / "run"):
            write_progress(tmp_path / "run", 2, 0)
            raise OSError(errno.ENOSPC, "file write failed: time = ...")

    monkeypatch.setattr("sys.argv", ["x"])
    with pytest.raises(SystemExit) as end:
        runs.start(fill, translation.Flags, "")
    place = f"the run in '{tmp_path / 'run'}'"
    assert end.value.code == (
        f"The disk is full: {place} cannot be written. Free some space. The same "
        f"command resumes {place} after epoch 2."
    )


def test_divergence_ends_a_command_with_one_sentence(monkeypatch):
    def diverge(flags):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        training_state.check_finite(model, float("nan"))

    monkeypatch.setattr("sys.argv", ["x"])
    with pytest.raises(SystemExit) as end:
        runs.start(diverge, translation.Flags, "")
    assert "got loss=nan" in end.value.code
    assert "lower --learning-rate" in end.value.code


def test_a_run_folder_is_locked_and_removed_if_it_stays_empty(tmp_path, monkeypatch):
    out = tmp_path / "run"
    with pytest.raises(ValueError, match="bad input"), runs.run_folder(out):
        assert out.is_dir()
        raise ValueError("bad input")
    assert not out.exists()
    with runs.run_folder(out):
        (out / "file").touch()
        present = {**runs.folder_lock._locks}
        # As another process sees it.
        monkeypatch.setattr(runs.folder_lock, "_locks", {})
        with pytest.raises(ValueError, match="`out` must be a folder that no other"):
            runs.folder_lock.lock_folder(out, "out")
        monkeypatch.setattr(runs.folder_lock, "_locks", present)
    assert (out / "file").exists()
    with runs.run_folder(out):  # unlocked again
        pass


def test_an_error_keeps_the_files_that_a_run_folder_had(tmp_path):
    vocabulary = tmp_path / runs.VOCABULARY
    vocabulary.write_bytes(b"of the user")
    with pytest.raises(ValueError, match="bad input"), runs.run_folder(tmp_path):
        raise ValueError("bad input")
    assert vocabulary.read_bytes() == b"of the user"


def test_the_error_of_a_run_whose_folder_was_deleted_is_raised(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(ValueError, match="bad input"), runs.run_folder(out):
        shutil.rmtree(out)
        raise ValueError("bad input")


def test_the_seconds_of_an_epoch_include_those_before_a_resume(monkeypatch):
    times = iter([10.0, 11.0, 12.5, 100.0, 101.0, 103.0])
    monkeypatch.setattr(runs.time, "perf_counter", lambda: next(times))
    seconds, logs = runs.Seconds(), {}
    seconds.on_epoch_begin(0)
    for batch in range(2):
        seconds.on_train_batch_end(batch)
    elapsed = seconds.elapsed
    resumed = runs.Seconds()
    resumed.on_epoch_begin(0)
    resumed.elapsed = elapsed
    resumed.on_train_batch_end(0)
    resumed.on_epoch_end(0, logs)
    assert logs == {"seconds": 2.5 + 3.0}


def test_fewer_updates_than_the_warm_up_are_reported(capsys):
    flags = translation.Flags(epochs=2, warmup_steps=1_000)
    translation_defaults.warn_of_few_updates(flags, steps_per_epoch=51)
    printed = capsys.readouterr().out
    assert printed.startswith("Warning: 102 updates are fewer than --warmup-steps 1,0")
    assert "reaches 10% of its peak" in printed
    translation_defaults.warn_of_few_updates(flags, steps_per_epoch=500)
    assert capsys.readouterr().out == ""
