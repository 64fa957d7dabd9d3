"""Starts a server: one process, or Ray Serve replicas behind one."""

from collections.abc import Callable, Sequence
from typing import Any

from keras_tfm.server.app import make_apps
from keras_tfm.server.engine import Engine
from keras_tfm.server.limits import Limits
from keras_tfm.server.listen import check_port, listen
from keras_tfm.server.local import LocalClient


def run(
    models: dict[str, dict[str, Any]],
    host: str,
    port: int,
    workers: int,
    limits: Limits,
    warm_up: Sequence[int],
    ready: Callable[[int], None] = lambda port: None,
) -> None:
    """Serves until a signal arrives, and finishes the requests in flight.

    One worker runs in this process. More workers run on Ray Serve.

    Args:
        models: dict from the names of models in URLs to arguments of `Engine`.
        host, port: the address; port 0 takes a free one.
        workers: int >= 1, processes with each model.
        limits: `Limits`.
        warm_up: ints >= 1, in tokens, see `Engine.warm_up`.
        ready: function of the port, called when requests are accepted.

    Raises:
        OSError: the address is taken.
        ValueError: there is no such port, or a model cannot be loaded.
        ImportError: more than one worker without Ray.
    """
    check_port(host, port)
    if workers > 1:
        try:
            from keras_tfm.server import cluster
        except ImportError as error:
            raise ImportError(
                "--workers above 1 needs Ray, which cannot be imported "
                f"({error}); got --workers {workers}. Install `keras-tfm[cluster]`, or "
                "use one worker."
            ) from error
        cluster.run(models, host, port, workers, limits, warm_up, ready)
        return
    queue_size, clients = 2 * limits.max_waiting, {}
    for name, arguments in models.items():
        engine = Engine(
            **arguments,
            max_attention_tokens=limits.max_attention_tokens,
            batch_size=limits.batch_size,
            timeout=limits.timeout,
        )
        engine.warm_up(warm_up)
        clients[name] = LocalClient(engine, limits.batch_size, queue_size)
    listen(make_apps(clients, limits.for_queue(queue_size)), host, port, limits, ready)
