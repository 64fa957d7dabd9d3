"""Bytes that devices exchange in a training step, counted in the program.

Run      python -m benchmarks.all_reduce [--size tiny base] [--devices 1 2 4 8]
Prints   for each size, number of devices and division: the bytes of all
         collectives of the step that XLA has compiled, in all and a parameter

Nothing is timed, so that any machine serves: the devices are forced on its CPU.
A collective counts with the bytes of its result, once for all devices. A ring
sends about twice as much through each device.
"""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Literal

from benchmarks import report
from benchmarks.report import Column

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
SIZES = {"f32": 4, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "pred": 1, "s64": 8}
VOCABULARY = {"tiny": 10_000, "base": 37_000}
ROWS, LENGTH = 64, 16


@dataclasses.dataclass(frozen=True)
class Flags(report.Flags):
    """What to count."""

    size: tuple[Literal["tiny", "base"], ...] = ("tiny", "base")
    """Configurations of the model."""
    devices: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of devices."""
    model_devices: int = 1
    """Devices that share the weights of one model."""
    one_step: bool = False
    """Train one step here: what the other processes are started for."""


def collective_bytes(program: str) -> dict[str, int]:
    """Sums the bytes of the results of collectives.

    Args:
        program: str, HLO after optimization.

    Returns:
        dict from the kind of the collective to its bytes.
    """
    totals = dict.fromkeys(COLLECTIVES, 0)
    kinds = "|".join(COLLECTIVES)
    for result, kind in re.findall(rf" = (.+?) ({kinds})(?:-start)?\(", program):
        for dtype, shape in re.findall(r"(\w+)\[([\d,]*)\]", result):
            count = 1
            for dim in filter(None, shape.split(",")):
                count *= int(dim)
            totals[kind] += SIZES[dtype] * count
    return totals


def train_one_step(flags: Flags) -> None:
    """Compiles and runs one training step, and prints the parameters."""
    import keras
    import numpy as np

    from keras_tfm import models, training

    [size], [devices] = flags.size, flags.devices
    layouts = models.LAYOUTS if flags.model_devices > 1 else None
    training.distribute(devices, model_devices=flags.model_devices, layouts=layouts)
    make = {"tiny": models.transformer_tiny, "base": models.transformer_base}[size]
    model = make(VOCABULARY[size])
    network = model.hidden_model()
    loss = training.ProjectedCrossentropy(model.target_embedding, 0.1)
    network.compile(keras.optimizers.Adam(1e-3, global_clipnorm=25.0), loss)
    ids = np.ones((ROWS, LENGTH), "int32")
    network.train_on_batch({"source_ids": ids, "target_ids": ids}, ids)
    print(model.count_params())


def count(size: str, devices: int, model_devices: int) -> tuple[int, dict[str, int]]:
    """Returns the parameters, and the bytes of the step's collectives."""
    command = [sys.executable, "-m", "benchmarks.all_reduce", "--one-step", "--size"]
    command += [size, "--devices", devices, "--model-devices", model_devices]
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--xla_force_host_platform_device_count={devices}"]
        options += [f"--xla_dump_to={folder}", "--xla_dump_hlo_as_text"]
        environment = {"KERAS_BACKEND": "jax", "XLA_FLAGS": " ".join(options)}
        result = subprocess.run(
            [str(word) for word in command],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        # The step is the largest program of the process.
        files = pathlib.Path(folder).glob("*after_optimizations.txt")
        program = max(files, key=lambda file: file.stat().st_size).read_text()
    return int(result.stdout.split()[-1]), collective_bytes(program)


def count_all(flags: Flags) -> Iterator[tuple]:
    """Yields the rows of the table."""
    for size in flags.size:
        for devices in flags.devices:
            if devices % flags.model_devices:
                continue
            parameters, totals = count(size, devices, flags.model_devices)
            kinds = ", ".join(kind for kind in COLLECTIVES if totals[kind])
            total = sum(totals.values())
            yield size, parameters, devices, kinds, total / 1e6, total / parameters


def main(flags: Flags) -> None:
    """Prints the table."""
    columns = [Column("model"), Column("parameters", format=",d"), Column("devices")]
    columns += [Column("collectives"), Column("results", "MB", ".3f")]
    columns += [Column("a parameter", "bytes", ".3f")]
    report.report("all_reduce", flags, report.Table(columns, count_all(flags)))


if __name__ == "__main__":
    flags = report.parse(Flags, __doc__)
    train_one_step(flags) if flags.one_step else main(flags)
