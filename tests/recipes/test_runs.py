"""Flags, errors and run folders, which all recipes share."""

import runpy

import pytest

from keras_tfm.cli.options import COMMANDS
from keras_tfm.recipes import runs, translation
from keras_tfm.recipes.flags import with_flags

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
    for kind in (ValueError, FileNotFoundError):
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
