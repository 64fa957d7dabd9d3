"""Whole networks in the functional API, and published shapes of them."""

from keras_tfm.models.causal_lm import CausalLM
from keras_tfm.models.encoder import Encoder
from keras_tfm.models.masked_lm import MaskedLM
from keras_tfm.models.presets import (
    bert_base,
    bert_tiny,
    distilbert_base,
    encoder_small,
    minilm_l6,
    roberta_base,
    transformer_base,
    transformer_big,
    transformer_table_3,
    transformer_tiny,
)
from keras_tfm.models.recurrent import RecurrentSeq2Seq
from keras_tfm.models.seq2seq import Transformer
from keras_tfm.models.sequence_classifier import SequenceClassifier

__all__ = [
    "CausalLM",
    "SequenceClassifier",
    "Encoder",
    "MaskedLM",
    "RecurrentSeq2Seq",
    "Transformer",
    "bert_base",
    "bert_tiny",
    "distilbert_base",
    "encoder_small",
    "minilm_l6",
    "roberta_base",
    "transformer_base",
    "transformer_big",
    "transformer_table_3",
    "transformer_tiny",
]
