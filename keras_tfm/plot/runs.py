"""Training runs and evaluations: curves, rates, confusion matrices."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_tfm.plot import figures
from keras_tfm.plot.figures import COLORS, INK, QUIET, Axes, Figure, axes, set_labels

# Rates from 0 to 1 are drawn in percent.
RATES = {"val_accuracy": "accuracy, %", "val_label_accuracy": "label accuracy, %"}
SCORES = {"val_bleu": "BLEU", "val_chrf": "chrF", **RATES}
LOSSES = {"loss": "training", "val_loss": "validation"}
# Larger confusion matrices would not be readable, and their pictures too large.
MAX_INCHES, MAX_NAMES, MAX_NUMBERS = 24.0, 60, 30


def training_curves(
    history: Mapping[str, Sequence[float]], ax: Axes | Sequence[Axes] | None = None
) -> Figure:
    """Draws the losses of a run and, below them, its scores, by epoch.

    Args:
        history: dict of lists of floats, one for each epoch, as in
            `History.history` of Keras: `"loss"`, `"val_loss"`, `"val_bleu"`,
            `"val_chrf"`, and from 0 to 1 `"val_accuracy"` and
            `"val_label_accuracy"`; others are ignored. A shorter list belongs
            to the last epochs. A score that repeats the one before was not
            computed, and gets no point unless it is the last; nor does NaN.
        ax: pair of Matplotlib `Axes` for losses and scores, one for losses
            alone, or None for a new figure.

    Returns:
        Matplotlib `Figure`, of one panel where there are no scores.

    Raises:
        ValueError: no loss, no epoch, or scores and only one `Axes`.

    Example:
        ```python
        from keras_tfm import plot

        history = {"loss": [3.0, 2.0], "val_bleu": [5.0, 9.0]}
        plot.training_curves(history)
        ```
    """
    losses = {LOSSES[name]: history[name] for name in LOSSES if name in history}
    scores = {SCORES[name]: history[name] for name in SCORES if name in history}
    for name in RATES.keys() & history.keys():
        scores[RATES[name]] = 100 * np.asarray(history[name], "float64")
    epochs = max(map(len, [*losses.values(), *scores.values()]), default=0)
    if not any(map(len, losses.values())):
        raise ValueError(
            "`history` must have a 'loss' or 'val_loss' of one or more epochs; got "
            f"{epochs} epochs of {sorted(history)}. Pass `model.fit(...).history`."
        )
    panels = 2 if scores else 1
    if ax is None:
        # One below the other: in a row, a telephone shows letters too small.
        ax = figures.figure((5.0, 3.4 * panels)).subplots(panels, squeeze=False)
    panel_axes = list(np.ravel(ax))
    if len(panel_axes) < panels:
        raise ValueError(
            f"`ax` must be a pair, for losses and {sorted(scores)}; got one. Pass a "
            "pair, or a history without scores."
        )
    losses = {name: _points(values, epochs) for name, values in losses.items()}
    _draw_panel(panel_axes[0], losses, "loss", epochs, COLORS[:2])
    if scores:
        scores = {
            name: _without_repeats(*_points(scores[name], epochs)) for name in scores
        }
        _draw_panel(panel_axes[1], scores, "validation score", epochs, COLORS[2:6])
        _annotate_best(panel_axes[1])
    return panel_axes[0].figure


def confusion_matrix(
    counts: Any,
    classes: Sequence[str],
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """Draws which classes are predicted for which.

    Colors are fractions of a row, numbers are counts: the diagonal is correct.
    Over 30 classes have no numbers and over 60 no names: nobody could read
    them.

    Args:
        counts: int `(C, C)`. Row i, column j: texts of class i that were
            predicted as j.
        classes: list of C str.
        ax: Matplotlib `Axes` to draw in, or None for a new figure.
        title: str or None, shown verbatim.

    Returns:
        Matplotlib `Figure`, of 24 inches per side at most.

    Raises:
        ValueError: counts that are negative, of another shape, or none.

    Example:
        ```python
        from keras_tfm import plot

        plot.confusion_matrix([[8, 2], [1, 9]], ["good", "bad"])
        ```
    """
    counts = figures.array(counts)
    size = len(classes)
    if not size or counts.shape != (size, size) or counts.min() < 0:
        raise ValueError(
            f"`counts` must be (C, C) and 0 or more, for C classes; got {counts.shape} "
            f"and {size} classes. Count with "
            "`sklearn.metrics.confusion_matrix(..., labels=range(C))`."
        )
    cell = 0.62 if size <= 12 else 0.4
    inches = (min(margin + cell * size, MAX_INCHES) for margin in (2.6, 2.0))
    ax = axes(ax, *inches)
    total = counts.sum(axis=1, keepdims=True)
    rates = np.divide(counts, total, where=total > 0, out=np.zeros(counts.shape))
    image = ax.imshow(rates, cmap="Blues", vmin=0.0, vmax=1.0, aspect="equal")
    names = classes if size <= MAX_NAMES else []
    style, rotation = figures.font(fontsize=9), 90 if max(map(len, classes)) > 5 else 0
    ax.set_xticks(range(len(names)), names, rotation=rotation, **style)
    ax.set_yticks(range(len(names)), names, **style)
    ax.tick_params(length=0, pad=4)
    ax.spines[:].set_color(QUIET)
    if size <= MAX_NUMBERS:
        style = {"ha": "center", "va": "center", "fontsize": 8}
        for row, column in np.argwhere(counts > 0):
            color = "white" if rates[row, column] > 0.55 else INK
            number = f"{int(counts[row, column]):,}"
            ax.text(column, row, number, color=color, **style)
    figures.color_bar(image, ax, "fraction of the row")
    set_labels(ax, title, "predicted label", "true label")
    return ax.figure


def learning_rates(
    schedules: Mapping[str, Callable],
    steps: int,
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """Draws learning rates by step.

    Args:
        schedules: dict from names to functions of a step, such as
            `InverseSquareRoot`, a schedule of Keras.
        steps: int >= 2, the last step.
        ax: Matplotlib `Axes` to draw in, or None for a new figure.
        title: str or None, shown verbatim.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: no schedule, or fewer than 2 steps.

    Example:
        ```python
        from keras_tfm import plot

        plot.learning_rates({"linear": lambda step: 1e-5 * step}, steps=1000)
        ```
    """
    if not schedules or steps < 2:
        raise ValueError(
            "`schedules` must hold one or more, and `steps` be 2 or more; got "
            f"{len(schedules)} schedules, steps={steps}."
        )
    ax = axes(ax, 6.0, 3.4)
    at = np.unique(np.linspace(0, steps, 400).astype("int64"))
    points = {
        name: (at, [float(figures.array(rate(step))) for step in at])
        for name, rate in schedules.items()
    }
    canvas = curves(points, "step", "learning rate", ax, title)
    ax.ticklabel_format(axis="y", style="sci", scilimits=(-3, 3))
    return canvas


def gradient_norms(
    norms: Mapping[str, Sequence[float]],
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """Draws the norm of the gradient at each layer.

    Args:
        norms: dict from names, such as "pre-norm", to lists of N floats, from
            the first layer to the last.
        ax: Matplotlib `Axes` to draw in, or None for a new figure.
        title: str or None, shown verbatim.

    Returns:
        Matplotlib `Figure`, with a logarithmic axis.

    Raises:
        ValueError: no norms, or some that are not positive.

    Example:
        ```python
        from keras_tfm import plot

        plot.gradient_norms({"pre-norm": [1.0, 1.2], "post-norm": [0.1, 1.0]})
        ```
    """
    values = np.array([norm for layers in norms.values() for norm in layers])
    if not values.size or not np.isfinite(values).all() or values.min() <= 0:
        raise ValueError(f"`norms` must be numbers above 0; got {norms}.")
    ax = axes(ax, 5.0, 3.4)
    points = {name: (np.arange(1, len(y) + 1), y) for name, y in norms.items()}
    canvas = curves(points, "layer", "norm of the gradient", ax, title)
    ax.set_yscale("log")
    ax.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    return canvas


def curves(
    points: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    xlabel: str,
    ylabel: str,
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """Draws curves with their names, each in a color with a marker of its own.

    Args:
        points: dict from names to pairs of N floats each, x and y.
        xlabel, ylabel: str, names of the axes, with their units.
        ax: Matplotlib `Axes` to draw in, or None for a new figure.
        title: str or None, shown verbatim.

    Returns:
        Matplotlib `Figure`; `figure.axes[0].set_yscale("log")` changes a scale.

    Raises:
        ValueError: no curve, or a pair of different or zero sizes.

    Example:
        ```python
        from keras_tfm import plot

        points = {"cached": ([8, 16], [1.0, 1.1])}
        plot.curves(points, "length, tokens", "time, ms")
        ```
    """
    sizes = {name: tuple(map(len, pair)) for name, pair in points.items()}
    if not sizes or any(x != y or not x for x, y in sizes.values()):
        raise ValueError(f"`points` must have as many x as y, 1 or more; got {sizes}.")
    ax = axes(ax, 5.0, 3.4)
    markers = itertools.cycle(figures.MARKERS)
    shades = figures.colors(len(points))
    for (name, pair), color, marker in zip(
        points.items(), shades, markers, strict=False
    ):
        style = {"color": color, "marker": marker if len(pair[0]) <= 40 else None}
        ax.plot(*pair, label=name, linewidth=1.6, markersize=4, **style)
    figures.style_axes(ax, grid="y")
    beside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    location = beside if len(points) > 4 else {"loc": "best"}
    ax.legend(frameon=False, fontsize=8, labelcolor=INK, **location)
    set_labels(ax, title, xlabel, ylabel)
    return ax.figure


def _points(values, epochs):
    """Returns the epochs and the values of the numbers that are finite."""
    values = np.asarray(values, "float64")
    is_finite = np.isfinite(values)
    numbers = np.arange(len(values)) + epochs - len(values) + 1
    return numbers[is_finite], values[is_finite]


def _without_repeats(epochs, values):
    """Removes values that repeat the one before, except for the last."""
    is_new = np.ones(len(values), "bool")
    is_new[1:-1] = np.diff(values)[:-1] != 0
    return epochs[is_new], values[is_new]


def _draw_panel(ax, points, title, epochs, shades):
    """Draws one panel; `points` maps a name to epochs and values."""
    style = {"linewidth": 1.8, "markersize": 3.5, "clip_on": False}
    style["marker"] = "o" if epochs <= 30 else None
    for (name, pair), color in zip(points.items(), shades, strict=False):
        ax.plot(*pair, label=name, color=color, **style)
    ax.margins(y=0.14)
    ax.set_ylim(bottom=max(0.0, ax.get_ylim()[0]))
    ax.set_xlim(0.6, epochs + 0.4)
    ax.set_xlabel("epoch", fontsize=9, color=INK)
    ax.set_title(title, loc="left", fontsize=11, color=INK)
    ax.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    figures.style_axes(ax, grid="y")
    # Beside the title, where no curve runs.
    legend = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    ax.legend(frameon=False, fontsize=9, labelcolor=INK, ncols=2, **legend)


def _annotate_best(ax):
    """Writes the highest value of each curve above its point."""
    style = {"textcoords": "offset points", "ha": "center", "fontsize": 9}
    for line in ax.lines:
        epochs, values = line.get_data()
        if len(values):
            best = np.argmax(values)
            point = (epochs[best], values[best])
            style |= {"color": line.get_color(), "fontweight": "bold"}
            ax.annotate(f"{values[best]:.1f}", point, xytext=(0, 6), **style)
