"""Vectors of words in the plane."""

import keras
import numpy as np

from keras_tfm.plot.figures import QUIET, colors, figure, letters
from keras_tfm.plot.figures import title as set_title


def embeddings(vectors, words, groups=None, seed=0, ax=None, title=None):
    """Draws words where t-SNE puts their vectors: neighbours stay neighbours.

    Only who is near whom means anything: t-SNE makes up the distances between
    groups and their sizes.

    Args:
        vectors: float `(N, D)`, such as rows of an embedding table.
        words: list of N str.
        groups: list of N ints or str, each group in a color; or None.
        seed: int, of t-SNE.
        ax: Matplotlib `Axes` to draw in, or None for a figure of its own.
        title: str or None. Shown as it is, without mathematics.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: fewer than 4 words, or other numbers of words or groups.

    Source: van der Maaten and Hinton 2008, by scikit-learn.
    """
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise ImportError(
            f"t-SNE is scikit-learn's, which cannot be imported here ({error}). "
            "Install `keras-tfm[recipes]`."
        ) from error
    vectors = np.asarray(keras.ops.convert_to_numpy(vectors), "float64")
    groups = [0] * len(words) if groups is None else list(groups)
    if vectors.ndim != 2 or not len(vectors) == len(words) == len(groups) > 3:
        raise ValueError(
            "Each of 4 words or more has a vector, and a group if there are groups. "
            f"Received: vectors {vectors.shape}, {len(words)} words, {len(groups)} "
            "groups."
        )
    # Neighbours are counted by a third of the words at most.
    near = min(30.0, (len(words) - 1) / 3)
    places = TSNE(perplexity=near, random_state=seed, init="pca").fit_transform(vectors)
    if ax is None:
        ax = figure((6.5, 5.0)).add_subplot()
    names = list(dict.fromkeys(groups))
    for name in names:
        of = np.array([group == name for group in groups])
        color = colors(len(names))[names.index(name)]
        label = str(name) if len(names) > 1 else None
        ax.scatter(*places[of].T, s=14, color=color, label=label)
    font = {**letters(), "fontsize": 8}
    for word, place in zip(words, places, strict=True):
        ax.annotate(word, place, xytext=(3, 3), textcoords="offset points", **font)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_color(QUIET)
    ax.margins(0.18, 0.12)
    if len(names) > 1:
        ax.legend(frameon=False, fontsize=8)
    set_title(ax, title)
    return ax.figure
