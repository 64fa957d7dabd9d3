"""Measures `keras-tfm serve` with many clients and after a worker dies.

* Run      python -m benchmarks.server --model FOLDER --text FILE (see --help)
* Needs    pip install keras-tfm[serve]
* Counts   requests per second, and milliseconds until an answer (median, 95th
           and 99th percentile), of clients that each send the next sentence
           when they have their answer; each answer is compared with the
           translation of the translator itself; resident memory of all
           processes of the server, after a minute (or a third of a shorter
           time) and at the end

The server runs in its own process and is reached over the loopback address; the
clients run in this process. The order of the sentences is random, with a seed.
"""

import asyncio
import collections
import dataclasses
import os
import random
import socket
import statistics
import subprocess
import sys
import time

from benchmarks import report
from benchmarks.report import Column

COLUMNS = [
    Column("server"),
    Column("clients"),
    Column("rate", "requests/s", ".1f"),
    Column("median", "ms", ",.0f"),
    Column("95%", "ms", ",.0f"),
    Column("99%", "ms", ",.0f"),
    Column("memory after a minute", "MB", ",.0f"),
    Column("at the end", "MB", ",.0f"),
    Column("answers"),
]
NO_BATCHES = ("--batch-size", "1")


@dataclasses.dataclass(frozen=True)
class Flags(report.Flags):
    """Flags of this command."""

    model: str
    """Name of a preset, or folder of a saved `Translator`."""
    text: str
    """File of source sentences, one per line."""
    rows: int = 500
    """Number of sentences, from the start of the file."""
    words: int | None = None
    """Maximum words of a sentence; None: no limit."""
    clients: tuple[int, ...] = (1, 8, 32, 128)
    """Numbers of concurrent clients; a row of the table for each."""
    requests: int = 5_000
    """Maximum requests of a row of the table."""
    seconds: float = 60.0
    """Maximum seconds of a row of the table."""
    workers: int = 1
    """Processes that hold the model."""
    beam_size: int | None = None
    """Beam size; 1 is greedy search; None: that of the model."""
    matmul_precision: str | None = None
    """Precision of matrix products: float32, bfloat16 or int8."""
    engine: str | None = None
    """Engine: keras, ctranslate2 or auto."""
    compute_type: str | None = None
    """Number format of CTranslate2, such as int8."""
    unbatched: bool = True
    """Also measure the server with batches of one sentence."""


class Server:
    """Runs `keras-tfm serve` in another process.

    Args:
        flags: `Flags`.
        *options: str. Further options of the command.
    """

    def __init__(self, flags, *options):
        with socket.socket() as free_socket:
            free_socket.bind(("127.0.0.1", 0))
            self.port = free_socket.getsockname()[1]
        command = ["serve", flags.model, "--port", str(self.port), *options]
        command += ["--name", "model", "--workers", str(flags.workers)]
        command.append("--compile-first")
        for name, value in decoding_options(flags).items():
            command += ["--" + name.replace("_", "-"), str(value)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "keras_tfm", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self):
        if "http://" not in self.process.stdout.readline():
            raise RuntimeError(
                "The server did not start. Run `keras-tfm serve` to see why."
            )
        return f"http://127.0.0.1:{self.port}/translate"

    def __exit__(self, *fault):
        self.process.terminate()
        self.process.communicate(timeout=120)

    def family(self):
        """Returns the process of the server and its workers."""
        import psutil

        process = psutil.Process(self.process.pid)
        return [process, *process.children(recursive=True)]

    def megabytes(self):
        """Returns the resident memory of all processes."""
        return sum(process.memory_info().rss for process in self.family()) / 1e6


async def load(address, expected, clients, flags):
    """Sends requests until the limits of the flags are reached.

    Args:
        address: str. URL of the server.
        expected: dict from sentence to its translation.
        clients: int. Number of concurrent clients.
        flags: `Flags`.

    Returns:
        Seconds of each answer, a `Counter` of their kinds, and the total
        seconds.
    """
    import aiohttp

    texts = random.Random(0).choices(list(expected), k=flags.requests)
    requests, times, kinds = iter(texts), [], collections.Counter()
    load_start = time.perf_counter()

    async def client(session):
        while time.perf_counter() - load_start < flags.seconds:
            text = next(requests, None)
            if text is None:
                return
            start = time.perf_counter()
            try:
                async with session.post(address, json={"text": text}) as answer:
                    body = await answer.json()
                    kind = str(answer.status)
            except aiohttp.ClientError as fault:
                body, kind = None, type(fault).__name__
            times.append(time.perf_counter() - start)
            if kind == "200":
                kind = answer_kind(body["translations"][0]["text"], text, expected)
            kinds[kind] += 1

    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return times, kinds, time.perf_counter() - load_start


def answer_kind(translation, text, expected):
    """Compares an answer with the expected translations.

    In bfloat16 a translation can differ, since rounding depends on the batch.
    """
    if translation == expected[text]:
        return "200"
    mixed_up = translation in expected.values()
    return "another text's answer" if mixed_up else "another translation of it"


async def load_and_watch_memory(server, *arguments):
    """Returns what `load` returns, and the memory after a minute."""
    minute = min(60, arguments[-1].seconds / 3)
    loading = asyncio.create_task(load(*arguments))
    await asyncio.wait([loading], timeout=minute)
    megabytes = server.megabytes()
    return *await loading, megabytes


async def load_with_dying_worker(server, address, expected, flags):
    """Kills a worker while 32 clients send requests."""

    async def kill():
        await asyncio.sleep(5)
        server.family()[-1].kill()

    killing = asyncio.create_task(kill())
    results = await load_and_watch_memory(server, address, expected, 32, flags)
    await killing
    return results


def make_row(server, name, clients, times, kinds, total_seconds, megabytes):
    """Returns a row of the table."""
    rate = len(times) / total_seconds
    percentiles = statistics.quantiles(times, n=100, method="inclusive")
    median, p95, p99 = (1000 * percentiles[i] for i in (49, 94, 98))
    answers = ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common())
    sizes = megabytes, server.megabytes()
    return name, clients, rate, median, p95, p99, *sizes, answers


def measure(flags):
    """Yields the rows of the table."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with open(flags.text, encoding="utf-8") as file:
        texts = [line.strip() for line in file]
    max_words = flags.words or float("inf")
    texts = [text for text in texts if 0 < len(text.split()) <= max_words]
    texts = list(dict.fromkeys(texts[: flags.rows]))
    expected = dict(zip(texts, translate(flags, texts), strict=True))
    servers = {"batches": ()} | ({"none": NO_BATCHES} if flags.unbatched else {})
    for name, options in servers.items():
        server = Server(flags, *options)
        with server as address:
            warm_up = dataclasses.replace(flags, requests=200, seconds=60)
            asyncio.run(load(address, expected, 32, warm_up))
            for clients in flags.clients:
                loading = load_and_watch_memory(
                    server, address, expected, clients, flags
                )
                yield make_row(server, name, clients, *asyncio.run(loading))
            if name == "batches" and flags.workers > 1:
                dying = load_with_dying_worker(server, address, expected, flags)
                yield make_row(server, "a worker dies", 32, *asyncio.run(dying))


def main(flags: Flags):
    """Measures and prints the table."""
    report.report("server", flags, report.Table(COLUMNS, measure(flags)))


def translate(flags, texts):
    """Translates with the translator itself, without a server."""
    from keras_tfm import pipelines

    options = decoding_options(flags)
    return pipelines.Translator.from_preset(flags.model, **options)(texts)


def decoding_options(flags):
    """Returns the options of the translator that the flags set."""
    names = ("beam_size", "matmul_precision", "engine", "compute_type")
    options = {name: getattr(flags, name) for name in names}
    return {name: value for name, value in options.items() if value is not None}


if __name__ == "__main__":
    main(report.parse(Flags, __doc__))
