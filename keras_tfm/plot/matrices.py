"""Small matrices with their numbers: equations, and the heads of attention."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_tfm.plot import figures
from keras_tfm.plot.diagrams import LARGE, SMALL, arrow, sheet, write
from keras_tfm.plot.figures import INK, QUIET, Figure

CELL = (0.37, 0.25)  # width and height, in inches
SIGN = 0.32  # width of the sign between two matrices
LIMIT = 24  # rows or columns whose numbers can be read


def equation(
    matrices: Mapping[str, Any],
    signs: Sequence[str],
    rows: Sequence[str] | None = None,
    title: str | None = None,
    vmax: float | None = None,
    decimals: int = 2,
) -> Figure:
    """Draws matrices side by side, with their numbers and signs between them.

    Blue is negative, red is positive, and white is 0.

    Args:
        matrices: dict from names to floats `(rows, columns)`, 24 at most each
            way.
        signs: list of str, one between each two matrices, such as "+" and "=".
        rows: list of str for the rows of the first matrix, or None.
        title: str or None, shown verbatim.
        vmax: float > 0, the absolute value of the darkest colors in all
            matrices; or None for the largest of each matrix.
        decimals: int >= 0.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: no matrix, another rank, more numbers than can be read, or
            other numbers of signs or row labels.

    Example:
        ```python
        from keras_tfm import plot

        x, p = [[0.5, -0.1]], [[0.0, 1.0]]
        plot.equation({"word": x, "position": p, "input": [[0.5, 0.9]]}, "+=")
        ```
    """
    arrays = {name: figures.array(values) for name, values in matrices.items()}
    _check_equation(arrays, signs, rows)
    labels = list(rows or [])
    left = 0.15 + 0.085 * max(map(len, labels), default=0)
    width = sum(len(values[0]) for values in arrays.values()) * CELL[0]
    height = max(map(len, arrays.values())) * CELL[1]
    top = 0.35 if title is None else 0.65
    ax = sheet(left + width + SIGN * len(signs) + 0.15, height + top + 0.3)
    middle, x = 0.3 + height / 2, left
    for number, (name, values) in enumerate(arrays.items()):
        if number:
            write(ax, (x + SIGN / 2, middle), signs[number - 1], 16)
            x += SIGN
        size = len(values[0]) * CELL[0], len(values) * CELL[1]
        upper = middle + size[1] / 2
        _draw_numbers(ax, (x, upper), values, vmax, decimals)
        ax.text(
            x + size[0] / 2,
            upper + 0.14,
            name,
            fontsize=LARGE,
            color=INK,
            ha="center",
            va="center",
        )
        shape = f"({values.shape[0]}, {values.shape[1]})"
        write(ax, (x + size[0] / 2, middle - size[1] / 2 - 0.14), shape, SMALL, QUIET)
        x += size[0]
    for row, label in enumerate(labels):
        y = middle + (len(labels) / 2 - row - 0.5) * CELL[1]
        write(ax, (left - 0.08, y), label, SMALL, INK, "right")
    if title is not None:
        write(ax, (left, height + top + 0.1), title, 11, align="left")
    return ax.figure


def head_shapes(vectors: Any) -> Figure:
    """Draws how the axes of queries, keys or values are split into heads.

    One sequence of a batch is drawn: the product with one large matrix, the
    same numbers as H vectors at each position, and the axes transposed, so
    that each head is a matrix of its own. A head has one color.

    Args:
        vectors: float `(L, H, d_k)`, such as `layer.query_dense(x)[0]`, of at
            most 24 numbers in a row.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: another rank, or more numbers than can be read.

    Example:
        ```python
        import numpy as np

        from keras_tfm import plot

        plot.head_shapes(np.arange(12.0).reshape(3, 2, 2))
        ```
    """
    vectors = figures.array(vectors)
    length, heads, dim = vectors.shape if vectors.ndim == 3 else (0, 0, 0)
    if not vectors.size or not 0 < heads * max(length, dim) <= LIMIT:
        raise ValueError(
            "`vectors` must be (L, H, d_k) with L * H and H * d_k up to "
            f"{LIMIT}; got shape {vectors.shape}. Pass fewer positions or channels."
        )
    gap, space = 0.12, 0.72
    flat = heads * dim * CELL[0]
    grouped = flat + gap * (heads - 1)
    tall = heads * length * CELL[1] + 0.24 * (heads - 1)
    ax = sheet(0.3 + flat + grouped + dim * CELL[0] + 2 * space + 0.55, tall + 0.75)
    middle = 0.55 + tall / 2
    upper = middle + length * CELL[1] / 2
    starts = 0.15, 0.15 + flat + space, 0.15 + flat + grouped + 2 * space
    for head, color in enumerate(figures.colors(heads)):
        shift = head * dim * CELL[0]
        values = vectors[:, head]
        _draw_colored(ax, (starts[0] + shift, upper), values, color)
        _draw_colored(ax, (starts[1] + shift + head * gap, upper), values, color)
        top = middle + tall / 2 - head * (length * CELL[1] + 0.24)
        _draw_colored(ax, (starts[2], top), values, color)
        label = starts[2] + dim * CELL[0] + 0.08, top - length * CELL[1] / 2
        write(ax, label, f"head {head + 1}", SMALL, color, "left")
    names = ("reshape", "transpose")
    ends = starts[0] + flat, starts[1] + grouped
    for name, begin, end in zip(names, ends, starts[1:], strict=True):
        arrow(ax, [(begin + 0.08, middle), (end - 0.08, middle)])
        write(ax, ((begin + end) / 2, middle + 0.13), name, SMALL, QUIET)
    columns = zip(
        starts,
        (flat, grouped, dim * CELL[0]),
        ("(B, L, H dₖ)", "(B, L, H, dₖ)", "(B, H, L, dₖ)"),
        ((length, heads * dim), (length, heads, dim), (heads, length, dim)),
        strict=True,
    )
    for start, width, name, shape in columns:
        write(ax, (start + width / 2, 0.36), name)
        numbers = f"(B, {', '.join(map(str, shape))})"
        write(ax, (start + width / 2, 0.16), numbers, SMALL, QUIET)
    return ax.figure


def _draw_numbers(ax, corner, values, vmax, decimals):
    """Draws a matrix whose upper left corner is `corner`."""
    from matplotlib import colormaps

    shades = colormaps["RdBu_r"]
    vmax = vmax or float(np.abs(values).max()) or 1.0
    colors = shades(0.5 + values / (2 * vmax))
    _draw_cells(ax, corner, values, colors, decimals)


def _draw_colored(ax, corner, values, color):
    """Draws a matrix in one color."""
    from matplotlib.colors import to_rgba

    _draw_cells(ax, corner, values, np.tile(to_rgba(color, 0.2), (*values.shape, 1)), 1)


def _draw_cells(ax, corner, values, colors, decimals):
    """Draws cells with numbers; `colors` is `(rows, columns, 4)`."""
    from matplotlib.patches import Rectangle

    for (row, column), value in np.ndenumerate(values):
        color = colors[row, column]
        x, y = corner[0] + column * CELL[0], corner[1] - (row + 1) * CELL[1]
        style = {"facecolor": tuple(color), "edgecolor": "white", "linewidth": 0.8}
        ax.add_patch(Rectangle((x, y), *CELL, **style))
        center = x + CELL[0] / 2, y + CELL[1] / 2
        ink = figures.ink_on(color)
        write(ax, center, figures.number(value, decimals), 8, ink)


def _check_equation(arrays, signs, rows):
    shapes = {name: values.shape for name, values in arrays.items()}
    sizes = [size for shape in shapes.values() for size in shape]
    if not shapes or any(len(shape) != 2 for shape in shapes.values()):
        raise ValueError(f"`matrices` must be of rank 2, 1 or more; got {shapes}.")
    if not 0 < min(sizes) <= max(sizes) <= LIMIT:
        raise ValueError(
            f"`matrices` must have from 1 to {LIMIT} rows and columns, so that their "
            f"numbers can be read; got {shapes}. Draw larger ones with `positions`."
        )
    first = next(iter(shapes.values()))[0]
    if len(signs) != len(shapes) - 1 or (rows is not None and len(rows) != first):
        raise ValueError(
            f"`signs` must be one fewer than matrices and `rows` as many as rows of "
            f"the first; got {len(signs)} signs, {len(shapes)} matrices, rows={rows}."
        )
