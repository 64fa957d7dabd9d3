"""A Transformer small enough to read, with weights from NumPy."""

import numpy as np

from keras_tfm.models import Transformer
from tests.layers.formulas import draw_weights

V = 13
SOURCE = np.array([[5, 9, 4, 3], [7, 3, 0, 0]], "int32")
TARGET = np.array([[2, 8, 6, 11, 4], [2, 10, 5, 0, 0]], "int32")
LABELS = np.array([[8, 6, 11, 4, 3], [10, 5, 3, 0, 0]], "int32")
BATCH = {"source_ids": SOURCE, "target_ids": TARGET}


def small(seed=0, **settings):
    """Makes a small model; `settings` override its arguments."""
    sizes = {"embedding_dim": 8, "intermediate_dim": 12, "num_heads": 2}
    settings = {"num_layers": (1, 2), "dropout": 0.0, **sizes, **settings}
    return draw_weights(Transformer(V, **settings), seed)
