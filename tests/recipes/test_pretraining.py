"""Pretraining with masked tokens: it resumes exactly, and once."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_tfm import training
from keras_tfm.recipes import (
    classification,
    classification_defaults,
    masked_pretraining,
    runs,
)
from keras_tfm.training import training_state
from tests.recipes.animals import write_films

ROOT = pathlib.Path(__file__).parents[2]
NUM_STATES = 6  # that the whole run writes: four of the pretraining come first
PROGRAM = """
import signal, sys
from keras_tfm.recipes import classification
from tests.recipes import test_pretraining
test_pretraining.after_states(int(sys.argv[3]), lambda: signal.raise_signal(9))
classification.main(test_pretraining.flags_for(*sys.argv[1:3]))
"""


def flags_for(data, out, **changes):
    """Returns the flags of a run with two epochs of pretraining."""
    values = {
        "size": "tiny",
        "vocabulary_size": 300,
        "batch_tokens": 256,
        "pretraining_epochs": 2,
        "epochs": 1,
        "average_last": 1,
        "dropout": 0.2,
        "save_every": 6,
        # Without it JAX runs a step operation by operation.
        "jit_compile": "on" if keras.backend.backend() == "jax" else "off",
    }
    return classification.Flags(data=str(data), out=str(out), **values | changes)


def after_states(number, action):
    """Calls `action` when a run has written so many states; 0 counts only."""
    write, files = training.ResumeTraining._write, []

    def write_and_act(self, *args, **options):
        write(self, *args, **options)
        files.append(self.path)
        if len(files) == number:
            action()

    training.ResumeTraining._write = write_and_act
    return files


@pytest.fixture
def count_states(monkeypatch):
    monkeypatch.setattr(
        training.ResumeTraining, "_write", training.ResumeTraining._write
    )
    return after_states


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The data, and the folder of a run that is not interrupted."""
    folder = tmp_path_factory.mktemp("pretraining")
    data = write_films(folder / "films.tsv", 160)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.ResumeTraining, "_write", training.ResumeTraining._write)
        files = after_states(0, None)
        classification.main(flags_for(data, folder / "whole"))
    assert len(files) == NUM_STATES
    assert [runs.PRETRAINING in file.parts for file in files] == [1] * 4 + [0] * 2
    return data, folder / "whole"


def assert_equal_runs(actual, expected):
    """Compares every variable bit for bit, and all losses."""
    states = [training_state.read_state(runs.state_file(o)) for o in (actual, expected)]
    (meta, arrays), (expected_meta, expected_arrays) = states
    assert arrays.keys() == expected_arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected_arrays[name], err_msg=name)
    histories = [meta["history"], expected_meta["history"]]
    histories += [
        json.loads((out / "pretraining.json").read_text())["history"]
        for out in (actual, expected)
    ]
    for history in histories:
        assert history.pop("seconds")
    assert histories[0] == histories[1] and histories[2] == histories[3]
    assert not (actual / runs.PRETRAINING).exists()


class Interrupted(BaseException):
    """Ends a run as a signal does."""


def interrupt():
    raise Interrupted


def pretrain(data, out):
    """Runs the pretraining alone; returns all variables of the encoder."""
    flags = classification_defaults.complete(flags_for(data, out, save_every=2))
    corpus = classification.load_corpus(flags)
    out.mkdir(exist_ok=True)
    keras.utils.set_random_seed(flags.seed)
    encoder, vocabulary = classification.make_encoder(flags, corpus, out)
    minutes = masked_pretraining.pretrain(flags, encoder, corpus, vocabulary, out)
    assert minutes > 0
    return [keras.ops.convert_to_numpy(variable) for variable in encoder.variables]


@pytest.mark.backend("torch")
def test_a_pretraining_resumes_inside_of_an_epoch(tmp_path, count_states):
    data = write_films(tmp_path / "films.tsv", 60)
    states = count_states(0, None)
    expected = pretrain(data, tmp_path / "whole")
    # An unfinished epoch of several states, and the last state of all.
    for number in (len(states) // 2 + 1, len(states)):
        out = tmp_path / str(number)
        count_states(number, interrupt)
        with pytest.raises(Interrupted):
            pretrain(data, out)
        for actual, array in zip(pretrain(data, out), expected, strict=True):
            np.testing.assert_array_equal(actual, array)


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 4])
def test_an_interrupted_run_ends_as_one_that_was_not(
    number, whole, tmp_path, count_states, capsys
):
    data, expected = whole
    flags = flags_for(data, tmp_path / "run")
    count_states(number, interrupt)
    with pytest.raises(Interrupted):
        classification.main(flags)
    assert runs.is_resumable(tmp_path / "run")
    with pytest.raises(ValueError, match="other flags .dropout: 0.2 before, 0.3 now"):
        classification.main(dataclasses.replace(flags, dropout=0.3))
    classification.main(flags)
    assert_equal_runs(tmp_path / "run", expected)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_a_killed_pretraining_resumes_exactly(number, whole, tmp_path):
    data, expected = whole
    out = tmp_path / "run"
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, data, out, str(number)],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "KERAS_BACKEND": keras.backend.backend(),
        },
        capture_output=True,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr[-2000:]
    assert runs.is_resumable(out) and not (out / "result.json").exists()
    classification.main(flags_for(data, out))
    assert_equal_runs(out, expected)
