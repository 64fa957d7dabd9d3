"""Pipelines: text in, text, labels or scores out."""

from keras_tfm.pipelines.classifier import Classifier, Prediction
from keras_tfm.pipelines.comet import Comet, CometScores
from keras_tfm.pipelines.glossary import Glossary, GlossaryTranslator
from keras_tfm.pipelines.lexicon import Lexicon
from keras_tfm.pipelines.loading import load
from keras_tfm.pipelines.markup_translation import translate_markup
from keras_tfm.pipelines.pivoting import AutoTranslator, PivotTranslator
from keras_tfm.pipelines.pretrained import Preset, presets
from keras_tfm.pipelines.segmentation import Segment, SegmentedText, Segmenter
from keras_tfm.pipelines.sentences import split_sentences
from keras_tfm.pipelines.shared import SharedTranslator
from keras_tfm.pipelines.sharing import upload
from keras_tfm.pipelines.text_config import TextConfig
from keras_tfm.pipelines.translation import Hypothesis, ScoredTranslation, Translation
from keras_tfm.pipelines.translator import Translator

__all__ = [
    "AutoTranslator",
    "Classifier",
    "Comet",
    "CometScores",
    "Glossary",
    "GlossaryTranslator",
    "Hypothesis",
    "Lexicon",
    "PivotTranslator",
    "Prediction",
    "Preset",
    "ScoredTranslation",
    "Segment",
    "SegmentedText",
    "Segmenter",
    "SharedTranslator",
    "TextConfig",
    "Translation",
    "Translator",
    "load",
    "presets",
    "split_sentences",
    "translate_markup",
    "upload",
]
