"""Runs worker processes on this machine and replaces those that are lost."""

import asyncio
import contextlib
import itertools
import logging
import os
import pickle
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from keras_tfm import compile_cache
from keras_tfm.server.engine import Job
from keras_tfm.server.errors import FULL, Unavailable
from keras_tfm.server.limits import Limits
from keras_tfm.server.places import Places
from keras_tfm.server.worker_process import (
    CANCEL,
    END,
    ERROR,
    LOAD,
    PING,
    SIZE_BYTES,
    STATE,
    STREAM,
    encode,
)

_log = logging.getLogger(__name__)
LOST = "The worker was lost. Try again."
UNREAD_BYTES = 2**26  # of requests that a worker has not read; more are rejected
RESTART_DELAYS = (0, 1, 5, 30)  # seconds before a lost worker is replaced again
# Seconds:
LONG_LIFE = 60  # after which a lost worker is replaced at once
END_TIMEOUT = 10  # for a worker to end
PING_INTERVAL = 5
PING_TIMEOUT = 3  # without an answer others are preferred
HANG_TIMEOUT = 60  # after which it is killed
# Ctrl-C in a terminal reaches the parent alone.
OWN_GROUP: Any = {"process_group": 0} if os.name == "posix" else {}
COMMAND = (sys.executable, "-P", "-m", "keras_tfm.server.worker_process")


class Worker:
    """A worker process and the requests that it is answering.

    Args:
        environment: dict, environment variables of the process.
    """

    def __init__(self, environment: dict[str, str]):
        self.environment = environment
        self.weight = 0  # of the requests in flight
        self.is_ready = False  # it has loaded its models and answers
        self.num_asked = 0  # requests
        self._process: asyncio.subprocess.Process | None = None
        self._numbers = itertools.count()
        self._replies: dict[int, asyncio.Queue] = {}

    async def run(
        self, models: tuple, lengths: Sequence[int], loaded: asyncio.Future
    ) -> None:
        """Keeps a process running until the task is canceled.

        Args:
            models: arguments of `local.load`.
            lengths: see `warm_up`; for a process that replaces another.
            loaded: is done when the first process has loaded the models, or
                gets its error.
        """
        loop, delays = asyncio.get_running_loop(), iter(RESTART_DELAYS)
        while True:
            start = loop.time()
            try:
                await self._live(models, lengths, loaded)
            except Exception as error:
                if not loaded.done():
                    loaded.set_exception(error)
                    return
                _log.error("A worker cannot be replaced. %s", error)
            if loop.time() - start > LONG_LIFE:
                delays = iter(RESTART_DELAYS)
            await asyncio.sleep(next(delays, RESTART_DELAYS[-1]))

    async def _live(self, models, lengths, loaded):
        """Starts a process and returns when it has ended."""
        process = self._process = await asyncio.create_subprocess_exec(
            *COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=self.environment,
            **OWN_GROUP,
        )
        reading, tasks = asyncio.ensure_future(self._read(process)), []
        try:
            await self.ask(LOAD, *models)
            self.is_ready = True
            if loaded.done():  # it replaces another
                warming = (self.warm_up(name, lengths) for name in models[0])
                tasks += map(asyncio.ensure_future, warming)
            else:
                loaded.set_result(None)
            tasks.append(asyncio.ensure_future(self._watch(process)))
            await reading
            _log.error("A worker ended with status %s.", process.returncode)
        except Unavailable:
            await reading
            raise OSError(
                "A worker ended while it loaded the models, with status "
                f"{process.returncode}. Is there enough memory?"
            ) from None
        finally:
            for task in tasks:
                task.cancel()
            await self._end(process)

    async def _read(self, process):
        """Passes replies to their requests until the process ends."""
        stream = process.stdout
        try:
            while True:
                size = int.from_bytes(await stream.readexactly(SIZE_BYTES), "big")
                number, kind, value = pickle.loads(await stream.readexactly(size))
                if number not in self._replies:  # the client has gone
                    continue
                replies = self._replies[number]
                # Of a stream a slow client gets the latest state only.
                while kind == STATE and not replies.empty():
                    replies.get_nowait()
                replies.put_nowait((kind, value))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except Exception:
            _log.exception("A worker sent what cannot be read.")
        finally:
            self.is_ready = False
            for replies in self._replies.values():
                replies.put_nowait((ERROR, Unavailable(LOST)))
        # Killing a process that has just ended would take its status away.
        await self._end(process)

    async def _watch(self, process):
        """Kills the process if it stops to answer."""
        with contextlib.suppress(Unavailable):
            while True:
                ping = asyncio.ensure_future(self.ask(PING, weight=0))
                # Without this, its error is logged if this task is canceled.
                ping.add_done_callback(
                    lambda ping: ping.cancelled() or ping.exception()
                )
                await asyncio.wait([ping], timeout=PING_TIMEOUT)
                self.is_ready = ping.done()  # else others are preferred
                await asyncio.wait([ping], timeout=HANG_TIMEOUT)
                if not ping.done():
                    _log.error("A worker does not answer and is replaced.")
                    ping.cancel()
                    _kill(process)
                    return
                ping.result()
                self.is_ready = True
                await asyncio.sleep(PING_INTERVAL)

    async def _end(self, process):
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), END_TIMEOUT)
        except TimeoutError:
            _kill(process)
            await process.wait()

    async def warm_up(self, model: str, lengths: Sequence[int]) -> None:
        """Compiles functions of a model, see `LocalClient.warm_up`."""
        try:
            await self.ask("warm_up", model, lengths, weight=0)
        except Exception as error:  # it was lost, or cannot load the model
            _log.warning("A worker was not warmed up. %s", error)

    async def ask(self, method: str, *arguments: Any, weight: int = 1) -> Any:
        """Returns the answer of a method of `LocalClient` in the process.

        Args:
            method: str.
            *arguments: the name of a model, and arguments of the method.
            weight: int >= 0, texts of a batch that the request counts as.

        Raises:
            Unavailable: the process was lost, or has too many requests.
        """
        with self._request(method, arguments, weight) as replies:
            kind, value = await replies.get()
            if kind == ERROR:
                raise value
            return value

    async def stream(self, *arguments: Any) -> AsyncIterator:
        """Yields what `LocalClient.stream` yields in the process."""
        with self._request(STREAM, arguments, 1) as replies:
            while True:
                kind, value = await replies.get()
                if kind == ERROR:
                    raise value
                if kind == END:
                    return
                yield value

    @contextlib.contextmanager
    def _request(self, method, arguments, weight) -> Iterator[asyncio.Queue]:
        """Sends a request, and cancels it if its client leaves."""
        # Those of clients that have left stay there while a worker hangs.
        unread = self._process.stdin.transport.get_write_buffer_size()
        if weight and unread > UNREAD_BYTES:  # a ping or a warm-up has no weight
            raise Unavailable(FULL)
        number, replies = next(self._numbers), asyncio.Queue()
        self.num_asked += 1
        self._replies[number] = replies
        self.weight += weight
        try:
            self._send(number, method, *arguments)
            yield replies
        except (asyncio.CancelledError, GeneratorExit):
            with contextlib.suppress(Unavailable):
                self._send(number, CANCEL)
            raise
        finally:
            self.weight -= weight
            del self._replies[number]

    def _send(self, *message):
        if self._process.stdout.at_eof():  # it is being replaced
            raise Unavailable(LOST)
        self._process.stdin.write(encode(message))


class WorkerClient:
    """Asks one of the workers about one model.

    Args:
        workers: list of `Worker`.
        model: str, the name of the model.
        max_waiting: int >= 1, jobs in flight; more are rejected.
    """

    def __init__(self, workers: Sequence[Worker], model: str, max_waiting: int):
        self.workers, self.model = workers, model
        self._places = Places(max_waiting)

    async def warm_up(self, lengths: Sequence[int]) -> None:
        """Warms up one worker after the other, so that the later ones find what
        the first has compiled; see `LocalClient.warm_up`."""
        for worker in self.workers:
            await worker.warm_up(self.model, lengths)

    async def answer(self, job: Job) -> list[dict] | Exception:
        """Answers a job, see `Engine.answers`.

        Raises:
            Unavailable: too many jobs are waiting, or the worker was lost.
            RuntimeError: the engine failed.
        """
        with self._places.take():
            worker = self._least_busy()
            return await worker.ask("answer", self.model, job, weight=job.weight)

    async def describe(self) -> dict:
        """Returns what the model can do, see `Engine.describe`."""
        return await self._least_busy().ask("describe", self.model)

    async def stream(self, text: str, target_prefix: str | None) -> AsyncIterator:
        """Yields the translation so far; or the error that the text caused.

        Raises:
            Unavailable: too many jobs are waiting, or the worker was lost.
        """
        with self._places.take():
            states = self._least_busy().stream(self.model, text, target_prefix)
            async with contextlib.aclosing(states):
                async for state in states:
                    yield state

    def _least_busy(self):
        def cost(worker):
            # A worker that loads its models answers when it has them.
            return not worker.is_ready, worker.weight, worker.num_asked

        return min(self.workers, key=cost)


def _kill(process):
    with contextlib.suppress(ProcessLookupError):  # it has ended
        process.kill()


@contextlib.asynccontextmanager
async def start(
    models: dict[str, dict[str, Any]],
    count: int,
    limits: Limits,
    lengths: Sequence[int],
    compiled: str,
) -> AsyncIterator[dict[str, WorkerClient]]:
    """Starts worker processes for the time of a `with` block.

    Args:
        models: dict from names to arguments of `Engine`.
        count: int >= 1, number of processes; each holds all models.
        limits: `Limits`.
        lengths: see `warm_up.warm_up`; for processes that replace others.
        compiled: str, folder where the processes share what they compile.

    Yields:
        dict from the names of the models to their `WorkerClient`.

    Raises:
        ValueError, OSError, ImportError: a model cannot be loaded, or a process
            ended while it loaded the models.
    """
    workers = [Worker(_environment(count, compiled)) for _ in range(count)]
    arguments, tasks = (models, limits, queue_size(limits)), []

    async def load(group):
        futures = []
        for worker in group:
            futures.append(asyncio.get_running_loop().create_future())
            run = worker.run(arguments, lengths, futures[-1])
            tasks.append(asyncio.ensure_future(run))
        await asyncio.gather(*futures)

    try:
        await load(workers[:1])
        await load(workers[1:])  # they find functions that the first has compiled
        jobs = queue_size(limits) * count
        yield {name: WorkerClient(workers, name, jobs) for name in models}
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def queue_size(limits: Limits) -> int:
    """Returns the number of jobs that one process accepts."""
    return 2 * limits.max_waiting


def _environment(count, compiled):
    """Returns the environment variables of a worker among others."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        cores = os.cpu_count() or 1
    threads = str(max(1, cores // count))
    defaults = {
        "OMP_NUM_THREADS": threads,  # PyTorch
        "TF_NUM_INTRAOP_THREADS": threads,
        "NPROC": threads,  # XLA, on JAX
    }
    variables = {**defaults, **os.environ, **compile_cache.variables(compiled)}
    # Its modules are those of this process, wherever that was started.
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return variables
