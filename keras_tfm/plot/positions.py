"""Position signals: values, circles of their pairs, similarity."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tfm.plot import figures
from keras_tfm.plot.figures import COLORS, INK, QUIET, Axes, Figure, axes, set_labels


def positions(
    signals: Any,
    ax: Axes | None = None,
    title: str | None = None,
    vmax: float | None = None,
    label: str = "signal",
    numbers: bool = False,
) -> Figure:
    """Draws the signal of each position as a heat map.

    Args:
        signals: float `(T, D)`, such as `SinusoidalPositions().signal(T, 0, D)`
            or a learned matrix.
        ax: Matplotlib `Axes` to draw in, or None for a new figure.
        title: str or None, shown verbatim.
        vmax: float > 0, the absolute value of the darkest colors, the same for
            several maps; or None for the largest of these.
        label: str, of the color bar.
        numbers: bool. Writes the values into the cells, in place of a color
            bar.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: another rank.

    Example:
        ```python
        from keras_tfm import layers, plot

        signals = layers.SinusoidalPositions().signal(20, 0, 16)
        plot.positions(signals, title="16 channels")
        ```
    """
    signals = _as_signals(signals)
    length, dim = signals.shape
    size = (1.0 + 0.46 * dim, 1.2 + 0.32 * length) if numbers else (5.8, 3.5)
    ax = axes(ax, *size)
    vmax = vmax or float(np.abs(signals).max()) or 1.0
    image = ax.imshow(
        signals,
        cmap="RdBu_r",
        vmin=-vmax,
        vmax=vmax,
        aspect="auto",
        interpolation="nearest",
    )
    for axis, size in zip((ax.yaxis, ax.xaxis), signals.shape, strict=True):
        axis.get_major_locator().set_params(integer=True)
        if size <= 16:
            axis.set_ticks(range(size))
    _style_map(ax, None if numbers else image, label)
    if numbers:
        figures.write_numbers(image)
    set_labels(ax, title, "channel", "position")
    return ax.figure


def position_products(
    signals: Any, ax: Sequence[Axes] | None = None, title: str | None = None
) -> Figure:
    """Draws the dot products of the signals of any two positions.

    Args:
        signals: float `(T, D)`.
        ax: pair of Matplotlib `Axes`, or None for a new figure.
        title: str or None.

    Returns:
        Matplotlib `Figure`: the map of all pairs, and the products with the
        middle position, which decrease alike on both sides.

    Raises:
        ValueError: another rank.

    Example:
        ```python
        from keras_tfm import layers, plot

        plot.position_products(layers.SinusoidalPositions().signal(20, 0, 16))
        ```
    """
    signals = _as_signals(signals)
    products = signals @ signals.T  # (T, T)
    if ax is None:
        ax = figures.figure((7.2, 3.2)).subplots(1, 2, width_ratios=(1, 1.25))
    map_ax, line_ax = np.ravel(ax)
    # As high as the panel beside it.
    image = map_ax.imshow(products, cmap="Blues", aspect="auto")
    _style_map(map_ax, image, "dot product")
    set_labels(map_ax, title, "position", "position")
    middle = len(signals) // 2
    line_ax.plot(np.arange(len(signals)), products[middle], color=COLORS[0])
    line_ax.axvline(middle, color=QUIET, linewidth=0.8)
    figures.style_axes(line_ax, grid="both")
    set_labels(line_ax, None, "position", f"dot product with position {middle}")
    return map_ax.figure


def position_rings(
    signals: Any,
    pairs: Sequence[int] = (0, 1, 2, 3),
    style: str = "interleaved",
    ax: Sequence[Axes] | None = None,
) -> Figure:
    """Draws the circles on which pairs of channels rotate with the position.

    The sine is horizontal and the cosine vertical: from position 0, at the top,
    hands turn clockwise.

    Args:
        signals: float `(T, D)`, sines and cosines.
        pairs: ints from 0 to D/2 - 1, pairs of channels, a circle for each.
        style: `"interleaved"` or `"halves"`, of `SinusoidalPositions`.
        ax: as many Matplotlib `Axes`, or None for a new figure.

    Returns:
        Matplotlib `Figure`: a dot for each position, the darker the later.

    Raises:
        ValueError: another rank, an unknown style, or pairs beyond D.

    Example:
        ```python
        from keras_tfm import layers, plot

        signals = layers.SinusoidalPositions().signal(20, 0, 16)
        plot.position_rings(signals, pairs=(0, 1, 2))
        ```
    """
    sines, cosines = _pairs(signals, pairs, style)
    if ax is None:
        # Two in a row, so that they are large enough for a telephone.
        columns, rows = min(2, len(pairs)), -(-len(pairs) // 2)
        canvas = figures.figure((2.4 * columns, 2.6 * rows))
        ax = canvas.subplots(rows, columns, squeeze=False).ravel()[: len(pairs)]
        for empty in canvas.axes[len(pairs) :]:
            empty.set_axis_off()
    shades = np.linspace(0.25, 1.0, len(sines))
    for ring, pair, x, y in zip(np.ravel(ax), pairs, sines.T, cosines.T, strict=True):
        _draw_ring(ring, pair)
        ring.scatter(x, y, c=shades, cmap="Blues", s=16, vmin=0)
        ring.plot([0, x[-1]], [0, y[-1]], color=COLORS[1])
    return np.ravel(ax)[0].figure


def animate_rings(
    signals: Any,
    path: str | os.PathLike,
    pairs: Sequence[int] = (0, 1, 2, 3),
    style: str = "interleaved",
    rate: float = 8,
) -> None:
    """Writes the rotating rings as an animation, one frame for each position.

    Args:
        signals: float `(T, D)`, sines and cosines.
        path: str or path that ends in `.gif` or `.html`.
        pairs: ints, as of `position_rings`.
        style: `"interleaved"` or `"halves"`.
        rate: float, positions per second.

    Raises:
        ValueError: as of `position_rings`, or another suffix.

    Example:
        ```python
        import tempfile

        from keras_tfm import layers, plot

        signals = layers.SinusoidalPositions().signal(5, 0, 8)
        with tempfile.TemporaryDirectory() as folder:
            plot.animate_rings(signals, f"{folder}/rings.gif", pairs=(0, 1))
        ```
    """
    from matplotlib.animation import FuncAnimation, HTMLWriter, PillowWriter
    from matplotlib.figure import Figure

    sines, cosines = _pairs(signals, pairs, style)
    path = os.fspath(path)
    if not path.endswith((".gif", ".html")):
        raise ValueError(f"`path` must end in .gif or .html; got {path!r}.")
    canvas = Figure(figsize=(2.2 * len(pairs), 2.6), dpi=80, facecolor="white")
    artists = []
    for ring, pair in zip(
        canvas.subplots(1, len(pairs), squeeze=False)[0], pairs, strict=True
    ):
        _draw_ring(ring, pair)
        dots = {"marker": ".", "linestyle": "none", "alpha": 0.4}
        trace = ring.plot([], [], color=COLORS[0], **dots)[0]
        artists.append((ring.plot([], [], color=COLORS[1], marker="o")[0], trace))

    def draw(position):
        style = {"fontsize": 10, "color": INK, "x": 0.05, "ha": "left"}
        canvas.suptitle(f"position {position}", **style)
        for number, (hand, trace) in enumerate(artists):
            x = sines[: position + 1, number]
            y = cosines[: position + 1, number]
            hand.set_data([0, x[-1]], [0, y[-1]])
            trace.set_data(x, y)
        return [artist for pair in artists for artist in pair]

    canvas.subplots_adjust(left=0.04, right=0.98, bottom=0.06, top=0.78, wspace=0.15)
    frames = FuncAnimation(canvas, draw, frames=len(sines), blit=False)
    is_gif = path.endswith(".gif")
    writer = PillowWriter(rate) if is_gif else HTMLWriter(rate, embed_frames=True)
    frames.save(path, writer=writer)


def _style_map(ax, image, label):
    ax.tick_params(colors=QUIET, labelcolor=INK, labelsize=8, length=3)
    ax.spines[:].set_color(QUIET)
    if image is not None:
        figures.color_bar(image, ax, label)


def _draw_ring(ax, pair):
    angles = np.linspace(0, 2 * np.pi, 200)
    ax.plot(np.cos(angles), np.sin(angles), color=QUIET, linewidth=0.7)
    ax.set_xlim(-1.2, 1.2)
    ax.set_ylim(-1.2, 1.2)
    ax.set_aspect("equal")
    ax.set_title(f"pair {pair}", fontsize=9, color=INK, loc="left")
    ax.set_axis_off()


def _pairs(signals, pairs, style):
    """Returns the sines and the cosines of some pairs, both `(T, P)`."""
    signals, pairs = _as_signals(signals), np.asarray(pairs)
    half = signals.shape[1] // 2
    if style not in ("interleaved", "halves"):
        raise ValueError(f"`style` must be 'interleaved' or 'halves'; got {style!r}.")
    if not pairs.size or pairs.min() < 0 or pairs.max() >= half:
        raise ValueError(
            f"`pairs` must be from 0 to {half - 1}, one or more; got {pairs.tolist()}."
        )
    if style == "interleaved":
        return signals[:, 2 * pairs], signals[:, 2 * pairs + 1]
    return signals[:, pairs], signals[:, half + pairs]


def _as_signals(signals):
    signals = figures.array(signals)
    if signals.ndim == 3 and len(signals) == 1:
        signals = signals[0]
    if signals.ndim != 2 or not signals.size:
        raise ValueError(
            f"`signals` must be (T, D), one for each position; got {signals.shape}."
        )
    return signals
