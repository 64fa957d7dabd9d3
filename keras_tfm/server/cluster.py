"""Runs replicas in processes of this machine, behind an HTTP server in this
one."""

import contextlib
import io
import logging
import os
import pathlib
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

# gRPC takes three quarters off the cost of a call.
os.environ.setdefault("RAY_SERVE_USE_GRPC_BY_DEFAULT", "1")

import ray
from ray import serve

from keras_tfm.server.app import make_apps
from keras_tfm.server.limits import Limits
from keras_tfm.server.listen import listen
from keras_tfm.server.replica import LOGGING, WARMED, Replica, ReplicaClient


def run(
    models: dict[str, dict[str, Any]],
    host: str,
    port: int,
    workers: int,
    limits: Limits,
    warm_up: Sequence[int],
    ready: Callable[[int], None],
) -> None:
    """Serves with replicas until a signal arrives, see `start.run`."""
    # A replica that replaces a lost one reuses what that has compiled.
    folder = tempfile.TemporaryDirectory(prefix="keras-tfm-")
    # Ray prints errors of its processes on standard output.
    with folder as compiled, contextlib.redirect_stdout(sys.stderr):
        _start_ray(compiled)
        try:
            queue_size = 2 * limits.max_waiting * workers
            clients = {}
            for name, model in models.items():
                handle = _deploy(model, name, workers, limits, warm_up, compiled)
                clients[name] = ReplicaClient(handle, queue_size)
            pathlib.Path(compiled, WARMED).touch()
            app = make_apps(clients, limits.for_queue(queue_size))
            listen(app, host, port, limits, ready)
        finally:
            # Ray prints failures of its own shutdown, which mean nothing.
            with contextlib.redirect_stdout(io.StringIO()):
                _stop_ray(models)


def _start_ray(compiled):
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        address="local",  # never a cluster that happens to run here
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
    ).bind(model, limits, warm_up, compiled, raises=False)
    handle = serve.run(deployment, name=name, route_prefix=None)
    if error := handle.load_error.remote().result():
        raise ValueError(error)
    return handle


def _stop_ray(names):
    for name in names:
        with contextlib.suppress(Exception):  # or it would hide the first error
            serve.delete(name)  # waits for requests in flight
    serve.shutdown()
    ray.shutdown()


def _environment(compiled):
    """Environment variables of replicas; `compiled` caches compiled
    functions."""
    names = ("KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL", "OMP_NUM_THREADS")
    variables = {name: os.environ[name] for name in names if name in os.environ}
    option = "tf_xla_persistent_cache_directory"
    flags = os.environ.get("TF_XLA_FLAGS", "")
    if option not in flags:
        variables["TF_XLA_FLAGS"] = f"{flags} --{option}={compiled}".strip()
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        variables["JAX_COMPILATION_CACHE_DIR"] = compiled
        variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    return variables
