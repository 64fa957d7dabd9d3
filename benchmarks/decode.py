"""Measures the speed of search, beside other translation programs.

* Run      python -m benchmarks.decode             (see --help)
* Needs    pip install ctranslate2 transformers; about 2 GB per row of the table
* Counts   target tokens per second

Each program runs in its own process and is warmed up first. Then all programs
do the same work in turn, round after round, so that a slower hour of the
machine affects all of them. The table shows the median of the rounds.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time

from benchmarks import report
from benchmarks.report import Column

SPEEDS = ("median", "lowest", "highest")  # of the rounds
ROW_GIGABYTES = 2  # memory of a program at base size, about


@dataclasses.dataclass(frozen=True)
class Flags(report.Flags):
    """Flags of this command."""

    rows: tuple[str, ...] = ()
    """Rows to measure, by their names in the table; all if empty."""
    beam_size: int = 1
    """Beam size; 1 is greedy search."""
    sentences: int = 32
    """Source sentences per round."""
    batch_size: int = 32
    """Sentences per batch."""
    source_length: int = 24
    """Tokens per source."""
    target_length: int = 32
    """Tokens per hypothesis."""
    vocabulary_size: int = 32_000
    """Tokens of the joint vocabulary."""
    rounds: int = 5
    """Rounds, in each of which all programs run in turn."""
    cores: int = 2
    """Processor cores that each program may use."""
    model: str = ""
    """Folder of a saved `Translator`; empty: base size with random weights."""
    text: str = ""
    """File of source sentences for `model`, one per line."""
    reference: str = ""
    """File of reference translations, for BLEU; empty: no BLEU."""
    shortlist: str = ""
    """File of a `Shortlist` for `model`; empty: a random shortlist."""


def programs(cores):
    """Maps row names to `(peer, backend, extra entries of the job)`."""
    backends = ("tensorflow", "jax", "torch")
    rows = {f"ours, {name}": ("keras_tfm", name, {}) for name in backends}
    for name in backends:
        extra = {"use_shortlist": True}
        rows[f"ours, {name}, shortlist"] = ("keras_tfm", name, extra)
    for name, precision in (
        ("jax", "bfloat16"),
        ("torch", "bfloat16"),
        ("torch", "int8"),
    ):
        extra = {"precision": precision}
        rows[f"ours, {name}, {precision}"] = ("keras_tfm", name, extra)
        extra = {**extra, "use_shortlist": True}
        rows[f"ours, {name}, {precision}, shortlist"] = ("keras_tfm", name, extra)
    workers = [(1, cores)] if cores == 1 else [(1, cores), (cores, 1)]
    for count, threads in workers:
        for kind in ("float32", "int8"):
            name = f"CTranslate2 {kind}, {count} x {threads}"
            extra = {"workers": count, "threads": threads, "type": kind}
            rows[name] = ("ctranslate2", "torch", extra)
    rows["Hugging Face Marian"] = ("hugging_face", "torch", {})
    for name in backends[:2]:
        rows[f"KerasHub BART, {name}"] = ("keras_hub", name, {})
    return rows


def start(row, job, cores, module="benchmarks.decode_peers"):
    """Starts a program and waits until it has done its job once."""
    peer, backend, extra = row
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "OMP_NUM_THREADS": str(extra.get("threads", cores)),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", module, peer],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, range(cores)),
    )
    process.stdin.write(json.dumps(job | extra) + "\n")
    process.stdin.flush()
    return process, read_answer(process)


def read_answer(process):
    """Reads one line of JSON from a program."""
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args[3]} exited with {process.wait()}")
    return json.loads(line)


def source_ids(flags):
    """Returns the sentences of `text` as lists of ids, or an empty list."""
    if not flags.text:
        return []
    from keras_tfm.text import Vocabulary

    with open(flags.text, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    vocabulary = Vocabulary.load(os.path.join(flags.model, "source.model"))
    rows = [list(map(int, row)) for row in vocabulary.encode(lines)]
    if not all(rows):
        raise SystemExit(f"{flags.text} has empty lines.")
    return rows


def check_memory(num_rows):
    """Checks that the machine has memory for so many programs at base size."""
    needed = ROW_GIGABYTES * num_rows
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    if needed > total:
        raise SystemExit(
            f"{num_rows} programs at once need about {needed} GB of memory; this "
            f"machine has {total:.0f} GB. Choose fewer with --rows."
        )


def measure(flags):
    """Runs all programs in turn, and yields the rows of the table."""
    job = dataclasses.asdict(flags) | {"sources": source_ids(flags)}
    table = programs(flags.cores)
    names = flags.rows or tuple(table)
    unknown = [name for name in names if name not in table]
    if unknown:
        raise SystemExit(f"Unknown rows: {unknown}. Known rows: {list(table)}.")
    if not flags.model:
        check_memory(len(names))
    running = {}
    for name in names:
        running[name] = start(table[name], job, flags.cores)
    times = {name: [] for name in names}
    for _ in range(flags.rounds):
        for name, (process, _) in running.items():
            time.sleep(0.5)  # threads of the previous program may still spin
            process.stdin.write("go\n")
            process.stdin.flush()
            times[name].append(read_answer(process)["seconds"])
    bleu = bleu_function(flags)
    for name, (process, ready) in running.items():
        process.stdin.close()
        process.wait()
        speeds = sorted(ready["tokens"] / seconds for seconds in times[name])
        row = [name, statistics.median(speeds), speeds[0], speeds[-1], ready["first"]]
        yield row + ([bleu(ready["ids"])] if bleu else [])


def main(flags: Flags):
    """Measures and prints the table."""
    columns = [Column("program")]
    columns += [Column(name, "tokens/s", ",.0f") for name in SPEEDS]
    columns += [Column("first round", "s", ".1f")]
    columns += [Column("BLEU", format=".2f")] if flags.reference else []
    report.report("decode", flags, report.Table(columns, measure(flags)))


def bleu_function(flags):
    """Returns the function from ids to BLEU, or None without a reference."""
    if not flags.reference:
        return None
    import sacrebleu

    from keras_tfm.text import Vocabulary

    vocabulary = Vocabulary.load(os.path.join(flags.model, "target.model"))
    with open(flags.reference, encoding="utf-8") as file:
        references = [line.rstrip("\n") for line in file]

    def bleu(ids):
        return sacrebleu.corpus_bleu(vocabulary.decode(ids), [references]).score

    return bleu


if __name__ == "__main__":
    main(report.parse(Flags, __doc__))
