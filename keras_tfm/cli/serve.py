"""`keras-tfm serve`."""

import contextlib
import math
import pathlib
import re
import signal
import sys
import threading

from keras_tfm.cli import options, ray_cluster
from keras_tfm.pipelines import pivoting
from keras_tfm.server import access
from keras_tfm.server.limits import Limits

LIMITS = Limits.numbers()
# Flags that count something, at least 1.
TIMEOUTS = ("timeout", "header_timeout")
COUNTS = (
    *("workers", "beam_size", "max_tokens"),
    *(name for name in LIMITS if name not in TIMEOUTS),
)
OF_ENGINE = (
    *("source_language", "target_language", "beam_size", "max_tokens"),
    *("matmul_precision", "engine", "compute_type"),
)


def run(flags: options.Serve) -> None:
    """Serves models until it is stopped, or writes a configuration.

    Args:
        flags: `options.Serve`.

    Raises:
        ValueError: a flag is out of its range, or as `start.run`.
        ImportError: the extra `serve` or `cluster` is not installed.
    """
    _check(flags)
    for model in flags.models:  # before anything is started
        pivoting.check_name(model)
    models = _names(flags)
    if flags.write_config is not None:
        _write_config(flags, models)
    elif flags.cluster is not None:
        _run_on_cluster(flags, models)
    else:
        _run_here(flags, models)


def _run_here(flags, models):
    try:
        from keras_tfm.server import start
    except ImportError as error:
        raise ImportError(
            f"`keras-tfm serve` needs FastAPI and uvicorn, which cannot be imported "
            f"({error}). Install `keras-tfm[serve]`."
        ) from error

    stdout, title = sys.stdout, ", ".join(models)
    url = f"http://{access.in_url(flags.host)}"
    options = _engine_options(flags)
    allowed = access.Access(
        access.hosts_for(flags.host, flags.allowed_hosts),
        access.read_key(flags.api_key_file),
    )
    start.run(
        {name: {"name": model, **options} for name, model in models.items()},
        flags.host,
        flags.port,
        flags.workers,
        Limits(**{name: getattr(flags, name) for name in LIMITS}, access=allowed),
        sorted(flags.warm_up),
        flags.compile_first,
        lambda port: _print(f"{title} at {url}:{port}", stdout),
        lambda message: _print(message, sys.stderr),
    )


def _print(message, file):
    with contextlib.suppress(OSError):  # a full disk must not end the server
        print(message, file=file, flush=True)


def _write_config(flags, models):
    arguments = _arguments(flags, models)
    import yaml

    from keras_tfm.server import application

    variables = ray_cluster.variables()
    content = application.config(arguments, flags.host, flags.port, variables)
    text = yaml.safe_dump(content, sort_keys=False)
    pathlib.Path(flags.write_config).write_text(text, encoding="utf-8")


def _run_on_cluster(flags, models):
    stop = threading.Event()
    # Ray prints messages of its processes on standard output.
    stdout = sys.stdout
    with (
        ray_cluster.connect(flags.cluster, "serve"),
        contextlib.redirect_stdout(sys.stderr),
    ):
        from keras_tfm.server import application

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        address = f"http://{flags.host}:{flags.port} of each node"
        application.run(
            _arguments(flags, models),
            flags.host,
            flags.port,
            stop.wait,
            lambda: print(f"{', '.join(models)} at {address}", file=stdout, flush=True),
        )


def _arguments(flags, models):
    """Returns the arguments of each model's application."""
    ray_cluster.import_ray("serve")
    from keras_tfm.server.application import Arguments

    defaults = Limits()
    limits = {name: getattr(flags, name) for name in LIMITS}
    return [
        Arguments(
            model=model,
            name=name,
            options=_engine_options(flags),
            workers=flags.workers,
            gpus_per_worker=flags.gpus_per_worker,
            cpus_per_worker=flags.cpus_per_worker,
            warm_up=tuple(sorted(flags.warm_up)),
            limits={k: v for k, v in limits.items() if v != getattr(defaults, k)},
        )
        for name, model in models.items()
    ]


def _engine_options(flags):
    options = {name: getattr(flags, name) for name in OF_ENGINE}
    return {name: value for name, value in options.items() if value is not None}


def _names(flags):
    """Maps the names of models in URLs to the models."""
    models = [ray_cluster.absolute(model) for model in flags.models]
    if flags.name is not None and len(models) > 1:
        raise ValueError(
            f"--name must name a single MODEL; got {flags.name!r} for {len(models)}. "
            "Leave it out: the names of their folders are used."
        )
    names = [flags.name or pathlib.PurePath(model).name for model in models]
    for name in names:
        # Braces would be a pattern of all names.
        is_part = re.fullmatch(r"[^/{}\x00-\x1f\x7f\ud800-\udfff]+", name)
        if not is_part or name in (".", ".."):
            raise ValueError(
                "--name must be one part of a path in URLs, in UTF-8, without slashes, "
                f"braces and control characters; got {name!r}."
            )
        if names.count(name) > 1:
            raise ValueError(f"MODEL must have different names; got {name!r} twice.")
    return dict(zip(names, models, strict=True))


def _check(flags):
    """Rejects numbers by the names of their flags, before a model is loaded."""
    if not flags.models:
        raise ValueError("MODEL must be at least one preset or folder; got none.")
    for name in COUNTS:
        value = getattr(flags, name)
        if value is not None and value < 1:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} must be at least 1; got {value}.")
    if flags.cluster is None and flags.write_config is None:
        ray_cluster.check_alone(flags, ("gpus_per_worker", "cpus_per_worker"))
    else:
        ray_cluster.check(flags)
        if flags.api_key_file is not None or flags.allowed_hosts:
            raise ValueError(
                "--api-key-file and --allowed-hosts are of a server without --cluster. "
                "Set KERAS_TFM_API_KEY, and check the header Host in the proxy."
            )
    if any(length < 1 for length in flags.warm_up):
        lengths = " ".join(map(str, flags.warm_up))
        raise ValueError(f"--warm-up must hold lengths of at least 1; got {lengths}.")
    for name in TIMEOUTS:
        value = getattr(flags, name)
        if not 0 < value < math.inf:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} must be positive and finite; got {value}.")
