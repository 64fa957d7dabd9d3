"""Pictures of models, attention, positions, beams, runs and evaluations.

Figures are made without pyplot: nothing is global, no window opens, and
`figure.savefig("attention.png")` works on a machine without a screen.
"""

from keras_tfm.plot.ablations import ablation
from keras_tfm.plot.architecture import architecture, blocks
from keras_tfm.plot.attention import (
    attention_heads,
    attention_lines,
    attention_map,
    attention_path,
    mask,
)
from keras_tfm.plot.beams import beam_tree
from keras_tfm.plot.embeddings import embeddings
from keras_tfm.plot.figures import figure, reference_line
from keras_tfm.plot.flows import (
    inference_flow,
    multi_head,
    recurrence,
    training_flow,
)
from keras_tfm.plot.matrices import equation, head_shapes
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
    "ablation",
    "animate_rings",
    "architecture",
    "attention_heads",
    "attention_lines",
    "attention_map",
    "attention_path",
    "beam_tree",
    "blocks",
    "confusion_matrix",
    "curves",
    "embeddings",
    "equation",
    "figure",
    "gradient_norms",
    "head_shapes",
    "inference_flow",
    "learning_rates",
    "mask",
    "multi_head",
    "position_products",
    "position_rings",
    "positions",
    "recurrence",
    "reference_line",
    "training_curves",
    "training_flow",
]
