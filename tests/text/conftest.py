"""A small artificial language pair."""

import numpy as np
import pytest

from keras_tfm.text import Pairs, Vocabulary


def sentences(count, seed):
    """Draws sentences of 1 to 20 words; targets double each of their words."""
    draw = np.random.default_rng(seed)
    words = np.array([a + b + c for a in "bdk" for b in "aeiou" for c in ("", "n")])
    source = [
        " ".join(draw.choice(words, size)) for size in draw.integers(1, 21, count)
    ]
    target = [
        " ".join(word + word for word in text.split()[: draw.integers(1, 21)])
        for text in source
    ]
    return source, target


@pytest.fixture(scope="session")
def pairs():
    return Pairs(*sentences(500, seed=1))


@pytest.fixture(scope="session")
def vocabulary(pairs):
    return Vocabulary.train(pairs.source + pairs.target, size=320)
