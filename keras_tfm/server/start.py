"""Starts a server: one process, or replicas on Ray Serve behind one."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from keras_tfm.server.app import make_app
from keras_tfm.server.engine import Engine
from keras_tfm.server.limits import Limits
from keras_tfm.server.listen import check_port, listen
from keras_tfm.server.local import LocalClient


def run(
    model: dict[str, Any],
    name: str,
    host: str,
    port: int,
    workers: int,
    limits: Limits,
    warm_up: Sequence[int],
    ready: Callable[[int], None] = lambda port: None,
) -> None:
    """Serves until a signal arrives, and finishes the requests in flight.

    One worker runs in this process. More workers, or a cluster that RAY_ADDRESS
    names, run on Ray Serve.

    Args:
        model: dict, arguments of `Engine`.
        name: str, of the model in URLs.
        host, port: the address; port 0 takes a free one.
        workers: int >= 1, processes with the model.
        limits: `Limits`.
        warm_up: ints >= 1, in tokens, see `Engine.warm_up`.
        ready: function of the port, called when requests are accepted.

    Raises:
        OSError: the address is taken.
        ValueError: there is no such port, or the model cannot be loaded.
        ImportError: more than one worker, or RAY_ADDRESS, without Ray.
    """
    check_port(host, port)
    if workers > 1 or "RAY_ADDRESS" in os.environ:
        try:
            from keras_tfm.server import cluster
        except ImportError as error:
            raise ImportError(
                "--workers above 1, or RAY_ADDRESS, needs Ray, which cannot be "
                f"imported ({error}); got --workers {workers}. Install "
                "`keras-tfm[cluster]`, or use one worker and unset RAY_ADDRESS."
            ) from error
        cluster.run(model, name, host, port, workers, limits, warm_up, ready)
        return
    engine = Engine(
        **model,
        max_attention_tokens=limits.max_attention_tokens,
        batch_size=limits.batch_size,
        timeout=limits.timeout,
    )
    engine.warm_up(warm_up)
    queue_size = 2 * limits.max_waiting
    client = LocalClient(engine, limits.batch_size, queue_size)
    app = make_app(client, name, limits.for_queue(queue_size))
    listen(app, host, port, limits, ready)
