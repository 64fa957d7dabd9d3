"""Whole networks in the functional API, and published configurations of them.

A model that generates text (`Transformer`, `CausalLM`, `RecurrentSeq2Seq`) has
`begin`, `step` and `extend`, and declares what else decoding may use in class
attributes: `begin_options`, `supports_row_steps` and `max_positions`, which
`decode.Decodable` describes.
"""

from keras_tfm.models.causal_lm import CausalLM
from keras_tfm.models.configurations import (
    bert_encoder,
    encoder_small,
    transformer_base,
    transformer_big,
    transformer_table_3,
    transformer_tiny,
)
from keras_tfm.models.encoder import Encoder
from keras_tfm.models.flops import training_flops
from keras_tfm.models.layouts import LAYOUTS
from keras_tfm.models.masked_lm import MaskedLM
from keras_tfm.models.recurrent_seq2seq import RecurrentSeq2Seq
from keras_tfm.models.sequence_classifier import SequenceClassifier
from keras_tfm.models.transformer import Transformer
from keras_tfm.models.translation_estimator import TranslationEstimator

__all__ = [
    "LAYOUTS",
    "CausalLM",
    "Encoder",
    "MaskedLM",
    "RecurrentSeq2Seq",
    "SequenceClassifier",
    "Transformer",
    "TranslationEstimator",
    "bert_encoder",
    "encoder_small",
    "training_flops",
    "transformer_base",
    "transformer_big",
    "transformer_table_3",
    "transformer_tiny",
]
