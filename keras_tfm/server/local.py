"""Runs the engine in the process of the HTTP server, in a thread of its own."""

import asyncio
import concurrent.futures
import functools
import itertools
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from keras_tfm.pipelines.translator import Translator
from keras_tfm.runtime.round_robin import RoundRobin
from keras_tfm.server.engine import ERRORS, Engine, Job
from keras_tfm.server.errors import FAILED
from keras_tfm.server.limits import PAGE, QUARTERS, Limits
from keras_tfm.server.places import Places
from keras_tfm.server.warm_up import prepare, warm_up

_log = logging.getLogger(__name__)
BATCH_WAIT = 0.003  # seconds: jobs that arrive within them share a batch
STREAM_INTERVAL = 0.05  # seconds between the states of a stream
_END = object()


class LocalClient:
    """Asks an engine in this process.

    Jobs that the engine can share are decoded by continuous batching. Others
    are gathered and answered in batches.

    Args:
        engine: `Engine`.
        batch_size: int >= 1, texts of a batch.
        max_waiting: int >= 1, jobs at once; more are rejected.
        max_batches: int >= 1, batches at once, see `max_batches`.
        progress: function that gets a message before each step of `warm_up`.
    """

    def __init__(
        self,
        engine: Engine,
        batch_size: int,
        max_waiting: int,
        max_batches: int = 1,
        progress: Callable[[str], None] = lambda message: None,
    ):
        self.engine, self.batch_size, self._progress = engine, batch_size, progress
        self._chunk_size = max(1, batch_size // QUARTERS)  # in pages
        self._places = Places(max_waiting)
        # Long requests have another thread, so that short ones do not wait.
        self._short, self._long = _Line(max_batches), _Line(1)
        # Their own threads: other answers must not wait for long steps.
        self._streams = concurrent.futures.ThreadPoolExecutor(None, "streams")
        self._tasks: set[asyncio.Task] = set()  # asyncio keeps no reference
        # Short texts are tokenized on this loop, so that HTTP stays responsive.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the threads when the last answer has been sent."""
        self.engine.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def warm_up(self, lengths: Sequence[int]) -> None:
        """Compiles what texts of some lengths need, while others are answered.

        Args:
            lengths: see `warm_up.warm_up`.
        """
        try:
            await asyncio.to_thread(warm_up, self.engine, lengths, self._progress)
        except Exception:  # texts are answered nevertheless
            _log.exception("Warming up failed.")

    async def answer(self, job: Job) -> list[dict] | Exception:
        """Answers a job, see `Engine.answers`.

        Raises:
            Unavailable: too many jobs are waiting.
            RuntimeError: the engine failed.
        """
        with self._places.take():
            if self.engine.can_share(job):
                shared = asyncio.run_coroutine_threadsafe(
                    self.engine.share(job), self._loop
                )
                return await asyncio.wrap_future(shared)
            # Other requests take turns with the parts.
            group = object() if job.request is None else job.request
            parts = [
                asyncio.ensure_future(self._answer_in_turn(part, group))
                for part in job.split(self._chunk_size)
            ]
            try:
                results = await asyncio.gather(*parts)
            finally:
                for part in parts:
                    part.cancel()
            errors = [result for result in results if isinstance(result, Exception)]
            return errors[0] if errors else list(itertools.chain(*results))

    async def _answer_in_turn(self, job, group):
        is_long = job.is_part or _pages(job) > self._chunk_size
        line = self._long if is_long else self._short
        future = asyncio.get_running_loop().create_future()
        item = job, future
        line.queue.append(item, group)
        # More tasks would take jobs out of the queue before a thread is free,
        # and answer those whose clients leave meanwhile, too.
        if line.num_working < line.max_batches:
            line.num_working += 1
            task = asyncio.ensure_future(self._answer_line(line))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            return await future
        finally:  # the texts of clients that leave must not stay in memory
            line.queue.remove(item, group)

    async def _answer_line(self, line):
        """Answers what is in a queue, a batch at a time."""
        try:
            await asyncio.sleep(BATCH_WAIT)
            while batch := self._next_batch(line.queue):
                await self._answer_batch(batch, line.threads)
        finally:
            line.num_working -= 1

    async def _answer_batch(self, batch, threads):
        jobs, loop = [job for job, _ in batch], asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(threads, self.engine.answers, jobs)
        except Exception:
            _log.exception("A batch failed.")
            answers = [FAILED] * len(jobs)
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():  # the client has gone
                continue
            if answer is FAILED:
                future.set_exception(RuntimeError(FAILED))
            else:
                future.set_result(answer)

    def _next_batch(self, queue):
        """Takes jobs of up to `batch_size` texts or pages from a queue."""
        batch, weight = [], 0
        while queue:
            job, future = queue.first()
            size = max(job.weight, _pages(job))
            if batch and weight + size > self.batch_size:
                break
            queue.pop()
            if not future.done():
                batch.append((job, future))
                weight += size
        return batch

    async def describe(self) -> dict:
        """Returns what the model can do, see `Engine.describe`."""
        # In a thread: it loads the models of detected languages.
        return await asyncio.to_thread(self.engine.describe)

    async def stream(self, text: str, target_prefix: str | None) -> AsyncIterator:
        """Yields the translation so far; or the error that the text caused.

        Raises:
            Unavailable: too many jobs are waiting.
        """
        with self._places.take():
            async for state in self._states(text, target_prefix):
                yield state

    async def _states(self, text, target_prefix):
        loop = asyncio.get_running_loop()
        last_time, state = loop.time() - STREAM_INTERVAL, None
        try:
            # In a thread: a pivot first translates all of the text.
            run = functools.partial(loop.run_in_executor, self._streams)
            states = await run(self.engine.stream, text, target_prefix)
            while True:
                latest = await run(next, states, _END)
                if latest is _END:
                    break
                state = latest
                if loop.time() - last_time >= STREAM_INTERVAL:
                    yield state
                    last_time, state = loop.time(), None
            if state is not None:
                yield state
        except ERRORS as error:
            yield error


class _Line:
    """Jobs that wait, and the threads that answer them."""

    def __init__(self, max_batches: int):
        self.max_batches, self.num_working = max_batches, 0
        self.queue = RoundRobin()  # of pairs of a job and its future
        self.threads = concurrent.futures.ThreadPoolExecutor(max_batches, "engine")


def _pages(job):
    return sum(map(len, job.texts)) // PAGE


def max_batches(engine: Engine) -> int:
    """Returns how many batches at once an engine answers faster than one.

    While CTranslate2 decodes a batch, Python can tokenize the next one.
    Compiled functions of Keras would only share the cores.
    """
    if not isinstance(engine.model, Translator):
        return 1
    return 2 if engine.model.decoder.options.engine == "ctranslate2" else 1


def load(
    models: dict[str, dict[str, Any]],
    limits: Limits,
    queue_size: int,
    progress: Callable[[str], None] = lambda message: None,
) -> dict[str, LocalClient]:
    """Loads models into this process, and prepares them to answer.

    Args:
        models: dict from names to arguments of `Engine`.
        limits: `Limits`.
        queue_size: int >= 1, jobs of a model at once.
        progress: function that gets a message before each step.

    Raises:
        ValueError, OSError: a model cannot be loaded.
    """
    clients = {}
    for name, arguments in models.items():
        progress(f"{name}: loading")
        engine = Engine(
            **arguments,
            max_attention_tokens=limits.max_attention_tokens,
            batch_size=limits.batch_size,
            timeout=limits.timeout,
        )
        if arguments.get("engine") == "auto" and isinstance(engine.model, Translator):
            progress(f"{name}: engine {engine.model.decoder.options.engine}")
        progress(f"{name}: compiling")
        prepare(engine)
        clients[name] = LocalClient(
            engine,
            limits.batch_size,
            queue_size,
            max_batches(engine),
            lambda step, name=name: progress(f"{name}: {step}"),
        )
    return clients
