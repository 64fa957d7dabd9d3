"""Pictures of attention, positions, beams, training runs and evaluations.

Figures are made without pyplot: nothing is global, no window opens, and
`figure.savefig("attention.png")` works on a machine without a screen.
"""

from keras_tfm.plot.attention import (
    attention_heads,
    attention_lines,
    attention_map,
    attention_path,
    mask,
)
from keras_tfm.plot.beams import beam_tree
from keras_tfm.plot.embeddings import embeddings
from keras_tfm.plot.positions import (
    animate_rings,
    position_products,
    position_rings,
    positions,
)
from keras_tfm.plot.runs import (
    confusion_matrix,
    curves,
    gradient_norms,
    learning_rates,
    training_curves,
)

__all__ = [
    "animate_rings",
    "attention_heads",
    "attention_lines",
    "attention_map",
    "attention_path",
    "beam_tree",
    "confusion_matrix",
    "curves",
    "embeddings",
    "gradient_norms",
    "learning_rates",
    "mask",
    "position_products",
    "position_rings",
    "positions",
    "training_curves",
]
