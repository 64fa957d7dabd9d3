"""Signals of positions: what they look like, and how alike two of them are."""

import keras
import numpy as np

from keras_tfm.plot.figures import (
    COLORS,
    INK,
    QUIET,
    axis_names,
    bare,
    color_bar,
    figure,
)
from keras_tfm.plot.figures import title as set_title


def positions(signals, ax=None, title=None, vmax=None, label="signal"):
    """Draws a signal for each position as a heat map.

    Args:
        signals: float `(T, D)`, such as `SinusoidalPositions().signal(T, 0, D)`
            or a learned table.
        ax: Matplotlib `Axes` to draw in, or None for a figure of its own.
        title: str or None. Shown as it is, without mathematics.
        vmax: float > 0, the size of the darkest colors, such as one for
            several maps; or None for the largest of these.
        label: str, what the colors are.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: another rank.
    """
    signals = _as_signals(signals)
    length, width = signals.shape
    if ax is None:
        ax = figure((7.0, 4.0)).add_subplot()
    most = vmax or float(np.abs(signals).max()) or 1.0
    image = ax.imshow(
        signals,
        cmap="RdBu_r",
        vmin=-most,
        vmax=most,
        aspect="auto",
        interpolation="nearest",
    )
    axis_names(ax, "channel", "position")
    for axis, size in ((ax.xaxis, width), (ax.yaxis, length)):
        if size <= 16:
            axis.set_ticks(range(size))
    ax.tick_params(colors=QUIET, labelcolor=INK, labelsize=8, length=3)
    ax.spines[:].set_color(QUIET)
    color_bar(image, ax, label)
    set_title(ax, title)
    return ax.figure


def position_products(signals, ax=None, title=None):
    """Draws the dot products of the signals of any two positions.

    Args:
        signals: float `(T, D)`.
        ax: pair of Matplotlib `Axes`, or None for a figure of its own.
        title: str or None.

    Returns:
        Matplotlib `Figure`: the map of all pairs, and the products with the
        middle position, which fall off alike on both sides.

    Raises:
        ValueError: another rank.
    """
    signals = _as_signals(signals)
    products = signals @ signals.T
    if ax is None:
        ax = figure((9.0, 3.8)).subplots(1, 2, width_ratios=(1, 1.25))
    whole, line = np.ravel(ax)
    image = whole.imshow(products, cmap="Blues", aspect="equal")
    axis_names(whole, "position", "position")
    whole.tick_params(colors=QUIET, labelcolor=INK, labelsize=8, length=3)
    whole.spines[:].set_color(QUIET)
    color_bar(image, whole, "dot product")
    middle = len(signals) // 2
    line.plot(np.arange(len(signals)), products[middle], color=COLORS[0])
    line.axvline(middle, color=QUIET, linewidth=0.8)
    axis_names(line, "position", f"dot product with position {middle}")
    bare(line, grid="both")
    set_title(whole, title)
    return whole.figure


def position_rings(signals, pairs=(0, 1, 2, 3), style="interleaved", ax=None):
    """Draws the circles that pairs of channels turn on as positions pass.

    Args:
        signals: float `(T, D)`, sines and cosines.
        pairs: ints from 0 to D/2 - 1, pairs of channels, a circle for each.
        style: `"interleaved"` or `"halves"`, of `SinusoidalPositions`.
        ax: as many Matplotlib `Axes`, or None for a figure of its own.

    Returns:
        Matplotlib `Figure`: a dot for each position, the darker the later.

    Raises:
        ValueError: another rank, an unknown style, or pairs beyond the width.
    """
    sines, cosines = _pairs(signals, pairs, style)
    if ax is None:
        ax = figure((2.6 * len(pairs), 2.9)).subplots(1, len(pairs), squeeze=False)
    axes = list(np.ravel(ax))
    shades = np.linspace(0.25, 1.0, len(sines))
    for number, (one, pair) in enumerate(zip(axes, pairs, strict=True)):
        _ring(one, pair)
        one.scatter(
            cosines[:, number], sines[:, number], c=shades, cmap="Blues", s=16, vmin=0
        )
        one.plot([0, cosines[-1, number]], [0, sines[-1, number]], color=COLORS[1])
    return axes[0].figure


def animate_rings(signals, path, pairs=(0, 1, 2, 3), style="interleaved", rate=8):
    """Writes the turning rings as an animation, a picture for each position.

    The positions already passed stay as dots.

    Args:
        signals: float `(T, D)`, sines and cosines.
        path: str or path that ends in `.gif` or `.html`.
        pairs: ints, as of `position_rings`.
        style: `"interleaved"` or `"halves"`.
        rate: float, positions a second.

    Raises:
        ValueError: as of `position_rings`, or another ending.
    """
    from matplotlib.animation import FuncAnimation, HTMLWriter, PillowWriter
    from matplotlib.figure import Figure

    sines, cosines = _pairs(signals, pairs, style)
    path = str(path)
    if not path.endswith((".gif", ".html")):
        raise ValueError(f"A path ends in .gif or .html. Received: {path!r}.")
    made = Figure(figsize=(2.2 * len(pairs), 2.6), dpi=80, facecolor="white")
    axes = made.subplots(1, len(pairs), squeeze=False)[0]
    hands = []
    for one, pair in zip(axes, pairs, strict=True):
        _ring(one, pair)
        dots = {"marker": ".", "linestyle": "none", "alpha": 0.4}
        trace = one.plot([], [], color=COLORS[0], **dots)[0]
        hands.append((one.plot([], [], color=COLORS[1], marker="o")[0], trace))

    def draw(place):
        made.suptitle(f"position {place}", fontsize=10, color=INK)
        for number, (hand, trace) in enumerate(hands):
            x, y = cosines[: place + 1, number], sines[: place + 1, number]
            hand.set_data([0, x[-1]], [0, y[-1]])
            trace.set_data(x, y)
        return [artist for pair in hands for artist in pair]

    made.subplots_adjust(left=0.04, right=0.98, bottom=0.06, top=0.78, wspace=0.15)
    frames = FuncAnimation(made, draw, frames=len(sines), blit=False)
    if path.endswith(".gif"):
        frames.save(path, writer=PillowWriter(fps=rate))
    else:
        frames.save(path, writer=HTMLWriter(fps=rate, embed_frames=True))


def _ring(ax, pair):
    angles = np.linspace(0, 2 * np.pi, 200)
    ax.plot(np.cos(angles), np.sin(angles), color=QUIET, linewidth=0.7)
    ax.set_xlim(-1.2, 1.2)
    ax.set_ylim(-1.2, 1.2)
    ax.set_aspect("equal")
    ax.set_title(f"pair {pair}", fontsize=9, color=INK)
    ax.set_axis_off()


def _pairs(signals, pairs, style):
    """The sines and the cosines of some pairs, both `(T, P)`."""
    signals = _as_signals(signals)
    half = signals.shape[1] // 2
    if style not in ("interleaved", "halves"):
        raise ValueError(
            f"Channels are 'interleaved' or in 'halves'. Received: {style!r}."
        )
    if not len(pairs) or min(pairs) < 0 or max(pairs) >= half:
        raise ValueError(
            f"There are {half} pairs of channels, from 0. Received: pairs={pairs}."
        )
    pairs = np.asarray(pairs)
    if style == "interleaved":
        return signals[:, 2 * pairs], signals[:, 2 * pairs + 1]
    return signals[:, pairs], signals[:, half + pairs]


def _as_signals(signals):
    signals = np.asarray(keras.ops.convert_to_numpy(signals), "float64")
    if signals.ndim == 3 and len(signals) == 1:
        signals = signals[0]
    if signals.ndim != 2 or not signals.size:
        raise ValueError(
            f"Signals are (T, D), one for each position. Received: {signals.shape}."
        )
    return signals
