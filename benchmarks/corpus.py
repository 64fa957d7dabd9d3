"""Memory a pair and batches a second of an encoded corpus.

Run      python -m benchmarks.corpus FOLDER [--pairs 5000000] [--data tatoeba]
Prints   disk and memory in bytes a pair, CPU seconds to encode and to open, and
         batches a second of one core, at a tenth of the pairs and at all.

The pairs are those of the corpus, repeated, so that lengths are real. Memory is
that of the process after its imports are subtracted. `anonymous` is what the
process holds; `mapped` are pages of the files, which the system may drop, and
which all readers of a machine share.
"""

import dataclasses
import itertools
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator

import tyro

from benchmarks import report
from benchmarks.report import Column
from keras_tfm import text

BATCHES = 2_000  # to time
OPTIONS = {"batch_tokens": 8_192, "num_buckets": 8}


@dataclasses.dataclass(frozen=True)
class Flags(report.Flags):
    """What to measure."""

    folder: tyro.conf.Positional[str]
    """Folder for the encoded corpora, about 64 bytes a pair."""
    pairs: int = 5_000_000
    """Pairs of the larger corpus."""
    data: str = "tatoeba"
    """Corpus of the translation recipe whose pairs are repeated."""
    open: bool = False
    """Measure a corpus in FOLDER, which exists."""


def memory() -> dict[str, int]:
    """Returns the memory of this process, in bytes."""
    names = {"VmHWM": "peak", "RssAnon": "anonymous", "RssFile": "mapped"}
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return {name: 1024 * int(values[key].split()[0]) for key, name in names.items()}


def encode(flags: Flags, folder: pathlib.Path, count: int) -> dict:
    """Encodes a corpus and returns what it costs."""
    from keras_tfm.recipes import corpora

    pairs = list(corpora.load(flags.data).train)
    preset = pathlib.Path(text.__file__).parents[1] / "presets" / "en-de"
    vocabulary = text.load_vocabulary(preset / "sentencepiece.model")
    start, start_cpu = time.perf_counter(), time.process_time()
    repeated = itertools.islice(itertools.cycle(pairs), count)
    text.encode_corpus(repeated, folder, vocabulary)
    size = sum(file.stat().st_size for file in folder.iterdir())
    return {
        "disk bytes a pair": size / count,
        "CPU microseconds a pair": 1e6 * (time.process_time() - start_cpu) / count,
        "seconds": time.perf_counter() - start,
    }


def measure(folder: str) -> dict:
    """Reads batches of an encoded corpus, and returns what they cost."""
    at_start = memory()
    start = time.process_time()
    corpus = text.EncodedCorpus(folder)
    count = len(corpus)
    batches = text.Batches(corpus, corpus.vocabulary, **OPTIONS)
    opened = memory()
    results = {"CPU seconds to open": time.process_time() - start}
    start = time.process_time()
    batches.batch(0)
    results["CPU seconds to order an epoch"] = time.process_time() - start
    for part, name in (((0, 1), "whole batches"), ((3, 8), "eighths of batches")):
        division = text.division.make_division(part, 8)
        start = time.process_time()
        for step in range(BATCHES):
            batches.divided_batch(step, division)
        rate = BATCHES / (time.process_time() - start)
        results[f"{name} a CPU second"] = rate
    at_end = memory()
    for name in ("anonymous", "mapped"):
        results[f"{name} bytes a pair, opened"] = (
            opened[name] - at_start[name]
        ) / count
        results[f"{name} bytes a pair, reading"] = (
            at_end[name] - at_start[name]
        ) / count
    results["peak bytes a pair"] = (at_end["peak"] - at_start["peak"]) / count
    return results | {"steps an epoch": batches.steps_per_epoch}


def costs(flags: Flags, counts: tuple[int, ...]) -> Iterator[tuple]:
    """Encodes corpora, measures each in its own process, and yields rows."""
    results = []
    for count in counts:
        folder = pathlib.Path(flags.folder) / f"{count}"
        encoding = {} if folder.exists() else encode(flags, folder, count)
        command = [sys.executable, "-m", "benchmarks.corpus", str(folder), "--open"]
        process = subprocess.run(command, check=True, capture_output=True)
        results.append(encoding | json.loads(process.stdout))
    for name in dict.fromkeys(name for costs in results for name in costs):
        yield name, *(costs.get(name) for costs in results)


def main(flags: Flags) -> None:
    """Measures and prints the table."""
    if flags.open:
        print(json.dumps(measure(flags.folder)))
        return
    counts = flags.pairs // 10, flags.pairs
    columns = [Column("cost")]
    columns += [Column(f"{count:,} pairs", format=",.2f") for count in counts]
    report.report("corpus", flags, report.Table(columns, costs(flags, counts)))


if __name__ == "__main__":
    main(report.parse(Flags, __doc__))
