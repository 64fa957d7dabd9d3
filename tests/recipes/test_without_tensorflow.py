"""Recipes in an environment without TensorFlow, as with Python 3.14."""

import dataclasses
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_tfm import text
from keras_tfm.recipes import translation
from tests.recipes.animals import flags_for, write_films, write_tsv

pytestmark = pytest.mark.backend("torch")
MAIN = """
import sys
sys.modules["tensorflow"] = None  # an import fails
import json
from keras_tfm.recipes import classification, language_model, translation
for name, flags in json.load(sys.stdin):
    recipe = sys.modules[f"keras_tfm.recipes.{name}"]
    flags = {key: tuple(x) if isinstance(x, list) else x for key, x in flags.items()}
    recipe.main(recipe.Flags(**flags))
"""


def train(*runs):
    """Runs recipes in a process that has no TensorFlow."""
    process = subprocess.run(
        [sys.executable, "-c", MAIN],
        input=json.dumps(runs),
        env={**os.environ, "KERAS_BACKEND": "torch"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr


def read_result(folder):
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def test_a_translation_run_is_the_same_without_tensorflow(tmp_path):
    flags = flags_for(write_tsv(tmp_path / "animals.tsv"), tmp_path / "with")
    expected = translation.main(flags)
    train(("translation", {**dataclasses.asdict(flags), "out": str(tmp_path / "out")}))
    result = read_result(tmp_path / "out")
    np.testing.assert_allclose(
        result["validation_perplexity"], expected["validation_perplexity"], rtol=1e-4
    )
    assert result["bleu"] == pytest.approx(expected["bleu"], abs=1)


def test_other_recipes_need_no_tensorflow(tmp_path):
    films = {
        "data": write_films(tmp_path / "texts.tsv", 100),
        "size": "tiny",
        "batch_tokens": 1024,
        "epochs": 1,
        "pretraining_epochs": 1,
        "out": str(tmp_path / "films"),
    }
    texts = "\n\n".join(f"I have {n} cats and {n % 7} dogs ." for n in range(300))
    (tmp_path / "lines.txt").write_text(texts, encoding="utf-8")
    lines = {
        "data": str(tmp_path / "lines.txt"),
        "vocabulary_size": 320,
        "length": 16,
        "batch_size": 16,
        "epochs": 1,
        "max_new_tokens": 4,
        "out": str(tmp_path / "lines"),
    }
    train(("classification", films), ("language_model", lines))
    assert read_result(tmp_path / "films")["accuracy"] > 30
    assert read_result(tmp_path / "lines")["test_bits_per_character"] < 8


def test_batches_without_tensorflow_resume_at_any_step(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    vocabulary = text.Vocabulary.train(["a b c d"] * 9, 270, exact=False)
    batches = text.TokenRows(["a b c d"] * 90, vocabulary, length=4, batch_size=2)
    steps = batches.steps_per_epoch
    endless = batches.dataset(first_step=steps - 1, repeat=True)
    assert endless.num_batches is None
    for index in (0, 1, steps):
        for actual, expected in zip(
            endless[index], batches.batch(steps - 1 + index), strict=True
        ):
            keras.tree.map_structure(np.testing.assert_array_equal, actual, expected)
    assert batches.dataset(first_step=2 * steps).epoch == 2
    ordered = batches.ordered()
    labels = [ordered[index][1] for index in range(ordered.num_batches)]
    assert sum((rows != 0).sum() for rows in labels) == batches.num_labels
    with pytest.raises(ImportError, match="`keras-tfm\\[tensorflow\\]`"):
        batches.dataset(first_step=2)
