"""The server as an application of Ray Serve, for `serve deploy` and KubeRay.

The import path of a configuration is `keras_tfm.server.application:build`. Each
model is an application with a route prefix of its own.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pydantic
from ray import serve

from keras_tfm.pipelines import pivoting
from keras_tfm.server.access import Access, read_key
from keras_tfm.server.app import make_app
from keras_tfm.server.engine import WARM_UP
from keras_tfm.server.limits import Limits
from keras_tfm.server.replica import LOGGING, Replica, ReplicaClient

IMPORT_PATH = f"{__name__}:build"
# The deployments of an application, as a configuration names them.
MODEL, HTTP = "Model", "Http"
HTTP_REQUESTS = 100  # in flight; more start another process that reads HTTP


class Arguments(pydantic.BaseModel, extra="forbid"):
    """The arguments of `build`, under `args` in a configuration."""

    model: str = pydantic.Field(description="A preset, a folder, or hf://owner/name.")
    name: str = pydantic.Field("default", description="Of the model in URLs.")
    options: dict[str, Any] = pydantic.Field(
        {}, description="Arguments of `Translator.from_preset`, such as `beam_size`."
    )
    workers: int = pydantic.Field(1, ge=1, description="The most replicas.")
    min_workers: int = pydantic.Field(1, ge=0, description="The fewest replicas.")
    gpus_per_worker: float = pydantic.Field(0.0, ge=0)
    cpus_per_worker: float = pydantic.Field(1.0, ge=0)
    warm_up: tuple[pydantic.PositiveInt, ...] = pydantic.Field(
        WARM_UP, description="Source lengths to compile for, in tokens."
    )
    limits: dict[str, float] = pydantic.Field(
        {}, description="Limits that differ from the defaults of `Limits`."
    )


def build(args: Arguments) -> serve.Application:
    """Builds the Serve application of a model.

    It has two deployments, whose options a configuration can replace: `Model`,
    replicas that each claim GPUs and hold the model, and `Http`, processes that
    read and check requests. Both are scaled by the requests in flight. An API
    key comes from `KERAS_TFM_API_KEY` where this function runs.

    Args:
        args: `Arguments`.

    Raises:
        ValueError: there is no such model, or a limit or the key is invalid.
    """
    pivoting.check_name(args.model)
    limits = Limits(**args.limits, access=Access(api_key=read_key(None)))
    replicas = Replica.options(
        name=MODEL,
        # Above half a batch in flight for each replica, another one starts.
        autoscaling_config={
            "min_replicas": args.min_workers,
            "max_replicas": max(args.workers, args.min_workers),
            "target_ongoing_requests": max(1, limits.batch_size // 2),
        },
        max_ongoing_requests=limits.max_waiting,
        max_queued_requests=limits.max_waiting * args.workers,
        ray_actor_options={
            "num_cpus": args.cpus_per_worker,
            "num_gpus": args.gpus_per_worker,
        },
        graceful_shutdown_timeout_s=limits.timeout,
        logging_config=LOGGING,
    ).bind({"name": args.model, **args.options}, limits, args.warm_up)
    queue_size = 2 * limits.max_waiting * args.workers

    def make():
        application = serve.get_replica_context().app_name
        handle = serve.get_deployment_handle(MODEL, application)
        client = ReplicaClient(handle, queue_size)
        return make_app(client, args.name, limits.for_queue(queue_size))

    http = serve.deployment(serve.ingress(make)()).options(
        name=HTTP,
        autoscaling_config={
            "min_replicas": 1,
            "max_replicas": args.workers,
            "target_ongoing_requests": HTTP_REQUESTS,
        },
        max_ongoing_requests=queue_size,
        ray_actor_options={"num_cpus": 0},  # as Serve's own proxies
        graceful_shutdown_timeout_s=limits.timeout,
        logging_config=LOGGING,
    )
    return http.bind(replicas)


def config(
    models: Sequence[Arguments], host: str, port: int, variables: dict[str, str]
) -> dict[str, Any]:
    """Returns the configuration of `serve deploy`, as JSON values.

    Args:
        models: `Arguments` of each model; one has the prefix `/`, several have
            their names.
        host, port: address of the HTTP proxies, on every node.
        variables: environment variables of the replicas.
    """
    applications = [
        {
            "name": arguments.name,
            "route_prefix": prefix,
            "import_path": IMPORT_PATH,
            "runtime_env": {"env_vars": dict(variables)},
            "args": arguments.model_dump(mode="json", exclude_defaults=True),
        }
        for prefix, arguments in _prefixes(models).items()
    ]
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": host, "port": port},
        "applications": applications,
    }


def _prefixes(models):
    if len(models) == 1:
        return {"/": models[0]}
    return {f"/{arguments.name}": arguments for arguments in models}


def run(
    models: Sequence[Arguments],
    host: str,
    port: int,
    wait: Callable[[], Any],
    ready: Callable[[], Any],
) -> None:
    """Serves on the Ray cluster that this process is connected to, for a time.

    At the end the applications are gone; Serve too, unless it was running.

    Args:
        models, host, port: see `config`. A Serve that is already running keeps
            its own address.
        wait: function that returns when the applications are to end.
        ready: function that is called when requests are answered.

    Raises:
        ValueError: Serve has an application of such a name, or a model cannot
            be loaded.
    """
    status = serve.status()
    runs_already = bool(status.applications or status.proxies)
    for arguments in models:
        if arguments.name in status.applications:
            raise ValueError(
                "--name must be a name that the cluster does not serve yet; got "
                f"{arguments.name!r}. Choose another, or end that application with "
                "`serve delete`."
            )
    started = []
    try:
        serve.start(
            proxy_location="EveryNode",
            http_options={"host": host, "port": port},
            logging_config=LOGGING,
        )
        for prefix, arguments in _prefixes(models).items():
            started.append(arguments.name)
            serve.run(build(arguments), name=arguments.name, route_prefix=prefix)
        ready()
        wait()
    except RuntimeError as error:  # Serve's, with the traceback of the replica
        raise ValueError(f"The application could not start. {error}") from error
    finally:
        for name in started:
            serve.delete(name)  # waits for requests in flight
        if not runs_already:
            serve.shutdown()
