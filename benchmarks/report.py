"""Prints the tables of a benchmark, and writes them as JSON.

Every benchmark calls `report`. With `--json FILE` it also writes the figures
and what a reader needs to judge them: command, processor, versions, commit and
date. `python -m benchmarks.page` makes docs/benchmarks.md from these files.
"""

import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import tyro

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = "benchmarks/results"
PACKAGES = ("keras", "tensorflow", "jax", "torch")
PACKAGES += ("ctranslate2", "transformers", "keras-hub")
# Instruction sets, and their names in /proc/cpuinfo.
FEATURES = {name: name for name in ("avx512_bf16", "avx512_vnni")}
FEATURES |= {"amx": "amx_tile"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
    """Flags of every benchmark."""

    json: str = ""
    """File to write the figures to, as JSON; empty: no file."""


def parse(flags: type, description: str) -> Any:
    """Reads the flags of the command line.

    Args:
        flags: dataclass, a subclass of `Flags`.
        description: str, the beginning of the help.
    """
    # By default, its help would begin with the path of the file.
    program = f"python -m benchmarks.{pathlib.Path(sys.argv[0]).stem}"
    return tyro.cli(flags, description=description, prog=program)


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: str.
        unit: str, empty for names and counts.
        format: str, how Python formats a number of this column.
    """

    name: str
    unit: str = ""
    format: str = ""


class Table(NamedTuple):
    """A table of a benchmark.

    Attributes:
        columns: list of `Column`.
        rows: iterable of rows, which may measure each row when it is due. A
            cell is str, a number, or None if nothing was measured.
        title: str.
        notes: list of str, further facts; `rows` may add to it.
    """

    columns: list[Column]
    rows: Iterable[Iterable[Any]]
    title: str = ""
    notes: list[str] | tuple[str, ...] = ()


def report(benchmark: str, flags: Flags, *tables: Table) -> None:
    """Prints tables row by row, and writes them to the file of `--json`.

    Args:
        benchmark: str, name of the module.
        flags: `Flags` of the benchmark. If it has `cores`, these count.
        *tables: `Table`.
    """
    document = circumstances(benchmark, flags)
    documents = []
    for table in tables:
        if documents or table.title:
            print(f"\n{table.title}\n" if table.title else "")
        columns = [Column(*column) for column in table.columns]
        print(markdown_row(map(title, columns)))
        print("|" + "---|" * len(columns))
        rows = []
        for row in table.rows:
            rows.append([rounded(cell) for cell in row])
            print(markdown_row(map(cell_text, columns, rows[-1])), flush=True)
        for note in table.notes:
            print(note)
        columns = [column._asdict() for column in columns]
        documents.append(
            {
                "title": table.title,
                "columns": columns,
                "rows": rows,
                "notes": list(table.notes),
            }
        )
    if flags.json:
        document["tables"] = documents
        pathlib.Path(flags.json).write_text(to_json(document), "utf-8")


def markdown_row(cells: Iterable[str]) -> str:
    """Joins cells to a row of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def title(column: Column) -> str:
    """Returns the name of a column with its unit."""
    return f"{column.name}, {column.unit}" if column.unit else column.name


def cell_text(column: Column, value: Any) -> str:
    """Formats a cell."""
    if value is None:
        return ""
    return value if isinstance(value, str) else format(value, column.format)


def rounded(value: Any) -> Any:
    """Rounds a float to six digits, which is more than any benchmark has."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def circumstances(benchmark: str, flags: Flags) -> dict[str, Any]:
    """Returns under which circumstances a benchmark runs here and now.

    Args:
        benchmark: str, name of the module.
        flags: `Flags`.

    Returns:
        dict with `benchmark`, `command`, `processor`, `versions`, `commit` and
        `date`.
    """
    return {
        "benchmark": benchmark,
        "command": command_line(benchmark, sys.argv[1:]),
        "processor": processor(getattr(flags, "cores", None)),
        "versions": versions(),
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def command_line(benchmark: str, arguments: list[str]) -> str:
    """Returns a command as users type it, without `--json` and without folders.

    Args:
        benchmark: str, name of the module.
        arguments: list of str.
    """
    words, remaining = [f"python -m benchmarks.{benchmark}"], iter(arguments)
    for argument in remaining:
        if argument == "--json":
            next(remaining, None)  # its file
        elif not argument.startswith("--json="):
            # An absolute path, alone or behind the name of its flag.
            name = re.sub(r"(^|=)/(?:.*/)?", r"\1", argument)
            words.append(shlex.quote(name))
    if backend := os.environ.get("KERAS_BACKEND"):
        words.insert(0, f"KERAS_BACKEND={backend}")
    return " ".join(words)


def processor(cores: int | None = None) -> dict[str, Any]:
    """Returns model, instruction sets and used cores of this machine.

    Args:
        cores: int or None for those that this process may use.
    """
    if cores is None:
        get_affinity = getattr(os, "sched_getaffinity", None)
        cores = len(get_affinity(0)) if get_affinity else os.cpu_count()
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        text = ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    flags = re.search(r"^flags\s*:\s*(.+)$", text, re.M)
    words = flags[1].split() if flags else ()
    return {
        "model": model[1] if model else platform.processor() or platform.machine(),
        "features": [name for name, word in FEATURES.items() if word in words],
        "cores": cores,
    }


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the installed libraries."""
    numbers = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            numbers[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return numbers


def commit() -> str:
    """Returns the commit of the repository, with `+changes` if files differ.

    Earlier results are no change. Outside a repository it is empty.
    """
    changes = git("status", "--porcelain", "--", ".", f":!{RESULTS}")
    return git("rev-parse", "--short=7", "HEAD") + ("+changes" if changes else "")


def git(*arguments: str) -> str:
    """Returns what git prints, or nothing if it fails."""
    try:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def to_json(document: dict[str, Any]) -> str:
    """Formats JSON with each row and each column on one line."""
    text = json.dumps(document, indent=1, ensure_ascii=False)
    innermost = re.compile(r"([\[{])\n\s*([^\[\]{}]*?)\n\s*([\]}])")
    return (
        innermost.sub(
            lambda match: match[1] + re.sub(r"\n\s*", " ", match[2]) + match[3], text
        )
        + "\n"
    )
