"""The devices and hosts that a recipe trains on."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras

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
    large for one device. The number of devices must be a multiple. With
    --hosts, each host needs memory for all weights when they are saved."""


def use(flags: Any) -> None:
    """Distributes what is made from now on.

    Args:
        flags: `Devices`, with `seed`.

    Raises:
        ValueError: flags that do not fit together, or the backend.
    """
    processes.check_one_process("A recipe")
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


def local_model(
    model: keras.Model, prepare: Callable[[keras.Model], None] | None = None
) -> keras.Model:
    """Returns a model that this process can use and save without the others.

    Every process must call this.

    Args:
        model: built Keras model.
        prepare: function of the copy before it gets its weights, which adds
            what the configuration does not have, such as LoRA; or None.

    Returns:
        `model` itself in a single process, else a copy of it.
    """
    if processes.num_processes() == 1:
        return model
    with training.local_devices():
        copy = type(model).from_config(model.get_config())
        if prepare is not None:
            prepare(copy)
    copy.set_weights(processes.get_weights(model))
    return copy
