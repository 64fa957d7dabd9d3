"""How data flow: heads of attention, training, inference, recurrence."""

from collections.abc import Sequence
from typing import Any

from keras_tfm.plot import figures
from keras_tfm.plot.diagrams import (
    BOX,
    LARGE,
    SMALL,
    TALL_BOX,
    Axes,
    arrow,
    box,
    indexed,
    label_in_box,
    sheet,
    trim,
    write,
)
from keras_tfm.plot.figures import COLORS, INK, QUIET, Figure

MAX_HEADS = 4  # that `multi_head` draws
LETTER = 0.09  # width of a letter, in inches


def multi_head(layer: Any) -> Figure:
    """Draws the heads of self-attention, with the shape of each tensor.

    Data run upwards, for one sequence of L tokens. Each head has a color and
    three matrices of its own.

    Args:
        layer: `layers.MultiHeadAttention`, built, of at most 4 heads.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: the layer was not built, or has more heads.

    Source: Vaswani et al. 2017, figure 2. https://arxiv.org/abs/1706.03762

    Example:
        ```python
        from keras_tfm import layers, plot

        layer = layers.MultiHeadAttention(num_heads=2)
        layer.build((None, 6, 16))
        plot.multi_head(layer)
        ```
    """
    if not layer.built or layer.num_heads > MAX_HEADS:
        raise ValueError(
            f"`layer` must be built and have at most {MAX_HEADS} heads; got "
            f"built={layer.built}, num_heads={layer.num_heads}. Call it once, or draw "
            "a smaller layer."
        )
    dim, heads, key_dim = layer.query_dense.kernel.shape
    value_dim = layer.output_dense.kernel.shape[1]
    pitch, margin = 2.4, 0.12
    width = heads * pitch + 2 * margin
    ax = sheet(width)
    levels = 0.2, 0.95, 1.75, 2.55, 3.35  # X, projections, heads, concat, output
    write(ax, (width / 2, levels[0]), f"X (L, {dim})")
    for number, color in enumerate(figures.colors(heads)):
        middle = margin + (number + 0.5) * pitch
        sizes = (("Q", key_dim), ("K", key_dim), ("V", value_dim))
        for shift, (name, size) in zip((-0.76, 0.0, 0.76), sizes, strict=True):
            x = middle + shift
            arrow(ax, [(width / 2, 0.32), (x, levels[1] - 0.25)])
            detail = f"(L, {size})"
            label = indexed(name, number + 1)
            _cell(ax, (x, levels[1]), (0.7, TALL_BOX), label, color, detail)
            end = middle + 0.6 * shift, levels[2] - 0.25
            arrow(ax, [(x, levels[1] + 0.25), end])
        label, name = f"softmax(QKᵀ / √{key_dim}) V", f"head {number + 1}"
        _cell(ax, (middle, levels[2]), (2.2, TALL_BOX), name, color, label)
        arrow(ax, [(middle, levels[2] + 0.25), (middle, levels[3] - BOX / 2)])
        write(ax, (middle + 0.08, 2.19), f"(L, {value_dim})", SMALL, QUIET, "left")
        _cell(ax, (middle, levels[3]), (pitch, BOX), name, color)
    shape = f"concatenated: (L, {heads * value_dim})"
    arrow(ax, [(width / 2, levels[3] + BOX / 2), (width / 2, levels[4] - 0.25)])
    write(ax, (width / 2 + 0.08, 2.9), shape, SMALL, QUIET, "left")
    output_dim = layer.output_dense.kernel.shape[-1]
    size = f"{heads * value_dim} → {output_dim}"
    box(ax, (width / 2, levels[4]), (2.2, TALL_BOX), "Wᴼ", "plain", size)
    arrow(ax, [(width / 2, levels[4] + 0.25), (width / 2, levels[4] + 0.5)])
    write(ax, (width / 2, levels[4] + 0.6), f"output (L, {output_dim})")
    return trim(ax, levels[4] + 0.8).figure


def training_flow(
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    start: str = "(start)",
    end: str = "(end)",
) -> Figure:
    """Draws a training step of one pair: all positions at once.

    The decoder reads the start token and the target; the label of each
    position is the next token.

    Args:
        source_tokens: list of S str.
        target_tokens: list of T str, without start and end.
        start, end: str, names of the two tokens.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: no source or no target.

    Example:
        ```python
        from keras_tfm import plot

        plot.training_flow(["I", "love", "you"], ["Ti", "amo"])
        ```
    """
    source, target = _tokens(source_tokens, target_tokens)
    reads, labels = [start, *target], [*target, end]
    pitch = _pitch([*source, *reads, *labels])
    left, width = 0.75, pitch * len(reads)
    ax = sheet(left + max(width, pitch * len(source)) + 0.15)
    _draw_encoder(ax, left, source, pitch)
    _draw_row(ax, left, reads, pitch, 1.75, [INK, *_colors(target)])
    center, note = (left + width / 2, 2.5), "sees no later position"
    box(ax, center, (width, TALL_BOX), "decoder", "feed-forward", note)
    memory = [(left, 0.95), (left - 0.25, 0.95), (left - 0.25, 2.5), (left, 2.5)]
    arrow(ax, memory, INK)
    for number, (label, color) in enumerate(zip(labels, _colors(labels), strict=True)):
        x = left + (number + 0.5) * pitch
        arrow(ax, [(x, 2.75), (x, 3.05)])
        write(ax, (x, 3.19), "−log p", SMALL, QUIET)
        write(ax, (x, 3.4), label, LARGE, color)
    for y, name in ((3.4, "labels"), (1.75, "reads"), (0.2, "source")):
        write(ax, (0.1, y), name, SMALL, QUIET, "left")
    note = "loss: the mean of all, in one step"
    write(ax, (left + width / 2, 3.68), note, SMALL, QUIET)
    return trim(ax, 3.85).figure


def inference_flow(
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    start: str = "(start)",
    end: str = "(end)",
) -> Figure:
    """Draws a greedy search of one sentence: one token at each step.

    The encoder runs once; each step reads its output again and the token of
    the step before.

    Args:
        source_tokens: list of S str.
        target_tokens: list of T str, without start and end.
        start, end: str, names of the two tokens.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: no source or no target.

    Example:
        ```python
        from keras_tfm import plot

        plot.inference_flow(["I", "love", "you"], ["Ti", "amo"])
        ```
    """
    source, target = _tokens(source_tokens, target_tokens)
    reads, outputs = [start, *target], [*target, end]
    encoder_pitch, pitch = _pitch(source), max(_pitch([*reads, *outputs]), 0.95) + 0.16
    left, bus = encoder_pitch * len(source), 1.46
    ax = sheet(max(left, pitch * len(reads)) + 0.3)
    _draw_encoder(ax, 0.15, source, encoder_pitch)
    top = 0.15 + left / 2
    arrow(ax, [(top, 1.2), (top, bus)], INK, head=False)
    note = "keys and values, computed once"
    write(ax, (top + 0.1, 1.34), note, SMALL, QUIET, "left")
    centers = [0.15 + (number + 0.5) * pitch for number in range(len(reads))]
    ends = sorted((centers[0] - 0.3, top, centers[-1] - 0.3))
    arrow(ax, [(ends[0], bus), (ends[-1], bus)], INK, head=False)
    colors = [INK, *_colors(outputs)]
    for number, x in enumerate(centers):
        arrow(ax, [(x - 0.3, bus), (x - 0.3, 2.25)], INK)
        name, size = f"step {number + 1}", (pitch - 0.2, TALL_BOX)
        box(ax, (x, 2.5), size, "decoder", "feed-forward", name)
        write(ax, (x + 0.1, 1.92), reads[number], LARGE, colors[number])
        arrow(ax, [(x + 0.1, 2.04), (x + 0.1, 2.25)])
        arrow(ax, [(x, 2.75), (x, 2.98)])
        write(ax, (x, 3.1), outputs[number], LARGE, colors[number + 1])
        if number + 1 < len(reads):  # the token is read by the next step
            edge, next_x = x + pitch / 2, centers[number + 1] + 0.1
            points = [(x, 3.24), (x, 3.34), (edge, 3.34), (edge, 1.62)]
            points += [(next_x, 1.62), (next_x, 1.8)]
            arrow(ax, points, colors[number + 1])
    return trim(ax, 3.5).figure


def recurrence(tokens: Sequence[str], gated: bool = False) -> Figure:
    """Draws a recurrent network unrolled: one cell for each token.

    Without gates, each state is computed anew from the one before. With gates,
    the state also runs past the cell on a line of its own, where it is only
    scaled and added to.

    Args:
        tokens: list of str.
        gated: bool, as in an LSTM or a GRU.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: there are no tokens.

    Example:
        ```python
        from keras_tfm import plot

        plot.recurrence(["I", "love", "you"], gated=True)
        ```
    """
    tokens = figures.token_labels(tokens)
    if not tokens:
        raise ValueError("`tokens` must be 1 or more; got none.")
    pitch = max(_pitch(tokens), 1.3)
    ax = sheet(pitch * len(tokens) + 0.75)
    rail = 1.42
    write(ax, (0.25, 0.95), indexed("h", 0))
    for number, token in enumerate(tokens):
        x = 0.5 + (number + 0.5) * pitch
        write(ax, (x, 0.2), token)
        arrow(ax, [(x, 0.32), (x, 0.7)])
        detail = "gates" if gated else "tanh(Wh + Ux)"
        box(ax, (x, 0.95), (pitch - 0.3, TALL_BOX), "cell", "state", detail)
        begin = 0.38 if number == 0 else x - pitch / 2 - 0.15
        end = x - pitch / 2 + 0.15
        arrow(ax, [(begin, 0.95), (end, 0.95)], INK)
        top = 1.75 if gated else 1.45
        arrow(ax, [(x, 1.2), (x, top)])
        if gated:
            _draw_gates(ax, x, rail, pitch, number)
        write(ax, (x, top + 0.12), indexed("h", number + 1))
    last = 0.5 + len(tokens) * pitch
    arrow(ax, [(last - 0.15, 0.95), (last + 0.2, 0.95)], INK)
    return trim(ax, (2.05 if gated else 1.75)).figure


def _draw_gates(ax: Axes, x, rail, pitch, number):
    """Draws the line of the state past a cell: times a gate, plus an update."""
    from matplotlib.patches import Circle

    begin = x - pitch / 2 - (0.12 if number == 0 else 0.0)
    arrow(ax, [(begin, rail), (x + pitch / 2, rail)], COLORS[2], head=False)
    for shift, sign in ((-0.32, "×"), (0.0, "+")):
        style = {"facecolor": "white", "edgecolor": COLORS[2], "zorder": 2}
        ax.add_patch(Circle((x + shift, rail), 0.085, **style))
        write(ax, (x + shift, rail), sign, SMALL, COLORS[2])
        arrow(ax, [(x + shift, 1.2), (x + shift, rail - 0.085)])


def _draw_encoder(ax, left, tokens, pitch):
    """Draws tokens and, above them, the encoder."""
    width = pitch * len(tokens)
    _draw_row(ax, left, tokens, pitch, 0.2, [INK] * len(tokens))
    center, note = (left + width / 2, 0.95), "sees all positions"
    box(ax, center, (width, TALL_BOX), "encoder", "attention", note)


def _draw_row(ax, left, tokens, pitch, y, colors):
    """Draws tokens, with an arrow from each to what is above them."""
    for number, (token, color) in enumerate(zip(tokens, colors, strict=True)):
        x = left + (number + 0.5) * pitch
        write(ax, (x, y), token, LARGE, color)
        arrow(ax, [(x, y + 0.13), (x, y + 0.5)])


def _cell(ax, center, size, label, color, detail=""):
    """Draws a box in the color of a head."""
    from matplotlib.patches import Rectangle

    (x, y), (width, height) = center, size
    corner = x - width / 2, y - height / 2
    style = {"facecolor": (color, 0.18), "edgecolor": color, "zorder": 2}
    ax.add_patch(Rectangle(corner, width, height, **style))
    label_in_box(ax, center, label, detail)


def _colors(tokens):
    """Returns a color for each token, the same as label and as input."""
    return [COLORS[number % 3] for number in range(len(tokens))]


def _tokens(source, target):
    if not source or not target:
        raise ValueError(
            "`source_tokens` and `target_tokens` must be 1 or more each; got "
            f"{len(source)} and {len(target)}."
        )
    return figures.token_labels(source), figures.token_labels(target)


def _pitch(tokens):
    """Returns the width of a token in the largest of several, in inches."""
    return max(0.45, LETTER * max(map(len, tokens)) + 0.12)
