"""What every run asks, and what it says of a fault."""

import runpy

import pytest

from keras_tfm.recipes import runs

pytestmark = pytest.mark.backend("torch")


# The module has been imported before, and is run anew as a command is.
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("name", ["classification", "language_model", "translation"])
def test_of_bad_data_a_command_says_the_sentence_alone(name, tmp_path, monkeypatch):
    file = str(tmp_path / "nothing.tsv")
    monkeypatch.setattr("sys.argv", [name, "--data", file])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"recipes.{name}", run_name="__main__")
    # Text is what Python prints to standard error, with status 1.
    assert isinstance(ended.value.code, str) and "nothing.tsv" in ended.value.code


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch):
    import dataclasses

    @dataclasses.dataclass
    class Settings:
        rate: float = 0.5

    def fail(settings, kind):
        raise kind(f"Received: {settings.rate}.")

    monkeypatch.setattr("sys.argv", ["x", "--rate", "2"])
    with pytest.raises(TypeError, match="Received: 2.0."):
        runs.start(lambda given: fail(given, TypeError), Settings, "")
    for kind in (ValueError, FileNotFoundError):
        with pytest.raises(SystemExit, match="Received: 2.0."):
            runs.start(lambda given, kind=kind: fail(given, kind), Settings, "")


def test_a_run_older_than_a_setting_goes_on(tmp_path):
    (tmp_path / "restart").mkdir()
    (tmp_path / "restart" / "training_state.npz").touch()
    (tmp_path / "settings.json").write_text('{"batch": 0}')
    runs.check_folder(tmp_path, {"batch": 0, "more": []}, ())
    for now in ({"batch": 0, "more": ["fr"]}, {"batch": None, "more": []}):
        with pytest.raises(ValueError, match="a run of other settings"):
            runs.check_folder(tmp_path, now, ())
