"""Train the rows of table 3 of the paper at a small size, and compare them.

* Run      python -m keras_tfm.recipes.ablation --data multi30k --epochs 20
               --seeds 0 1 2 --out runs/table-3
* Needs    for each row and seed what the translation recipe needs; big about
           nine times as long as base
* Writes   a run folder of the translation recipe for each row and seed, with
           its usual files; after each run table.json, table.md and table.png,
           with the paper's figures beside it
* Follows  Vaswani et al. 2017, table 3; differs: every size is that of --size,
           multiplied by what the row multiplies it by in the paper, so that
           with --size base it is the paper's; BLEU is that of the test set

Each run is a process of its own. The same command goes on where it was stopped:
a run that has finished is not repeated. --rows and --seeds may change, and
--epochs may increase; the other flags must stay. The table has every run of the
folder that has finished with these epochs.
"""

import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from keras_tfm import plot
from keras_tfm.file_reading import Config, read_json
from keras_tfm.models import stacks
from keras_tfm.models.configurations import TABLE_3, TABLE_3_BASE
from keras_tfm.recipes import configuration, runs, translation, translation_defaults

# What is no option of a model in table 3; epochs are those of base, multiplied.
LABEL_SMOOTHING = {"D3": 0.0, "D4": 0.2}
EPOCHS = {"big": 3}  # 300,000 steps against 100,000
# As in the paper, whatever the corpus: rows A and D are relative to these.
BASE_FLAGS = {"size": "tiny", "num_heads": 8, "dropout": 0.1}
CHANGEABLE = ("rows", "seeds", "out", "epochs")
HEAD_DIM = TABLE_3_BASE["embedding_dim"] // TABLE_3_BASE["num_heads"]
PAPER_SIZES = {**TABLE_3_BASE, "key_dim": HEAD_DIM, "value_dim": HEAD_DIM}
# Results whose mean over seeds the table has, and those with their deviation.
SPREAD = ("validation_perplexity", "bleu")
AVERAGED = (*SPREAD, "bleu_half_width_95", "training_minutes", "training_flops")
AVERAGED += ("parameters",)
LEGEND = (
    "BLEU ± half of its 95% interval (bootstrap over the test set); s: standard "
    "deviation over the seeds. Perplexity is per subword token, without label "
    "smoothing. Paper: Vaswani et al. 2017, table 3, on newstest2013 of English to "
    "German; parameters that it leaves out are those of base."
)


class Published(NamedTuple):
    """What table 3 prints of a row.

    Attributes:
        perplexity: float, per subword token, on the development set.
        bleu: float, on the development set, newstest2013 of English to German.
        parameters: int or None, in millions; None where it is that of base.
    """

    perplexity: float
    bleu: float
    parameters: int | None = None


# Vaswani et al. 2017, table 3. https://arxiv.org/abs/1706.03762
PUBLISHED = {
    "base": Published(4.92, 25.8, 65),
    "A1": Published(5.29, 24.9),
    "A2": Published(5.00, 25.5),
    "A3": Published(4.91, 25.8),
    "A4": Published(5.01, 25.4),
    "B1": Published(5.16, 25.1, 58),
    "B2": Published(5.01, 25.4, 60),
    "C1": Published(6.11, 23.7, 36),
    "C2": Published(5.19, 25.3, 50),
    "C3": Published(4.88, 25.5, 80),
    "C4": Published(5.75, 24.5, 28),
    "C5": Published(4.66, 26.0, 168),
    "C6": Published(5.12, 25.4, 53),
    "C7": Published(4.75, 26.2, 90),
    "D1": Published(5.77, 24.6),
    "D2": Published(4.95, 25.5),
    "D3": Published(4.67, 25.3),
    "D4": Published(5.47, 25.7),
    "E": Published(4.92, 25.7),
    "big": Published(4.33, 26.4, 213),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """What to compare, and where to save. The other flags are those of the
    translation recipe, for all rows: --dropout and --label-smoothing are those
    of base."""

    out: str
    """Folder of the runs and of the table."""
    rows: tuple[str, ...] = tuple(TABLE_3)
    """Rows of table 3, as base A1 or base,A1. A1 to A4: heads; B1, B2:
    dimension of the keys; C1 to C7: size; D1 to D4: dropout and label
    smoothing; E: learned positions."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of each row."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(
    Table,
    translation.Data,
    translation.Mixture,
    translation.Model,
    translation.Configuration,
    translation.Vocabulary,
    translation.Optimization,
    translation.Devices,
    translation.Decoding,
):
    """The flags of a table."""


class Row(NamedTuple):
    """A row to train.

    Attributes:
        name: str, of `TABLE_3`.
        changes: dict of flags that it changes of base; for base its sizes.
        flags: `translation.Flags`, without `seed` and `out`.
    """

    name: str
    changes: dict[str, Any]
    flags: translation.Flags

    def with_seed(self, seed: int, out: pathlib.Path) -> translation.Flags:
        """Returns the flags of a run in the folder of the table."""
        folder = str(out / f"{self.name}-seed{seed}")
        return dataclasses.replace(self.flags, seed=seed, out=folder)


def main(flags: Flags) -> list[dict]:
    """Trains all rows and returns what it writes to `table.json`."""
    names = [name for item in flags.rows for name in item.split(",")]
    check(flags, names)
    out = pathlib.Path(flags.out)
    rows = make_rows(flags, names)
    check_folder(flags, out)
    table: list[dict] = []
    for seed in flags.seeds:
        for row in rows:
            run(row, seed, out)
            table = write_table(flags, out)
    print(f"\n{markdown(table)}\nEverything is in {out}")
    return table


def check(flags: Flags, rows: Sequence[str]) -> None:
    """Rejects flags that are wrong for every table."""
    if not rows or not set(rows) <= set(TABLE_3):
        raise ValueError(
            f"--rows must be some of {' '.join(TABLE_3)}; got {' '.join(rows)}."
        )
    if not flags.seeds:
        raise ValueError("--seeds must have a number; got none.")
    if flags.epochs is None:
        raise ValueError(
            "--epochs must be set, since all rows train as long as base, and big "
            f"{EPOCHS['big']} times as long; got none."
        )


def check_folder(flags: Flags, out: pathlib.Path) -> None:
    """Rejects the folder of a table with other flags, and creates it."""
    file = out / "flags.json"
    values = {
        name: value
        for name, value in dataclasses.asdict(flags).items()
        if name not in CHANGEABLE
    }
    values = json.loads(json.dumps(values))  # lists for tuples, as when read back
    stored = read_json(file) if file.exists() else values
    changes = [
        f"{name}: {stored.get(name)!r:.60} before, {value!r} now"
        for name, value in values.items()
        if stored.get(name) != value
    ]
    if changes:
        raise ValueError(
            f"--out {out} holds a table with other flags ({'; '.join(changes)}, by its "
            f"{file.name}). Name another folder with --out, or remove that one."
        )
    out.mkdir(parents=True, exist_ok=True)
    runs.write_json(file, values)


def make_rows(flags: Flags, row_names: Sequence[str]) -> list[Row]:
    """Makes the flags of the translation recipe for each row.

    Args:
        flags: `Flags`.
        row_names: str, of `TABLE_3`.

    Raises:
        ValueError: flags that no row can have, or a size that would be no whole
            number.
    """
    names = {field.name for field in dataclasses.fields(translation.Flags)}
    values = {
        name: value
        for name, value in dataclasses.asdict(flags).items()
        if name in names and value is not None
    }
    base = translation.Flags(**BASE_FLAGS | values)
    translation_defaults.check(base)
    sizes = base_sizes(base)
    rows = []
    for name in row_names:
        changes = changes_of_row(name, sizes)
        if name in EPOCHS:
            changes["epochs"] = EPOCHS[name] * base.epochs
        row_flags = dataclasses.replace(base, **changes)
        if name == "base":
            changes = sizes
        rows.append(Row(name, changes, row_flags))
    return rows


def base_sizes(base: translation.Flags) -> dict[str, Any]:
    """Returns the sizes of base by the names of `TABLE_3`."""
    options = configuration.changes(base)
    config = translation_defaults.SIZES[base.size](8, **options).config
    sizes = {name: config[name] for name in TABLE_3_BASE}
    key_dim = config["key_dim"] or sizes["embedding_dim"] // sizes["num_heads"]
    return sizes | {
        "num_layers": stacks.depths(sizes["num_layers"]),
        "key_dim": key_dim,
        "value_dim": config["value_dim"] or key_dim,
        "dropout": base.dropout,
        "label_smoothing": base.label_smoothing,
    }


def changes_of_row(name: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """Returns the flags that a row changes of base.

    Args:
        name: str, of `TABLE_3`.
        sizes: dict, see `base_sizes`.

    Raises:
        ValueError: a size would be no whole number.
    """
    changes = dict(TABLE_3[name])
    for option, value in changes.items():
        if option == "num_layers":
            factor = value / PAPER_SIZES[option]
            changes[option] = tuple(max(1, round(n * factor)) for n in sizes[option])
        elif option in PAPER_SIZES and option != "dropout":
            changes[option] = _scaled(name, option, sizes[option])
    if name in LABEL_SMOOTHING:
        changes["label_smoothing"] = LABEL_SMOOTHING[name]
    return changes


def _scaled(name, option, size):
    """Scales a size of base by what a row multiplies it by in the paper."""
    value, base_value = TABLE_3[name][option], PAPER_SIZES[option]
    scaled, remainder = divmod(size * value, base_value)
    if remainder or not scaled:
        flag = f"--{option.replace('_', '-')}"
        raise ValueError(
            f"{flag} of row {name} must be a whole number, {value} / {base_value} of "
            f"that of base; got {size} for base. Choose another {flag}, or leave the "
            "row out of --rows."
        )
    return scaled


def run(row: Row, seed: int, out: pathlib.Path) -> None:
    """Runs the translation recipe in a process of its own, unless it has.

    Raises:
        ChildProcessError: the process failed.
    """
    if seed in finished_results(row, out):
        print(f"{row.name}, seed {seed}: finished before", flush=True)
        return
    flags = row.with_seed(seed, out)
    command = command_of(flags)
    print(f"{row.name}, seed {seed}: {' '.join(command[1:])}", flush=True)
    process = subprocess.run(command, check=False)
    if process.returncode:
        raise ChildProcessError(
            f"The run of row {row.name}, seed {seed}, in {flags.out} ended with status "
            f"{process.returncode}; what it printed says why. The same command resumes "
            "it."
        )


def command_of(flags: translation.Flags) -> list[str]:
    """Returns the command of the translation recipe for flags."""
    arguments = []
    for field in dataclasses.fields(flags):
        value = getattr(flags, field.name)
        if value == field.default:
            continue
        name = runs.FLAG_NAMES.get(field.name, field.name).replace("_", "-")
        arguments.append(f"--{name}")
        if field.default is not False:  # such a flag has no value
            arguments += map(str, value if isinstance(value, tuple) else [value])
    return [sys.executable, "-m", "keras_tfm.recipes.translation", *arguments]


def finished_results(row: Row, out: pathlib.Path) -> dict[int, dict]:
    """Reads the results of the finished runs of a row, by their seed.

    Raises:
        ValueError: a file is damaged.
    """
    by_seed = {}
    for file in out.glob(f"{row.name}-seed*/result.json"):
        result = Config(read_json(file), file)
        flags = Config(result.typed("flags", dict), file)
        for name in AVERAGED:
            result.number(name)
        if flags.integer("epochs") == row.flags.epochs:
            by_seed[flags.integer("seed")] = result
    return dict(sorted(by_seed.items()))


def write_table(flags: Flags, out: pathlib.Path) -> list[dict]:
    """Writes the table of all finished runs in a folder, and returns it."""
    names = [name for name in TABLE_3 if any(out.glob(f"{name}-seed*/result.json"))]
    rows = make_rows(flags, names)
    results = [finished_results(row, out) for row in rows]
    table = [make_entry(*pair) for pair in zip(rows, results, strict=True) if pair[1]]
    runs.write_json(out / "table.json", {"rows": table})
    (out / "table.md").write_text(markdown(table), encoding="utf-8")
    if len(table) > 1 and table[0]["row"] == "base":
        plot.ablation(table).savefig(out / "table.png", dpi=150)
    return table


def make_entry(row: Row, results: dict[int, dict]) -> dict:
    """Returns the entry of a row: means and deviations over seeds."""
    entry = {"row": row.name, "changes": row.changes, "seeds": list(results)}
    for name in AVERAGED:
        values = [result[name] for result in results.values()]
        entry[name] = statistics.fmean(values)
        if name in SPREAD and len(values) > 1:
            entry[f"{name}_deviation"] = statistics.stdev(values)
    return entry | {"paper": PUBLISHED[row.name]._asdict()}


def markdown(table: list[dict]) -> str:
    """Formats the entries of a table as Markdown."""
    lines = [
        "| row | changed | parameters | perplexity, validation | BLEU, test | seeds "
        "| minutes | FLOPs | paper: perplexity | paper: BLEU | paper: parameters |",
        f"|{'---|' * 11}",
    ]
    for entry in table:
        changes = ", ".join(
            f"{name} {' + '.join(map(str, value)) if name == 'num_layers' else value}"
            for name, value in entry["changes"].items()
        )
        perplexity = f"{entry['validation_perplexity']:.2f}"
        bleu = f"{entry['bleu']:.2f} ± {entry['bleu_half_width_95']:.2f}"
        if len(entry["seeds"]) > 1:
            perplexity += f" (s {entry['validation_perplexity_deviation']:.2f})"
            bleu += f" (s {entry['bleu_deviation']:.2f})"
        paper = entry["paper"]
        millions = f"{paper['parameters']} million" if paper["parameters"] else ""
        cells = [entry["row"], changes, f"{entry['parameters']:,.0f}", perplexity, bleu]
        cells += [" ".join(map(str, entry["seeds"]))]
        cells += [f"{entry['training_minutes']:.1f}", f"{entry['training_flops']:.1e}"]
        cells += [f"{paper['perplexity']:.2f}", f"{paper['bleu']:.1f}", millions]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", LEGEND, ""])


if __name__ == "__main__":
    runs.start(main, Flags, __doc__)
