"""Trains on a Ray cluster: `keras-tfm train RECIPE --cluster ... -- FLAGS`.

Ray Train starts the processes and starts them again after one is lost. Inside
runs the recipe, which resumes from its last saved state.
"""

import importlib
import os
import socket
import sys
import time
from typing import Any

from keras_tfm.cli import ray_cluster
from keras_tfm.cli.options import Cluster
from keras_tfm.recipes.flags import parse, with_flags

RESTARTS = 100  # after lost workers or nodes, before the job fails
LOCK_SECONDS = 120  # until the lock of a lost worker is free
STORAGE = ".ray"  # in the run folder: notes of Ray Train
# Ray Train passes these on to its workers. Its own prints all lines twice, and
# gives up workers that a busy node needs more than a minute to start.
ENVIRONMENT = {
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
}


def run(recipe: str, arguments: list[str], flags: Cluster) -> None:
    """Runs a recipe in processes of a cluster.

    Args:
        recipe: str, name of a module of `keras_tfm.recipes`.
        arguments: list of str, flags of the recipe, with `--out`.
        flags: `options.Cluster`, with `cluster`.

    Raises:
        ValueError: a flag is out of its range, or the recipe rejects its input.
        ConnectionError, ImportError: see `ray_cluster.connect`.
        SystemExit: an unknown flag of the recipe (status 2).
    """
    ray_cluster.check(flags)
    if flags.workers > 1:
        arguments = [*arguments, "--hosts", "auto"]
    out = _parse(recipe, arguments).out
    if out is None:
        raise ValueError(
            "--out must be a folder that all machines share; got none. Add `-- --out "
            "FOLDER`."
        )
    config = {
        "recipe": recipe,
        "arguments": arguments,
        "out": os.path.abspath(out),
        "folder": os.getcwd(),
    }
    with ray_cluster.connect(flags.cluster, "train", shows_output=True):
        error = _fit(flags, config)
    if error:
        raise ValueError(error)
    print(f"Finished: {out}", file=sys.stderr)


def _fit(flags, config):
    """Returns the error of the recipe, or None."""
    from ray import train
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    gpus = flags.gpus_per_worker
    resources = {"CPU": flags.cpus_per_worker, **({"GPU": gpus} if gpus else {})}
    trainer = DataParallelTrainer(
        work,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(
            num_workers=flags.workers,
            use_gpu=gpus > 0,
            resources_per_worker=resources,
        ),
        run_config=train.RunConfig(
            name=STORAGE,
            storage_path=config["out"],
            failure_config=train.FailureConfig(max_failures=RESTARTS),
        ),
    )
    return trainer.fit().return_value


def work(config: dict[str, Any]) -> str | None:
    """Runs the recipe in one process of several.

    Args:
        config: dict of the recipe, its arguments, the run folder, and the
            working folder.

    Returns:
        str, why the recipe rejects its input; or None.
    """
    from ray import train

    context = train.get_context()
    rank = context.get_world_rank()
    _set_addresses(context)
    os.chdir(config["folder"])
    flags = _parse(config["recipe"], config["arguments"])
    if rank == 0:
        _wait_for_lock(config["out"])
    else:  # the first process prints for all
        # Open until the process ends.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        _module(config["recipe"]).main(flags)
    # What another start would not change; anything else is tried again.
    except (ValueError, TypeError, FloatingPointError) as error:
        message = with_flags(str(error), flags)
        print(f"Process {rank}: {message}", file=sys.stderr)
        return message
    return None


def _set_addresses(context):
    """Sets the variables by which processes meet, see `training.distribute`."""
    import ray
    from ray.train.collective import broadcast_from_rank_zero

    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    address = {"MASTER_ADDR": ray.util.get_node_ip_address(), "MASTER_PORT": str(port)}
    os.environ.update(broadcast_from_rank_zero(address))
    os.environ["WORLD_SIZE"] = str(context.get_world_size())
    os.environ["RANK"] = str(context.get_world_rank())


def _wait_for_lock(out):
    """Locks the run folder as soon as no lost worker holds it."""
    from keras_tfm.training import folder_lock

    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            folder_lock.lock_folder(out, "out")
            return
        except ValueError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def _module(recipe):
    return importlib.import_module(f"keras_tfm.recipes.{recipe}")


def _parse(recipe, arguments):
    module = _module(recipe)
    return parse(module.Flags, module.__doc__, arguments)
