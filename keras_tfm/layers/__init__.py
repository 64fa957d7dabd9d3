"""Layers that models consist of.

Shapes are written in these letters: `B` batch, `S` source length, `T` target
length, `L` cache length, `D` model dimension, `F` feed-forward dimension, `H`
heads, `G` heads of keys and values, `d_k` and `d_v` dimensions of a head's keys
and values, `V` vocabulary, `K` beams, `N` layers. Batch first; ids are int32,
padding is id 0.
"""

from keras_tfm.layers import masks
from keras_tfm.layers.attention import Attention
from keras_tfm.layers.attention_score import AttentionScore
from keras_tfm.layers.blocks import TransformerDecoder, TransformerEncoder
from keras_tfm.layers.embedding import TokenAndPositionEmbedding
from keras_tfm.layers.feed_forward import FeedForward, gelu_tanh
from keras_tfm.layers.layer_mixture import LayerMixture
from keras_tfm.layers.multi_head_attention import MultiHeadAttention
from keras_tfm.layers.ngram_bag import NGramBag
from keras_tfm.layers.pooling import AttentionPooling, Pooling
from keras_tfm.layers.positions import LearnedPositions, SinusoidalPositions
from keras_tfm.layers.recurrence import SSRU, SSRUDecoder
from keras_tfm.layers.relative_position import (
    AlibiPositions,
    ShawPositions,
    T5Positions,
)
from keras_tfm.layers.rotary import RotaryPositions

__all__ = [
    "SSRU",
    "SSRUDecoder",
    "AlibiPositions",
    "Attention",
    "AttentionPooling",
    "AttentionScore",
    "FeedForward",
    "LayerMixture",
    "LearnedPositions",
    "MultiHeadAttention",
    "NGramBag",
    "Pooling",
    "RotaryPositions",
    "ShawPositions",
    "SinusoidalPositions",
    "T5Positions",
    "TokenAndPositionEmbedding",
    "TransformerDecoder",
    "TransformerEncoder",
    "gelu_tanh",
    "masks",
]
