"""How fast hypotheses are found, beside the programs that others use for it.

* Run      python -m benchmarks.decode             (see --help)
* Needs    pip install ctranslate2 transformers; about 2 GB a row of the table
* Counts   target tokens a second: what is decoded, whatever it says

Each program runs in a process of its own, prepared and warmed up first. Then
they do the same work in turn, round after round, so that a machine that slows
down slows them all; the table has the median of the rounds.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time

import tyro


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is measured."""

    rows: tuple[str, ...] = ()
    """Which programs, by the names in the table; all if none is named."""
    beam_size: int = 1
    """1 is greedy."""
    sentences: int = 32
    """Source sentences a round."""
    batch_size: int = 32
    """Sentences decoded at once."""
    source_length: int = 24
    """Tokens of each source."""
    target_length: int = 32
    """Tokens of each hypothesis."""
    vocabulary_size: int = 32_000
    """Rows of the joint table of embeddings."""
    rounds: int = 5
    """Times that each program does the work, in turn."""
    cores: int = 2
    """Processor cores that each may use."""
    model: str = ""
    """Folder of a `Translator`; empty: base size with random weights."""
    text: str = ""
    """File of source sentences for that model."""
    reference: str = ""
    """File of their translations, for BLEU."""
    shortlist: str = ""
    """File of a `Shortlist` for that model; at random weights one is drawn."""


def programs(cores):
    """The rows of the table: name, peer, environment, further settings."""
    backends = ("tensorflow", "jax", "torch")
    rows = {f"ours, {name}": ("ours", name, {}) for name in backends}
    for name in backends:
        rows[f"ours, {name}, shortlist"] = ("ours", name, {"listed": True})
    half = {"precision": "bfloat16"}
    for name in backends[1:]:
        rows[f"ours, {name}, bfloat16"] = ("ours", name, half)
        both = {**half, "listed": True}
        rows[f"ours, {name}, bfloat16, shortlist"] = ("ours", name, both)
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


def start(row, job, cores):
    """Starts a program and waits until it has decoded once."""
    peer, backend, extra = row
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "OMP_NUM_THREADS": str(extra.get("threads", cores)),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.decode_peers", peer],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, range(cores)),
    )
    process.stdin.write(json.dumps(job | extra) + "\n")
    process.stdin.flush()
    return process, answer(process)


def answer(process):
    """Reads one line of a program."""
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args[3]} ended with {process.wait()}")
    return json.loads(line)


def source_ids(settings):
    """Encodes the sentences, if there are any."""
    if not settings.text:
        return []
    from keras_tfm.text import Vocabulary

    with open(settings.text, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    vocabulary = Vocabulary.load(os.path.join(settings.model, "source.model"))
    rows = [list(map(int, row)) for row in vocabulary.encode(lines)]
    if not all(rows):
        raise SystemExit(f"{settings.text} has empty lines.")
    return rows


def main(settings: Settings):
    """Measures and prints the table."""
    job = dataclasses.asdict(settings) | {"sources": source_ids(settings)}
    table = programs(settings.cores)
    chosen = settings.rows or tuple(table)
    unknown = [name for name in chosen if name not in table]
    if unknown:
        raise SystemExit(f"No such rows: {unknown}. There are: {list(table)}.")
    running = {}
    for name in chosen:
        running[name] = start(table[name], job, settings.cores)
    times = {name: [] for name in chosen}
    for _ in range(settings.rounds):
        for name, (process, _) in running.items():
            time.sleep(0.5)  # the threads of the one before may still spin
            process.stdin.write("go\n")
            process.stdin.flush()
            times[name].append(answer(process)["seconds"])
    bleu = bleu_of(settings)
    titles = ["program", "tokens a second", "least to most", "seconds to the first"]
    titles += ["BLEU"] if bleu else []
    print("|", " | ".join(titles), "|")
    print("|---" * len(titles) + "|")
    for name, (process, ready) in running.items():
        process.stdin.close()
        process.wait()
        speeds = sorted(ready["tokens"] / seconds for seconds in times[name])
        cells = [
            name,
            f"{statistics.median(speeds):,.0f}",
            f"{speeds[0]:,.0f} to {speeds[-1]:,.0f}",
            f"{ready['first']:.1f}",
        ]
        cells += [f"{bleu(ready['ids']):.2f}"] if bleu else []
        print("|", " | ".join(cells), "|", flush=True)


def bleu_of(settings):
    """Gives the function from ids to BLEU; None without reference."""
    if not settings.reference:
        return None
    import sacrebleu

    from keras_tfm.text import Vocabulary

    vocabulary = Vocabulary.load(os.path.join(settings.model, "target.model"))
    with open(settings.reference, encoding="utf-8") as file:
        references = [line.rstrip("\n") for line in file]

    def bleu(ids):
        return sacrebleu.corpus_bleu(vocabulary.decode(ids), [references]).score

    return bleu


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
