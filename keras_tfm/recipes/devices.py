"""The devices and hosts that a recipe trains on."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from keras_tfm import models, training
from keras_tfm.training import processes

# Flags that may change when a run is resumed.
RESUMABLE = ("devices", "hosts", "host", "model_devices")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """What to train on. More than one device needs KERAS_BACKEND=jax."""

    devices: Literal["all"] | int = 1
    """Devices of this host that share each batch: all, or a number."""
    hosts: str | None = None
    """Hosts that train together, such as h0:9876,h1:9876; the same on all.
    Start the command on each, with --host, and with an --out that all of them
    share. auto reads the variables of torchrun, Slurm, Open MPI or Kubernetes.
    All devices of all hosts are used."""
    host: int | None = None
    """Number of this host in --hosts, from 0."""
    model_devices: int = 1
    """Devices that share the weights of one model, for a model that is too
    large for one device. The number of devices must be a multiple. On one host
    alone."""


def use(flags: Any) -> None:
    """Distributes what is made from now on.

    Args:
        flags: `Devices`, with `seed`.

    Raises:
        ValueError: flags that do not fit together, or the backend.
    """
    processes.check_one_process("A recipe")
    if flags.hosts is not None and flags.model_devices > 1:
        raise ValueError(
            "--model-devices must be 1 with --hosts, since no process would have all "
            f"weights to save; got {flags.model_devices}. Train on one host, or leave "
            "it out."
        )
    hosts: Sequence[str] | str = ()
    if flags.hosts is not None:
        hosts = flags.hosts if flags.hosts == "auto" else flags.hosts.split(",")
    training.distribute(
        "all" if hosts and flags.devices == 1 else flags.devices,
        hosts,
        flags.host,
        flags.seed,
        flags.model_devices,
        models.LAYOUTS,
    )
