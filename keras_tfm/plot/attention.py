"""Attention as maps, one map per head, lines between tokens, and masks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tfm.plot import figures
from keras_tfm.plot.figures import COLORS, QUIET, Axes, Figure, axes, set_labels

END_TOKENS = ("</s>", "(end)")
MIN_WEIGHT = 0.05  # of a line that `attention_lines` draws


def attention_map(
    weights: Any,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    ax: Axes | None = None,
    title: str | None = None,
    vmax: float | None = None,
    label: str = "attention weight",
    xlabel: str | None = "attended to",
    ylabel: str | None = "attending",
    numbers: bool = False,
) -> Figure:
    """Draws how much each target token attends to each source token.

    Remove padding first. Lines separate words: they stand before the tokens
    with SentencePiece's mark, which itself is not shown, or, if no token has
    it, before each token.

    Args:
        weights: float `(T, S)`, or `(H, T, S)`, which is averaged over H.
        source_tokens: list of S str.
        target_tokens: list of T str.
        ax: Matplotlib `Axes` to draw in, or None for a new figure, of a size
            that keeps every token readable.
        title: str or None, shown verbatim.
        vmax: float > 0, the weight of the darkest color, such as 1 to compare
            maps; or None for the largest weight.
        label: str, of the color bar.
        xlabel, ylabel: str or None.
        numbers: bool. Writes the weights into the cells, in place of a color
            bar.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: weights of another rank or not finite, or other numbers of
            tokens.

    Example:
        ```python
        from keras_tfm import plot

        weights = [[0.9, 0.1], [0.2, 0.8]]
        figure = plot.attention_map(weights, ["a", "cat"], ["eine", "Katze"])
        # figure.savefig("attention.png")
        ```
    """
    weights = _checked(weights, source_tokens, target_tokens)
    if weights.ndim == 3:
        weights = weights.mean(axis=0)
    target_length, source_length = weights.shape
    # Inches per token: wide for a phrase, as high as the letters for 40 tokens.
    cell = min(0.42, max(0.21, 6.4 / max(target_length, source_length)))
    cell = 0.42 if numbers else cell
    size = (2.4 + cell * max(source_length, 5), 1.8 + cell * max(target_length, 2))
    ax = axes(ax, *size)
    image = ax.imshow(weights, cmap="Blues", vmin=0.0, vmax=vmax, aspect="equal")
    crowded = _are_crowded(source_tokens)
    _label_tokens(ax, source_tokens, target_tokens, crowded, min(10.0, 34 * cell))
    _draw_grid(ax, _word_starts(source_tokens), _word_starts(target_tokens))
    if numbers:
        figures.write_numbers(image)
    else:
        figures.color_bar(image, ax, label)
    set_labels(ax, title, xlabel, ylabel)
    return ax.figure


def attention_heads(
    weights: Any,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    title: str | None = None,
) -> Figure:
    """Draws the map of every head of a layer, all to one scale.

    Args:
        weights: float `(H, T, S)`, without padding.
        source_tokens: list of S str.
        target_tokens: list of T str.
        title: str or None.

    Returns:
        Matplotlib `Figure` with H maps.

    Raises:
        ValueError: as of `attention_map`.

    Example:
        ```python
        import numpy as np

        from keras_tfm import plot

        weights = np.full((4, 2, 2), 0.5)
        plot.attention_heads(weights, ["a", "cat"], ["eine", "Katze"])
        ```
    """
    weights = _checked(weights, source_tokens, target_tokens, ranks=(3,))
    num_heads, cell = len(weights), 0.21
    # Two in a row, so that the letters are large enough on a telephone.
    columns = min(2, num_heads)
    rows = -(-num_heads // columns)
    width = columns * (0.3 + cell * max(len(source_tokens), 4)) + 1.8
    height = rows * (0.5 + cell * max(len(target_tokens), 4)) + 2.0
    canvas = figures.figure((width, height))
    canvas.set_layout_engine("compressed")
    maps = canvas.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    vmax = float(weights.max())
    for number, ax in enumerate(maps.ravel()):
        if number >= num_heads:
            ax.set_axis_off()
            continue
        image = ax.imshow(weights[number], cmap="Blues", vmin=0.0, vmax=vmax)
        _label_tokens(ax, source_tokens, target_tokens, True, 8)
        is_top, is_first = number < columns, number % columns == 0
        ax.tick_params(labeltop=is_top, labelleft=is_first, labelbottom=False)
        set_labels(ax, None, f"head {number + 1}", "attending" * is_first)
    figures.color_bar(image, maps[0, -1], "attention weight")
    if title is not None:
        style = figures.font(fontsize=11, x=0.02, ha="left")
        canvas.suptitle(title, **style)
    return figures.fit(canvas)


def attention_lines(
    weights: Any,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """Draws attention as lines from each target token to source tokens.

    The source stands at the left, the target at the right; the thicker a line,
    the larger its weight. Weights below 0.05 are left out.

    Args:
        weights: float `(T, S)`, or `(H, T, S)`, each head in a color of its
            own.
        source_tokens: list of S str.
        target_tokens: list of T str.
        ax: Matplotlib `Axes` to draw in, or None for a new figure.
        title: str or None, shown verbatim.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: as of `attention_map`.

    Example:
        ```python
        from keras_tfm import plot

        weights = [[0.9, 0.1], [0.2, 0.8]]
        plot.attention_lines(weights, ["a", "cat"], ["eine", "Katze"])
        ```
    """
    weights = _checked(weights, source_tokens, target_tokens)
    heads = weights if weights.ndim == 3 else weights[None]
    longest = max(len(source_tokens), len(target_tokens))
    ax = axes(ax, 4.4, 1.0 + 0.3 * longest)
    for number, color in enumerate(figures.colors(len(heads))):
        if len(heads) > 1:
            ax.plot([], [], color=color, label=f"head {number + 1}")
        for target, source in np.argwhere(heads[number] >= MIN_WEIGHT):
            weight = float(heads[number, target, source])
            # Transparent, so that no head hides another.
            style = {"linewidth": 0.5 + 3.0 * weight, "alpha": weight**0.7}
            style |= {"color": color, "solid_capstyle": "round"}
            ax.plot([0, 1], [source, target], **style)
    for tokens, x, side in (
        (source_tokens, -0.04, "right"),
        (target_tokens, 1.04, "left"),
    ):
        for y, token in enumerate(figures.token_labels(tokens)):
            ax.text(x, y, token, **figures.font(fontsize=10, va="center", ha=side))
    if len(heads) > 1:
        ax.legend(frameon=False, fontsize=8, ncols=4, loc="upper center")
    ax.set_xlim(-0.7, 1.7)
    ax.set_ylim(longest - 0.4, -0.6 - (len(heads) > 1))
    ax.set_axis_off()
    set_labels(ax, title)
    return ax.figure


def attention_path(
    weights: Any,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """Draws an attention map and the largest weight of each target token.

    Args:
        weights: float `(T, S)`, or `(H, T, S)`, which is averaged over H.
        source_tokens: list of S str.
        target_tokens: list of T str.
        ax: Matplotlib `Axes` to draw in, or None for a new figure.
        title: str or None, shown verbatim.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: as of `attention_map`.

    Example:
        ```python
        from keras_tfm import plot

        weights = [[0.9, 0.1], [0.2, 0.8]]
        plot.attention_path(weights, ["a", "cat"], ["eine", "Katze"])
        ```
    """
    canvas = attention_map(weights, source_tokens, target_tokens, ax, title)
    ax = canvas.axes[0] if ax is None else ax
    best = np.asarray(ax.images[0].get_array()).argmax(axis=1)  # (T,)
    style = {"color": COLORS[1], "marker": "o", "markersize": 5, "linewidth": 1.6}
    ax.plot(best, np.arange(len(best)), **style)
    return canvas


def mask(
    allowed: Any,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
    xlabel: str | None = "blue: may be attended to",
    ylabel: str | None = "attending",
) -> Figure:
    """Draws which positions may be attended to, in blue.

    Args:
        allowed: bool `(T, S)`, True = may be attended to.
        rows: list of T str, or None for numbers from 0.
        columns: list of S str, or None for numbers from 0.
        ax: Matplotlib `Axes` to draw in, or None for a new figure.
        title: str or None, shown verbatim.
        xlabel, ylabel: str or None.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: another rank, or other numbers of labels.

    Example:
        ```python
        import numpy as np

        from keras_tfm import plot

        plot.mask(np.tril(np.ones((4, 4), "bool")), title="causal")
        ```
    """
    from matplotlib.colors import ListedColormap

    allowed = figures.array(allowed, "bool")
    shape = allowed.shape if allowed.ndim == 2 else (0, 0)
    rows = list(map(str, range(shape[0]))) if rows is None else rows
    columns = list(map(str, range(shape[1]))) if columns is None else columns
    _checked(allowed, columns, rows, ranks=(2,))
    height, width = shape
    ax = axes(ax, 1.8 + 0.36 * width, 1.4 + 0.36 * height)
    shades = ListedColormap(["white", COLORS[0]])
    ax.imshow(allowed, cmap=shades, vmin=0, vmax=1, aspect="equal", alpha=0.85)
    _draw_grid(ax, range(1, width), range(1, height))
    upright = max(map(len, figures.token_labels(columns))) > 3
    _label_tokens(ax, columns, rows, upright, 9)
    set_labels(ax, title, xlabel, ylabel)
    return ax.figure


def _checked(weights, source_tokens, target_tokens, ranks=(2, 3)):
    """Returns weights as a float array, if they fit the tokens."""
    weights = figures.array(weights, "float32")
    expected = (len(target_tokens), len(source_tokens))
    if weights.ndim not in ranks or not weights.size or weights.shape[-2:] != expected:
        raise ValueError(
            "`weights` must be (T, S) or (H, T, S), of one sentence and one layer, for "
            f"T target and S source tokens; got shape {weights.shape}, {expected[0]} "
            f"target tokens and {expected[1]} source tokens. Remove padding from both, "
            "or swap the two."
        )
    if not np.isfinite(weights).all():
        raise ValueError("`weights` must be finite; got NaN or infinity.")
    return weights


def _are_crowded(tokens):
    """Returns whether the tokens above a map must be upright."""
    return len(tokens) > 8 or max(map(len, figures.token_labels(tokens))) > 3


def _label_tokens(ax, source_tokens, target_tokens, upright, fontsize, top=True):
    if top:
        ax.xaxis.tick_top()
    columns, rows = map(figures.token_labels, (source_tokens, target_tokens))
    style, rotation = figures.font(fontsize=fontsize), 90 if upright else 0
    ax.set_xticks(range(len(columns)), columns, rotation=rotation, **style)
    ax.set_yticks(range(len(rows)), rows, **style)
    ax.tick_params(length=0, pad=4 if top else 2)
    ax.spines[:].set_color(QUIET)


def _draw_grid(ax, columns, rows):
    style = {"color": QUIET, "linewidth": 0.4, "alpha": 0.6}
    for draw, edges in ((ax.axvline, columns), (ax.axhline, rows)):
        for edge in edges:
            draw(edge - 0.5, **style)


def _word_starts(tokens):
    """Returns the indices of tokens that start a word, the first left out."""
    prefixes = (figures.WORD_START, *END_TOKENS)
    if not any(figures.WORD_START in token for token in tokens):
        return range(1, len(tokens))
    return [i for i, token in enumerate(tokens) if i and token.startswith(prefixes)]
