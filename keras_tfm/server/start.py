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
        warm_up: ints >= 1, in tokens, see `Engine.warm_up`.
        ready: function of the port, called when requests are accepted.
        progress: function that gets a message before each step until then.
            Workers write theirs to standard error.

    Raises:
        OSError: the address is taken.
        ValueError: there is no such port, or a model cannot be loaded.
    """
    check_port(host, port)
    queue_size = worker_processes.queue_size(limits)
    if workers == 1:
        clients = local.load(models, limits, queue_size, warm_up, progress)
        app = make_apps(clients, limits.for_queue(queue_size))
        try:
            asyncio.run(listen(app, host, port, limits, ready))
        finally:
            for client in clients.values():
                client.close()
        return

    async def serve(compiled):
        starting = worker_processes.start(models, workers, limits, warm_up, compiled)
        async with starting as clients:
            app = make_apps(clients, limits.for_queue(queue_size * workers))
            await listen(app, host, port, limits, ready)

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
        asyncio.run(serve(str(compiled)))
