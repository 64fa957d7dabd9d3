"""What all pictures share: colors, letters, and a figure without pyplot."""

INK = "#26323d"
QUIET = "#66737f"
# Of Okabe and Ito, which people who see few colors tell apart; then others.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
COLORS += ("#26323d", "#8c510a")
MARKERS = "os^Dv*PX"
# Those installed are tried in turn for each letter.
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


def figure(size):
    """Makes a figure that keeps its labels whole, whatever their length.

    Args:
        size: pair of float, width and height in inches.
    """
    from matplotlib.figure import Figure

    made = Figure(figsize=size, dpi=160, layout="constrained", facecolor="white")
    made.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    return made


def fonts():
    """Lists the fonts that are installed, tried in turn for each letter."""
    from matplotlib import font_manager

    installed = set(font_manager.fontManager.get_font_names())
    return [name for name in FONTS if name in installed]


def letters():
    """Gives the settings of text that is shown as it is."""
    return {"color": INK, "fontfamily": fonts(), "parse_math": False}


def colors(count):
    """Gives as many colors, all different.

    Args:
        count: int >= 0.
    """
    if count <= len(COLORS):
        return COLORS[:count]
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    shades = colormaps["turbo"]
    return tuple(to_hex(shades(number / (count - 1))) for number in range(count))


def color_bar(image, ax, label):
    """Draws which color stands for which value, as high as the image.

    Args:
        image: what has the colors.
        ax: Matplotlib `Axes` that it belongs to.
        label: str.
    """
    cells = image.get_array().shape[1]
    width = min(0.08, max(0.02, 0.4 / cells))
    place = ax.inset_axes([1.0 + width, 0.0, width, 1.0])
    bar = ax.figure.colorbar(image, cax=place)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8, labelcolor=QUIET)
    bar.set_label(label, fontsize=8, color=QUIET)
    return bar


def bare(ax, grid=None):
    """Leaves of a frame the two lines that carry numbers.

    Args:
        ax: Matplotlib `Axes`.
        grid: `"x"`, `"y"`, `"both"` or None.
    """
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(QUIET)
    ax.tick_params(which="both", colors=QUIET, labelcolor=INK, labelsize=8, length=3)
    if grid is not None:
        ax.grid(axis=grid, color=QUIET, alpha=0.25, linewidth=0.6)


def title(ax, text):
    """Writes a title, which may be None.

    Args:
        ax: Matplotlib `Axes`.
        text: str or None. Shown as it is, without mathematics.
    """
    if text is not None:
        ax.set_title(text, pad=12, fontsize=11, **letters())


def axis_names(ax, across, down):
    """Names both axes.

    Args:
        ax: Matplotlib `Axes`.
        across, down: str, or None for no name.
    """
    ax.set_xlabel(across or "", fontsize=9, color=INK)
    ax.set_ylabel(down or "", fontsize=9, color=INK)
