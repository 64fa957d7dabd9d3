"""Vectors of words in the plane."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tfm.plot.figures import (
    QUIET,
    Axes,
    Figure,
    array,
    axes,
    colors,
    font,
    set_labels,
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
        ImportError: scikit-learn is not installed.
        ValueError: fewer than 4 words, or other numbers of words or groups.

    Source: van der Maaten and Hinton 2008, as implemented by scikit-learn.

    Example:
        ```python
        # requires: sklearn
        import numpy as np

        from keras_tfm import plot

        vectors = np.random.default_rng(0).normal(size=(6, 8))
        plot.embeddings(vectors, ["one", "two", "three", "cat", "dog", "cow"])
        ```
    """
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise ImportError(
            f"`embeddings` needs scikit-learn, whose import failed ({error}). Install "
            "`keras-tfm[recipes]`."
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
    style = font(fontsize=8, xytext=(3, 3), textcoords="offset points")
    for word, point in zip(words, points, strict=True):
        ax.annotate(word, point, **style)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_color(QUIET)
    ax.margins(0.18, 0.12)
    if len(names) > 1:
        ax.legend(frameon=False, fontsize=8)
    set_labels(ax, title)
    return ax.figure
