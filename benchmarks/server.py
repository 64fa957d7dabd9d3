"""What `keras-tfm serve` stands: clients at once, and a worker that dies.

* Run      python -m benchmarks.server --model FOLDER --text FILE (see --help)
* Needs    pip install keras-tfm[serve]
* Counts   requests a second, and milliseconds until an answer (median, 95th and
           99th percentile) of clients that each ask the next sentence when they
           have their answer; each answer is held against that of the translator
           itself

The server is a process of its own, asked over the loopback address alone; this
one asks. Sentences are asked in an order drawn by a seed.
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

import tyro

SERVE = "import sys; from keras_tfm.cli import main; sys.exit(main())"
NO_BATCHES = ("--batch-size", "1")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is served, and how much is asked."""

    model: str
    """Folder of a translator, or a preset."""
    text: str
    """Sentences, one a line."""
    rows: int = 500
    """Sentences, the first of the file."""
    words: int | None = None
    """Of a sentence, at most; None: any number."""
    clients: tuple[int, ...] = (1, 8, 32, 128)
    """At once."""
    requests: int = 5_000
    """Of each row of the table, at most."""
    seconds: float = 60.0
    """Of each row, at most."""
    workers: int = 1
    """Processes with the model."""
    beam_size: int | None = None
    """1 is greedy; else as the model comes."""
    matmul_precision: str | None = None
    """Of products: bfloat16 on JAX and PyTorch."""
    without: bool = True
    """Measure without batches too."""


class Server:
    """`keras-tfm serve`, as a process.

    Args:
        settings: `Settings`.
        *options: str, of the command.
    """

    def __init__(self, settings, *options):
        with socket.socket() as place:
            place.bind(("127.0.0.1", 0))
            self.port = place.getsockname()[1]
        command = ["serve", settings.model, "--port", str(self.port), *options]
        command += ["--name", "model", "--workers", str(settings.workers)]
        if settings.beam_size is not None:
            command += ["--beam-size", str(settings.beam_size)]
        if settings.matmul_precision is not None:
            command += ["--matmul-precision", settings.matmul_precision]
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self):
        if "http://" not in self.process.stdout.readline():
            raise RuntimeError("The server did not start: run it by hand.")
        return f"http://127.0.0.1:{self.port}/translate"

    def __exit__(self, *fault):
        self.process.terminate()
        self.process.communicate(timeout=120)


async def load(address, wanted, clients, settings):
    """Asks until enough has been asked.

    Args:
        address: str.
        wanted: dict from sentence to its translation.
        clients: int, that ask at once.
        settings: `Settings`.

    Returns:
        Seconds of each answer, a `Counter` of what they were, and the seconds
        of all.
    """
    import aiohttp

    texts = random.Random(0).choices(list(wanted), k=settings.requests)
    coming, times, kinds = iter(texts), [], collections.Counter()
    begun = time.perf_counter()

    async def client(session):
        while time.perf_counter() - begun < settings.seconds:
            text = next(coming, None)
            if text is None:
                return
            start = time.perf_counter()
            try:
                async with session.post(address, json={"text": text}) as answer:
                    found = await answer.json()
                    kind = str(answer.status)
            except aiohttp.ClientError as fault:
                found, kind = None, type(fault).__name__
            times.append(time.perf_counter() - start)
            if kind == "200":
                kind = judged(found["translations"][0]["text"], text, wanted)
            kinds[kind] += 1

    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return times, kinds, time.perf_counter() - begun


def judged(said, text, wanted):
    """What an answer is. In bfloat16 rounding hangs on the batch."""
    if said == wanted[text]:
        return "200"
    mixed = said in wanted.values()
    return "another text's answer" if mixed else "another translation of it"


async def with_a_death(address, wanted, settings, process):
    """Ends a worker while 32 clients ask."""
    import psutil

    async def kill():
        await asyncio.sleep(5)
        family = psutil.Process(process.pid).children(recursive=True)
        workers = [one for one in family if ":Workers" in " ".join(one.cmdline())]
        workers[0].kill()

    killed = asyncio.create_task(kill())
    found = await load(address, wanted, 32, settings)
    await killed
    return found


def row(name, clients, times, kinds, whole):
    """Prints a row of the table."""
    shares = statistics.quantiles(times, n=100, method="inclusive")
    middle, most, last = (1000 * shares[i] for i in (49, 94, 98))
    said = ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common())
    print(
        f"| {name} | {clients} | {len(times) / whole:.1f} | {middle:.0f} | {most:.0f} "
        f"| {last:.0f} | {said} |",
        flush=True,
    )


def main(settings: Settings):
    """Measures and prints the table."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with open(settings.text, encoding="utf-8") as file:
        texts = [line.strip() for line in file]
    most = settings.words or float("inf")
    texts = [text for text in texts if 0 < len(text.split()) <= most]
    texts = list(dict.fromkeys(texts[: settings.rows]))
    wanted = dict(zip(texts, translated(settings, texts), strict=True))
    print("| server | clients | requests a second | median, ms | 95% | 99% | answers |")
    print("|---|---|---|---|---|---|---|")
    ways = {"batches": ()} | ({"none": NO_BATCHES} if settings.without else {})
    for name, options in ways.items():
        server = Server(settings, *options)
        with server as address:
            warm = dataclasses.replace(settings, requests=200, seconds=60)
            asyncio.run(load(address, wanted, 32, warm))
            for clients in settings.clients:
                row(
                    name,
                    clients,
                    *asyncio.run(load(address, wanted, clients, settings)),
                )
            if name == "batches":
                found = with_a_death(address, wanted, settings, server.process)
                row("a worker dies", 32, *asyncio.run(found))


def translated(settings, texts):
    """What the translator itself says."""
    from keras_tfm import pipelines

    named = {
        name: getattr(settings, name) for name in ("beam_size", "matmul_precision")
    }
    given = {name: value for name, value in named.items() if value is not None}
    return pipelines.Translator.from_preset(settings.model, **given)(texts)


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
