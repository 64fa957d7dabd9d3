"""From text to text, or to labels: a model with its vocabulary."""

from keras_tfm.pipelines.classifier import Classifier, Prediction
from keras_tfm.pipelines.loading import load
from keras_tfm.pipelines.pretrained import Preset, presets
from keras_tfm.pipelines.shared import SharedTranslator
from keras_tfm.pipelines.translation import Hypothesis, Score, Translation
from keras_tfm.pipelines.translator import Translator

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
