"""Whole networks in the functional API, and published shapes of them."""

from keras_tfm.models.presets import (
    transformer_base,
    transformer_big,
    transformer_table_3,
    transformer_tiny,
)
from keras_tfm.models.seq2seq import Transformer

__all__ = [
    "Transformer",
    "transformer_base",
    "transformer_big",
    "transformer_table_3",
    "transformer_tiny",
]
