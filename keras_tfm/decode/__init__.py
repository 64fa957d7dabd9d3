"""Decoding algorithms: from a step function to the best target ids."""

from keras_tfm.decode import logits_processors
from keras_tfm.decode.beam_search import Beam, beam
from keras_tfm.decode.constraints import Constraints
from keras_tfm.decode.ensemble import Ensemble
from keras_tfm.decode.hypotheses import BeamTrace, History, Hypotheses, penalty
from keras_tfm.decode.mbr import MBRResult, minimum_bayes_risk
from keras_tfm.decode.options import Options
from keras_tfm.decode.sampling import Sample, greedy, sample
from keras_tfm.decode.shortlist import Shortlist

__all__ = [
    "Beam",
    "BeamTrace",
    "Constraints",
    "Ensemble",
    "History",
    "Hypotheses",
    "MBRResult",
    "Options",
    "Sample",
    "Shortlist",
    "beam",
    "greedy",
    "logits_processors",
    "minimum_bayes_risk",
    "penalty",
    "sample",
]
