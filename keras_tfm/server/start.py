"""A server on Ray Serve: workers with the model, and before them HTTP."""

import asyncio
import contextlib
import functools
import io
import itertools
import logging
import math
import os
import pathlib
import re
import signal
import socket
import sys
import tempfile
import time
import urllib.request

if "RAY_ADDRESS" not in os.environ:  # whose processes have settings of their own
    # A request costs Ray three quarters of the time that its own calls take.
    os.environ.setdefault("RAY_SERVE_USE_GRPC_BY_DEFAULT", "1")

import ray
import uvicorn
from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RequestCancelledError,
)

from keras_tfm.server.app import FAILED, Unavailable, make_app
from keras_tfm.server.worker import FAULTS, Worker

_log = logging.getLogger(__name__)
QUIETLY = {"log_level": "WARNING", "enable_access_log": False}
GATHERED = 0.0005  # seconds, for each request that is there, see `Remote`
BATCHED = 0.003  # seconds: what comes within them after the first goes with it
WARMED = "warmed"  # a file, there once all workers have been warm
# Of what is measured: what tells of the inside, and is the same everywhere.
INSIDE = (
    r"\b(Component|NodeAddress|SessionName|Version|WorkerId|actor_id|otel_scope_\w+)"
    r'="[^"]*",?'
)
HEADER_BYTES = 65_536  # that come without their end; 400
PACE = 0.05  # seconds between the states of a stream: each is all there is so far


@serve.deployment
class Workers:
    """The model. While it works what comes waits, and then goes together."""

    def __init__(self, settings, limits, warm, compiled):
        self.fault, self.checked = None, False
        # For what takes a dead one's place others wait.
        replaces = os.path.exists(os.path.join(compiled or "", WARMED))
        try:
            self.worker = Worker(
                **settings,
                attention_tokens=limits.attention_tokens,
                batch_size=limits.batch_size,
                seconds=limits.seconds,
            )
            self.worker.warm_up(None if replaces else warm)
        except (*FAULTS, OSError, ImportError) as fault:  # Ray would not say it
            _log.exception("The model cannot be loaded.")
            self.fault = str(fault)
        self.together.set_max_batch_size(limits.batch_size)

    def check_health(self):
        """Lets Ray put another one in the place of one without a model."""
        # At first that would end all before anybody knows what is wrong.
        checked, self.checked = self.checked, True
        if checked and self.fault is not None:
            raise RuntimeError(self.fault)

    # It holds up its own event loop: otherwise Ray would make a batch of each.
    @serve.batch(
        max_batch_size=32,
        batch_wait_timeout_s=BATCHED,
        batch_size_fn=lambda asked: sum(one.weight for one in asked),
    )
    async def together(self, asked):
        return self.worker.answers(asked)

    async def answers(self, asked):
        """Answers requests: lists of pairs of a place and its answer.

        Those that are done at one time are in one list: it costs Ray as much to
        hand over one answer as many.
        """

        async def answer(place, one):
            try:
                if self.worker.shares(one):
                    return place, await self.worker.share(one)
                return place, await self.together(one)
            except Exception:  # of the server: the others have their answers
                _log.exception("A request failed.")
                return place, FAILED

        answers = itertools.starmap(answer, enumerate(asked))
        waiting = {asyncio.ensure_future(one) for one in answers}
        try:
            while waiting:
                done, waiting = await asyncio.wait(
                    waiting, return_when=asyncio.FIRST_COMPLETED
                )
                yield [one.result() for one in done]
        finally:  # where nobody waits any more
            for one in waiting:
                one.cancel()

    async def describe(self):
        return self.worker.describe()

    async def what_is_wrong(self):
        return self.fault

    async def stream(self, text, target_prefix):
        said, state = -PACE, None
        try:
            for state in self.worker.stream(text, target_prefix):
                now = time.monotonic()
                if now - said >= PACE:
                    yield state
                    said, state = now, None
                await asyncio.sleep(0)
            if state is not None:
                yield state
        except FAULTS as error:
            yield error


class Remote:
    """The workers, as the application asks for them.

    Requests go to a worker together, those that come within a time that is
    longer the more are there: it costs Ray as much to hand over one as many.

    Args:
        workers: handle of `Workers`.
        most: int >= 1, requests that there are at once; one more is refused.
    """

    def __init__(self, workers, most):
        self.workers, self.most = workers, most
        self._answers = workers.options(stream=True).answers
        self._coming, self._there = [], 0
        self._groups = set()  # asyncio holds none of its tasks

    async def answer(self, asked):
        """Asks one of the workers, see `Worker.answers`."""
        if self._there >= self.most:
            raise Unavailable("Too many requests are waiting. Try again.")
        future = asyncio.get_running_loop().create_future()
        self._coming.append((asked, future))
        self._there += 1
        if len(self._coming) == 1:
            self._groups.add(group := asyncio.ensure_future(self._ask_together()))
            group.add_done_callback(self._groups.discard)
        try:
            return await future
        finally:
            self._there -= 1

    async def _ask_together(self):
        await asyncio.sleep(GATHERED * (self._there - len(self._coming)))
        group, self._coming = self._coming, []
        futures = [future for _, future in group]
        with _Told(futures), _Lost():
            found = self._answers.remote([asked for asked, _ in group])

            def given_up(future):
                if all(one.cancelled() for one in futures):  # nobody waits for it
                    found.cancel()

            for future in futures:
                future.add_done_callback(given_up)
            async for some in found:
                for place, answer in some:
                    if futures[place].done():
                        continue
                    if answer == FAILED:
                        futures[place].set_exception(RuntimeError(FAILED))
                    else:
                        futures[place].set_result(answer)

    async def describe(self):
        """Asks what the model is."""
        with _Lost():
            response = self.workers.describe.remote()
            try:
                return await response
            except asyncio.CancelledError:
                response.cancel()
                raise

    async def stream(self, text, target_prefix):
        """Passes on what a worker says as it comes."""
        with _Lost():
            stream = self.workers.options(stream=True).stream
            states = stream.remote(text, target_prefix)
            try:
                async for state in states:
                    yield state
            except (asyncio.CancelledError, GeneratorExit):
                states.cancel()
                raise


class _Told:
    """Tells those that wait for a group what became of it."""

    def __init__(self, futures):
        self.futures = futures

    def __enter__(self):
        return self

    def __exit__(self, kind, fault, trace):
        for future in self.futures:
            if not future.done():
                future.set_exception(fault or RuntimeError(FAILED))
        return True


class _Lost:
    """Says in our words what Ray says of workers."""

    def __enter__(self):
        return self

    def __exit__(self, kind, fault, trace):
        if isinstance(fault, BackPressureError):
            raise Unavailable("Too many requests are waiting. Try again.") from None
        if isinstance(fault, RayTaskError):
            return False
        lost = (RayActorError, DeploymentUnavailableError, RequestCancelledError)
        if isinstance(fault, lost):
            raise Unavailable("The worker was lost. Try again.") from None
        return False


def run(settings, name, host, port, workers, limits, warm, ready=lambda port: None):
    """Serves until a signal comes, and then finishes what it has taken.

    Args:
        settings: dict, arguments of `Worker`.
        name: str, of the model in addresses.
        host, port: where it listens; port 0: at one that is free.
        workers: int >= 1, processes with the model.
        limits: `Limits`.
        warm: ints >= 1, in tokens, see `Worker.warm_up`.
        ready: function of the port, called when it answers.

    Raises:
        OSError: the address is another's.
        ValueError: there is no such port, or the model cannot be loaded.
    """
    cluster, folder = os.environ.get("RAY_ADDRESS"), contextlib.nullcontext()
    if cluster is None:
        _check_free(host, port)
        # A worker that takes a dead one's place finds what that has compiled.
        folder = tempfile.TemporaryDirectory(prefix="keras-tfm-")
    # Ray prints on standard output what goes wrong with its processes.
    with folder as compiled, contextlib.redirect_stdout(sys.stderr):
        _run(
            cluster, settings, name, host, port, workers, limits, warm, ready, compiled
        )


def _run(cluster, settings, name, host, port, workers, limits, warm, ready, compiled):
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        address=cluster or "local",  # not one that somebody happens to run here
        include_dashboard=False,
        logging_level="error",
        log_to_driver=False,
        runtime_env={"env_vars": _environment(compiled)},
    )
    logging.getLogger("ray.serve").setLevel(QUIETLY["log_level"])  # in this process
    # Ray's own handler ends the process without its last words.
    signal.signal(signal.SIGTERM, _stop)
    try:
        serve.start(proxy_location="Disabled", logging_config=QUIETLY)
        model = Workers.options(
            num_replicas=workers,
            max_ongoing_requests=limits.waiting,
            max_queued_requests=limits.waiting,
            ray_actor_options={"num_cpus": 0},
            graceful_shutdown_timeout_s=limits.seconds,
            logging_config=QUIETLY,
        ).bind(settings, limits, warm, compiled)
        handle = serve.run(model, name=name, route_prefix=None)
        if fault := handle.what_is_wrong.remote().result():
            raise ValueError(fault)
        remote = Remote(handle, most := 2 * limits.waiting * workers)
        if compiled is not None:
            pathlib.Path(compiled, WARMED).touch()
        metrics = functools.partial(asyncio.to_thread, _measured)
        app = make_app(lambda: remote, name, limits.within(most), metrics=metrics)
        _listen(app, host, port, limits, ready)
    finally:
        # What it asks of itself fails when it ends, which nobody needs to know.
        with contextlib.redirect_stdout(io.StringIO()):
            _end(name, cluster)


def _end(name, cluster):
    with contextlib.suppress(Exception):  # or the first error would be lost
        serve.delete(name)  # waits for what is being answered
    if cluster is None:
        serve.shutdown()
    ray.shutdown()


def _stop(number, _):
    sys.exit(128 + number)


def _check_free(host, port):
    """Ray would share a port with who has it, and answers would mix."""
    if not 0 <= port <= 65535:
        raise ValueError(f"A port is from 0 to 65535. Received: --port {port}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            place.bind((host, port))
        except OSError as fault:
            raise OSError(
                f"Nothing can listen at {host}:{port}. Received: {fault.strerror}. "
                "Name another --port."
            ) from fault


class _Server(uvicorn.Server):
    """Says when it answers."""

    def __init__(self, config, ready):
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets=None):
        await super().startup(sockets)
        if self.started:
            self.ready(self.servers[0].sockets[0].getsockname()[1])


def _listen(app, host, port, limits, ready):
    """Answers until a signal comes, and then what has come before it.

    Here and not in a process of Ray's: through its proxy and another worker a
    request costs three times as much.
    """
    # Uvicorn hands a signal on when it has finished, which would end it all.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    config = uvicorn.Config(
        app,
        host,
        port,
        log_level="error",
        access_log=False,
        # It costs a request 0.05 ms, and bounds headers: httptools holds any.
        http="h11",
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_graceful_shutdown=math.ceil(limits.seconds),
    )
    _Server(config, ready).run()


def _measured():
    """What Ray has measured on this machine, this server's part of it."""
    own = ray.get_runtime_context().get_node_id()
    [port] = [n["MetricsExportPort"] for n in ray.nodes() if n["NodeID"] == own]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        return _shown(page.read().decode())


def _shown(page):
    """What of Ray's measures is of models, without what tells of the inside."""
    others, found = ("event_loop", "long_poll", "controller"), {}
    for line in page.splitlines():
        if "ray_serve_" in line and not any(part in line for part in others):
            series, _, value = re.sub(INSIDE, "", line).rpartition(" ")
            found[series] = value  # of two processes one after another: once
    return "".join(f"{series} {value}\n" for series, value in found.items())


def _environment(compiled):
    """What workers need to know; a folder keeps what they have compiled."""
    names = ("KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL", "OMP_NUM_THREADS")
    found = {name: os.environ[name] for name in names if name in os.environ}
    if compiled is None:
        return found
    option = "tf_xla_persistent_cache_directory"
    flags = os.environ.get("TF_XLA_FLAGS", "")
    if option not in flags:
        found["TF_XLA_FLAGS"] = f"{flags} --{option}={compiled}".strip()
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        found["JAX_COMPILATION_CACHE_DIR"] = compiled
        found["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    return found
