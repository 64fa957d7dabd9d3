"""Vectors of words in the plane."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tfm.plot.figures import (
    INK,
    QUIET,
    Axes,
    Figure,
    array,
    axes,
    colors,
    font,
)


def embeddings(
    vectors: Any,
    words: Sequence[str],
    groups: Sequence | None = None,
    seed: int = 0,
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """Draws words where t-SNE puts their vectors: neighbors stay neighbors.

    Only neighborhood has a meaning: distances between groups and their sizes
    have none.

    Args:
        vectors: float `(N, D)`, such as rows of an embedding matrix.
        words: list of N str.
        groups: list of N ints or str, each group in a color; or None.
        seed: int, of t-SNE.
        ax: Matplotlib `Axes` to draw in, or None for a new figure.
        title: str or None, shown verbatim.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ImportError: scikit-learn or adjustText is not installed.
        ValueError: fewer than 4 words, or other numbers of words or groups.

    Source: van der Maaten and Hinton 2008, as implemented by scikit-learn.

    Example:
        ```python
        # requires: sklearn, adjustText
        import numpy as np

        from keras_tfm import plot

        vectors = np.random.default_rng(0).normal(size=(6, 8))
        plot.embeddings(vectors, ["one", "two", "three", "cat", "dog", "cow"])
        ```
    """
    try:
        from adjustText import adjust_text
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise ImportError(
            "`embeddings` needs scikit-learn and adjustText, whose import failed "
            f"({error}). Install `keras-tfm[recipes]`."
        ) from error
    vectors = array(vectors)
    groups = [0] * len(words) if groups is None else list(groups)
    if vectors.ndim != 2 or not len(vectors) == len(words) == len(groups) > 3:
        raise ValueError(
            "`words` must be 4 or more, with a vector each, and a group each if there "
            f"are groups; got vectors {vectors.shape}, {len(words)} words, "
            f"{len(groups)} groups."
        )
    # The perplexity counts neighbors, at most a third of the words.
    perplexity = min(30.0, (len(words) - 1) / 3)
    reduction = TSNE(perplexity=perplexity, random_state=seed, init="pca")
    points = reduction.fit_transform(vectors)  # (N, 2)
    ax = axes(ax, 6.5, 5.0)
    names = list(dict.fromkeys(groups))
    for name, color in zip(names, colors(len(names)), strict=True):
        members = np.array([group == name for group in groups])
        label = str(name) if len(names) > 1 else None
        ax.scatter(*points[members].T, s=14, color=color, label=label)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_color(QUIET)
    ax.margins(0.12, 0.12)
    if len(names) > 1:
        beside = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "ncols": 3}
        ax.legend(frameon=False, fontsize=9, labelcolor=INK, **beside)
    if title is not None:
        ax.set_title(title, **font(loc="left", pad=26, fontsize=11))
    # Labels move apart on the screen, so that the layout must be settled.
    ax.figure.draw_without_rendering()
    labels = [
        ax.text(*point, word, **font(fontsize=9))
        for word, point in zip(words, points, strict=True)
    ]
    line = {"arrowstyle": "-", "color": QUIET, "linewidth": 0.6}
    adjust_text(
        labels, *points.T, ax=ax, iter_lim=500, expand=(1.3, 1.6), arrowprops=line
    )
    return ax.figure
