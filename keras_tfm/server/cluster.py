"""Runs engines as Ray Serve replicas, for several workers or several
machines."""

import asyncio
import contextlib
import io
import itertools
import logging
import os
import pathlib
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

if "RAY_ADDRESS" not in os.environ:  # a cluster has settings of its own
    # gRPC takes three quarters off the cost of a call.
    os.environ.setdefault("RAY_SERVE_USE_GRPC_BY_DEFAULT", "1")

import ray
from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RequestCancelledError,
)
from ray.serve.handle import DeploymentHandle

from keras_tfm.server.app import make_app
from keras_tfm.server.engine import ERRORS, Engine, Job
from keras_tfm.server.errors import FAILED, FULL, Unavailable
from keras_tfm.server.limits import Limits
from keras_tfm.server.listen import listen
from keras_tfm.server.local import BATCH_WAIT, STREAM_INTERVAL

_log = logging.getLogger(__name__)
LOGGING = {"log_level": "WARNING", "enable_access_log": False}
GATHER = 0.0005  # seconds for each job in flight, see `ReplicaClient`
WARMED = "warmed"  # a file that exists once all replicas have warmed up


@serve.deployment
class Replica:
    """A replica of the model; jobs that arrive while it works share a batch."""

    def __init__(
        self,
        model: dict[str, Any],
        limits: Limits,
        warm_up: Sequence[int],
        compiled: str | None,
    ):
        self.error, self._checked = None, False
        # Requests wait for a replica that replaces a lost one.
        replaces = os.path.exists(os.path.join(compiled or "", WARMED))
        try:
            self.engine = Engine(
                **model,
                max_attention_tokens=limits.max_attention_tokens,
                batch_size=limits.batch_size,
                timeout=limits.timeout,
            )
            self.engine.warm_up(None if replaces else warm_up)
        except (*ERRORS, OSError, ImportError) as error:  # Ray would not show it
            _log.exception("The model cannot be loaded.")
            self.error = str(error)
        self.batch.set_max_batch_size(limits.batch_size)

    def check_health(self) -> None:
        """Makes Ray replace a replica without a model."""
        # Raised by the first check it would end the server without a message.
        checked, self._checked = self._checked, True
        if checked and self.error is not None:
            raise RuntimeError(self.error)

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

    async def load_error(self) -> str | None:
        return self.error

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

    Jobs go to a replica in groups: Ray takes as long to pass one as many. The
    more jobs are in flight, the longer a group is gathered.

    Args:
        replicas: handle of `Replica`.
        max_waiting: int >= 1, jobs in flight; more are rejected.
    """

    def __init__(self, replicas: DeploymentHandle, max_waiting: int):
        self.replicas, self.max_waiting = replicas, max_waiting
        self._answers = replicas.options(stream=True).answers
        self._gathering: list[tuple[Job, asyncio.Future]] = []
        self._in_flight = 0
        self._tasks: set[asyncio.Task] = set()  # asyncio keeps no reference

    async def answer(self, job: Job) -> list[dict] | Exception:
        """Asks one of the replicas, see `Engine.answers`."""
        if self._in_flight >= self.max_waiting:
            raise Unavailable(FULL)
        future = asyncio.get_running_loop().create_future()
        self._gathering.append((job, future))
        self._in_flight += 1
        if len(self._gathering) == 1:
            task = asyncio.ensure_future(self._ask_group())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            return await future
        finally:
            self._in_flight -= 1

    async def _ask_group(self):
        await asyncio.sleep(GATHER * (self._in_flight - len(self._gathering)))
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


def run(
    model: dict[str, Any],
    name: str,
    host: str,
    port: int,
    workers: int,
    limits: Limits,
    warm_up: Sequence[int],
    ready: Callable[[int], None],
) -> None:
    """Serves with replicas until a signal arrives, see `start.run`."""
    cluster = os.environ.get("RAY_ADDRESS")
    # A replica that replaces a lost one reuses what that has compiled.
    folder = tempfile.TemporaryDirectory(prefix="keras-tfm-")
    shared = contextlib.nullcontext() if cluster else folder
    # Ray prints errors of its processes on standard output.
    with shared as compiled, contextlib.redirect_stdout(sys.stderr):
        _start_ray(cluster, compiled)
        try:
            handle = _deploy(model, name, workers, limits, warm_up, compiled)
            queue_size = 2 * limits.max_waiting * workers
            client = ReplicaClient(handle, queue_size)
            if compiled is not None:
                pathlib.Path(compiled, WARMED).touch()
            app = make_app(client, name, limits.for_queue(queue_size))
            listen(app, host, port, limits, ready)
        finally:
            # Ray prints failures of its own shutdown, which mean nothing.
            with contextlib.redirect_stdout(io.StringIO()):
                _stop_ray(name, cluster)


def _start_ray(cluster, compiled):
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        address=cluster or "local",  # never a cluster that happens to run here
        include_dashboard=False,
        logging_level="error",
        log_to_driver=False,
        runtime_env={"env_vars": _environment(compiled)},
    )
    logging.getLogger("ray.serve").setLevel(LOGGING["log_level"])
    # Ray's own handler would end the process before it has cleaned up.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def _deploy(model, name, workers, limits, warm_up, compiled):
    serve.start(proxy_location="Disabled", logging_config=LOGGING)
    deployment = Replica.options(
        num_replicas=workers,
        max_ongoing_requests=limits.max_waiting,
        max_queued_requests=limits.max_waiting,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=limits.timeout,
        logging_config=LOGGING,
    ).bind(model, limits, warm_up, compiled)
    handle = serve.run(deployment, name=name, route_prefix=None)
    if error := handle.load_error.remote().result():
        raise ValueError(error)
    return handle


def _stop_ray(name, cluster):
    with contextlib.suppress(Exception):  # or it would hide the first error
        serve.delete(name)  # waits for requests in flight
    if cluster is None:
        serve.shutdown()
    ray.shutdown()


def _environment(compiled):
    """Environment variables of replicas; `compiled` caches compiled
    functions."""
    names = ("KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL", "OMP_NUM_THREADS")
    variables = {name: os.environ[name] for name in names if name in os.environ}
    if compiled is None:
        return variables
    option = "tf_xla_persistent_cache_directory"
    flags = os.environ.get("TF_XLA_FLAGS", "")
    if option not in flags:
        variables["TF_XLA_FLAGS"] = f"{flags} --{option}={compiled}".strip()
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        variables["JAX_COMPILATION_CACHE_DIR"] = compiled
        variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    return variables
