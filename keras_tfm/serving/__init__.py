"""From text to text, or to labels: a model with its vocabulary."""

from keras_tfm.serving.classifier import Classifier, Prediction
from keras_tfm.serving.loading import load
from keras_tfm.serving.preset import Preset, presets
from keras_tfm.serving.shared import SharedTranslator
from keras_tfm.serving.translation import Hypothesis, Score, Translation
from keras_tfm.serving.translator import Translator

__all__ = [
    "Classifier",
    "Hypothesis",
    "Prediction",
    "Preset",
    "Score",
    "SharedTranslator",
    "Translation",
    "Translator",
    "load",
    "presets",
]
