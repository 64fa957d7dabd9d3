"""A small Transformer whose weights come from NumPy."""

import numpy as np
import pytest

from keras_tfm import models

VOCABULARY_SIZE = 14


def draw_transformer(seed=1, **settings):
    """Makes a Transformer with various hypotheses, most of which end."""
    settings = {
        "vocabulary_size": VOCABULARY_SIZE,
        "num_layers": (1, 2),
        "embedding_dim": 16,
        "intermediate_dim": 24,
        "num_heads": 2,
        "tie": None,
        "normalize_first": True,
        "dropout": 0.0,
        **settings,
    }
    model = models.Transformer(**settings)
    redraw(model, seed)
    return model


def redraw(model, seed):
    """Sets new random weights."""
    draw = np.random.default_rng(seed)
    spreads = {"gamma": 0.1, "beta": 0.1, "bias": 0.1, "embeddings": 0.25}
    weights = []
    for weight in model.weights:
        name = weight.path.split("/")[-1]
        values = draw.normal(size=weight.shape) * spreads.get(name, 0.4)
        weights.append(values + (name == "gamma"))
    model.set_weights(weights)


@pytest.fixture(scope="module")
def transformer():
    return draw_transformer()
