"""What models are made of.

Shapes are written in these letters: `B` batch, `S` source length, `T` target
length, `L` slots of a cache, `D` model width, `F` feed-forward width, `H`
heads, `d_k` and `d_v` width of a head's keys and values, `V` vocabulary, `K`
beams, `N` layers. Batch first; ids are int32, pad is id 0.
"""

from keras_tfm.layers import masks
from keras_tfm.layers.attention import Attention
from keras_tfm.layers.blocks import TransformerDecoder, TransformerEncoder
from keras_tfm.layers.embedding import TokenAndPositionEmbedding
from keras_tfm.layers.feed_forward import FeedForward, gelu_tanh
from keras_tfm.layers.multi_head import MultiHeadAttention
from keras_tfm.layers.pooling import AttentionPooling, Pooling
from keras_tfm.layers.positions import LearnedPositions, SinusoidalPositions
from keras_tfm.layers.recurrence import SSRU, SSRUDecoder
from keras_tfm.layers.relative import (
    AlibiPositions,
    RotaryPositions,
    ShawPositions,
    T5Positions,
)
from keras_tfm.layers.scores import Score

__all__ = [
    "SSRU",
    "SSRUDecoder",
    "AlibiPositions",
    "Attention",
    "AttentionPooling",
    "FeedForward",
    "LearnedPositions",
    "MultiHeadAttention",
    "Pooling",
    "RotaryPositions",
    "Score",
    "ShawPositions",
    "SinusoidalPositions",
    "T5Positions",
    "TokenAndPositionEmbedding",
    "TransformerDecoder",
    "TransformerEncoder",
    "gelu_tanh",
    "masks",
]
