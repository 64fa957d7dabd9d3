"""What `compile` and `fit` take: losses, metrics, schedules, callbacks."""

from keras_tfm.training.average import CheckpointAverage, average_weights
from keras_tfm.training.bleu import Bleu
from keras_tfm.training.calibration import expected_calibration_error
from keras_tfm.training.distribution import distribute, local_devices
from keras_tfm.training.losses import SmoothedCrossentropy
from keras_tfm.training.metrics import Perplexity, TokenAccuracy
from keras_tfm.training.projected_crossentropy import ProjectedCrossentropy
from keras_tfm.training.resume import ResumeTraining
from keras_tfm.training.schedules import InverseSquareRoot, Noam

__all__ = [
    "Bleu",
    "CheckpointAverage",
    "InverseSquareRoot",
    "Noam",
    "Perplexity",
    "ProjectedCrossentropy",
    "ResumeTraining",
    "SmoothedCrossentropy",
    "TokenAccuracy",
    "average_weights",
    "distribute",
    "expected_calibration_error",
    "local_devices",
]
