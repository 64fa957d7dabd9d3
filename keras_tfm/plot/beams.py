"""The hypotheses of a beam search as a tree."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from keras_tfm.plot.figures import (
    COLORS,
    INK,
    QUIET,
    Axes,
    Figure,
    axes,
    font,
    number,
    set_labels,
)


def beam_tree(
    steps: Iterable[Any],
    name: Callable[[int], str],
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """Draws the hypotheses of a beam, step by step, with their scores.

    A column is a step: at the top the hypotheses that ended in it, under them
    the live ones, the best first. Each shows its last token, under that its
    score so far, and a line to the hypothesis that it continues. Finished
    hypotheses are green; the path to the best of them is bold.

    Args:
        steps: `decode.BeamTrace`s, as `runtime.Decoder.trace` yields them.
        name: function from an id to the label of the token.
        ax: Matplotlib `Axes` to draw in, or None for a new figure.
        title: str or None, shown verbatim.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: there are no steps.

    Example:
        ```python
        from keras_tfm import decode, plot

        steps = [
            decode.BeamTrace([([5], -0.5), ([6], -1.0)], []),
            decode.BeamTrace([([6, 7], -1.5)], [([5, 3], -0.4)]),
        ]
        plot.beam_tree(steps, name=str)
        ```
    """
    columns = [
        [(tuple(ids), score, True) for ids, score in finished]
        + [(tuple(ids), score, False) for ids, score in live]
        for live, finished in steps
    ]
    if not columns:
        raise ValueError("`steps` must hold at least one step; got none.")
    tallest = max(map(len, columns))
    # Narrow, so that the letters are large enough on a telephone.
    ax = axes(ax, 0.2 + 1.05 * (len(columns) + 0.8), 0.9 + 0.55 * tallest)
    positions = {(): (0, (tallest - 1) / 2)}
    for depth, column in enumerate(columns, start=1):
        for row, (ids, _, _) in enumerate(column):
            positions[ids] = (depth, row + (tallest - len(column)) / 2)
    style = font(ha="center", va="center", fontsize=10)
    ax.text(*positions[()], "start", **{**style, "color": QUIET})
    best = _best(columns)
    for ids, score, is_finished in itertools.chain(*columns):
        x, y = positions[ids]
        is_best = best[: len(ids)] == ids
        from_x, from_y = positions.get(ids[:-1], (x - 1, y))
        width, color = (1.8, INK) if is_best else (0.8, QUIET)
        ax.plot([from_x + 0.4, x - 0.4], [from_y, y], color=color, linewidth=width)
        style["color"] = COLORS[2] if is_finished else INK
        weight = "bold" if is_best else "normal"
        ax.text(x, y - 0.11, name(ids[-1]), fontweight=weight, **style)
        quiet = {} if is_finished else {"color": QUIET}
        ax.text(x, y + 0.22, number(score, 2), **{**style, "fontsize": 8, **quiet})
    ax.set_xlim(-0.35, len(columns) + 0.45)
    ax.set_ylim(tallest - 0.4, -0.6)
    ax.set_axis_off()
    set_labels(ax, title)
    return ax.figure


def _best(columns):
    """Returns the ids of the best finished, or else live, hypothesis."""
    finished = [(x, ids) for ids, x, is_end in itertools.chain(*columns) if is_end]
    return max(finished)[1] if finished else columns[-1][0][0]
