"""Listens for HTTP requests until a signal arrives."""

import functools
import math
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from keras_tfm.server.access import HEADER_BYTES, in_url
from keras_tfm.server.limits import Limits
from keras_tfm.server.protocol import LimitedProtocol

MAX_CONNECTIONS = 10_000  # fewer if the process may open fewer files
# Connections that the system holds until they are accepted, all at once.
BACKLOG = 128
MIN_FILES = 64  # open files: 16 of libraries, and some connections
MIN_THREADS = 64  # 20 of libraries, and those that answer requests
KEEP_ALIVE = 5  # seconds that a connection may be silent between two requests


def check_port(host: str, port: int) -> None:
    """Rejects an address that nothing can listen on, before a model is loaded.

    Raises:
        ValueError: there is no such port.
        OSError: the address is taken, or the process may have too few open
            files or threads.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"--port must be from 0 to 65535; got {port}.")
    max_connections()
    _check_threads()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # as asyncio listens; rejects mapped IPv4
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind((host, port))
        except (OSError, UnicodeError) as error:  # names may have odd characters
            cause = getattr(error, "strerror", error)
            raise OSError(
                f"--host and --port: nothing can listen at {in_url(host)}:{port} "
                f"({cause}). Choose another address or port."
            ) from error


def _check_threads():
    """Rejects a limit with which the server would start but not answer."""
    end = threading.Event()
    try:
        for _ in range(MIN_THREADS):
            threading.Thread(target=end.wait, daemon=True).start()
    except RuntimeError as error:
        raise OSError(
            f"A server needs {MIN_THREADS} threads, more than this process may start. "
            "Raise the limit of processes (`ulimit -u`) or of memory (`ulimit -v`), or "
            "that of the container."
        ) from error
    finally:
        end.set()


class _Server(uvicorn.Server):
    """Calls a function once it accepts requests."""

    def __init__(self, config, ready):
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets=None):
        await super().startup(sockets)
        if self.started:
            self.ready(self.servers[0].sockets[0].getsockname()[1])


def configure(app: ASGIApp, host: str, port: int, limits: Limits) -> uvicorn.Config:
    """Returns the configuration of uvicorn.

    Args:
        app: ASGI application.
        host, port: the address; port 0 takes a free one.
        limits: `Limits`.
    """
    return uvicorn.Config(
        app,
        host,
        port,
        log_level="error",
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",  # canceling it, after a second Ctrl-C, logs an error
        # h11 costs 0.05 ms for each request and bounds headers; httptools does
        # not.
        http=functools.partial(
            LimitedProtocol, limits.header_timeout, max_connections()
        ),
        backlog=min(BACKLOG, max(8, max_connections() // 4)),
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(limits.timeout),
    )


async def listen(
    app: ASGIApp,
    host: str,
    port: int,
    limits: Limits,
    ready: Callable[[int], None],
) -> None:
    """Answers requests until SIGINT or SIGTERM, then those that it has
    accepted.

    Args:
        app: ASGI application.
        host, port: the address; port 0 takes a free one.
        limits: `Limits`.
        ready: function of the port, called when requests are accepted.
    """
    # uvicorn raises a signal again when it has finished: that must not end the
    # process before the model is closed.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    server = _Server(configure(app, host, port, limits), ready)
    handle_hangup(server.handle_exit)
    await server.serve()


def handle_hangup(handler: Callable[[int, Any], Any]) -> None:
    """Handles the end of a terminal, unless it is ignored, as by `nohup`.

    Args:
        handler: function of the signal and its frame.
    """
    number = getattr(signal, "SIGHUP", None)  # not on Windows
    if number is not None and signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, handler)


def max_connections() -> int:
    """Returns how many connections fit into the open files of this process.

    Raises:
        OSError: the limit of open files is too low for a server.
    """
    try:
        import resource
    except ImportError:  # Windows
        return MAX_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    if soft < MIN_FILES:
        raise OSError(
            f"The limit of open files must be at least {MIN_FILES}; got {soft}. Raise "
            "it with `ulimit -n 1024`."
        )
    return min(MAX_CONNECTIONS, soft // 2)
