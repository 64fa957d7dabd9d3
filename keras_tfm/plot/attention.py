"""Where attention goes: maps, heads, layers, lines, and what masks leave."""

import keras
import numpy as np

from keras_tfm.plot.figures import (
    COLORS,
    QUIET,
    axis_names,
    color_bar,
    colors,
    figure,
    letters,
)
from keras_tfm.plot.figures import (
    title as set_title,
)

WORD_START = "\u2581"  # SentencePiece's mark
ENDS = ("</s>", "(end)")


def attention_map(
    weights,
    source_tokens,
    target_tokens,
    ax=None,
    title=None,
    vmax=None,
    label="attention weight",
    xlabel="attended to",
    ylabel="attending",
):
    """Draws how much each target token attends to each source token.

    Cut padding off first. A line is drawn wherever a word begins: where
    SentencePiece's mark is, which itself is not shown, or, if no piece has it,
    at each piece.

    Args:
        weights: float `(T, S)`, or `(H, T, S)`, which is averaged over H.
        source_tokens: list of S str.
        target_tokens: list of T str.
        ax: Matplotlib `Axes` to draw in, or None for a figure of its own, of
            a size that keeps every word readable.
        title: str or None. Shown as it is, without mathematics.
        vmax: float > 0, the weight of the darkest color, such as 1 to
            compare maps; or None for the largest weight.
        label: str, what the colors are.
        xlabel, ylabel: str, names of the axes; or None.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: weights of another rank or not finite, none at all, or
            other numbers of pieces.
    """
    weights = np.asarray(keras.ops.convert_to_numpy(weights), "float32")
    _check_weights(weights, source_tokens, target_tokens)
    if weights.ndim == 3:
        weights = weights.mean(axis=0)
    target_length, source_length = weights.shape
    # Inches a cell: roomy for a phrase, close to the letters for 40 words.
    cell = min(0.42, max(0.21, 8.0 / max(target_length, source_length)))
    size = (2.4 + cell * max(source_length, 5), 1.8 + cell * max(target_length, 2))
    if ax is None:
        ax = figure(size).add_subplot()
    image = ax.imshow(weights, cmap="Blues", vmin=0.0, vmax=vmax, aspect="equal")
    font = letters()
    _write_pieces(ax, source_tokens, target_tokens, min(10.0, 34 * cell), font)
    color_bar(image, ax, label)
    axis_names(ax, xlabel, ylabel)
    set_title(ax, title)
    return ax.figure


def _write_pieces(ax, source_tokens, target_tokens, fontsize, font):
    """Labels both axes, and draws a line wherever a word begins."""
    crowded = len(source_tokens) > 8 or max(map(len, source_tokens)) > 5
    font = {**font, "fontsize": fontsize}
    across, down = list(map(_shown, source_tokens)), list(map(_shown, target_tokens))
    ax.xaxis.tick_top()
    ax.set_xticks(range(len(across)), across, rotation=90 if crowded else 0, **font)
    ax.set_yticks(range(len(down)), down, **font)
    ax.tick_params(length=0, pad=4)
    ax.spines[:].set_color(QUIET)
    for draw, pieces in ((ax.axvline, source_tokens), (ax.axhline, target_tokens)):
        for edge in _word_edges(pieces):
            draw(edge - 0.5, color=QUIET, linewidth=0.4, alpha=0.6)


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


def _check_weights(weights, source_tokens, target_tokens):
    if weights.ndim not in (2, 3) or not weights.size:
        raise ValueError(
            "Attention weights are (T, S) or (H, T, S), of one sentence and one "
            f"layer. Received: shape={weights.shape}."
        )
    wanted = (len(target_tokens), len(source_tokens))
    if weights.shape[-2:] != wanted:
        raise ValueError(
            "Each row is a target piece and each column a source piece. Received: "
            f"weights of shape {weights.shape}, {wanted[0]} target pieces, "
            f"{wanted[1]} source pieces. Cut off padding on both, or swap the two."
        )
    if not np.isfinite(weights).all():
        raise ValueError("Attention weights must be finite. Received: NaN or infinity.")


def attention_heads(weights, source_tokens, target_tokens, title=None):
    """Draws the map of every head of a layer, all to one scale.

    Args:
        weights: float `(H, T, S)`, without padding.
        source_tokens: list of S str.
        target_tokens: list of T str.
        title: str or None.

    Returns:
        Matplotlib `Figure` with H maps.

    Raises:
        ValueError: weights of another rank or not finite, none at all, or
            other numbers of pieces.
    """
    weights = _as_heads([weights], source_tokens, target_tokens)
    columns = min(4, weights.shape[1])
    rows = -(-weights.shape[1] // columns)
    return _grid(
        weights.reshape(-1, *weights.shape[2:]),
        [f"head {number + 1}" for number in range(weights.shape[1])],
        (rows, columns),
        (source_tokens, target_tokens),
        title,
    )


def attention_layers(weights, source_tokens, target_tokens, title=None):
    """Draws the maps of all heads of all layers: a row for each layer.

    Args:
        weights: list of N float `(H, T, S)`, such as one of `attention_maps` of
            a model for one text, without padding.
        source_tokens: list of S str.
        target_tokens: list of T str.
        title: str or None.

    Returns:
        Matplotlib `Figure` with N x H maps.

    Raises:
        ValueError: as `attention_heads`, or layers of different shapes.
    """
    weights = _as_heads(weights, source_tokens, target_tokens)
    layers, heads = weights.shape[:2]
    names = [
        f"layer {layer + 1}, head {head + 1}"
        for layer in range(layers)
        for head in range(heads)
    ]
    return _grid(
        weights.reshape(-1, *weights.shape[2:]),
        names,
        (layers, heads),
        (source_tokens, target_tokens),
        title,
    )


def attention_lines(weights, source_tokens, target_tokens, ax=None, title=None):
    """Draws attention as lines from each target word to source words.

    The source stands at the left, the target at the right, from above to below;
    the stronger a line, the larger its weight. Weights below a twentieth are
    left out.

    Args:
        weights: float `(T, S)`, or `(H, T, S)`, of which each head has a color
            of its own.
        source_tokens: list of S str.
        target_tokens: list of T str.
        ax: Matplotlib `Axes` to draw in, or None for a figure of its own.
        title: str or None. Shown as it is, without mathematics.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: as `attention_map`.
    """
    weights = np.asarray(keras.ops.convert_to_numpy(weights), "float32")
    _check_weights(weights, source_tokens, target_tokens)
    heads = weights if weights.ndim == 3 else weights[None]
    longest = max(len(source_tokens), len(target_tokens))
    if ax is None:
        ax = figure((4.4, 1.0 + 0.3 * longest)).add_subplot()
    shades = colors(len(heads))
    for number, (head, color) in enumerate(zip(heads, shades, strict=True)):
        if len(heads) > 1:
            ax.plot([], [], color=color, label=f"head {number + 1}")
        for (target, source), weight in np.ndenumerate(head):
            if weight >= 0.05:
                # Of several heads none hides the others.
                ax.plot(
                    [0, 1],
                    [source, target],
                    color=color,
                    linewidth=0.5 + 3.0 * weight,
                    alpha=float(weight) ** 0.7,
                    solid_capstyle="round",
                )
    font = {**letters(), "fontsize": 10, "va": "center"}
    for pieces, place, side in (
        (source_tokens, -0.04, "right"),
        (target_tokens, 1.04, "left"),
    ):
        for number, piece in enumerate(pieces):
            ax.text(place, number, _shown(piece), ha=side, **font)
    if len(heads) > 1:
        ax.legend(frameon=False, fontsize=8, ncols=4, loc="upper center")
    ax.set_xlim(-0.7, 1.7)
    ax.set_ylim(longest - 0.4, -0.6 - (len(heads) > 1))
    ax.set_axis_off()
    set_title(ax, title)
    return ax.figure


def mask(
    allowed,
    rows=None,
    columns=None,
    ax=None,
    title=None,
    xlabel="blue: may be attended to",
    ylabel="attending",
):
    """Draws which positions may be attended to, in blue.

    Args:
        allowed: bool `(T, S)`, True = may be attended to.
        rows: list of T str, or None for numbers from 0.
        columns: list of S str, or None for numbers from 0.
        ax: Matplotlib `Axes` to draw in, or None for a figure of its own.
        title: str or None. Shown as it is, without mathematics.
        xlabel, ylabel: str, names of the axes; or None.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: another rank, or other numbers of names.
    """
    allowed = np.asarray(keras.ops.convert_to_numpy(allowed)).astype(bool)
    if allowed.ndim != 2 or not allowed.size:
        raise ValueError(
            f"A mask of one sentence is (T, S). Received: shape={allowed.shape}."
        )
    height, width = allowed.shape
    rows = list(map(str, range(height))) if rows is None else rows
    columns = list(map(str, range(width))) if columns is None else columns
    _check_weights(allowed.astype("float32"), columns, rows)
    if ax is None:
        cell = 0.36
        ax = figure((1.8 + cell * width, 1.4 + cell * height)).add_subplot()
    from matplotlib.colors import ListedColormap

    colors = ListedColormap(["white", COLORS[0]])
    ax.imshow(allowed, cmap=colors, vmin=0, vmax=1, aspect="equal", alpha=0.85)
    for edge in range(1, width):
        ax.axvline(edge - 0.5, color=QUIET, linewidth=0.4, alpha=0.6)
    for edge in range(1, height):
        ax.axhline(edge - 0.5, color=QUIET, linewidth=0.4, alpha=0.6)
    font = letters()
    turned = 90 if max(len(_shown(piece)) for piece in columns) > 3 else 0
    ax.xaxis.tick_top()
    ax.set_xticks(range(width), map(_shown, columns), rotation=turned, **font)
    ax.set_yticks(range(height), map(_shown, rows), **font)
    ax.tick_params(length=0, pad=4, labelsize=9)
    ax.spines[:].set_color(QUIET)
    axis_names(ax, xlabel, ylabel)
    set_title(ax, title)
    return ax.figure


def _as_heads(weights, source_tokens, target_tokens):
    """Layers of heads as one array `(N, H, T, S)`."""
    layers = [np.asarray(keras.ops.convert_to_numpy(one), "float32") for one in weights]
    if not layers or len({one.shape for one in layers}) > 1 or layers[0].ndim != 3:
        raise ValueError(
            "The weights of a layer are (H, T, S), of every layer the same. Received: "
            f"{[one.shape for one in layers]}."
        )
    for one in layers:
        _check_weights(one, source_tokens, target_tokens)
    return np.stack(layers)


def _grid(weights, names, shape, pieces, title):
    """Small maps to one scale, with words at the first of a row or column."""
    source_tokens, target_tokens = pieces
    rows, columns = shape
    cell = 0.2
    width = columns * (0.4 + cell * max(len(source_tokens), 4)) + 2.0
    height = rows * (0.5 + cell * max(len(target_tokens), 4)) + 1.2
    made = figure((width, height))
    axes = made.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    vmax = float(weights.max())
    font = {**letters(), "fontsize": 7}
    for number, ax in enumerate(axes.ravel()):
        if number >= len(weights):
            ax.set_axis_off()
            continue
        image = ax.imshow(weights[number], cmap="Blues", vmin=0.0, vmax=vmax)
        ax.set_title(names[number], fontsize=8, color=QUIET, pad=4)
        ax.set_xticks(
            range(len(source_tokens)), map(_shown, source_tokens), rotation=90, **font
        )
        ax.set_yticks(range(len(target_tokens)), map(_shown, target_tokens), **font)
        ax.tick_params(length=0, pad=2)
        ax.spines[:].set_color(QUIET)
        ax.label_outer()
        is_lowest = number + columns >= len(weights)
        is_first = number % columns == 0
        axis_names(
            ax, "attended to" if is_lowest else None, "attending" if is_first else None
        )
        # The lowest of its column keeps its words where the last row is short.
        ax.tick_params(labelbottom=is_lowest)
    color_bar(image, axes[0, -1], "attention weight")
    if title is not None:
        made.suptitle(title, fontsize=11, **letters())
    return made
