"""Search over a step function: from a model to the best target ids."""

from keras_tfm.decode import processors
from keras_tfm.decode.beam import Beam, beam
from keras_tfm.decode.compile import compiled
from keras_tfm.decode.constraints import Constraints
from keras_tfm.decode.continuous import ContinuousSearch
from keras_tfm.decode.ensemble import Ensemble
from keras_tfm.decode.greedy import Sample, greedy, sample
from keras_tfm.decode.hypotheses import History, Hypotheses, Watched, penalty
from keras_tfm.decode.risk import Choice, minimum_bayes_risk
from keras_tfm.decode.search import Search
from keras_tfm.decode.shortlist import Shortlist

__all__ = [
    "Beam",
    "Choice",
    "Constraints",
    "ContinuousSearch",
    "Ensemble",
    "History",
    "Hypotheses",
    "Sample",
    "Search",
    "Shortlist",
    "Watched",
    "beam",
    "compiled",
    "greedy",
    "minimum_bayes_risk",
    "penalty",
    "processors",
    "sample",
]
