"""Division of batches among the devices and processes that train together."""

import dataclasses
import math

import keras
import numpy as np

from keras_tfm.text.checks import check

Part = tuple[int, int]  # the number of a part from 0, and the count of all parts


@dataclasses.dataclass(frozen=True)
class Division:
    """Which rows of each batch a process takes, and how many empty ones.

    Args:
        index: int, the number of the part.
        count: int, all parts of a batch.
        multiple: int, a multiple of `count`. Each batch is filled up to a
            multiple of it.
    """

    index: int = 0
    count: int = 1
    multiple: int = 1

    def num_rows(self, batch_size: int) -> int:
        """Returns the rows of a whole batch, empty ones included."""
        return -(-batch_size // self.multiple) * self.multiple

    def rows(self, batch_size: int) -> tuple[int, int]:
        """Returns the first row of the part, and the row after its last."""
        size = self.num_rows(batch_size) // self.count
        return self.index * size, (self.index + 1) * size


WHOLE = Division()


def data_parallel_width() -> int:
    """Returns over how many devices Keras divides each batch.

    That is the size of the batch axis of the mesh that
    `keras.distribution.set_distribution` has set on JAX, and 1 without it and
    on other backends.

    Example:
        ```python
        from keras_tfm import text

        assert text.data_parallel_width() == 1  # no distribution is set
        ```
    """
    distribution = _distribution()
    return 1 if distribution is None else len(_replicas(distribution))


def local_part() -> Part:
    """Returns the part of each batch that the devices of this process hold.

    A process feeds the data replicas of its own devices. Processes that share a
    replica, because the model is divided among them, feed the same rows. So the
    parts are counted by replicas, not by processes.

    Returns:
        `(index, count)`; `(0, 1)` for the whole batch, with one process or
        without a distribution of Keras.

    Raises:
        ValueError: this process has no device in the mesh, its replicas are not
            neighbors in the mesh, or Keras would divide the batches again.

    Example:
        ```python
        from keras_tfm import text

        assert text.local_part() == (0, 1)  # one process has the whole batch
        ```
    """
    distribution = _distribution()
    if distribution is None or distribution.num_processes == 1:
        return 0, 1
    check(
        not distribution.auto_shard_dataset,
        "`auto_shard_dataset` of the distribution must be False with several "
        "processes: these batches are divided already",
        "Set distribution.auto_shard_dataset = False.",
        auto_shard_dataset=True,
    )
    replicas = _replicas(distribution)
    local_devices = distribution.device_mesh.backend_mesh.local_devices
    is_local = np.isin(replicas, local_devices).any(axis=1)
    return part_of_replicas(np.flatnonzero(is_local).tolist(), len(replicas))


def part_of_replicas(local: list[int], count: int) -> Part:
    """Returns the part of a batch that some data replicas hold.

    Args:
        local: numbers of the replicas of this process.
        count: int, all replicas.

    Raises:
        ValueError: there is none, or they are no part of equal parts.
    """
    size = len(local)
    is_part = size and local == list(range(local[0], local[0] + size))
    check(
        is_part and local[0] % size == 0 and count % size == 0,
        "`device_mesh` must have the devices of each process side by side, so that "
        "all processes have equally many data replicas",
        "Order the devices of the mesh by process.",
        replicas_of_this_process=local,
        replicas=count,
    )
    return local[0] // size, count // size


def make_division(
    part: Part | None = None, rows_multiple: int | None = None
) -> Division:
    """Makes a `Division`, by default that of the distribution of Keras.

    Args:
        part: `(index, count)`, or None for `local_part()`.
        rows_multiple: int >= 1, or None for `data_parallel_width()`.

    Raises:
        ValueError: `part` is not below its count, `rows_multiple` is below 1,
            or see `local_part`.
    """
    index, count = local_part() if part is None else part
    check(
        0 <= index < count,
        "`part` must be (index, count) with an index from 0 to below count",
        part=part,
    )
    multiple = data_parallel_width() if rows_multiple is None else rows_multiple
    check(multiple >= 1, "`rows_multiple` must be 1 or more", rows_multiple=multiple)
    return Division(index, count, math.lcm(multiple, count))


def _distribution():
    """Returns the distribution of Keras if it divides batches, or None."""
    if keras.backend.backend() != "jax":
        return None
    distribution = keras.distribution.distribution()
    return distribution if distribution and distribution.batch_dim_name else None


def _replicas(distribution) -> np.ndarray:
    """Returns the devices of each data replica, `(replicas, devices)`."""
    mesh = distribution.device_mesh
    axis = mesh.axis_names.index(distribution.batch_dim_name)
    devices = np.moveaxis(mesh.backend_mesh.devices, axis, 0)
    return devices.reshape(len(devices), -1)
