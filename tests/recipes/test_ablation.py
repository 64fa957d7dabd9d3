"""The rows of table 3: their flags, and a table that is stopped and resumed."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from keras_tfm.models.configurations import TABLE_3
from keras_tfm.recipes import ablation, runs, translation
from keras_tfm.recipes.flags import parse
from tests.recipes.animals import write_tsv

pytestmark = pytest.mark.backend("torch")
SMALL = {
    "num_layers": (1, 1),
    "embedding_dim": 32,
    "intermediate_dim": 64,
    "vocabulary_size": 300,
    "held_out": 40,
    "batch_tokens": 256,
    "warmup_steps": 20,
    "learning_rate": 4e-3,
    "average_last": 1,
    "evaluate_every": 9,
    "beam_size": 1,
}


def changes(**options):
    flags = ablation.Flags(out="runs", epochs=2, **options)
    return {row.name: row.changes for row in ablation.make_rows(flags, flags.rows)}


def test_rows_of_the_base_size_are_those_of_the_paper():
    """Vaswani et al. 2017, table 3."""
    rows = changes(size="base")
    assert rows.keys() == TABLE_3.keys() == ablation.PUBLISHED.keys()
    for name, options in TABLE_3.items():
        row = {**rows[name], "num_layers": rows[name].get("num_layers", (0,))[0]}
        assert {option: row[option] for option in options} == options
    assert rows["D3"] == {"label_smoothing": 0.0}
    assert rows["D4"] == {"label_smoothing": 0.2}
    assert rows["big"]["epochs"] == 6  # 300,000 steps against 100,000
    base = {"embedding_dim": 512, "num_heads": 8, "key_dim": 64, "dropout": 0.1}
    assert base.items() <= rows["base"].items()


def test_rows_of_a_small_size_have_its_proportions():
    rows = changes(size="tiny")
    for name in ("A1", "A2", "A3", "A4"):
        heads, key_dim, value_dim = rows[name].values()
        assert heads == TABLE_3[name]["num_heads"]
        assert heads * key_dim == heads * value_dim == 128
    assert rows["B1"] == {"key_dim": 4, "value_dim": 16}
    assert [rows[f"C{n}"]["num_layers"][0] for n in (1, 2, 3)] == [1, 3, 5]
    assert rows["C5"]["embedding_dim"] == 256 and rows["C6"]["intermediate_dim"] == 128
    assert rows["E"]["positions"] == "learned"


@pytest.mark.parametrize("name", TABLE_3)
def test_the_command_of_a_row_has_its_flags(name):
    flags = ablation.Flags(
        out="runs",
        epochs=3,
        source_end=True,
        normalize_first=False,
        additional_targets=("fr", "es"),
    )
    [row] = ablation.make_rows(flags, [name])
    of_run = row.with_seed(4, pathlib.Path("runs"))
    arguments = ablation.command_of(of_run)[3:]
    assert parse(translation.Flags, "", arguments) == of_run
    assert of_run.seed == 4 and of_run.source_end and of_run.normalize_first is False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": ("A1", "F1")}, "--rows must be some of base A1 .*; got A1 F1"),
        ({"epochs": None}, "--epochs must be set"),
        ({"seeds": ()}, "--seeds must have a number"),
        ({"num_heads": 4}, "--num-heads of row A1 must be a whole number, 1 / 8 of"),
        ({"init_from": "en-de"}, "--from keeps the architecture"),
        ({"architecture": "recurrent"}, "--num-heads must be left out"),
    ],
)
def test_flags_that_fit_no_table_are_rejected(options, message, tmp_path):
    flags = ablation.Flags(**{"out": str(tmp_path / "t"), "epochs": 2, **options})
    with pytest.raises(ValueError, match=message):
        ablation.main(flags)
    assert not (tmp_path / "t").exists()


@pytest.fixture
def flags(tmp_path):
    corpus = str(write_tsv(tmp_path / "animals.tsv"))
    return ablation.Flags(
        out=str(tmp_path / "table"), data=corpus, rows=("A2", "D3"), epochs=3, **SMALL
    )


def start(flags):
    """Starts the table in a process group of its own."""
    arguments = ["--out", flags.out, "--rows", *flags.rows]
    of_recipe = {
        field.name: getattr(flags, field.name)
        for field in dataclasses.fields(translation.Flags)
        if hasattr(flags, field.name) and field.name != "out"
    }
    arguments += ablation.command_of(translation.Flags(**of_recipe))[3:]
    command = [sys.executable, "-m", "keras_tfm.recipes.ablation", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.mark.slow
def test_a_table_that_was_killed_goes_on_where_it_stood(flags):
    """The second row is killed after its first epoch."""
    out = pathlib.Path(flags.out)
    process = start(flags)
    deadline = time.monotonic() + 500
    state = runs.state_file(out / "D3-seed0")
    while not state.exists() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    [first] = json.loads((out / "table.json").read_text())["rows"]
    assert first["row"] == "A2" and not (out / "D3-seed0" / "result.json").exists()

    resumed = start(flags)
    printed, _ = resumed.communicate(timeout=500)
    assert resumed.returncode == 0
    assert "A2, seed 0: finished before" in printed
    assert "Resuming the run" in printed and "Epoch 3/3" in printed
    table = json.loads((out / "table.json").read_text())["rows"]
    assert table[0] == first and [entry["row"] for entry in table] == ["A2", "D3"]
    for entry in table:
        assert entry["training_flops"] > 0 and 1 < entry["validation_perplexity"] < 300
    lines = (out / "table.md").read_text().splitlines()
    assert lines[2].startswith("| A2 | num_heads 4, key_dim 8, value_dim 8 | ")
    assert lines[2].endswith("| 5.00 | 25.5 |  |")


def write_result(flags, row, seed, bleu, perplexity):
    """Writes what a run would have written."""
    [row] = ablation.make_rows(flags, [row])
    of_run = row.with_seed(seed, pathlib.Path(flags.out))
    folder = pathlib.Path(of_run.out)
    folder.mkdir(parents=True)
    numbers = {
        "bleu": bleu,
        "bleu_half_width_95": 1.5,
        "validation_perplexity": perplexity,
        "training_minutes": 2.0,
        "training_flops": 3 * 10**12,
        "parameters": 1_234,
    }
    result = numbers | {"flags": dataclasses.asdict(of_run)}
    (folder / "result.json").write_text(json.dumps(result))


def test_the_table_has_all_finished_runs_of_its_folder(flags, capsys):
    for seed, bleu in ((0, 20.0), (1, 22.0)):
        write_result(flags, "base", seed, bleu, 8.0 + seed)
    write_result(flags, "E", 0, 19.0, 9.0)
    write_result(dataclasses.replace(flags, epochs=9), "A1", 0, 19.0, 9.0)
    seeds = dataclasses.replace(flags, rows=("E,base",))
    base, learned = ablation.main(seeds)
    picture = pathlib.Path(flags.out) / "table.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert (base["row"], learned["row"]) == ("base", "E")  # and no shorter A1
    assert base["bleu"] == 21.0 and base["bleu_deviation"] == pytest.approx(2**0.5)
    printed = capsys.readouterr().out
    assert "E, seed 0: finished before" in printed
    assert "| 8.50 (s 0.71) | 21.00 ± 1.50 (s 1.41) | 0 1 | 2.0 | 3.0e+12 |" in printed
    assert "| 9.00 | 19.00 ± 1.50 | 0 |" in printed
    assert base["paper"] == {"perplexity": 4.92, "bleu": 25.8, "parameters": 65}
    changed = dataclasses.replace(seeds, batch_tokens=512)
    with pytest.raises(ValueError, match="batch_tokens: 256 before, 512 now"):
        ablation.main(changed)


def test_a_run_that_fails_ends_the_table(flags, monkeypatch):
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    monkeypatch.setattr(ablation, "command_of", lambda flags: command)
    with pytest.raises(ChildProcessError, match="row A2, seed 0, in .* status 3"):
        ablation.main(flags)
