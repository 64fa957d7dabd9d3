"""Boxes, arrows and columns of boxes, from which diagrams are drawn.

Coordinates are inches from the lower left corner.
"""

from collections.abc import Sequence

from keras_tfm.plot import figures
from keras_tfm.plot.figures import COLORS, INK, QUIET, Axes

# A kind of box has one color in all diagrams.
KINDS = {
    "embedding": COLORS[3],
    "attention": COLORS[1],
    "feed-forward": COLORS[0],
    "norm": COLORS[4],
    "output": COLORS[2],
    "state": COLORS[5],
    "plain": QUIET,
}
LARGE, SMALL = 9.5, 8.5  # sizes of letters, in points
BOX, TALL_BOX, GAP = 0.32, 0.5, 0.24  # heights
DIGITS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
Point = tuple[float, float]


def indexed(name: str, number: int) -> str:
    """Returns a name with a number as its index: `"h₁"`.

    Args:
        name: str.
        number: int >= 0.
    """
    return name + str(number).translate(DIGITS)


def sheet(width: float, height: float = 1.0) -> Axes:
    """Returns empty axes of a new figure, whose unit is an inch.

    Args:
        width, height: float, in inches.
    """
    canvas = figures.figure((width, height))
    canvas.set_layout_engine("none")
    ax = canvas.add_axes((0.0, 0.0, 1.0, 1.0))
    ax.set_axis_off()
    ax.set_xlim(0.0, width)
    return trim(ax, height)


def trim(ax: Axes, height: float) -> Axes:
    """Sets the height of a sheet, once all is drawn.

    Args:
        ax: Matplotlib `Axes` of `sheet`.
        height: float, in inches.
    """
    ax.figure.set_size_inches(ax.get_xlim()[1], height)
    ax.set_ylim(0.0, height)
    return ax


def write(
    ax: Axes,
    point: Point,
    label: str,
    size: float = LARGE,
    color: str = INK,
    align: str = "center",
) -> None:
    """Writes a line, whose small letters are centered vertically.

    Args:
        ax: Matplotlib `Axes`.
        point: pair of float.
        label: str, shown verbatim.
        size: float, in points.
        color: color of Matplotlib.
        align: `"left"`, `"center"` or `"right"` of the point.
    """
    style = figures.font(fontsize=size, ha=align, va="baseline", color=color)
    # By its baseline, so that "love" and "you" stand on one line.
    ax.text(point[0], point[1] - 0.34 * size / 72, label, **style)


def box(
    ax: Axes, point: Point, size: Point, label: str, kind: str, detail: str = ""
) -> None:
    """Draws a rectangle with a label and, in smaller letters, a detail below.

    Args:
        ax: Matplotlib `Axes`.
        point: pair of float, the center.
        size: pair of float, width and height.
        label, detail: str, shown verbatim.
        kind: str, a key of `KINDS`.
    """
    from matplotlib.patches import FancyBboxPatch

    (x, y), (width, height) = point, size
    patch = FancyBboxPatch(
        (x - width / 2, y - height / 2),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.05",
        facecolor=(KINDS[kind], 0.16),
        edgecolor=KINDS[kind],
        linewidth=1.1,
        zorder=2,
    )
    ax.add_patch(patch)
    label_in_box(ax, point, label, detail)


def label_in_box(ax: Axes, point: Point, label: str, detail: str = "") -> None:
    """Writes a label and, in smaller letters, a detail below it.

    Args:
        ax: Matplotlib `Axes`.
        point: pair of float, the center of the box.
        label, detail: str, shown verbatim.
    """
    x, y = point
    write(ax, (x, y + 0.095 if detail else y), label)
    if detail:
        write(ax, (x, y - 0.095), detail, SMALL, QUIET)


def arrow(
    ax: Axes, points: Sequence[Point], color: str = QUIET, head: bool = True
) -> None:
    """Draws a line through points, with an arrow head at the last.

    Args:
        ax: Matplotlib `Axes`.
        points: 2 or more pairs of float.
        color: color of Matplotlib.
        head: bool.
    """
    xs, ys = zip(*points, strict=True)
    style = {"color": color, "linewidth": 1.1, "zorder": 1}
    if len(points) > 2 or not head:
        last = len(points) - head
        ax.plot(xs[:last], ys[:last], solid_joinstyle="round", **style)
    if head:
        line = {"arrowstyle": "-|>,head_length=0.35,head_width=0.17", "shrinkA": 0}
        line |= {"shrinkB": 0, "color": color, "linewidth": 1.1}
        ax.annotate("", points[-1], points[-2], arrowprops=line, zorder=1)


class Column:
    """Draws boxes from the bottom to the top, joined by arrows.

    Args:
        ax: Matplotlib `Axes` of `sheet`.
        x: float, of the middle.
        y: float, where the column begins.
        width: float, of a box.

    Attributes:
        y: float, the upper end so far.

    Example:
        ```python
        from keras_tfm.plot.diagrams import Column, sheet

        ax = sheet(3.0, 2.0)
        column = Column(ax, x=1.5, y=0.3, width=2.0)
        column.text("ids")
        column.line()
        column.box("embedding", "embedding")
        # ax.figure.savefig("column.png")
        ```
    """

    def __init__(self, ax: Axes, x: float, y: float, width: float):
        self.ax, self.x, self.y, self.width = ax, x, y, width

    def text(self, label: str) -> None:
        """Writes a line at the upper end.

        Args:
            label: str, shown verbatim.
        """
        write(self.ax, (self.x, self.y + 0.1), label)
        self.y += 0.2

    def line(self, shape: str = "", gap: float = GAP, head: bool = True) -> None:
        """Draws an arrow upwards.

        Args:
            shape: str, written beside it.
            gap: float, its length.
            head: bool.
        """
        ends = [(self.x, self.y), (self.x, self.y + gap)]
        arrow(self.ax, ends, head=head)
        if shape:
            beside = (self.x + 0.08, self.y + gap - 0.13)
            write(self.ax, beside, shape, SMALL, QUIET, "left")
        self.y += gap

    def box(self, label: str, kind: str, detail: str = "") -> float:
        """Draws a box at the upper end.

        Args:
            label, detail: str, shown verbatim.
            kind: str, a key of `KINDS`.

        Returns:
            float, the height of its center.
        """
        height = TALL_BOX if detail else BOX
        center = self.y + height / 2
        box(self.ax, (self.x, center), (self.width, height), label, kind, detail)
        self.y += height
        return center

    def sum(self) -> float:
        """Draws a circle with a plus at the upper end.

        Returns:
            float, the height of its center.
        """
        from matplotlib.patches import Circle

        radius = 0.1
        center = self.y + radius
        style = {"facecolor": "white", "edgecolor": INK, "linewidth": 1.1, "zorder": 2}
        self.ax.add_patch(Circle((self.x, center), radius, **style))
        write(self.ax, (self.x, center), "+", 11)
        self.y += 2 * radius
        return center

    def bypass(self, start: float, end: float, margin: float, side: int) -> None:
        """Draws the line of a residual around boxes.

        Args:
            start, end: float, heights where it leaves the column and returns.
            margin: float, from the middle to the end of the line.
            side: 1 for the right, -1 for the left.
        """
        outside = self.x + side * (self.width / 2 + 0.13)
        inside = self.x + side * margin
        points = [(self.x, start), (outside, start), (outside, end), (inside, end)]
        arrow(self.ax, points, INK)

    def frame(self, bottom: float, label: str, side: int) -> None:
        """Draws a frame around what was drawn since `bottom`.

        Args:
            bottom: float.
            label: str, written above its upper left corner.
            side: 1 or -1, where the residuals are.
        """
        from matplotlib.patches import FancyBboxPatch

        left, right = self.width / 2 + 0.1, self.width / 2 + 0.23
        left, right = (left, right) if side > 0 else (right, left)
        patch = FancyBboxPatch(
            (self.x - left, bottom),
            left + right,
            self.y - bottom,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=(QUIET, 0.08),
            edgecolor=QUIET,
            linewidth=0.8,
            zorder=0,
        )
        self.ax.add_patch(patch)
        write(self.ax, (self.x - left, self.y + 0.12), label, LARGE, INK, "left")
