"""Colors, fonts, and figures without pyplot, shared by all pictures."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

# Types of Matplotlib, which is imported with the first figure.
Axes = Figure = Any

INK = "#26323d"
QUIET = "#66737f"
# The first six are Okabe and Ito's, which color-blind readers tell apart.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
COLORS += ("#26323d", "#8c510a")
MARKERS = "os^Dv*PX"
WORD_START = "\u2581"  # stands for the space before a word
# Matplotlib takes each letter from the first installed font that has it.
FONTS = (
    "DejaVu Sans",
    "Noto Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans Devanagari",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Arial Unicode MS",
)


def figure(size: Sequence[float]) -> Figure:
    """Returns a figure that shows its labels completely, whatever their length.

    Args:
        size: pair of float, width and height in inches.

    Returns:
        Matplotlib `Figure`, without axes.

    Example:
        ```python
        from keras_tfm import plot

        left, right = plot.figure((6, 3)).subplots(1, 2)
        plot.curves({"a": ([1, 2], [3, 4])}, "x", "y", ax=left)
        plot.curves({"b": ([1, 2], [4, 3])}, "x", "y", ax=right)
        ```
    """
    from matplotlib.figure import Figure

    canvas = Figure(figsize=size, dpi=160, layout="constrained", facecolor="white")
    canvas.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    return canvas


def fit(canvas: Figure) -> Figure:
    """Shrinks a figure to what is drawn, such as maps of square cells.

    Args:
        canvas: Matplotlib `Figure` of `figure`.
    """
    canvas.draw_without_rendering()
    drawn = canvas.get_tightbbox()
    canvas.set_size_inches(drawn.width + 0.2, drawn.height + 0.2)
    return canvas


def axes(ax: Axes | None, *size: float) -> Axes:
    """Returns `ax`, or where it is None the axes of a new figure.

    Args:
        ax: Matplotlib `Axes` or None.
        *size: width and height of a new figure, in inches.
    """
    return figure(size).add_subplot() if ax is None else ax


def array(values: Any, dtype: str = "float64") -> np.ndarray:
    """Returns numbers or a tensor of the backend as a NumPy array.

    Args:
        values: array, tensor or list.
        dtype: string.
    """
    return np.asarray(keras.ops.convert_to_numpy(values), dtype)


def font(**changes: Any) -> dict[str, Any]:
    """Returns the options of text that is shown verbatim, without mathematics.

    Args:
        **changes: further options of Matplotlib's `Text`.
    """
    from matplotlib import font_manager

    installed = set(font_manager.fontManager.get_font_names())
    family = [name for name in FONTS if name in installed]
    return {"color": INK, "fontfamily": family, "parse_math": False, **changes}


def token_labels(tokens: Sequence[str]) -> list[str]:
    """Returns tokens as labels: a lone mark of a word's start becomes visible.

    Args:
        tokens: list of str.
    """
    return [token.replace(WORD_START, " ").strip() or "\u2423" for token in tokens]


def colors(count: int) -> tuple[str, ...]:
    """Returns as many different colors.

    Args:
        count: int >= 0.
    """
    if count <= len(COLORS):
        return COLORS[:count]
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    shades = colormaps["turbo"](np.linspace(0, 1, count))
    return tuple(map(to_hex, shades))


def ink_on(color: Sequence[float]) -> str:
    """Returns the color of letters that can be read on a color.

    Args:
        color: red, green, blue and alpha, float from 0 to 1, on white.
    """
    red, green, blue, alpha = color
    luminance = alpha * (0.3 * red + 0.59 * green + 0.11 * blue) + 1 - alpha
    return INK if luminance > 0.5 else "white"


def write_numbers(image: Any, decimals: int = 2) -> None:
    """Writes the numbers of an image into its cells.

    Args:
        image: Matplotlib image.
        decimals: int >= 0.
    """
    style = {"ha": "center", "va": "center", "fontsize": 8}
    colors = image.to_rgba(image.get_array())
    for (row, column), value in np.ndenumerate(image.get_array()):
        color = ink_on(colors[row, column])
        label = number(value, decimals)
        image.axes.text(column, row, label, color=color, **style)


def number(value: float, decimals: int) -> str:
    """Returns a number as text, with a minus that is as wide as a plus.

    Args:
        value: float.
        decimals: int >= 0.
    """
    # Without -0, which rounding makes of small negative numbers.
    rounded = round(float(value), decimals) + 0.0
    return f"{rounded:.{decimals}f}".replace("-", "\u2212")


def reference_line(ax: Axes, y: float, label: str) -> None:
    """Draws a horizontal line with its name below its right end.

    Args:
        ax: Matplotlib `Axes`, with its curves.
        y: float.
        label: str.

    Example:
        ```python
        from keras_tfm import plot

        figure = plot.training_curves({"loss": [3.0, 2.0]})
        plot.reference_line(figure.axes[0], 1.5, "lower bound")
        ```
    """
    ax.axhline(y, color=QUIET, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    style = {"textcoords": "offset points", "ha": "right", "va": "top"}
    place = {"xycoords": ax.get_yaxis_transform(), "xytext": (-2, -3)}
    ax.annotate(label, (1.0, y), fontsize=8, color=QUIET, **style, **place)


def color_bar(image: Any, ax: Axes, label: str) -> None:
    """Adds a color bar as high as the image.

    Args:
        image: Matplotlib image.
        ax: Matplotlib `Axes` of the image.
        label: str.
    """
    width = min(0.08, max(0.02, 0.4 / image.get_array().shape[1]))
    bar_ax = ax.inset_axes([1.0 + width, 0.0, width, 1.0])
    bar = ax.figure.colorbar(image, cax=bar_ax)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8, labelcolor=QUIET)
    bar.set_label(label, fontsize=8, color=QUIET)


def style_axes(ax: Axes, grid: str | None = None) -> None:
    """Removes the upper and right line of a frame.

    Args:
        ax: Matplotlib `Axes`.
        grid: `"x"`, `"y"`, `"both"` or None.
    """
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(QUIET)
    ax.tick_params(which="both", colors=QUIET, labelcolor=INK, labelsize=8, length=3)
    if grid is not None:
        ax.grid(axis=grid, color=QUIET, alpha=0.25, linewidth=0.6)


def set_labels(
    ax: Axes, title: str | None, xlabel: str | None = None, ylabel: str | None = None
) -> None:
    """Writes the title and the names of both axes.

    Args:
        ax: Matplotlib `Axes`.
        title: str, shown verbatim, or None.
        xlabel, ylabel: str or None.
    """
    ax.set_xlabel(xlabel or "", fontsize=9, color=INK)
    ax.set_ylabel(ylabel or "", fontsize=9, color=INK)
    if title is not None:
        ax.set_title(title, **font(loc="left", pad=12, fontsize=11))
