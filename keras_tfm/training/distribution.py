"""Training on several devices, of one host or of several."""

import contextlib
import os
from collections.abc import Mapping, Sequence

import keras

from keras_tfm.training import processes

BATCH, MODEL = "batch", "model"  # axes of the mesh of devices
Layouts = Mapping[str, tuple]


def distribute(
    devices: int | str = "all",
    hosts: Sequence[str] | str = (),
    host: int | None = None,
    seed: int = 0,
    model_devices: int = 1,
    layouts: Layouts | None = None,
) -> "keras.distribution.Distribution | None":
    """Trains what is made from now on on several devices.

    Call it before any layer, model or optimizer is made, and before any other
    computation. It sets the distribution of Keras: each batch is divided over
    the devices, which hold the weights, and gradients are summed. The loss and
    the weights are those of one device, up to rounding. Datasets of
    `keras_tfm.text` divide their batches by themselves; those of others need
    rows that can be divided by the number of devices.

    Args:
        devices: `"all"`, or int, so many of this host.
        hosts: list of addresses such as `"h0:9876"`, the same on all hosts: the
            first is where the processes meet. Or `"auto"`: the variables of
            torchrun (`MASTER_ADDR`, `MASTER_PORT`, `WORLD_SIZE`, `RANK`), or
            what JAX detects: Slurm, Open MPI, Kubernetes, Cloud TPU. All their
            devices are used.
        host: int, the number of this host among `hosts`.
        seed: int, the same on all hosts, of `keras.utils.set_random_seed`. It
            is set before the processes meet, since Keras would exchange one.
        model_devices: int. Devices that share the weights of one replica of the
            model; the number of devices must be a multiple.
        layouts: dict from regular expressions of paths of weights to the axis
            of the mesh, `"model"` or None, for each of their axes; see
            `models.LAYOUTS`. Needed with `model_devices`.

    Returns:
        `keras.distribution.DataParallel` or `ModelParallel`; or None, where one
        device is asked for, which needs none.

    Raises:
        ValueError: an argument is out of range, or the backend is not JAX.

    Example:
        ```python
        import keras
        from keras_tfm import training

        assert training.distribute(devices=1) is None
        # On JAX: training.distribute("all"), and then model.fit as before.
        ```
    """
    _check(devices, hosts, host, model_devices, layouts)
    if devices == 1 and not hosts:
        return None
    if keras.config.backend() != "jax":
        raise ValueError(
            "`devices` must be 1 and `hosts` empty with KERAS_BACKEND="
            f"{keras.config.backend()}, for which Keras has no distribution; got "
            f"devices={devices!r}, hosts={hosts!r}. Set KERAS_BACKEND=jax."
        )
    if hosts:
        keras.utils.set_random_seed(seed)
        keras.distribution.initialize(*_addresses(hosts, host))
    names = keras.distribution.list_devices()
    if devices != "all":
        if int(devices) > len(names):
            raise ValueError(
                f"`devices` must be at most {len(names)}, the number of devices that "
                f"JAX has here; got {devices}."
            )
        names = names[: int(devices)]
    distribution = _make(names, model_devices, layouts)
    keras.distribution.set_distribution(distribution)
    return distribution


def local_devices() -> contextlib.AbstractContextManager:
    """Returns a scope for what this process does on its own.

    What is made in it, such as a copy of the model to decode with or to save,
    is distributed over the devices of this process alone, and needs no other
    process. With one process the scope changes nothing.

    Example:
        ```python
        from keras_tfm import training

        with training.local_devices():
            pass  # copy = model.__class__.from_config(model.get_config())
        ```
    """
    if processes.num_processes() == 1:
        return contextlib.nullcontext()
    return _make(processes.local_devices(), 1, None).scope()


def _make(names, model_devices, layouts):
    if len(names) % model_devices:
        raise ValueError(
            f"`model_devices` must divide the number of devices, {len(names)}; got "
            f"{model_devices}."
        )
    if model_devices == 1:
        # Keras' own division of datasets rejects batches of unknown size.
        return keras.distribution.DataParallel(devices=names, auto_shard_dataset=False)
    mesh = keras.distribution.DeviceMesh(
        (len(names) // model_devices, model_devices), (BATCH, MODEL), names
    )
    layout_map = keras.distribution.LayoutMap(mesh)
    for path, axes in layouts.items():
        layout_map[path] = axes
    return keras.distribution.ModelParallel(
        layout_map=layout_map, batch_dim_name=BATCH, auto_shard_dataset=False
    )


def _check(devices, hosts, host, model_devices, layouts):
    is_number = isinstance(devices, int) and not isinstance(devices, bool)
    if devices != "all" and not (is_number and devices >= 1):
        raise ValueError(
            f"`devices` must be 'all' or an int of 1 or more; got {devices!r}."
        )
    if hosts and devices != "all":
        raise ValueError(
            "`devices` must be 'all' with `hosts`, of which all devices are used; got "
            f"{devices!r}. CUDA_VISIBLE_DEVICES selects those of a host."
        )
    if isinstance(hosts, str):
        if hosts not in ("", "auto"):
            raise ValueError(
                f"`hosts` must be a list of addresses, or 'auto'; got {hosts!r}."
            )
        if host is not None:
            raise ValueError(
                f"`host` must be None with hosts={hosts!r}; got {host}. The variables "
                "of the environment have the number of this host."
            )
    elif hosts and (host is None or not 0 <= host < len(hosts)):
        raise ValueError(
            f"`host` must be from 0 to {len(hosts) - 1}, the number of this host in "
            f"`hosts`; got {host}."
        )
    elif not hosts and host is not None:
        raise ValueError(
            f"`hosts` must have the addresses of all hosts where `host` is given; got "
            f"hosts={hosts!r}, host={host}."
        )
    if model_devices > 1 and devices == 1 and not hosts:
        raise ValueError(
            "`devices` must be a multiple of `model_devices`; got devices=1, "
            f'model_devices={model_devices}. Use devices="all".'
        )
    if model_devices < 1 or (model_devices > 1 and not layouts):
        raise ValueError(
            "`model_devices` must be 1, or more with `layouts`; got "
            f"model_devices={model_devices}, layouts={layouts!r}."
        )


def _addresses(hosts, host):
    """Returns the arguments of `keras.distribution.initialize`."""
    if hosts != "auto":
        return ",".join(hosts), len(hosts), host
    variables = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
    values = [os.environ.get(name) for name in variables]
    if None in values:  # JAX reads the variables of other launchers
        return None, None, None
    address, port, count, index = values
    return f"{address}:{port}", int(count), int(index)
