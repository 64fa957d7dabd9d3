"""What a search did: the tree of its hypotheses, and the path it chose."""

import numpy as np

from keras_tfm.plot.attention import attention_map
from keras_tfm.plot.figures import COLORS, INK, QUIET, figure, letters
from keras_tfm.plot.figures import title as set_title


def beam_tree(steps, name, ax=None, title=None):
    """Draws the hypotheses that a beam held, step by step, with their scores.

    A column is a step: at the top the hypotheses that ended in it, under them
    those that are open, the best first. Each has the token it took, under that
    its score so far, and a line from the one that it continues. Those that
    ended are green; what leads to the best of them is thick.

    Args:
        steps: list of what `runtime.Decoder.watch` yields.
        name: function from an id to str, the token as it is shown.
        ax: Matplotlib `Axes` to draw in, or None for a figure of its own.
        title: str or None. Shown as it is, without mathematics.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: there are no steps.
    """
    steps = list(steps)
    if not steps:
        raise ValueError("A search takes at least one step. Received: none.")
    columns = [
        [(tuple(ids), score, True) for ids, score in step.ended]
        + [(tuple(ids), score, False) for ids, score in step.open]
        for step in steps
    ]
    tallest = max(map(len, columns))
    if ax is None:
        size = (1.6 + 1.15 * (len(columns) + 1), 0.9 + 0.55 * tallest)
        ax = figure(size).add_subplot()
    places = {(): (0, (tallest - 1) / 2)}
    for depth, column in enumerate(columns, start=1):
        for row, (ids, _, _) in enumerate(column):
            places[ids] = (depth, row + (tallest - len(column)) / 2)
    best = _best(columns)
    font = {**letters(), "ha": "center", "va": "center"}
    ax.text(*places[()], "start", **{**font, "color": QUIET}, fontsize=9)
    for ids, score, ended in (one for column in columns for one in column):
        x, y = places[ids]
        chosen = best[: len(ids)] == ids
        from_x, from_y = places.get(ids[:-1], (x - 1, y))
        ax.plot(
            [from_x + 0.3, x - 0.36],
            [from_y, y],
            color=INK if chosen else QUIET,
            linewidth=1.8 if chosen else 0.8,
        )
        color = COLORS[2] if ended else INK
        weight = "bold" if chosen else "normal"
        known = {**font, "color": color, "fontweight": weight}
        ax.text(x, y - 0.11, name(ids[-1]), fontsize=9, **known)
        known = {**font, "color": color if ended else QUIET}
        ax.text(x, y + 0.22, f"{score:.2f}", fontsize=7, **known)
    ax.set_xlim(-0.5, len(columns) + 0.6)
    ax.set_ylim(tallest - 0.4, -0.6)
    ax.set_axis_off()
    set_title(ax, title)
    return ax.figure


def _best(columns):
    """The ids of the best that ended, else of the best of the last step."""
    ended = [(score, ids) for column in columns for ids, score, over in column if over]
    if ended:
        return max(ended)[1]
    return columns[-1][0][0]  # the best of those that are open


def attention_path(weights, source_tokens, target_tokens, ax=None, title=None):
    """Draws a map, and over it which source piece each target piece looks at.

    Args:
        weights: float `(T, S)`, or `(H, T, S)`, which is averaged over H, of
            the translation that a search chose.
        source_tokens: list of S str.
        target_tokens: list of T str.
        ax: Matplotlib `Axes` to draw in, or None for a figure of its own.
        title: str or None. Shown as it is, without mathematics.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: as `attention_map`.
    """
    made = attention_map(weights, source_tokens, target_tokens, ax, title)
    ax = made.axes[0] if ax is None else ax
    shown = np.asarray(ax.images[0].get_array())
    ax.plot(
        shown.argmax(axis=1),
        np.arange(len(shown)),
        color=COLORS[1],
        marker="o",
        markersize=5,
        linewidth=1.6,
    )
    return made
