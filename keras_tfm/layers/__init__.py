"""What models are made of.

Shapes are written in these letters: `B` batch, `S` source length, `T` target
length, `L` slots of a cache, `D` model width, `F` feed-forward width, `H`
heads, `d_k` and `d_v` width of a head's keys and values, `V` vocabulary, `K`
beams, `N` layers. Batch first; ids are int32, pad is id 0.
"""

from keras_tfm.layers import masks
from keras_tfm.layers.attention import MultiHeadAttention
from keras_tfm.layers.blocks import TransformerDecoder, TransformerEncoder
from keras_tfm.layers.embedding import TokenAndPositionEmbedding
from keras_tfm.layers.feed_forward import FeedForward
from keras_tfm.layers.positions import LearnedPositions, SinusoidalPositions

__all__ = [
    "FeedForward",
    "LearnedPositions",
    "MultiHeadAttention",
    "SinusoidalPositions",
    "TokenAndPositionEmbedding",
    "TransformerDecoder",
    "TransformerEncoder",
    "masks",
]
