"""Replicas of a model on Ray Serve, and the client that asks them."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RequestCancelledError,
)
from ray.serve.handle import DeploymentHandle

from keras_tfm.server.engine import ERRORS, Engine, Job
from keras_tfm.server.errors import FAILED, FULL, Unavailable
from keras_tfm.server.limits import Limits
from keras_tfm.server.local import BATCH_WAIT, STREAM_INTERVAL
from keras_tfm.server.places import Places
from keras_tfm.server.warm_up import prepare, warm_up

_log = logging.getLogger(__name__)
LOGGING = {"log_level": "WARNING", "enable_access_log": False}


@serve.deployment
class Replica:
    """A replica of the model; jobs that arrive while it works share a batch.

    Args:
        model: dict, arguments of `Engine`.
        limits: `Limits`.
        lengths: ints >= 1, see `warm_up`.
    """

    def __init__(self, model: dict[str, Any], limits: Limits, lengths: Sequence[int]):
        try:
            self.engine = Engine(
                **model,
                max_attention_tokens=limits.max_attention_tokens,
                batch_size=limits.batch_size,
                timeout=limits.timeout,
            )
            prepare(self.engine)
            warm_up(self.engine, lengths)
        except (*ERRORS, OSError, ImportError):  # Ray would not show it
            _log.exception("The model cannot be loaded.")
            raise
        self.batch.set_max_batch_size(limits.batch_size)

    # It blocks the event loop on purpose: else Ray would make batches of one.
    @serve.batch(
        max_batch_size=32,
        batch_wait_timeout_s=BATCH_WAIT,
        batch_size_fn=lambda jobs: sum(job.weight for job in jobs),
    )
    async def batch(self, jobs: list[Job]) -> list:
        return self.engine.answers(jobs)

    async def answers(self, jobs: list[Job]) -> AsyncIterator[list[tuple[int, Any]]]:
        """Yields lists of pairs of an index and its answer, as they are done.

        Ray takes as long to pass one answer as many: those that are done at the
        same time are in one list.
        """

        async def answer(index, job):
            try:
                if self.engine.can_share(job):
                    return index, await self.engine.share(job)
                return index, await self.batch(job)
            except Exception:  # of the server: other jobs get their answers
                _log.exception("A job failed.")
                return index, FAILED

        coroutines = itertools.starmap(answer, enumerate(jobs))
        waiting = set(map(asyncio.ensure_future, coroutines))
        try:
            while waiting:
                finished, waiting = await asyncio.wait(
                    waiting, return_when=asyncio.FIRST_COMPLETED
                )
                yield [task.result() for task in finished]
        finally:  # the client has gone
            for task in waiting:
                task.cancel()

    async def describe(self) -> dict[str, Any]:
        return self.engine.describe()

    async def stream(
        self, text: str, target_prefix: str | None
    ) -> AsyncIterator[str | Exception]:
        last_time, state = -STREAM_INTERVAL, None
        try:
            for state in self.engine.stream(text, target_prefix):
                current_time = time.monotonic()
                if current_time - last_time >= STREAM_INTERVAL:
                    yield state
                    last_time, state = current_time, None
                await asyncio.sleep(0)
            if state is not None:
                yield state
        except ERRORS as error:
            yield error


class ReplicaClient:
    """Asks the replicas.

    The jobs of a request go to one replica: Ray takes as long to pass one as
    many.

    Args:
        replicas: handle of `Replica`.
        max_waiting: int >= 1, jobs in flight; more are rejected.
    """

    def __init__(self, replicas: DeploymentHandle, max_waiting: int):
        self.replicas, self._places = replicas, Places(max_waiting)
        self._answers = replicas.options(stream=True).answers
        self._gathering: list[tuple[Job, asyncio.Future]] = []
        self._tasks: set[asyncio.Task] = set()  # asyncio keeps no reference

    async def answer(self, job: Job) -> list[dict] | Exception:
        """Asks one of the replicas, see `Engine.answers`."""
        with self._places.take():
            future = asyncio.get_running_loop().create_future()
            self._gathering.append((job, future))
            if len(self._gathering) == 1:
                task = asyncio.ensure_future(self._ask_group())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            return await future

    async def _ask_group(self):
        await asyncio.sleep(0)  # until the other jobs of the request are here
        group, self._gathering = self._gathering, []
        futures = [future for _, future in group]
        with _fail_pending(futures), _translate_ray_errors():
            answers: Any = self._answers.remote([job for job, _ in group])

            def cancel_if_abandoned(_):
                if all(future.cancelled() for future in futures):
                    answers.cancel()

            for future in futures:
                future.add_done_callback(cancel_if_abandoned)
            async for pairs in answers:
                for index, answer in pairs:
                    if futures[index].done():
                        continue
                    if answer == FAILED:
                        futures[index].set_exception(RuntimeError(FAILED))
                    else:
                        futures[index].set_result(answer)

    async def describe(self) -> dict:
        """Returns what the model can do, see `Engine.describe`."""
        with _translate_ray_errors():
            response = self.replicas.describe.remote()
            try:
                return await response
            except asyncio.CancelledError:
                response.cancel()
                raise

    async def stream(self, text: str, target_prefix: str | None) -> AsyncIterator:
        """Yields the translation so far, as a replica streams it."""
        with _translate_ray_errors():
            stream = self.replicas.options(stream=True).stream
            states: Any = stream.remote(text, target_prefix)
            try:
                async for state in states:
                    yield state
            except (asyncio.CancelledError, GeneratorExit):
                states.cancel()
                raise


@contextlib.contextmanager
def _fail_pending(futures):
    """Sets an error on each future that has no result."""
    error: BaseException = RuntimeError(FAILED)
    try:
        yield
    except BaseException as fault:  # it reaches the requests, not this task
        error = fault
    for future in futures:
        if not future.done():
            future.set_exception(error)


@contextlib.contextmanager
def _translate_ray_errors():
    """Turns errors of Ray into `Unavailable`."""
    try:
        yield
    except BackPressureError:
        raise Unavailable(FULL) from None
    except RayTaskError:
        raise
    except (RayActorError, DeploymentUnavailableError, RequestCancelledError):
        raise Unavailable("The worker was lost. Try again.") from None
