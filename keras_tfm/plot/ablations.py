"""Tables of model variations: what each row changes in perplexity and BLEU."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_tfm.plot import figures
from keras_tfm.plot.figures import COLORS, INK, QUIET, Figure

BASE = "base"


def ablation(table: Sequence[Mapping[str, Any]]) -> Figure:
    """Draws how far each row of a table of variations is from its base.

    The left panel has the perplexity on validation data, the right one BLEU on
    test data with its 95% interval, both as differences from the row `base`.
    Hollow marks are those of the paper (Vaswani et al. 2017, table 3).

    Args:
        table: dicts, the rows of `table.json` of `keras_tfm.recipes.ablation`:
            `"row"`, `"changes"`, `"validation_perplexity"`, `"bleu"`,
            `"bleu_half_width_95"`, and `"paper"` with `"perplexity"` and
            `"bleu"`. One of them is the row `base`.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: no row `base`, or no other row.

    Example:
        ```python
        from keras_tfm import plot

        scores = {"validation_perplexity": 9.0, "bleu": 30.0}
        scores |= {"bleu_half_width_95": 1.5, "changes": {"num_heads": 1}}
        base = {"row": "base", "paper": {"perplexity": 4.92, "bleu": 25.8}}
        one = {"row": "A1", "paper": {"perplexity": 5.29, "bleu": 24.9}}
        plot.ablation([{**base, **scores}, {**one, **scores, "bleu": 29.0}])
        ```
    """
    base = next((entry for entry in table if entry["row"] == BASE), None)
    rows = [entry for entry in table if entry["row"] != BASE]
    if base is None or not rows:
        raise ValueError(
            "`table` must have the row 'base' and others; got "
            f"{[entry['row'] for entry in table]}. Pass `rows` of a table.json."
        )
    canvas = figures.figure((7.0, 1.4 + 0.27 * len(rows)))
    left, right = canvas.subplots(1, 2, sharey=True)
    places = np.arange(len(rows))

    def percent(entry, name, of):
        return 100 * (entry[name] / of[name] - 1)

    run = [percent(entry, "validation_perplexity", base) for entry in rows]
    paper = [percent(entry["paper"], "perplexity", base["paper"]) for entry in rows]
    _draw(left, places, run, paper)
    run = [entry["bleu"] - base["bleu"] for entry in rows]
    paper = [entry["paper"]["bleu"] - base["paper"]["bleu"] for entry in rows]
    widths = [entry["bleu_half_width_95"] for entry in rows]
    right.errorbar(run, places, xerr=widths, fmt="none", ecolor=QUIET, elinewidth=0.8)
    _draw(right, places, run, paper)
    labels = [_label(entry) for entry in rows]
    left.set_yticks(places, labels, **figures.font(fontsize=8))
    left.invert_yaxis()
    figures.set_labels(left, "Perplexity", "difference from base, %")
    figures.set_labels(right, "BLEU", "difference from base")
    handles = dict(zip(("this run", "paper"), right.collections[-2:], strict=True))
    style = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": 2}
    right.legend(
        handles.values(), handles, frameon=False, fontsize=8, labelcolor=INK, **style
    )
    return canvas


def _draw(ax, places, run, paper):
    """Draws the marks of a panel, those of the paper behind."""
    ax.axvline(0, color=QUIET, linewidth=0.9, zorder=1)
    ax.scatter(run, places, s=26, color=COLORS[0], zorder=4)
    ax.scatter(
        paper, places, s=30, facecolors="none", edgecolors=COLORS[1], linewidths=1.3
    )
    figures.style_axes(ax, grid="both")
    ax.tick_params(axis="y", length=0)


def _label(entry):
    """Returns the name of a row, and the first option that it changes."""
    option, value = next(iter(entry["changes"].items()))
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = " + ".join(map(str, value))
    return f"{option.replace('_', ' ')} {value}   {entry['row']}"
