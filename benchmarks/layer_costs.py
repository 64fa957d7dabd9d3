"""Counts what a layer costs: table 1 of the paper, by XLA's own analysis.

* Run      python -m benchmarks.layer_costs          (see --help); needs jax
* Counts   operations of one layer for a sequence, as XLA counts them in the
           compiled function; by what they grow when the length n or the
           dimension d doubles; and milliseconds of a batch

The layers are those of keras_tfm and Keras. XLA counts the body of a loop
once, whatever its steps, so that the recurrent layer is counted unrolled; it is
timed as a loop. A mask saves nothing in dense attention, whose products are
computed and thrown away. Restricted attention is therefore computed in chunks
of half a neighborhood: each query meets the keys of three chunks.

Source: Vaswani et al. 2017, section 4 and table 1,
https://arxiv.org/abs/1706.03762
"""

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks import report
from benchmarks.report import Column

KERNEL = 3  # k, positions of a convolution
HEADS = 4


@dataclasses.dataclass(frozen=True)
class Flags(report.Flags):
    """Flags of this command."""

    length: int = 64
    """Length n, in tokens."""
    dim: int = 64
    """Dimension d."""
    neighborhood: int = 16
    """Neighborhood r of restricted attention, in tokens; even."""
    batch_size: int = 16
    """Sequences of a batch, for the time."""
    repeats: int = 20
    """Calls, of which the median counts; 0 for no times."""


class Cost(NamedTuple):
    """What table 1 says of a layer, with n, d, k and r.

    Attributes:
        operations: str, operations for each layer.
        sequential: str, operations that wait for each other.
        path: str, the longest path between two positions.
    """

    operations: str
    sequential: str
    path: str


COSTS = {
    "self-attention": Cost("n² d", "1", "1"),
    "recurrent": Cost("n d²", "n", "n"),
    "convolutional": Cost("k n d²", "1", "log_k n, dilated"),
    "self-attention, restricted": Cost("r n d", "1", "n / r"),
    "the same by a mask": Cost("n² d", "1", "n / r"),
    "self-attention, heads": Cost("n² d + n d²", "1", "1"),
}


def make_layer(name: str, dim: int, neighborhood: int, unroll: bool) -> Callable:
    """Makes the layer of a row of `COSTS`, a function of float `(B, n, d)`."""
    import keras

    from keras_tfm import layers

    if name == "recurrent":
        return keras.layers.GRU(dim, return_sequences=True, unroll=unroll)
    if name == "convolutional":
        return keras.layers.Conv1D(dim, KERNEL, padding="same")
    if name == "self-attention, heads":
        return layers.MultiHeadAttention(HEADS)
    attention = layers.Attention("scaled_dot")
    if name == "self-attention, restricted":
        return lambda x: restricted_attention(attention, x, neighborhood)
    if name == "the same by a mask":
        return lambda x: attention(
            x, attention_mask=window_mask(x.shape[1], neighborhood)
        )
    return attention


def window_mask(length: int, neighborhood: int) -> Any:
    """Returns bool `(1, n, n)`, True up to r / 2 positions away."""
    from keras import ops

    distances = ops.arange(length)[:, None] - ops.arange(length)[None, :]
    return (ops.abs(distances) <= neighborhood // 2)[None]


def restricted_attention(attention: Callable, x: Any, neighborhood: int) -> Any:
    """Attends up to r / 2 positions away, with r n d operations.

    Args:
        attention: `layers.Attention`.
        x: float `(B, n, d)`; n is a multiple of r / 2.
        neighborhood: int, r, even.

    Returns:
        float `(B, n, d)`, as dense attention with `window_mask`.

    Raises:
        ValueError: n or r does not fit.
    """
    from keras import ops

    (batch_size, length, dim), size = x.shape, neighborhood // 2
    if neighborhood % 2 or length % size:
        raise ValueError(
            "`neighborhood` must be even, and the length a multiple of its half; got "
            f"neighborhood={neighborhood}, length={length}."
        )
    shape = (batch_size * (length // size), size, dim)
    padded = ops.pad(x, [[0, 0], [size, size], [0, 0]])
    # The chunk before, that of the queries, the one after: (B n / c, 3 c, d).
    chunks = (ops.reshape(padded[:, i * size :][:, :length], shape) for i in range(3))
    keys = ops.concatenate(list(chunks), axis=1)
    starts = ops.arange(0, length, size)[:, None, None]
    queries = starts + ops.arange(size)[:, None]  # (n / c, c, 1), positions
    positions = starts + ops.arange(-size, 2 * size)  # (n / c, 1, 3 c)
    is_near = ops.abs(queries - positions) <= size
    is_near = is_near & (positions >= 0) & (positions < length)
    mask = ops.tile(is_near, (batch_size, 1, 1))  # (B n / c, c, 3 c)
    return ops.reshape(
        attention(ops.reshape(x, shape), keys, attention_mask=mask), x.shape
    )


def operations(name: str, length: int, dim: int, neighborhood: int) -> float:
    """Counts the operations of a layer for one sequence, by XLA."""
    import jax
    import numpy as np

    layer = make_layer(name, dim, neighborhood, unroll=True)
    x = np.random.default_rng(0).normal(size=(1, length, dim)).astype("float32")
    layer(x)  # builds it
    return jax.jit(lambda x: layer(x)).lower(x).compile().cost_analysis()["flops"]


def milliseconds(name: str, length: int, dim: int, flags: Flags) -> float:
    """Measures the median time of a compiled layer for a batch."""
    import jax
    import numpy as np

    layer = make_layer(name, dim, flags.neighborhood, unroll=False)
    shape = (flags.batch_size, length, dim)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    layer(x)
    function, times = jax.jit(lambda x: layer(x)), []
    function(x).block_until_ready()
    for _ in range(flags.repeats):
        start = time.perf_counter()
        function(x).block_until_ready()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def measure(name: str, flags: Flags) -> dict:
    """Returns the numbers of a row: at (n, d), (2 n, d) and (n, 2 d)."""
    n, d = flags.length, flags.dim
    shapes = [(n, d), (2 * n, d), (n, 2 * d)]
    counts = [operations(name, *shape, flags.neighborhood) for shape in shapes]
    row = {
        "layer": name,
        **COSTS[name]._asdict(),
        "counted": counts[0],
        "growth_with_length": counts[1] / counts[0],
        "growth_with_dim": counts[2] / counts[0],
    }
    shapes = shapes if flags.repeats else []
    row["milliseconds"] = [milliseconds(name, *shape, flags) for shape in shapes]
    return row


def columns(flags: Flags) -> list[Column]:
    """Returns the columns of the table."""
    names = ["layer", "operations", "sequential", "longest path"]
    counted = Column(f"counted, n {flags.length}, d {flags.dim}", format=",.0f")
    growth = [Column(f"growth with {name}", format=".2f") for name in "nd"]
    times = [Column(f"time{name}", "ms", ".2f") for name in ("", ", 2 n", ", 2 d")]
    return [*map(Column, names), counted, *growth, *(times if flags.repeats else ())]


def rows(flags: Flags) -> Iterator[tuple]:
    """Yields the rows of the table."""
    for name in COSTS:
        *cells, times = measure(name, flags).values()
        yield *cells, *times


def main(flags: Flags) -> None:
    """Counts all layers and prints the table."""
    report.report("layer_costs", flags, report.Table(columns(flags), rows(flags)))


if __name__ == "__main__":
    os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported
    main(report.parse(Flags, __doc__))
