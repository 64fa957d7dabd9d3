"""Draws the packages and the way of a sentence through them.

    python -m tools.architecture docs/architecture.png

The tokens, shapes and texts are those of the preset `en-de`.
"""

import argparse

from keras_tfm.pipelines import Translator
from keras_tfm.plot.diagrams import (
    INK,
    QUIET,
    SMALL,
    arrow,
    box,
    sheet,
    write,
)
from keras_tfm.plot.figures import token_labels

TEXT = "Where is the station?"
WIDTH = 5.2  # inches: narrow, so that the letters are large enough on a telephone
DPI = 130
# Rows of packages, as fractions of the width. A package imports
# those that its lines lead to, and what these import.
ROWS: tuple[dict[str, float], ...] = (
    {"cli": 0.5},
    {"recipes": 0.3, "server": 0.7},
    {"training": 0.12, "export": 0.5},
    {"pipelines": 0.5},
    {"plot": 0.12, "engines": 0.33},
    {"zoo": 0.58},
    {"runtime": 0.33, "text": 0.82},
    {"decode": 0.5, "models": 0.82},
    {"layers": 0.82},
)
IMPORTS = {
    "cli": ("recipes", "server"),
    "recipes": ("export", "training", "plot"),
    "server": ("export",),
    "export": ("pipelines",),
    "pipelines": ("engines", "zoo", "runtime", "text", "plot"),
    "engines": ("zoo", "runtime"),
    "zoo": ("text", "decode"),
    "text": ("models",),
    "models": ("layers",),
    "runtime": ("decode",),
}
KINDS = {
    "pipelines": "embedding",
    "text": "norm",
    "runtime": "state",
    "decode": "attention",
    "models": "feed-forward",
    "layers": "feed-forward",
}
BOX = (0.95, 0.3)  # width and height of a package
HEIGHT, ROW = BOX[1], 0.55  # of a package, and to the next row


def draw_packages(ax, top: float) -> float:
    """Draws the packages with lines to those that they import.

    Args:
        ax: Matplotlib `Axes` of `sheet`.
        top: float, height where the drawing begins.

    Returns:
        float, height where it ends.
    """
    centers: dict[str, tuple[float, float]] = {}
    for number, names in enumerate(ROWS):
        y = top - 0.3 - ROW * number
        centers |= {name: (WIDTH * x, y) for name, x in names.items()}
    for name, imported in IMPORTS.items():
        for below in imported:
            (x, y), (x_below, y_below) = centers[name], centers[below]
            ends = [(x, y - HEIGHT / 2), (x_below, y_below + HEIGHT / 2)]
            arrow(ax, ends)
    for name, center in centers.items():
        box(ax, center, BOX, name, KINDS.get(name, "plain"))
    return top - 0.3 - ROW * len(ROWS)


LANES = ("pipelines", "text", "runtime", "decode", "models")
STEP = (1.36, 0.46)  # width and height of a step
PITCH = 0.94  # from a step to the next


def steps_of(translator: Translator) -> list[tuple[str, str, str, str]]:
    """Lists package, step, detail and result of each step of a call.

    Args:
        translator: `Translator`.
    """
    [source] = translator.encode([TEXT])
    [segment] = source.segments
    result = translator.translate(TEXT)
    [hypothesis] = result.hypotheses
    beams, size = translator.decoder.options.beam_size, translator.vocabulary.size
    tokens = " ".join(token_labels(result.source_tokens))
    target_tokens = " ".join(token_labels(hypothesis.tokens[:-1]))
    length, steps = len(segment.ids), len(hypothesis.tokens)
    return [
        ("pipelines", "text steps", "protect, split", f'"{segment.steps.model_text}"'),
        (
            "text",
            "encode",
            "subword tokens",
            tokens,
        ),
        ("runtime", "batch", "sort, pad, compile", f"source ids (1, {length})"),
        ("models", "begin", "the encoder, once", "cache"),
        ("decode", "beam search", "the best beams", f"token ids (1, {beams})"),
        ("models", "step", "the decoder, again", f"logits (1, {beams}, {size:,})"),
        ("decode", "beam search", f"{steps} steps", f"target ids (1, 1, {steps})"),
        ("text", "decode", "tokens to text", target_tokens),
        ("pipelines", "finish", "numbers, names", f'"{result.text}"'),
    ]


def draw_steps(ax, top: float, steps: list[tuple[str, str, str, str]]) -> None:
    """Draws the steps downwards, each in the lane of its package.

    Args:
        ax: Matplotlib `Axes` of `sheet`.
        top: float, height where the drawing begins.
        steps: list of `steps_of`.
    """
    margin = STEP[0] / 2 + 0.03
    lane = (WIDTH - 2 * margin) / (len(LANES) - 1)
    xs = {name: margin + lane * n for n, name in enumerate(LANES)}
    bottom = top - 0.75 - PITCH * len(steps)
    for name, x in xs.items():
        box(ax, (x, top - 0.2), (0.86, HEIGHT), name, KINDS[name])
        ax.plot(
            [x, x], [top - 0.35, bottom + 0.5], color=QUIET, lw=0.6, ls=":", zorder=0
        )
    for number, (name, step, detail, result) in enumerate(steps):
        x, y = xs[name], top - 0.85 - PITCH * number
        cover = {"lw": 9, "color": "white", "zorder": 0.5, "solid_capstyle": "butt"}
        ax.plot([x, x], [y - 0.23, y + 0.23], **cover)
        box(ax, (x, y), STEP, step, KINDS[name], detail)
        is_last = number + 1 == len(steps)
        next_x = x if is_last else xs[steps[number + 1][0]]
        middle = y - PITCH / 2
        points = [(x, y - 0.23), (x, middle)]
        if not is_last:
            points += [(next_x, middle), (next_x, y - PITCH + 0.23)]
        arrow(ax, points, INK)
        # Below the line, on its side of the arrow, where nothing else is.
        side, align = (-0.08, "right") if next_x > x else (0.08, "left")
        label = (x - STEP[0] / 2 + 0.05 if is_last else next_x + side, middle - 0.12)
        write(ax, label, result, SMALL, INK, align)
        ax.texts[-1].set_bbox({"facecolor": "white", "linewidth": 0, "pad": 1})


def main() -> None:
    """Draws, and writes the file that the command names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", help="picture to write, such as a .png")
    flags = parser.parse_args()
    steps = steps_of(Translator.from_preset("en-de"))
    height = ROW * len(ROWS) + 0.5 + PITCH * len(steps) + 0.9
    ax = sheet(WIDTH, height)
    top = draw_packages(ax, height)
    draw_steps(ax, top - 0.2, steps)
    ax.figure.savefig(flags.file, dpi=DPI)


if __name__ == "__main__":
    main()
