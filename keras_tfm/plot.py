"""Pictures: where attention goes, and how a run went.

Figures are made without pyplot: nothing is global, no window opens, and
`figure.savefig("attention.png")` works on a machine without a screen.
"""

import keras
import numpy as np

INK = "#26323d"
QUIET = "#8a97a3"
COLOURS = ("#1f6fb4", "#e07b29", "#2f8f5b", "#8c5fb0")
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
WORD_START = "\u2581"  # SentencePiece's mark
ENDS = ("</s>", "(end)")
SCORES = {"val_bleu": "BLEU", "val_chrf": "chrF", "val_accuracy": "accuracy, %"}
LOSSES = {"loss": "training", "val_loss": "validation"}


def attention_map(weights, source_pieces, target_pieces, ax=None, title=None):
    """Draws how much each target token attends to each source token.

    Cut padding off first. A line is drawn wherever a word begins, if the
    pieces carry SentencePiece's mark, which itself is not shown.

    Args:
        weights: float `(T, S)`, or `(H, T, S)`, which is averaged over H.
        source_pieces: list of S str.
        target_pieces: list of T str.
        ax: Matplotlib `Axes` to draw in, or None for a figure of its own, of
            a size that keeps every word readable.
        title: str or None. Shown as it is, without mathematics.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: weights of another rank or not finite, none at all, or
            other numbers of pieces.
    """
    weights = np.asarray(keras.ops.convert_to_numpy(weights), "float32")
    _check_weights(weights, source_pieces, target_pieces)
    if weights.ndim == 3:
        weights = weights.mean(axis=0)
    target_length, source_length = weights.shape
    # Inches a cell: roomy for a phrase, close to the letters for 40 words.
    cell = min(0.42, max(0.21, 8.0 / max(target_length, source_length)))
    size = (2.4 + cell * max(source_length, 5), 1.8 + cell * max(target_length, 4))
    if ax is None:
        ax = _figure(size).add_subplot()
    image = ax.imshow(weights, cmap="Blues", vmin=0.0, aspect="equal")
    font = {"color": INK, "fontfamily": _installed_fonts(), "parse_math": False}
    _write_pieces(ax, source_pieces, target_pieces, min(10.0, 34 * cell), font)
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.06, pad=0.03, aspect=24)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8, labelcolor=QUIET)
    bar.set_label("attention weight", fontsize=8, color=QUIET)
    if title is not None:
        ax.set_title(title, pad=12, fontsize=11, **font)
    return ax.figure


def _write_pieces(ax, source_pieces, target_pieces, fontsize, font):
    """Labels both axes, and draws a line wherever a word begins."""
    crowded = len(source_pieces) > 8 or max(map(len, source_pieces)) > 5
    font = {**font, "fontsize": fontsize}
    across, down = list(map(_shown, source_pieces)), list(map(_shown, target_pieces))
    ax.xaxis.tick_top()
    ax.set_xticks(range(len(across)), across, rotation=90 if crowded else 0, **font)
    ax.set_yticks(range(len(down)), down, **font)
    ax.tick_params(length=0, pad=4)
    ax.spines[:].set_color(QUIET)
    for draw, pieces in ((ax.axvline, source_pieces), (ax.axhline, target_pieces)):
        for edge in _word_edges(pieces):
            draw(edge - 0.5, color=QUIET, linewidth=0.4, alpha=0.6)


def training_curves(history, ax=None):
    """Draws the losses of a run and, beside them, its scores, by epoch.

    Args:
        history: dict of lists of floats, one for each epoch, as in
            `History.history` of Keras: `"loss"`, `"val_loss"`, `"val_bleu"`,
            `"val_chrf"`, `"val_accuracy"` from 0 to 1, whichever are there;
            others are passed over. A
            shorter list is of the last epochs. A score that repeats the one
            before it, or is NaN, was not computed, and gets no point.
        ax: pair of Matplotlib `Axes` for losses and scores, one for losses
            alone, or None for a figure of its own.

    Returns:
        Matplotlib `Figure`, of one panel where there are no scores.

    Raises:
        ValueError: no loss, no epoch, or scores and only one `Axes`.
    """
    losses = {LOSSES[name]: history[name] for name in LOSSES if name in history}
    scores = {SCORES[name]: history[name] for name in SCORES if name in history}
    if "val_accuracy" in history:
        share = np.asarray(history["val_accuracy"], "float64")
        scores[SCORES["val_accuracy"]] = 100 * share
    _check_history(history, losses)
    panels = 2 if scores else 1
    if ax is None:
        ax = _figure((5.0 * panels, 3.4)).subplots(1, panels, squeeze=False)
    axes = list(np.ravel(ax))
    if len(axes) < panels:
        raise ValueError(
            "Losses and scores need an axis each. Received: one, and "
            f"{sorted(scores)}. Pass a pair, or a history without scores."
        )
    epochs = max(map(len, {**losses, **scores}.values()))
    losses = {name: _points(values, epochs) for name, values in losses.items()}
    _curves(axes[0], losses, "loss", epochs, COLOURS[:2])
    if scores:
        scores = {name: _new(*_points(scores[name], epochs)) for name in scores}
        _curves(axes[1], scores, "validation score", epochs, COLOURS[2:])
        axes[1].set_ylim(bottom=max(0.0, axes[1].get_ylim()[0]))
        _mark_highest(axes[1])
    return axes[0].figure


def confusion_matrix(counts, classes, ax=None, title=None):
    """Draws which classes are taken for which.

    Colours are shares of a row, numbers are counts: the diagonal is right.

    Args:
        counts: int `(C, C)`. Row i, column j: texts of class i that were
            labelled j.
        classes: list of C str.
        ax: Matplotlib `Axes` to draw in, or None for a figure of its own.
        title: str or None. Shown as it is, without mathematics.

    Returns:
        Matplotlib `Figure`.

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
        ax = _figure((2.6 + cell * size, 2.0 + cell * size)).add_subplot()
    total = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, total, where=total > 0, out=np.zeros(counts.shape))
    image = ax.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, aspect="equal")
    font = {"color": INK, "fontfamily": _installed_fonts(), "parse_math": False}
    turned = 90 if max(map(len, classes)) > 5 else 0
    ax.set_xticks(range(size), classes, rotation=turned, fontsize=9, **font)
    ax.set_yticks(range(size), classes, fontsize=9, **font)
    ax.tick_params(length=0, pad=4)
    ax.spines[:].set_color(QUIET)
    ax.set_xlabel("labelled as", fontsize=9, color=QUIET)
    ax.set_ylabel("true label", fontsize=9, color=QUIET)
    if size <= 30:  # more would not be readable
        for (row, column), share in np.ndenumerate(shares):
            if counts[row, column]:
                colour = "white" if share > 0.55 else INK
                number = f"{counts[row, column]:,}"
                ax.text(
                    column,
                    row,
                    number,
                    ha="center",
                    va="center",
                    fontsize=8,
                    color=colour,
                )
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.05, pad=0.03, aspect=24)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8, labelcolor=QUIET)
    bar.set_label("share of the row", fontsize=8, color=QUIET)
    if title is not None:
        ax.set_title(title, pad=12, fontsize=11, **font)
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


def _curves(ax, curves, title, epochs, colours):
    """Draws one panel: `curves` maps a name to epochs and values."""
    style = {"linewidth": 1.8, "markersize": 3.5, "clip_on": False}
    style["marker"] = "o" if epochs <= 30 else None
    for (name, points), colour in zip(curves.items(), colours, strict=False):
        ax.plot(*points, label=name, color=colour, **style)
    ax.margins(y=0.14)
    ax.set_xlim(0.6, epochs + 0.4)
    ax.set_title(title, loc="left", fontsize=11, color=INK)
    ax.set_xlabel("epoch", fontsize=9, color=INK)
    ax.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    ax.grid(axis="y", color=QUIET, alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(QUIET)
    ax.tick_params(colors=QUIET, labelcolor=INK, labelsize=8, length=3)
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


def _figure(size):
    """A figure that keeps its labels whole, whatever their length."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=160, layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    return figure


def _installed_fonts():
    from matplotlib import font_manager

    installed = set(font_manager.fontManager.get_font_names())
    return [name for name in FONTS if name in installed]


def _shown(piece):
    """A piece as a label: a bare mark of a word's start becomes visible."""
    text = piece.replace(WORD_START, " ").strip()
    return text or "\u2423"


def _word_edges(pieces):
    """Places where a word begins, the first left out."""
    marked = any(WORD_START in piece for piece in pieces)
    return [
        place
        for place, piece in enumerate(pieces)
        if place and (not marked or piece.startswith((WORD_START, *ENDS)))
    ]


def _check_weights(weights, source_pieces, target_pieces):
    if weights.ndim not in (2, 3) or not weights.size:
        raise ValueError(
            "Attention weights are (T, S) or (H, T, S), of one sentence and one "
            f"layer. Received: shape={weights.shape}."
        )
    wanted = (len(target_pieces), len(source_pieces))
    if weights.shape[-2:] != wanted:
        raise ValueError(
            "Each row is a target piece and each column a source piece. Received: "
            f"weights of shape {weights.shape}, {wanted[0]} target pieces, "
            f"{wanted[1]} source pieces. Cut off padding on both, or swap the two."
        )
    if not np.isfinite(weights).all():
        raise ValueError("Attention weights must be finite. Received: NaN or infinity.")


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
