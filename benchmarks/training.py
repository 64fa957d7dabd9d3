"""Measures the speed of training, beside other libraries.

* Run      python -m benchmarks.training             (see --help)
* Needs    pip install transformers keras-hub; about 3 GB per row of the table
* Counts   target tokens per second, and the share of the products that the
           machine computes at best: 1,024 x 1,024 matrices in PyTorch, in the
           precision of the row

Each program runs in its own process and is warmed up first. Then all programs
do the same steps in turn, round after round. The batch is random and has no
padding; loss, gradients, clipping and Adam are part of a step.
"""

import dataclasses
import statistics
import time

from benchmarks import report
from benchmarks.decode import SPEEDS, read_answer, start
from benchmarks.report import Column

PEERS = "benchmarks.training_peers"
PRECISIONS = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Flags(report.Flags):
    """Flags of this command."""

    rows: tuple[str, ...] = ()
    """Rows to measure, by their names in the table; all if empty."""
    size: str = "tiny"
    """Configuration of the model: tiny or base."""
    batch_size: int = 128
    """Pairs of a batch."""
    length: int = 32
    """Tokens of each source and of each target."""
    vocabulary_size: int = 10_000
    """Tokens of the joint vocabulary."""
    steps: int = 5
    """Training steps of a round."""
    rounds: int = 5
    """Rounds, in each of which all programs run in turn."""
    cores: int = 2
    """Processor cores that each program may use."""


def programs():
    """Maps row names to `(peer, backend, extra entries of the job)`."""
    rows = {}
    for precision in PRECISIONS:
        extra = {"precision": precision}
        for backend in ("tensorflow", "jax", "torch"):
            rows[f"ours, {backend}, {precision}"] = ("keras_tfm", backend, extra)
        rows[f"nn.Transformer, {precision}"] = ("torch_transformer", "torch", extra)
        rows[f"Hugging Face Marian, {precision}"] = ("hugging_face", "torch", extra)
        for backend in ("tensorflow", "jax"):
            name = f"KerasHub BART, {backend}, {precision}"
            rows[name] = ("keras_hub", backend, extra)
    return rows


def measure(flags, notes):
    """Yields the rows of the table, and adds rates of products to the notes."""
    table, job = programs(), dataclasses.asdict(flags)
    names = flags.rows or tuple(table)
    unknown = [name for name in names if name not in table]
    if unknown:
        raise SystemExit(f"Unknown rows: {unknown}. Known rows: {list(table)}.")
    running, seconds = {}, {name: [] for name in names}
    for precision in PRECISIONS:
        row = ("products", "torch", {"precision": precision})
        process, ready = start(row, job, flags.cores, PEERS)
        running[precision] = (process, ready)
        seconds[precision] = []
    for name in names:
        running[name] = start(table[name], job, flags.cores, PEERS)
    for _ in range(flags.rounds):
        for name, (process, _) in running.items():
            time.sleep(0.5)  # threads of the previous program may still spin
            process.stdin.write("go\n")
            process.stdin.flush()
            seconds[name].append(read_answer(process)["seconds"])
    ceilings = {
        precision: running[precision][1]["flops"] / min(seconds[precision])
        for precision in PRECISIONS
    }
    for precision, ceiling in ceilings.items():
        notes.append(f"Products in {precision}: {ceiling / 1e9:,.0f} GFLOP/s.")
    tokens = flags.steps * flags.batch_size * flags.length
    for name in names:
        _, ready = running[name]
        speeds = sorted(tokens / value for value in seconds[name])
        median = statistics.median(speeds)
        precision = table[name][2]["precision"]
        flops = flags.steps * ready["flops"] * median / tokens
        rate = flops / ceilings[precision]
        yield name, median, speeds[0], speeds[-1], rate, ready["first"]
    for process, _ in running.values():
        process.stdin.close()
        process.wait()


def main(flags: Flags):
    """Measures and prints the table."""
    columns = [Column("program")]
    columns += [Column(name, "tokens/s", ",.0f") for name in SPEEDS]
    columns += [Column("of the products", "", ".0%"), Column("first step", "s", ".1f")]
    notes: list[str] = []
    table = report.Table(columns, measure(flags, notes), notes=notes)
    report.report("training", flags, table)


if __name__ == "__main__":
    main(report.parse(Flags, __doc__))
