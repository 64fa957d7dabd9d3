"""Processes that train one model together, and the backends' APIs for them.

Keras distributes tensors and variables, but has no call for the number of a
process, for waiting, or for exchange outside of a model. Nothing here is needed
with one process: then every function returns at once.
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np


def num_processes() -> int:
    """Returns the number of processes that train together on JAX, else 1.

    Example:
        ```python
        from keras_tfm.training import processes

        print(processes.num_processes())  # 1
        ```
    """
    return _jax().process_count() if keras.config.backend() == "jax" else 1


def process_index() -> int:
    """Returns the number of this process, from 0."""
    return _jax().process_index() if keras.config.backend() == "jax" else 0


def local_devices() -> list[str]:
    """Returns the names of the devices of this process, as Keras names them."""
    return [f"{device.platform}:{device.id}" for device in _jax().local_devices()]


def is_first_process() -> bool:
    """Returns whether this process writes the files of the run."""
    return process_index() == 0


def wait_for_all(reason: str) -> None:
    """Waits until all processes have called this.

    Args:
        reason: str, the same in all processes.
    """
    if num_processes() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(reason)


def gather(value: Any) -> list:
    """Exchanges a JSON value; every process must call this.

    Args:
        value: what this process contributes.

    Returns:
        list of the values of all processes, in their order.
    """
    if num_processes() == 1:
        return [value]
    from jax.experimental import multihost_utils

    content = np.frombuffer(json.dumps(value).encode(), "uint8")
    # Arrays of all processes must have one shape.
    lengths = multihost_utils.process_allgather(np.array(len(content)))
    padded = np.zeros(int(lengths.max()), "uint8")
    padded[: len(content)] = content
    rows = multihost_utils.process_allgather(padded)
    pairs = zip(rows, lengths, strict=True)
    return [json.loads(bytes(np.asarray(row[:length]))) for row, length in pairs]


def map_parts(function: Callable[[list], Iterable], values: Sequence) -> list:
    """Applies a function to a list, of which each process takes a part.

    Args:
        function: from a list to as many JSON values.
        values: list; every process must pass the same.

    Returns:
        list of the results, in the order of `values`, in each process.

    Raises:
        ValueError: `function` returns another number of values.
    """
    count = num_processes()
    part = list(values[process_index() :: count])
    results = list(function(part)) if part else []
    if len(results) != len(part):
        raise ValueError(
            "`function` must return one value for each; got "
            f"{len(results)} for {len(part)}."
        )
    parts = gather(results)
    return [parts[i % count][i // count] for i in range(len(values))]


def to_numpy(variable: Any) -> np.ndarray:
    """Returns the value of a variable, or of an array, as a whole.

    Of a weight that is sharded over processes each holds a part: then every
    process must call this.

    Args:
        variable: Keras variable or array of the backend.
    """
    value = getattr(variable, "value", variable)
    if num_processes() > 1 and not getattr(value, "is_fully_addressable", True):
        from jax.experimental import multihost_utils

        value = multihost_utils.process_allgather(value, tiled=True)
    return np.asarray(keras.ops.convert_to_numpy(value))


def get_weights(model: keras.Model) -> list[np.ndarray]:
    """Returns the weights of a model as wholes; every process must call this.

    Args:
        model: built Keras model.
    """
    return [to_numpy(variable) for variable in model.weights]


def has_all_weights(model: keras.Model) -> bool:
    """Returns whether no weight is sharded over several processes.

    Args:
        model: built Keras model.
    """
    if num_processes() == 1:
        return True
    values = (variable.value for variable in model.variables)
    return all(
        value.is_fully_addressable or value.is_fully_replicated for value in values
    )


def check_one_process(parameter: str) -> None:
    """Rejects processes that would train separate models.

    PyTorch's `torchrun`, and `torch.distributed`, start processes of which each
    would call `fit` on its own: Keras does not synchronize them.

    Args:
        parameter: str, what the error begins with.

    Raises:
        ValueError: there are several of them.
    """
    if keras.config.backend() != "torch":
        return
    count = _world_size()
    if "RANK" in os.environ:  # of torchrun, where torch.distributed is not used
        count = max(count, int(os.environ.get("WORLD_SIZE", 1)))
    if count > 1:
        raise ValueError(
            f"{parameter} must run in one process with PyTorch; got {count} processes, "
            "of which each would train a model of its own. Set KERAS_BACKEND=jax to "
            "train in several, or write the loop with DistributedDataParallel: "
            "docs/scale.md has it."
        )


def num_replicas() -> int:
    """Returns the replicas of the model of which a backend averages gradients.

    TensorFlow's `MirroredStrategy` and PyTorch's `DistributedDataParallel` take
    the mean over their replicas. `keras.distribution` has one: its devices
    compute one loss together.

    Returns:
        int. 1 outside of a replica of TensorFlow, and where PyTorch computes no
        gradients: a process may evaluate alone.
    """
    backend = keras.config.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        if tf.distribute.in_cross_replica_context():
            return 1
        return tf.distribute.get_strategy().num_replicas_in_sync
    if backend == "torch":
        import torch

        return _world_size() if torch.is_grad_enabled() else 1
    return 1


def total_of_replicas(number: Any) -> tuple[Any, int]:
    """Adds a number over the replicas of the model.

    Args:
        number: float32 scalar of the backend.

    Returns:
        float32 scalar without gradient, and `num_replicas()`.
    """
    replicas = num_replicas()
    if replicas == 1:
        return number, 1
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, number), replicas
    import torch

    total = number.detach().clone()
    torch.distributed.all_reduce(total)
    return total, replicas


def _world_size():
    import torch

    distributed = torch.distributed
    is_used = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if is_used else 1


def _jax():
    import jax

    return jax
