"""How a run went: its curves, and what is taken for what."""

import keras
import numpy as np

from keras_tfm.plot.figures import (
    COLORS,
    INK,
    MARKERS,
    QUIET,
    axis_names,
    bare,
    color_bar,
    colors,
    figure,
    letters,
)
from keras_tfm.plot.figures import (
    title as set_title,
)

# Those from 0 to 1 are drawn in hundredths.
SHARES = {"val_accuracy": "accuracy, %", "val_label_accuracy": "label accuracy, %"}
SCORES = {"val_bleu": "BLEU", "val_chrf": "chrF", **SHARES}
LOSSES = {"loss": "training", "val_loss": "validation"}
# Of a picture of classes: inches of a side at most, and classes with names.
LONGEST_SIDE, MOST_NAMES = 24.0, 60


def training_curves(history, ax=None):
    """Draws the losses of a run and, beside them, its scores, by epoch.

    Args:
        history: dict of lists of floats, one for each epoch, as in
            `History.history` of Keras: `"loss"`, `"val_loss"`, `"val_bleu"`,
            `"val_chrf"`, and from 0 to 1 `"val_accuracy"` and
            `"val_label_accuracy"`, whichever are there; others are passed
            over. A shorter list is of the last epochs. A score that repeats the
            one before it was not computed, and gets no point unless it is the
            last; nor does one that is NaN.
        ax: pair of Matplotlib `Axes` for losses and scores, one for losses
            alone, or None for a figure of its own.

    Returns:
        Matplotlib `Figure`, of one panel where there are no scores.

    Raises:
        ValueError: no loss, no epoch, or scores and only one `Axes`.
    """
    losses = {LOSSES[name]: history[name] for name in LOSSES if name in history}
    scores = {SCORES[name]: history[name] for name in SCORES if name in history}
    for name in SHARES.keys() & history.keys():
        scores[SHARES[name]] = 100 * np.asarray(history[name], "float64")
    _check_history(history, losses)
    panels = 2 if scores else 1
    if ax is None:
        ax = figure((5.0 * panels, 3.4)).subplots(1, panels, squeeze=False)
    axes = list(np.ravel(ax))
    if len(axes) < panels:
        raise ValueError(
            "Losses and scores need an axis each. Received: one, and "
            f"{sorted(scores)}. Pass a pair, or a history without scores."
        )
    epochs = max(map(len, {**losses, **scores}.values()))
    losses = {name: _points(values, epochs) for name, values in losses.items()}
    _curves(axes[0], losses, "loss", epochs, COLORS[:2])
    if scores:
        scores = {name: _new(*_points(scores[name], epochs)) for name in scores}
        _curves(axes[1], scores, "validation score", epochs, COLORS[2:6])
        axes[1].set_ylim(bottom=max(0.0, axes[1].get_ylim()[0]))
        _mark_highest(axes[1])
    return axes[0].figure


def confusion_matrix(counts, classes, ax=None, title=None):
    """Draws which classes are taken for which.

    Colours are shares of a row, numbers are counts: the diagonal is right. Over
    30 classes get no numbers, over 60 no names: they could not be read.

    Args:
        counts: int `(C, C)`. Row i, column j: texts of class i that were
            labelled j.
        classes: list of C str.
        ax: Matplotlib `Axes` to draw in, or None for a figure of its own.
        title: str or None. Shown as it is, without mathematics.

    Returns:
        Matplotlib `Figure`, of 24 inches a side at most.

    Raises:
        ValueError: counts that are negative, of another shape, or none.
    """
    counts = np.asarray(keras.ops.convert_to_numpy(counts))
    size = len(classes)
    if not size or counts.shape != (size, size) or counts.min() < 0:
        raise ValueError(
            "Counts are (C, C) and 0 or more, for C classes. Received: shape="
            f"{counts.shape}, {size} classes. Count with "
            "`sklearn.metrics.confusion_matrix(..., labels=range(C))`."
        )
    cell = 0.62 if size <= 12 else 0.4
    if ax is None:
        sides = (2.6 + cell * size, 2.0 + cell * size)
        ax = figure([min(side, LONGEST_SIDE) for side in sides]).add_subplot()
    total = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, total, where=total > 0, out=np.zeros(counts.shape))
    image = ax.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, aspect="equal")
    named = classes if size <= MOST_NAMES else []
    font = {"fontsize": 9, **letters()}
    turned = 90 if max(map(len, classes)) > 5 else 0
    ax.set_xticks(range(len(named)), named, rotation=turned, **font)
    ax.set_yticks(range(len(named)), named, **font)
    ax.tick_params(length=0, pad=4)
    ax.spines[:].set_color(QUIET)
    ax.set_xlabel("labelled as", fontsize=9, color=QUIET)
    ax.set_ylabel("true label", fontsize=9, color=QUIET)
    if size <= 30:  # more would not be readable
        for (row, column), share in np.ndenumerate(shares):
            if counts[row, column]:
                color = "white" if share > 0.55 else INK
                number = f"{counts[row, column]:,}"
                ax.text(
                    column,
                    row,
                    number,
                    ha="center",
                    va="center",
                    fontsize=8,
                    color=color,
                )
    color_bar(image, ax, "share of the row")
    set_title(ax, title)
    return ax.figure


def learning_rates(schedules, steps, ax=None, title=None):
    """Draws learning rates by step.

    Args:
        schedules: dict from names to functions of a step, such as
            `InverseSquareRoot`, a schedule of Keras.
        steps: int >= 2, the last step.
        ax: Matplotlib `Axes` to draw in, or None for a figure of its own.
        title: str or None. Shown as it is, without mathematics.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: no schedule, or fewer than 2 steps.
    """
    if not schedules or steps < 2:
        raise ValueError(
            "At least one schedule is drawn over at least 2 steps. Received: "
            f"{len(schedules)} schedules, steps={steps}."
        )
    if ax is None:
        ax = figure((6.0, 3.4)).add_subplot()
    places = np.unique(np.linspace(0, steps, 400).astype("int64"))
    points = {
        name: (places, [float(keras.ops.convert_to_numpy(rate(n))) for n in places])
        for name, rate in schedules.items()
    }
    made = curves(points, "step", "learning rate", ax, title)
    ax.ticklabel_format(axis="y", style="sci", scilimits=(-3, 3))
    return made


def gradient_norms(norms, ax=None, title=None):
    """Draws the norm of the gradient at each layer.

    Args:
        norms: dict from names, such as "pre-norm", to lists of N floats, from
            the first layer to the last.
        ax: Matplotlib `Axes` to draw in, or None for a figure of its own.
        title: str or None. Shown as it is, without mathematics.

    Returns:
        Matplotlib `Figure`, with a logarithmic axis.

    Raises:
        ValueError: no norms, or some that are not positive.
    """
    flat = [norm for values in norms.values() for norm in values]
    if not flat or not np.isfinite(flat).all() or min(flat) <= 0:
        raise ValueError(
            f"Norms are numbers above 0. Received: {norms}. Leave out what is 0."
        )
    points = {
        name: (np.arange(1, len(values) + 1), values) for name, values in norms.items()
    }
    made = curves(points, "layer", "norm of the gradient", ax, title)
    ax = made.axes[0] if ax is None else ax
    ax.set_yscale("log")
    ax.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    return made


def curves(points, across, down, ax=None, title=None):
    """Draws curves with their names, each with a color and a mark of its own.

    Args:
        points: dict from names to pairs of N floats each: where the points are,
            and how high.
        across, down: str, names of the axes, with their units.
        ax: Matplotlib `Axes` to draw in, or None for a figure of its own.
        title: str or None. Shown as it is, without mathematics.

    Returns:
        Matplotlib `Figure`; `figure.axes[0].set_yscale("log")` changes a scale.

    Raises:
        ValueError: no curve, or a pair of different sizes, or of none.
    """
    sizes = [tuple(map(len, pair)) for pair in points.values()]
    if not sizes or any(len({*pair}) != 1 or not min(pair) for pair in sizes):
        raise ValueError(
            "Each curve is a pair of as many places as heights. Received: "
            f"{dict(zip(points, sizes, strict=True))}."
        )
    if ax is None:
        ax = figure((5.0, 3.4)).add_subplot()
    shades = colors(len(points))
    for number, (name, pair) in enumerate(points.items()):
        marker = MARKERS[number % len(MARKERS)] if len(pair[0]) <= 40 else None
        style = {"color": shades[number], "marker": marker, "linewidth": 1.6}
        ax.plot(*pair, markersize=4, label=name, **style)
    axis_names(ax, across, down)
    bare(ax, grid="y")
    place = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    place = place if len(points) > 4 else {"loc": "best"}
    ax.legend(frameon=False, fontsize=8, labelcolor=INK, **place)
    set_title(ax, title)
    return ax.figure


def _points(values, epochs):
    """Numbers of the epochs and their values, those that are known."""
    values = np.asarray(values, "float64")
    known = np.isfinite(values)
    return (np.arange(len(values)) + epochs - len(values) + 1)[known], values[known]


def _new(epochs, values):
    """Leaves out values that repeat the one before, except for the last."""
    new = np.ones(len(values), "bool")
    new[1:-1] = np.diff(values)[:-1] != 0
    return epochs[new], values[new]


def _curves(ax, known, title, epochs, shades):
    """Draws one panel: `known` maps a name to epochs and values."""
    style = {"linewidth": 1.8, "markersize": 3.5, "clip_on": False}
    style["marker"] = "o" if epochs <= 30 else None
    for (name, points), color in zip(known.items(), shades, strict=False):
        ax.plot(*points, label=name, color=color, **style)
    ax.margins(y=0.14)
    ax.set_xlim(0.6, epochs + 0.4)
    ax.set_title(title, loc="left", fontsize=11, color=INK)
    ax.set_xlabel("epoch", fontsize=9, color=INK)
    ax.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    bare(ax, grid="y")
    ax.legend(  # beside the title, where no curve comes
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        borderaxespad=0.2,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        ncols=2,
    )


def _mark_highest(ax):
    """Writes the highest value of each curve over its point."""
    for line in ax.lines:
        epochs, values = line.get_data()
        if len(values):
            best = np.argmax(values)
            ax.annotate(
                f"{values[best]:.1f}",
                (epochs[best], values[best]),
                xytext=(0, 6),
                textcoords="offset points",
                ha="center",
                color=line.get_color(),
                fontsize=9,
                fontweight="bold",
            )


def _check_history(history, losses):
    if not losses:
        raise ValueError(
            "A history has a 'loss' or a 'val_loss'. Received: "
            f"{sorted(history)}. Pass `model.fit(...).history`."
        )
    if not any(map(len, losses.values())):
        raise ValueError(
            "A run has at least one epoch. Received: losses without a value. Draw "
            "after `fit`."
        )
