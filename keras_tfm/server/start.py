"""Starts a server: the model in its process, or worker processes behind it."""

import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from keras_tfm import compile_cache
from keras_tfm.server import local
from keras_tfm.server import workers as worker_processes
from keras_tfm.server.app import make_apps
from keras_tfm.server.limits import Limits
from keras_tfm.server.listen import check_port, handle_hangup, listen


def run(
    models: dict[str, dict[str, Any]],
    host: str,
    port: int,
    workers: int,
    limits: Limits,
    warm_up: Sequence[int],
    compile_first: bool = False,
    ready: Callable[[int], None] = lambda port: None,
    progress: Callable[[str], None] = lambda message: None,
) -> None:
    """Serves until a signal arrives, and finishes the requests in flight.

    One worker runs in this process. More workers are processes of this machine,
    which are replaced if they are lost.

    Args:
        models: dict from the names of models in URLs to arguments of `Engine`.
        host, port: the address; port 0 takes a free one.
        workers: int >= 1, processes with all models.
        limits: `Limits`.
        warm_up: ints >= 1, in tokens, see `warm_up.warm_up`.
        compile_first: bool. Warm up before requests are accepted; else while
            they are answered.
        ready: function of the port, called when requests are accepted.
        progress: function that gets a message before each step of loading and
            warming up. Workers write theirs to standard error.

    Raises:
        OSError: the address is taken.
        ValueError: there is no such port, or a model cannot be loaded.
    """
    check_port(host, port)
    queue_size = worker_processes.queue_size(limits)

    async def serve(clients):
        if compile_first:
            await _warm_up(clients, warm_up)
        background: list[asyncio.Task] = []  # asyncio keeps no reference

        def accepting(port):
            ready(port)
            if not compile_first:
                warming = _warm_up(clients, warm_up)
                background.append(asyncio.ensure_future(warming))

        app = make_apps(clients, limits.for_queue(queue_size * workers))
        await listen(app, host, port, limits, accepting)

    async def serve_here(clients):
        try:
            await serve(clients)
        finally:  # asyncio waits for threads that compile
            for client in clients.values():
                client.engine.is_closed = True

    if workers == 1:
        clients = local.load(models, limits, queue_size, progress)
        try:
            asyncio.run(serve_here(clients))
        finally:
            for client in clients.values():
                client.close()
        return

    async def serve_by_workers(compiled):
        starting = worker_processes.start(models, workers, limits, warm_up, compiled)
        async with starting as clients:
            await serve(clients)

    # A signal while models are loaded must not leave a temporary folder behind.
    def leave(number, _):
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    handle_hangup(leave)
    with contextlib.ExitStack() as stack:
        compiled = compile_cache.folder()
        if compiled is None:  # the workers still share what they compile
            temporary = tempfile.TemporaryDirectory(prefix="keras-tfm-")
            compiled = stack.enter_context(temporary)
        asyncio.run(serve_by_workers(str(compiled)))


async def _warm_up(clients, lengths):
    for client in clients.values():
        await client.warm_up(lengths)
